"""Shuffles between levels: every bundle comes to the slot it was made for."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from holdfast.runtime.spark.exchange import Exchange

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("widths", [(2, 2, 2), (2, 3, 2), (3, 3, 1)])
def test_bundles_come_to_their_slots_whatever_the_widths_of_levels(spark: Any, widths: tuple[int, ...]) -> None:
    exchange = Exchange(spark.sparkContext)
    level = exchange.located([None] * widths[0])
    for before, width in pairwise(widths):

        def stage(index: int, _: Iterable[bytes], width: int = width) -> list[bytes]:
            return [f"{index} to {slot}".encode() for slot in range(width)]

        level = exchange.shuffle(level, stage, before, [None] * width)
    came = exchange.collect(level, lambda index, arrived: [b"; ".join([str(index).encode(), *sorted(arrived)])])
    senders = range(widths[-2])
    assert [part.decode() for part in came] == [
        "; ".join([str(slot), *(f"{sender} to {slot}" for sender in senders)]) for slot in range(widths[-1])
    ]
