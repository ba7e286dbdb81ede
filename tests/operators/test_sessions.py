"""Sessions against a plain loop that merges rows one at a time; keys of every kind; replays, other tasks, late rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import plain_operators as naive
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators import distinct as keys
from holdfast.operators.contract import State
from holdfast.operators.distinct import distinct
from holdfast.operators.grouped import Emit
from holdfast.operators.sessions import OPEN, Sessions
from holdfast.runtime.shape import check_scalable
from holdfast.runtime.worker.repartition import cut, united
from holdfast.state import Change, KeyRange, TaskState, hash_keys
from holdfast.topology import Task

SECOND = 1_000_000
MOMENT = pa.timestamp("us", "UTC")
TEXT = pa.string()
MODES: list[Emit] = ["append", "update", "complete"]
ROW = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 60), st.integers(-2, 12), st.integers(-5, 5))
"""Key, start, length (of nothing, or less, when not positive) and value."""
EPOCHS = st.lists(st.tuples(st.lists(ROW, max_size=10), st.integers(0, 15)), max_size=6)
"""Rows, and by how much the watermark moves on."""


def moments(numbers: list[int]) -> pa.Array:
    return pa.array([number * SECOND for number in numbers], pa.int64()).cast(MOMENT)


def table(rows: list[tuple[Any, int, int, int]], kind: pa.DataType = TEXT) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([row[0] for row in rows], kind),
            "s": moments([row[1] for row in rows]),
            "e": moments([row[1] + row[2] for row in rows]),
            "v": pa.array([row[3] for row in rows], pa.int64()),
        }
    )


def sessions(emit: Emit, gap: int | None = None) -> Sessions:
    by = {"s": MOMENT, "e": MOMENT, "key": pa.string()}
    return Sessions(by, emit, start="s", end="e", gap=gap, n=op.count(), total=op.sum("v"))


def told(output: pa.Table) -> list[tuple[Any, ...]]:
    rows = zip(*(output[name].to_pylist() for name in ("key", "s", "e", "n", "total")), strict=True)
    return [(key, seconds(start), end and seconds(end), *rest) for key, start, end, *rest in rows]


def seconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)


def expected(plain: naive.Sessions, closed: set[Any], emit: Emit) -> set[Any]:
    if emit == "append":
        return closed
    if emit == "update":
        return plain.changed | {(*each, None, None, None) for each in plain.gone}
    return {(key, *each) for key, held in plain.open.items() for each in held}


@pytest.mark.parametrize("emit", MODES)
@settings(deadline=None, derandomize=True, max_examples=12)
@given(epochs=EPOCHS, gap=st.sampled_from([None, 4, 60]), senders=st.integers(1, 3))
def test_sessions_are_those_of_a_loop_over_rows(emit: Emit, epochs: list[Any], gap: int | None, senders: int) -> None:
    operator, plain = sessions(emit, gap), naive.Sessions(emit != "complete")
    state, now = TaskState.empty(operator.tables, -1), None
    counted = {"late": 0, "untimed": 0}
    for number, (rows, step) in enumerate(epochs):
        before, now = now, step if now is None else now + step
        whole = [(key, start, start + length, value) for key, start, length, value in rows if length > 0]
        closed = plain.epoch(whole, before, now)
        sent = [operator.prepare("rows", table(rows[place::senders])) for place in range(senders)]
        marks = now * SECOND, None if before is None else before * SECOND
        views = [State(state.tables, Task("s", 0), number, *marks) for _ in range(2)]
        answers = [operator.process(pa.concat_tables(sent), view) for view in views]
        assert answers[0].equals(answers[1]), "the same rows and state, the same bytes"
        written, again = ({name: each.change.encode() for name, each in view.views.items()} for view in views)
        assert written == again
        got = told(answers[0])
        assert set(got) == expected(plain, closed, emit) and len(set(got)) == len(got)
        if emit == "append":
            assert [row[2] for row in got] == sorted(row[2] for row in got)
        counted = {what: total + views[0].counters.get(what, 0) for what, total in counted.items()}
        state = state.apply({name: Change.decode(change) for name, change in written.items()}, number)
        held = {(row["key"], seconds(row["s"]), seconds(row["e"])) for row in state["state"].to_table().to_pylist()}
        assert held == {(key, *each[:2]) for key, kept in plain.open.items() for each in kept}
        listed = {(row["key"], seconds(start)) for row in state[OPEN].to_table().to_pylist() for start in row["starts"]}
        assert listed == {each[:2] for each in held}
    assert counted == {
        "late": plain.late,
        "untimed": sum(length <= 0 for rows, _ in epochs for _, _, length, _ in rows),
    }
    if emit != "complete":
        view = State(state.tables, Task("s", 0), len(epochs), 1000 * SECOND, None if now is None else now * SECOND)
        operator.process(operator.prepare("rows", table([])), view)
        assert [len(each) for each in view.views.values()] == [0, 0, 0], "nothing is left of sessions that closed"


def trial(operator: op.Operator, senders: int = 1, tasks: int = 1, delay: float = 0) -> op.Trial:
    source = op.source("rows", event_time="time", delay_seconds=delay, parallelism=senders)
    return op.Trial(op.Pipeline(source, op.step("sessions", operator, "rows", parallelism=tasks)))


def clicks(rows: list[tuple[str | None, int | None]]) -> pa.Table:
    times = pa.array([row[1] for row in rows], pa.int64())
    return pa.table({"key": pa.array([row[0] for row in rows], pa.string()), "time": times})


def test_the_example_of_structured_streaming() -> None:
    """Sessions of StreamingSessionWindowSuite: gap 10 s, delay 30 s; a watermark holds from the next epoch on there."""
    running = trial(op.session("10 s", by="key", time="time", n=op.count()), delay=30)
    epochs = [
        [(word, 40) for word in ["hello", "world", "spark", "streaming"]]
        + [(word, 41) for word in ["world", "hello", "structured", "streaming"]],
        [("spark", 25), ("streaming", 25)],
        [("spark", 0), ("streaming", 0)],
        [("spark", 30), ("streaming", 30)],
        [("hello", 60), ("apache", 60), ("spark", 60)],
        [("structured", 90), ("streaming", 90)],
    ]
    answers = [running.epoch(clicks(rows)) for rows in epochs]
    assert [each.output.num_rows for each in answers] == [0, 0, 0, 0, 0, 5]
    assert answers[2].counters == {"sessions": {"late": 2}}
    rows = {(r["key"], seconds(r["start"]), seconds(r["end"]), r["n"]) for r in answers[-1].output.to_pylist()}
    assert rows == {
        ("spark", 25, 50, 3),
        ("streaming", 25, 51, 4),
        ("hello", 40, 51, 2),
        ("world", 40, 51, 2),
        ("structured", 41, 51, 1),
    }


@pytest.mark.parametrize("emit", MODES)
def test_sessions_do_not_depend_on_senders_and_tasks(emit: Emit) -> None:
    random = np.random.default_rng(7)
    epochs = []
    for epoch in range(7):
        times = (epoch * 5 + random.integers(-12, 12, 40)).tolist()
        epochs.append([(f"user{random.integers(9)}", time) for time in times])
    answers = []
    for senders, tasks in ((1, 1), (3, 2), (2, 4)):
        operator = op.session(4, by="key", time="time", emit=emit, n=op.count(), t=op.sum("time"))
        given = trial(operator, senders, tasks, delay=6).run(map(clicks, epochs))
        answers.append([(sorted(map(str, each.output.to_pylist())), each.counters) for each in given])
    assert answers[0] == answers[1] == answers[2]
    assert emit == "complete" or any("late" in counters["sessions"] for _, counters in answers[0] if counters)


def test_sessions_without_keys_are_those_of_all_rows() -> None:
    for by in (None, ()):
        running = trial(op.session(5, by=by, time="time", n=op.count()), senders=2)
        output = running.epoch(clicks([("a", 1), ("b", 6), ("c", 20), (None, None)]), ends=True)
        assert output.output.column_names == ["start", "end", "n"]
        got = [(seconds(r["start"]), seconds(r["end"]), r["n"]) for r in output.output.to_pylist()]
        assert got == [(1, 11, 2), (20, 25, 1)] and output.counters == {"sessions": {"untimed": 1}}
    with pytest.raises(Invalid, match="without keys all rows meet at one task"):
        trial(op.session(5, by=None, time="time", n=op.count()), tasks=2)


STRUCT = pa.struct([("x", pa.int32()), ("y", pa.string())])
KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int16(), [1, None, 2]),
    (pa.decimal128(12, 2), [Decimal("1.50"), Decimal("-2.00"), None]),
    (pa.date32(), [None, datetime(2026, 1, 1).date(), datetime(2026, 1, 2).date()]),
    (pa.timestamp("us"), [datetime(2026, 1, 1), None, datetime(2026, 1, 2)]),
    (pa.bool_(), [True, False, None]),
    (pa.binary(), [b"", b"x", None]),
    (STRUCT, [{"x": 1, "y": None}, {"x": 1, "y": "a"}, None]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS, ids=[str(kind) for kind, _ in KEYS])
@pytest.mark.parametrize("emit", MODES)
def test_keys_may_be_of_any_type_and_null(kind: pa.DataType, values: list[Any], emit: Emit) -> None:
    zone = pa.timestamp("us", "Europe/Berlin")
    by = {"s": zone, "e": zone, "key": kind, "other": pa.int64()}
    operator = Sessions(by, emit, start="s", end="e", n=op.count())
    rows = [(value, start, 5, 0) for start in (0, 5, 11, 17) for value in values]
    batch = table(rows, kind).append_column("other", pa.nulls(len(rows), pa.int64()))
    state = State(TaskState.empty(operator.tables).tables, Task("s", 0), 1, 16 * SECOND, 0)
    operator.process(operator.prepare("a", batch.slice(0, 6)), state)
    output = operator.process(operator.prepare("a", batch.slice(6)), state)
    assert output.column_names == ["s", "e", "key", "other", "n"] and output["s"].type == zone
    spans = sorted((str(row["key"]), seconds(row["s"]), seconds(row["e"]), row["n"]) for row in output.to_pylist())
    wanted = {"append": [(11, 16, 1)], "update": [(11, 16, 1), (17, 22, 1)]}
    wanted["complete"] = [(0, 10, 2), *wanted["update"]]
    assert spans == sorted((str(value), *each) for value in values for each in wanted[emit])


def test_floats_that_are_one_key_in_state_are_one_key_here() -> None:
    operator = op.session(10, by={"key": "float64"}, time="time", n=op.count())
    rows = pa.table({"key": [0.0, -0.0, float("nan"), -float("nan"), None], "time": [1, 2, 3, 4, 5]})
    assert sorted(trial(operator).epoch(rows, ends=True).output["n"].to_pylist()) == [1, 2, 2]


def test_keys_whose_hashes_collide_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "hash64", lambda columns, rows: np.zeros(rows, np.uint64))
    number, first = distinct(pa.table({"a": ["x", "y", "x", None, "z", "y", None]}))
    assert number.tolist() == [0, 1, 0, 2, 3, 1, 2] and first.tolist() == [0, 1, 3, 4]


def test_a_late_row_does_not_touch_an_open_session() -> None:
    operator = sessions("append", 10)
    state = State(TaskState.empty(operator.tables).tables, Task("s", 0), 1, 0, None)
    operator.process(operator.prepare("rows", table([("a", 12, 10, 1)])), state)
    late = State({n: v.table for n, v in state.views.items()}, Task("s", 0), 2, 30 * SECOND, 12 * SECOND)
    # The first row ends at the watermark: it is late, though it touches; the second, combined with it or not, is not.
    output = operator.process(operator.prepare("rows", table([("a", 2, 10, 5), ("a", 3, 10, 7)])), late)
    assert late.counters == {"late": 1} and told(output) == [("a", 3, 22, 2, 8)]


@pytest.mark.parametrize("emit", MODES)
def test_sessions_go_on_in_tasks_that_were_cut_and_joined(emit: Emit) -> None:
    """What a scaled job does to state between two epochs changes nothing but the order of rows."""
    random = np.random.default_rng(3)
    operator = op.session(6, by="key", time="time", emit=emit, n=op.count())
    source = op.source("rows", event_time="time", delay_seconds=3)
    pipeline = op.Pipeline(source, op.step("sessions", operator, op.stream("rows", partitioning="full", key="key")))
    check_scalable(pipeline, "sessions")
    straight, moved, now = TaskState.empty(operator.tables, -1), TaskState.empty(operator.tables, -1), None
    for number in range(10):
        rows = [(f"u{random.integers(20)}", int(time)) for time in number * 3 + random.integers(0, 9, 25)]
        batch = operator.prepare("rows", clicks(rows))
        before, now = now, (number * 3 + 5) * SECOND
        answers = []
        parts = [cut(pipeline, "sessions", moved, half) for half in KeyRange.even(2)]
        for state, share in ((straight, None), *zip(parts, KeyRange.even(2), strict=True)):
            mine = batch if share is None else batch.filter(pa.array(share.contains(hash_keys(batch, ["key"]))))
            view = State(state.tables, Task("sessions", 0), number, now, before)
            answers.append(operator.process(mine, view))
            after = TaskState(number, {name: each.table.at(number) for name, each in view.views.items()})
            if share is None:
                straight = after
            else:
                parts[KeyRange.even(2).index(share)] = after
        moved = united(parts)
        assert moved == straight
        both = pa.concat_tables(answers[1:])
        assert sorted(map(str, both.to_pylist())) == sorted(map(str, answers[0].to_pylist()))


@pytest.mark.parametrize("empty", [pa.table({}), clicks([])])
@pytest.mark.parametrize("emit", MODES)
def test_empty_batches_give_empty_answers_with_their_columns(emit: Emit, empty: pa.Table) -> None:
    operator = op.session(5, by="key", time="time", emit=emit, n=op.count())
    state = State(TaskState.empty(operator.tables).tables, Task("s", 0), 1, 100 * SECOND, 0)
    output = operator.process(operator.prepare("rows", empty), state)
    assert output.num_rows == 0 and output.column_names == ["key", "start", "end", "n"] and not state.counters


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: op.session("ten", by="key", time="t", n=op.count()), "a length of time such as '30 seconds'"),
        (
            lambda: op.session(1, by="key", time="t", emit="all", n=op.count()),
            "emit must be update, append or complete",
        ),
        (lambda: op.session(1, by="start", time="t", n=op.count()), "'start' must be timestamps in microseconds, got"),
        (lambda: op.session(1, by="key", time="t", end=op.count()), "'end' cannot name an aggregation"),
        (lambda: Sessions("key", "append", time="t", n=op.count()), "Give the gap, such as '30 seconds'"),
    ],
)
def test_a_wrong_session_is_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        make()
    assert message in str(caught.value)
