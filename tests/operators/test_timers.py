"""Timers of operators of one's own against a plain dictionary, however the watermark moves and tasks are cut."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.contract import State
from holdfast.runtime.shape import check_scalable
from holdfast.runtime.worker.repartition import cut, united
from holdfast.state import KeyRange, TaskState, hash_keys
from holdfast.topology import Task

SECOND = 1_000_000
KEYS = ["a", "b", "c", "d", None]
SETS = st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 60))), max_size=5)
EPOCHS = st.lists(st.tuples(SETS, st.lists(st.sampled_from(KEYS), max_size=2), st.integers(0, 20)), max_size=8)
"""Timers that are set, then keys that are cancelled, and by how much the watermark moves on."""


class Waking(op.Operator):
    """Sets a timer for each row that has a time, and cancels that of each that says so; answers with what is due."""

    event_time = True
    by = ("key",)

    def __init__(self, step: float, due_first: bool = False) -> None:
        self.timers = op.timers("key", step=step)
        self.tables = self.timers.tables
        self.due_first = due_first

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        due = self.timers.due(state) if self.due_first else None
        if batch.num_rows:
            self.timers.set(state, batch.filter(pa.compute.invert(batch["cancel"])))
            self.timers.cancel(state, batch.filter(batch["cancel"]))
        return self.timers.due(state) if due is None else due


def rows(sets: list[tuple[str | None, int | None]], cancelled: list[str | None]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([*(key for key, _ in sets), *cancelled], pa.string()),
            "time": pa.array([*(time for _, time in sets), *(None for _ in cancelled)], pa.int64()),
            "cancel": pa.array([False] * len(sets) + [True] * len(cancelled), pa.bool_()),
        }
    )


@settings(deadline=None, derandomize=True, max_examples=30)
@given(epochs=EPOCHS, step=st.sampled_from([0.5, 3, 10, 1000]), due_first=st.booleans(), moving=st.booleans())
def test_a_key_is_woken_once_when_the_watermark_reaches_its_time(
    epochs: list[Any], step: float, due_first: bool, moving: bool
) -> None:
    operator = Waking(step, due_first)
    pipeline = op.Pipeline(op.source("rows", event_time="time"), op.step("waking", operator, "rows"))
    check_scalable(pipeline, "waking")
    states = [TaskState.empty(operator.tables, -1)]
    plain: dict[Any, int] = {}
    now: int | None = None
    for number, (sets, cancelled, move) in enumerate([*epochs, ([], [], 1000)]):
        before, now = now, move if now is None else now + move
        due = _due(plain, now) if due_first else {}
        plain.update({key: time for key, time in sets if time is not None})
        for key in cancelled:
            plain.pop(key, None)
        due = due if due_first else _due(plain, now)
        batch, got, after = rows(sets, cancelled), [], []
        ranges = KeyRange.even(len(states))
        for state, part in zip(states, ranges, strict=True):
            marks = now * SECOND, None if before is None else before * SECOND
            view = State(state.tables, Task("waking", 0), number, *marks)
            answer = operator.process(batch.filter(pa.array(part.contains(hash_keys(batch, ["key"])))), view)
            times = answer["time"].cast(pa.int64()).to_pylist()
            assert times == sorted(times)
            got += zip(answer["key"].to_pylist(), (time // SECOND for time in times), strict=True)
            after.append(TaskState(number, {name: each.table.at(number) for name, each in view.views.items()}))
        assert sorted(got, key=str) == sorted(due.items(), key=str)
        states = after
        if moving:
            whole = united(states)
            parts = KeyRange.even(1 + number % 3)
            states = [cut(pipeline, "waking", whole, part) for part in parts]
    assert all(len(state["timers"]) == len(plain) == 0 for state in states)


def _due(plain: dict[Any, int], now: int) -> dict[Any, int]:
    due = {key: time for key, time in plain.items() if time <= now}
    for key in due:
        del plain[key]
    return due


def test_a_state_in_which_an_earlier_version_listed_what_is_due_goes_on() -> None:
    timers = op.timers("key", step="10 seconds")
    listed = next(name for name in timers.tables if name != "timers")
    assert listed == "timers.due.10000000us", "a store that has it fits as long as it is declared"
    before = State(TaskState.empty(timers.tables).tables, Task("o", 0), 1, 11 * SECOND, 10 * SECOND)
    timers.set(before, pa.table({"key": ["a", "b", "c"], "when": [15, 25, 12]}), "when")
    before.table(listed).update(before.table("timers").scan().filter(pa.array([True, False, False])))
    tables = {name: view.table for name, view in before.views.items()}
    state = State(tables, Task("o", 0), 2, 12 * SECOND, 11 * SECOND)
    assert timers.due(state)["key"].to_pylist() == ["c"]
    assert len(state.table("timers")) == 2 and len(state.table(listed)) == 0


def test_a_wrong_timer_is_refused_by_name() -> None:
    with pytest.raises(Invalid, match="timers by time: a key column cannot be called 'time'"):
        op.timers("time")
    timers = op.timers("key", name="alarms")
    state = State(TaskState.empty(timers.tables).tables, Task("o", 0), 1)
    with pytest.raises(Invalid, match="alarms by key: input has no column 'time'; found: key"):
        timers.set(state, pa.table({"key": ["a"]}))
    with pytest.raises(Invalid, match="a length of time such as '30 seconds'"):
        op.timers("key", step=0)
