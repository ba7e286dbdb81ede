"""Batches for their receiver, without Spark."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.queries.delivery import Delivery
from holdfast.state import Store
from holdfast.state.files import open_files


def test_a_batch_that_is_not_taken_after_the_stream_has_ended_is_told(tmp_path: Path) -> None:
    """Then nobody listens to the job any more, and the end of the query is the only place to say it."""

    def refuse(rows: pa.Table | None, epoch: int) -> None:
        raise ValueError("the table is locked")

    told: list[HoldfastError] = []
    over = threading.Event()
    writer = Store(tmp_path).writer("job")
    delivery = Delivery(open_files(str(tmp_path)), refuse, told.append, lambda: (0, -1))
    delivery.finals()
    delivery.begin(writer)
    delivery.end(over.set)
    assert over.wait(20)
    assert "batch 0 was not taken after 6 tries: ValueError: the table is locked" in str(delivery.error)
    assert told == [delivery.error]
