"""Groups that are told when they change, when they close, or all of them: against a plain loop."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.contract import State
from holdfast.operators.grouped import Emit, Grouped, Slides
from holdfast.runtime.shape import scalable
from holdfast.state import TaskState
from holdfast.topology import Task

START = datetime(2026, 1, 1, tzinfo=UTC)
MICROS = 1_000_000
BY = {"end": pa.timestamp("us", "UTC"), "key": pa.string()}
ROWS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from("ab"), st.integers(-5, 5)), max_size=8)
EPOCHS = st.lists(st.tuples(ROWS, st.integers(0, 4)), max_size=6)


def moment(number: int) -> int:
    return int((START + timedelta(seconds=number)).timestamp()) * MICROS


def table(rows: list[tuple[int, str, int]]) -> pa.Table:
    ends = pa.array([START + timedelta(seconds=end) for end, _, _ in rows], BY["end"])
    keys, values = pa.array([key for _, key, _ in rows], pa.string()), pa.array([v for _, _, v in rows], pa.int64())
    return pa.table({"end": ends, "key": keys, "value": values})


def grouped(emit: Emit, time: str | None = "end") -> Grouped:
    return Grouped(BY, emit, time, rows=op.count(), total=op.sum("value"))


def plain(epochs: list[tuple[list[tuple[int, str, int]], int]], emit: Emit) -> list[tuple[set[object], int]]:
    """The answer of each epoch, and the late rows so far; the second of an epoch is how far its watermark moves on."""
    groups: dict[tuple[int, str], list[int]] = {}
    answers, before, late = [], 0, 0
    for rows, step in epochs:
        changed, now = set(), before + step
        for end, key, value in rows:
            if emit != "complete" and end <= before:
                late += 1
                continue
            group = groups.setdefault((end, key), [0, 0])
            group[0] += 1
            group[1] += value
            changed.add((end, key))
        closed = {} if emit == "complete" else {at: each for at, each in groups.items() if at[0] <= now}
        told = {"update": {at: groups[at] for at in changed}, "append": closed, "complete": groups}[emit]
        answers.append(({(*at, *each) for at, each in told.items()}, late))
        groups = {at: each for at, each in groups.items() if at not in closed}
        before = now
    return answers


@pytest.mark.parametrize("emit", ["update", "append", "complete"])
@settings(deadline=None, derandomize=True, max_examples=30)
@given(epochs=EPOCHS)
def test_as_a_plain_loop_has_it(emit: Emit, epochs: list[tuple[list[tuple[int, str, int]], int]]) -> None:
    operator = grouped(emit)
    state, now, late = TaskState.empty(operator.tables, -1), 0, 0
    for number, ((rows, step), expected) in enumerate(zip(epochs, plain(epochs, emit), strict=True)):
        view = State(state.tables, Task("groups", 0), number, moment(now + step), moment(now))
        answer = operator.process(operator.prepare("rows", table(rows)), view)
        late += view.counters.get("late", 0)
        told = {
            (round((end - START).total_seconds()), *rest)
            for end, *rest in zip(*(answer[name].to_pylist() for name in ("end", "key", "rows", "total")), strict=True)
        }
        assert (told, late) == expected
        state = TaskState(number, {name: each.table.at(number) for name, each in view.views.items()})
        now += step


@settings(deadline=None, derandomize=True, max_examples=30)
@given(rows=ROWS, times=st.integers(1, 4), step=st.integers(1, 3))
def test_rows_with_the_newest_of_their_windows_are_in_all_of_them(
    rows: list[tuple[int, str, int]], times: int, step: int
) -> None:
    """What is sent is what rows would send that came once for each window; so is what comes grouped already."""
    by = {"start": pa.timestamp("us"), **BY}
    kept: dict[str, op.Aggregation] = {"rows": op.count(), "total": op.sum("value"), "least": op.min("value")}
    every, newest = (
        Grouped(by, "update", slides=some, **kept) for some in (None, Slides("start", "end", times, step * MICROS))
    )

    def windows(back: int) -> pa.Table:
        moved = table([(end - number * step, key, value) for end, key, value in rows for number in range(back)])
        starts = pa.array([each - timedelta(seconds=times * step) for each in moved["end"].to_pylist()])
        return moved.append_column("start", starts.cast(pa.timestamp("us")))

    names, order = every._travelling.names, [(name, "ascending") for name in (*by, "rows", "total")]
    expected = every._sending.fold(every.prepare("rows", windows(times)), list(by)).sort_by(order)
    grouped = every.prepare("rows", windows(1))
    for sent in (newest.prepare("rows", windows(1)), newest.prepare("rows", grouped)):
        assert sent.schema.names == names
        assert newest._sending.fold(sent, list(by)).sort_by(order).equals(expected)


@pytest.mark.parametrize("emit", ["update", "append", "complete"])
def test_groups_can_be_cut_by_key(emit: Emit) -> None:
    step = op.step("groups", grouped(emit), "rows", parallelism=2)
    assert "groups" in scalable(op.Pipeline(op.source("rows", event_time="end"), step))


def test_what_had_closed_before_is_forgotten_and_not_said_again() -> None:
    """A fork has the state of a checkpoint and the watermark of now: others have said what closed in between."""
    operator, task = grouped("append"), Task("groups", 0)
    first = State(TaskState.empty(operator.tables, -1).tables, task, 0, moment(0), moment(0))
    operator.process(operator.prepare("rows", table([(5, "a", 1), (500, "b", 2)])), first)
    later = State({name: each.table.at(0) for name, each in first.views.items()}, task, 1, moment(600), moment(400))
    answer = operator.process(operator.prepare("rows", table([])), later)
    assert answer["key"].to_pylist() == ["b"] and not len(later.table("state"))


def test_what_never_closes_cannot_be_appended() -> None:
    with pytest.raises(Invalid, match="to append, groups must close: name their time"):
        grouped("append", None)
    with pytest.raises(Invalid, match="time must be a key column with timestamps, got 'key'"):
        grouped("update", "key")
    anything: Any = "all"
    with pytest.raises(Invalid, match="emit must be update, append or complete, got 'all'"):
        grouped(anything)
