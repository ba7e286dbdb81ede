"""Windows, top k, deduplicate and join against their plain versions: rows out of order, late, without a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import plain_operators as naive
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.contract import State
from holdfast.state import TaskState
from holdfast.topology import Task

SECOND = 1_000_000
TIMES = st.one_of(st.none(), st.integers(-30, 120))
EPOCHS = st.lists(st.lists(st.tuples(st.sampled_from("abc"), TIMES), max_size=12), max_size=5)
SIZES = st.sampled_from([(10, 10), (30, 10), (30, 20), (25, 10), (7, 3)])


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


class Marks:
    """The watermark of a source without delay, from the rows of each epoch."""

    def __init__(self) -> None:
        self.now: int | None = None

    def after(self, rows: list[tuple[Any, ...]]) -> tuple[int | None, int | None]:
        before = self.now
        for time in (row[1] for row in rows if row[1] is not None):
            self.now = time * SECOND if self.now is None else max(self.now, time * SECOND)
        return before, self.now


def batch(rows: list[tuple[Any, ...]]) -> pa.Table:
    return pa.table(
        {"key": pa.array([row[0] for row in rows], pa.string()), "time": pa.array([row[1] for row in rows], pa.int64())}
    )


def trial(operator: op.Operator, senders: int = 1, tasks: int = 1) -> op.Trial:
    return op.Trial(
        op.Pipeline(
            op.source("rows", event_time="time", parallelism=senders),
            op.step("answer", operator, op.stream("rows", key="key"), parallelism=tasks),
        )
    )


@settings(deadline=None, derandomize=True, max_examples=40)
@given(epochs=EPOCHS, shape=SIZES, senders=st.integers(1, 2))
def test_windows_hold_what_a_row_by_row_count_holds(
    epochs: list[list[tuple[str, int | None]]], shape: tuple[int, int], senders: int
) -> None:
    size, every = shape
    running = trial(op.sliding(size, every, by="key", time="time", n=op.count()), senders)
    plain, marks = naive.Windows(size * SECOND, every * SECOND), Marks()
    counted: dict[str, int] = {}
    for rows in epochs:
        before, now = marks.after(rows)
        expected = plain.epoch([(key, None if t is None else t * SECOND) for key, t in rows], before, now)
        answer = running.epoch(batch(rows))
        got = answer.output.to_pylist()
        assert [(row["key"], micros(row["start"]), row["n"]) for row in got] == expected
        assert all(row["end"] - row["start"] == timedelta(seconds=size) for row in got)
        for what, number in answer.counters.get("answer", {}).items():
            counted[what] = counted.get(what, 0) + number
    assert counted == dict(plain.counters)
    held = running.states[Task("answer", 0)]["state"].to_table().num_rows
    assert held <= len({(key, t) for rows in epochs for key, t in rows})
    final = running.epoch(batch([]), ends=True).output
    assert sum(final["n"].to_pylist()) == sum(plain.open.values())
    assert len(running.states[Task("answer", 0)]["state"]) == 0


@settings(deadline=None, derandomize=True, max_examples=25)
@given(epochs=EPOCHS, shape=SIZES, senders=st.integers(1, 2), keyed=st.booleans())
def test_windows_can_be_told_whenever_they_change(
    epochs: list[list[tuple[str, int | None]]], shape: tuple[int, int], senders: int, keyed: bool
) -> None:
    size, every = shape
    by = "key" if keyed else None
    running = trial(op.sliding(size, every, by=by, time="time", emit="update", n=op.count()), senders)
    plain, marks = naive.Windows(size * SECOND, every * SECOND), Marks()
    counted: dict[str, int] = {}
    for rows in epochs:
        before, now = marks.after(rows)
        plain.epoch([(key if keyed else "", None if t is None else t * SECOND) for key, t in rows], before, now)
        answer = running.epoch(batch(rows))
        got = [(row.get("key", ""), micros(row["start"]), row["n"]) for row in answer.output.to_pylist()]
        assert got == plain.changed
        for what, number in answer.counters.get("answer", {}).items():
            counted[what] = counted.get(what, 0) + number
    assert counted == dict(plain.counters)
    assert running.epoch(batch([]), ends=True).output.num_rows == 0, "what did not change is not told again"
    assert len(running.states[Task("answer", 0)]["state"]) == 0


def test_windows_without_keys_are_one_for_all_rows_and_of_one_task() -> None:
    for by in (None, (), {}):
        running = trial(op.tumbling(10, by=by, time="time", n=op.count(), total=op.sum("time")), senders=2)
        output = running.epoch(batch([("a", 1), ("b", 2), (None, 13), ("a", None)]), ends=True).output
        assert [(micros(row["start"]), row["n"], row["total"]) for row in output.to_pylist()] == [
            (0, 2, 3),
            (10 * SECOND, 1, 13),
        ]
        assert output.column_names == ["start", "end", "n", "total"]
    with pytest.raises(Invalid, match="operator answer: without keys all rows meet at one task; parallelism must be 1"):
        trial(op.tumbling(10, by=None, time="time", n=op.count()), senders=2, tasks=2)


@pytest.mark.parametrize("emit", ["append", "update"])
@pytest.mark.parametrize("tasks", [2, 3])
def test_windows_do_not_depend_on_the_number_of_tasks(tasks: int, emit: Any) -> None:
    epochs = [[(key, e * 7 + i % 9) for i, key in enumerate("abcdefgh" * 3)] for e in range(6)]
    answers = []
    for number in (1, tasks):
        windows = op.sliding("10 s", "5 s", by="key", time="time", emit=emit, n=op.count(), t=op.mean("time"))
        running = trial(windows, number, number)
        rows = [row for each in running.run(map(batch, epochs), ends=True) for row in each.output.to_pylist()]
        answers.append(sorted(rows, key=str))
    assert answers[0] == answers[1]


def state_for(operator: op.Operator, before: int | None, now: int | None) -> State:
    return State(TaskState.empty(operator.tables).tables, Task("w", 0), 1, now, before)


def test_input_that_is_late_altogether_is_counted_and_leaves_nothing() -> None:
    operator = op.tumbling("10 seconds", by="key", time="time", n=op.count())
    state = state_for(operator, 100 * SECOND, 100 * SECOND)
    output = operator.process(operator.prepare("rows", batch([("a", 5), ("a", 6), ("b", 89)])), state)
    assert output is not None and output.num_rows == 0
    assert state.counters == {"late": 3}
    assert len(state.table("state")) == 0


def test_a_row_at_the_boundary_is_late_only_when_the_end_was_reached_before_the_epoch() -> None:
    operator = op.tumbling("10 seconds", by="key", time="time", n=op.count())
    in_time = state_for(operator, 10 * SECOND - 1, 10 * SECOND)
    assert operator.process(operator.prepare("rows", batch([("a", 9)])), in_time).num_rows == 1
    late = state_for(operator, 10 * SECOND, 11 * SECOND)
    assert operator.process(operator.prepare("rows", batch([("a", 9)])), late).num_rows == 0
    assert late.counters == {"late": 1}


def test_without_a_watermark_nothing_closes_and_nothing_is_late() -> None:
    operator = op.tumbling("10 seconds", by="key", time="time", n=op.count())
    state = state_for(operator, None, None)
    assert operator.process(operator.prepare("rows", batch([("a", 5), ("b", None)])), state).num_rows == 0
    assert state.counters == {"untimed": 1}
    assert len(state.table("state")) == 1


@pytest.mark.parametrize(
    "times",
    [
        pa.array([0.5, 9.999999, 10.0]),
        pa.array([500, 9_999, 10_000], pa.timestamp("ms")),
        pa.array([500_000_000, 9_999_999_999, 10_000_000_000], pa.timestamp("ns", "UTC")),
        pa.array([0, 9, 10], pa.int32()),
        pa.array([0, 9, 10], pa.timestamp("s", "America/New_York")),
    ],
)
def test_times_may_be_timestamps_of_any_unit_or_seconds(times: pa.Array) -> None:
    running = trial(op.tumbling("10 seconds", by="key", time="time", n=op.count()))
    output = running.epoch(pa.table({"key": ["a"] * 3, "time": times}), ends=True).output
    assert output["n"].to_pylist() == [2, 1]
    assert output.schema.field("start").type == pa.timestamp("us", "UTC")


def test_a_window_can_keep_its_top_rows_alone() -> None:
    rows = [(key, 1) for key in "aaabbccccd"]
    running = trial(op.tumbling(10, by="key", time="time", n=op.count(), top=(2, "n")))
    output = running.epoch(batch(rows), ends=True).output.to_pylist()
    assert [(row["rank"], row["key"], row["n"]) for row in output] == [(1, "c", 4), (2, "a", 3)]


@pytest.mark.parametrize("rising", [True, False])
@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    epochs=st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9)), max_size=6), keep=st.integers(1, 4)
)
def test_a_ranking_is_given_whenever_it_changed(rising: bool, epochs: list[dict[str, int]], keep: int) -> None:
    running = op.Trial(
        op.Pipeline(op.source("rows", parallelism=2), op.step("top", op.top_k(keep, "n", "key", rising=rising), "rows"))
    )
    values: dict[str, int] = {}
    last: list[tuple[int, str, int]] = []
    for changes in epochs:
        rows = {key: values.get(key, 0) + n if rising else n for key, n in changes.items()}
        values.update(rows)
        output = running.epoch(
            pa.table({"key": pa.array(rows, pa.string()), "n": pa.array(rows.values(), pa.int64())})
        ).output
        expected = naive.top(values, keep)
        assert [tuple(row.values()) for row in output.to_pylist()] == ([] if expected == last else expected)
        last = expected
    if rising:
        assert len(running.states[Task("top", 0)]["state"]) <= keep


def test_rankings_within_groups_come_for_the_groups_that_changed() -> None:
    running = op.Trial(
        op.Pipeline(op.source("rows"), op.step("top", op.top_k(1, "n", "key", within="city"), "rows", parallelism=2))
    )
    running.epoch(pa.table({"city": ["x", "x", "y"], "key": ["a", "b", "a"], "n": [1, 2, 3]}))
    output = running.epoch(pa.table({"city": ["x", "y"], "key": ["a", "b"], "n": [9, 1]})).output
    assert output.to_pylist() == [{"city": "x", "rank": 1, "key": "a", "n": 9}]


def test_a_ranking_of_windows_is_made_once_when_they_close() -> None:
    windows = op.tumbling(10, by="key", time="time", n=op.count(), top=(2, "n"))
    top = op.top_k(2, "n", "key", within={"end": pa.timestamp("us", "UTC")}, closes="end")
    running = op.Trial(
        op.Pipeline(
            op.source("rows", event_time="time"),
            op.step("windows", windows, "rows", parallelism=3),
            op.step("top", top, "windows"),
        )
    )
    first = running.epoch(batch([(key, 1) for key in "aaabbccccd"])).output
    second = running.epoch(batch([("a", 10)])).output
    assert first.num_rows == 0
    assert [(row["rank"], row["key"], row["n"]) for row in second.to_pylist()] == [(1, "c", 4), (2, "a", 3)]
    assert len(running.states[Task("top", 0)]["state"]) == 0


@settings(deadline=None, derandomize=True, max_examples=30)
@given(epochs=st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 90)), max_size=12), max_size=6))
def test_deduplicate_within_a_span_agrees_with_the_plain_version(epochs: list[list[tuple[str, int]]]) -> None:
    running = trial(op.deduplicate("key", time="time", within="10 seconds"))
    plain, marks = naive.Deduplicate(10 * SECOND), Marks()
    late = 0
    for rows in epochs:
        before, now = marks.after(rows)
        expected = plain.epoch([(key, t * SECOND) for key, t in rows], before)
        answer = running.epoch(batch(rows))
        assert [(row["key"], row["time"] * SECOND) for row in answer.output.to_pylist()] == expected
        late += answer.counters.get("answer", {}).get("late", 0)
        seen = running.states[Task("answer", 0)]["state"].to_table()["seen"].cast(pa.int64()).to_pylist()
        assert now is None or all(t > now - 22_500_000 for t in seen)
    assert late == plain.late


@pytest.mark.parametrize(("senders", "tasks"), [(1, 1), (2, 3)])
def test_deduplicate_gives_the_first_row_of_each_key_for_ever(senders: int, tasks: int) -> None:
    running = op.Trial(
        op.Pipeline(
            op.source("rows", parallelism=senders),
            op.step("first", op.deduplicate({"id": "int64"}), "rows", parallelism=tasks),
        )
    )
    first = running.epoch(pa.table({"id": pa.array([1, 2, 1, None, None, 2], pa.int64()), "n": range(6)})).output
    second = running.epoch(pa.table({"id": pa.array([2, 3, None], pa.int64()), "n": range(3)})).output
    assert sorted(first["n"].to_pylist()) == [0, 1, 3]
    assert second["n"].to_pylist() == [1]


SIDE = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 60), st.integers(0, 99)), max_size=8)


def sides(name: str, rows: list[tuple[str | None, int, int]]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([row[0] for row in rows], pa.string()),
            "time": pa.array([row[1] for row in rows], pa.int64()),
            name: pa.array([row[2] for row in rows], pa.int64()),
        }
    )


def joining(size: int, every: int, how: Any = "inner", tasks: int = 1) -> op.Trial:
    join = op.join(
        op.side("left", {"x": "int64"}, time="time"),
        op.side("right", {"y": "int64"}, time="time"),
        on="key",
        size=size,
        every=every,
        how=how,
    )
    return op.Trial(
        op.Pipeline(
            op.source("left", event_time="time", delay_seconds=60),
            op.source("right", event_time="time", delay_seconds=60),
            op.step("pairs", join, ["left", "right"], correlated=True, parallelism=tasks),
        )
    )


@settings(deadline=None, derandomize=True, max_examples=25)
@given(left=st.tuples(SIDE, SIDE), right=st.tuples(SIDE, SIDE), shape=SIZES, tasks=st.integers(1, 2))
def test_a_join_pairs_rows_of_equal_key_in_every_window_they_share(
    left: tuple[Any, Any], right: tuple[Any, Any], shape: tuple[int, int], tasks: int
) -> None:
    size, every = shape
    running = joining(size, every, tasks=tasks)
    epochs = [{"left": sides("x", a), "right": sides("y", b)} for a, b in zip(left, right, strict=True)]
    got = [row for each in running.run(epochs, ends=True) for row in each.output.to_pylist()]
    scaled = [[(key, t * SECOND, v) for key, t, v in one + two] for one, two in (left, right)]
    expected = naive.join(*scaled, size * SECOND, every * SECOND)
    assert sorted((row["key"], micros(row["start"]), row["x"], row["y"]) for row in got) == sorted(expected)
    for task in (t for t in running.states if t.operator == "pairs"):
        assert len(running.states[task]["left"]) == len(running.states[task]["right"]) == 0


def test_outer_joins_keep_rows_without_a_match_in_a_fixed_order() -> None:
    left, right = [("b", 1, 1), ("a", 2, 2), (None, 3, 3)], [("a", 1, 10), ("a", 2, 11), ("c", 1, 12), (None, 1, 13)]
    answers = {}
    for how in ("inner", "left", "outer"):
        output = joining(10, 10, how).epoch({"left": sides("x", left), "right": sides("y", right)}, ends=True).output
        answers[how] = [(row["key"], row["x"], row["y"]) for row in output.to_pylist()]
    assert answers["inner"] == [("a", 2, 10), ("a", 2, 11)]
    assert answers["left"] == [("a", 2, 10), ("a", 2, 11), ("b", 1, None), (None, 3, None)]
    assert sorted(answers["outer"], key=str) == sorted([*answers["left"], ("c", None, 12), (None, None, 13)], key=str)


@pytest.mark.parametrize("empty", [pa.table({}), batch([])])
@pytest.mark.parametrize(
    "operator",
    [
        op.tumbling(10, by="key", time="time", n=op.count()),
        op.sliding(10, 5, by="key", time="time", n=op.sum("time"), top=(1, "n")),
        op.sliding(10, 5, by=(), time="time", n=op.sum("time"), emit="update"),
        op.deduplicate("key", time="time", within=5),
        op.deduplicate("key"),
        op.top_k(2, "time", "key"),
        op.top_k(2, "time", "key", rising=True),
        op.aggregate("key", n=op.count()),
        op.combine("key", n=op.count()),
        op.map("key"),
        op.filter("time > 1"),
        op.flat_map(key=pl.col("key").str.split(" ")),
    ],
)
def test_empty_batches_pass_through_every_operator(operator: op.Operator, empty: pa.Table) -> None:
    state = state_for(operator, 0, 100 * SECOND)
    output = operator.process(operator.prepare("rows", empty), state)
    assert output is not None and output.num_rows == 0
    assert not state.counters


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: op.tumbling("ten", by="key", time="t", n=op.count()), "a length of time such as '30 seconds'"),
        (lambda: op.tumbling(0, by="key", time="t", n=op.count()), "a length of time such as '30 seconds'"),
        (
            lambda: op.sliding(10, 20, by="key", time="t", n=op.count()),
            "the step (20) must not be longer than the window (10)",
        ),
        (lambda: op.tumbling(10, by="start", time="t", n=op.count()), "a key column cannot be called 'start'"),
        (lambda: op.tumbling(10, by="key", time="t", end=op.count()), "'end' cannot name an aggregation"),
        (lambda: op.tumbling(10, by="key", time="t", n=op.count(), top=(3, "m")), "top is (how many, which aggregate)"),
        (
            lambda: op.tumbling(10, by="key", time="t", n=op.count(), emit="update", top=(3, "n")),
            "top ranks a window once, when it closes; to rank open ones, put op.top_k behind",
        ),
        (lambda: op.tumbling(10, None, "t", n=op.count(), emit="all"), "emit must be append or update, got 'all'"),
        (lambda: op.deduplicate("key", time="t"), "time and within belong together"),
        (lambda: op.top_k(0, "n", "key"), "keep at least 1 key, got 0"),
        (lambda: op.top_k(1, "n", "n"), "must be different columns"),
        (
            lambda: op.top_k(1, "n", "key", closes="end"),
            "closes='end' must be among the columns of within, found: none",
        ),
        (
            lambda: op.join(op.side("a", "x", time="t"), op.side("b", "x", time="t"), on="key", size=1),
            "join of a and b: column 'x' would be there twice",
        ),
        (
            lambda: op.join(op.side("a", "x", time="t"), op.side("a", "y", time="t"), on="key", size=1),
            "the two inputs must be different operators",
        ),
    ],
)
def test_a_wrong_window_is_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        make()
    assert message in str(caught.value)


def test_a_time_that_is_no_time_is_named() -> None:
    running = trial(op.tumbling(10, by="key", time="when", n=op.count()))
    with pytest.raises(Invalid, match=r"input rows: input has no column 'when'; found: key, time"):
        running.epoch(batch([("a", 1)]))
    wrong = op.tumbling(10, by="key", time="key", n=op.count())
    with pytest.raises(Invalid, match="time column 'key' must be a timestamp or a number of seconds, found string"):
        wrong.prepare("rows", batch([("a", 1)]))
