"""Batches for their receiver, without Spark."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import HoldfastError
from holdfast.queries.delivery import Delivery
from holdfast.runtime.driver.durable import StoreRefused
from holdfast.runtime.driver.ports import Retry
from holdfast.state import Store, Unusable, output
from holdfast.state.files import open_files
from holdfast.state.output import place, stage
from waiting import DEADLINE


@pytest.mark.usefixtures("offered_at_once")
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
    assert over.wait(DEADLINE)
    assert "batch 0 was not taken after 2 tries: ValueError: the table is locked (test_delivery.py, line" in str(
        delivery.error
    )
    assert told == [delivery.error]


def test_a_stream_that_ends_before_its_batches_are_begun_ends_when_they_are_given(tmp_path: Path) -> None:
    """As on a restart that finds no new rows: what was not delivered before is delivered first."""
    store = Store(tmp_path)
    writer = store.writer("job")
    rows = pa.table({"n": [7]})
    place(store.files, [stage(store.files, "1-1", "final", 0, "O/0", rows, 1.0, True)], True)
    given: list[list[int]] = []
    over = threading.Event()

    def take(rows: pa.Table | None, epoch: int) -> None:
        given.append([] if rows is None else rows["n"].to_pylist())

    delivery = Delivery(store.files, take, lambda _: None, lambda: (0, 0))
    delivery.finals()
    delivery.end(over.set)
    assert not over.is_set()
    delivery.begin(writer)
    assert over.wait(20) and given == [[7]]


def test_a_stream_that_ends_waits_for_no_batches_that_are_not_begun(tmp_path: Path) -> None:
    """Since it failed, or since what takes them was refused meanwhile."""
    for failed in (True, False):
        over = threading.Event()
        delivery = Delivery(open_files(str(tmp_path)), lambda *_: None, lambda _: None, lambda: (0, 0))
        if failed:
            delivery.end(over.set, begins=False)
        else:
            delivery.end(over.set)
            assert not over.is_set()
            delivery.leave()
        assert over.is_set()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the store refuses is tried again without a pause to speak of."""
    monkeypatch.setattr("holdfast.runtime.driver.durable.AGAIN", Retry(first=0.001, most=0.001))


@pytest.mark.parametrize("what", ["list", "map", "put", "check", "delete_many"])
def test_a_store_that_is_out_of_reach_for_a_while_costs_no_batch(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    """Nor does any come twice, or empty."""
    monkeypatch.setattr("holdfast.queries.delivery.KEPT", 0)
    store = Store(tmp_path)
    writer = store.writer("job")
    for epoch in range(4):
        rows = pa.table({"n": [epoch]})
        place(store.files, [stage(store.files, "1-1", "final", epoch, "O/0", rows, 1.0, True)], True)
    files = open_files(str(tmp_path))
    given: list[tuple[int, list[int]]] = []
    told: list[HoldfastError] = []
    over = threading.Event()

    def take(rows: pa.Table | None, epoch: int) -> None:
        given.append((epoch, [] if rows is None else rows["n"].to_pylist()))

    delivery = Delivery(files, take, told.append, lambda: (3, 3))
    delivery.finals()
    place_of, refusals = (writer if what == "check" else files), [3]
    real = getattr(place_of, what)

    def refusing(*args: object) -> object:
        if refusals[0] and args != ("cursor",):  # with that it begins
            refusals[0] -= 1
            raise Unusable("503 Slow Down")
        return real(*args)

    monkeypatch.setattr(place_of, what, refusing)
    delivery.begin(writer)
    delivery.end(over.set)
    assert over.wait(DEADLINE) and told == [] and not refusals[0]
    assert given == [(epoch, [epoch]) for epoch in range(4)]
    assert [epoch for epoch, _ in output.written(store.files, "final")] == [3], "what was taken is let go of"


def test_a_store_that_stays_out_of_reach_ends_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: None
) -> None:
    monkeypatch.setattr("holdfast.runtime.driver.durable.GIVE_UP", 0.05)
    writer = Store(tmp_path).writer("job")
    over = threading.Event()
    told: list[HoldfastError] = []
    delivery = Delivery(open_files(str(tmp_path)), lambda *_: None, told.append, lambda: (0, -1))

    def refused() -> None:
        raise Unusable("503 Slow Down")

    monkeypatch.setattr(writer, "check", refused)
    delivery.finals()
    delivery.begin(writer)
    delivery.end(over.set)
    assert over.wait(DEADLINE)
    assert [type(error) for error in told] == [StoreRefused] and "503 Slow Down; it was asked again" in str(told[0])
