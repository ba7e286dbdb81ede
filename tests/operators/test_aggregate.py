"""Keyed aggregates against the plain version, however rows are cut into epochs, senders and tasks."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from zoneinfo import ZoneInfo

import plain_operators as naive
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.columns import type_of
from holdfast.operators.contract import State
from holdfast.state import TaskState
from holdfast.topology import Task

ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", "", None]), st.one_of(st.none(), st.integers(-(2**40), 2**40))),
    max_size=30,
)
SCHEMA = pa.schema({"key": pa.string(), "x": pa.int64()})


def everything() -> op.Operator:
    return op.aggregate(
        "key",
        rows=op.count(),
        values=op.count("x"),
        total=op.sum("x"),
        mean=op.mean("x", "int64"),
        low=op.min("x"),
        high=op.max("x"),
        two=op.largest(2, "x"),
    )


def trial(operator: op.Operator, senders: int = 1, tasks: int = 1) -> op.Trial:
    return op.Trial(
        op.Pipeline(
            op.source("rows", parallelism=senders),
            op.step("answer", operator, "rows", parallelism=tasks),
        )
    )


def table(rows: list[tuple[str | None, int | None]]) -> pa.Table:
    return pa.Table.from_pylist([{"key": key, "x": x} for key, x in rows], SCHEMA)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(epochs=st.lists(ROWS, max_size=4), senders=st.integers(1, 3), tasks=st.integers(1, 3))
def test_every_epoch_lists_the_keys_that_changed_with_their_new_values(
    epochs: list[list[tuple[str | None, int | None]]], senders: int, tasks: int
) -> None:
    running = trial(everything(), senders, tasks)
    so_far: list[dict[str, object]] = []
    for rows in epochs:
        so_far += table(rows).to_pylist()
        expected = naive.aggregate(so_far, "key", "x")
        output = running.epoch(table(rows)).output.to_pylist()
        assert len(output) == len({key for key, _ in rows})
        assert {row["key"]: row for row in output} == {key: expected[key] for key, _ in rows}


@settings(deadline=None, derandomize=True, max_examples=20)
@given(rows=ROWS)
def test_combine_aggregates_one_epoch_and_remembers_nothing(rows: list[tuple[str | None, int | None]]) -> None:
    running = trial(op.combine("key", rows=op.count(), total=op.sum("x")))
    expected = naive.aggregate(table(rows).to_pylist(), "key", "x")
    for _ in range(2):
        output = running.epoch(table(rows)).output.to_pylist()
        assert {row["key"]: (row["rows"], row["total"]) for row in output} == {
            key: (row["rows"], row["total"]) for key, row in expected.items()
        }
    assert not running.states[next(iter(running.states))].tables


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(-9, 9), st.sampled_from([-(2**63), 2**63 - 1])),
            st.one_of(st.none(), st.integers(-5, 5), st.sampled_from([2**52, -(2**52)])),
        ),
        max_size=12,
    )
)
def test_integer_keys_close_together_or_far_apart_give_the_same_totals(
    rows: list[tuple[int | None, int | None]],
) -> None:
    schema = pa.schema({"key": pa.int64(), "x": pa.int64()})
    batch = pa.Table.from_pylist([{"key": key, "x": x} for key, x in rows], schema)
    running = trial(op.aggregate({"key": "int64"}, rows=op.count(), total=op.sum("x")), 2)
    for times in (1, 2):
        expected = naive.aggregate(batch.to_pylist() * times, "key", "x")
        output = running.epoch(batch).output.to_pylist()
        assert {row["key"]: (row["rows"], row["total"]) for row in output} == {
            key: (row["rows"], row["total"]) for key, row in expected.items()
        }


def test_keys_of_several_columns_and_types() -> None:
    running = trial(op.aggregate({"user": "int64", "page": "string"}, n=op.count()), tasks=2)
    batch = pa.table({"user": pa.array([1, 1, 2], pa.int32()), "page": pa.array(["x", "x", "x"]).dictionary_encode()})
    running.epoch(batch)
    output = running.epoch(batch).output
    assert output.schema == pa.schema({"user": pa.int64(), "page": pa.string(), "n": pa.int64()})
    assert sorted(output.to_pylist(), key=str) == [{"user": 1, "page": "x", "n": 4}, {"user": 2, "page": "x", "n": 2}]


def test_strings_times_and_decimals_can_be_aggregated() -> None:
    running = trial(
        op.aggregate(
            "k", first=op.min("s", "string"), last=op.max("t", "timestamp[us]"), money=op.sum("d", "decimal128(9, 2)")
        )
    )
    batch = pa.table(
        {
            "k": ["a", "a"],
            "s": ["pear", "apple"],
            "t": pa.array([1, 2], pa.timestamp("us")),
            "d": pa.array([Decimal("0.10"), Decimal("0.20")], pa.decimal128(9, 2)),
        }
    )
    running.epoch(batch)
    (row,) = running.epoch(batch).output.to_pylist()
    assert (row["first"], row["last"].microsecond, row["money"]) == ("apple", 2, Decimal("0.60"))


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("bool", False, True),
        ("timestamp[us]", datetime(2026, 1, 1), datetime(2026, 1, 2)),
        ("timestamp[us, tz=UTC]", datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        ("timestamp[ns, tz=Europe/Berlin]", datetime(1969, 1, 1, tzinfo=BERLIN), datetime(2026, 1, 2, tzinfo=BERLIN)),
        ("date32", date(1969, 1, 1), date(2026, 1, 1)),
        ("duration[us]", timedelta(seconds=-1), timedelta(seconds=1)),
        ("time64[us]", clock(1), clock(2)),
        ("string", "a", "b"),
    ],
)
def test_min_and_max_of_whatever_has_an_order(kind: str, low: object, high: object) -> None:
    """In a batch, between senders, and with what is remembered: the three places where two values meet."""
    running = trial(op.aggregate("k", low=op.min("x", kind), high=op.max("x", kind)), senders=2)
    written = type_of(kind, "x")
    for values in ([low, None, high, low], [None, high, low, None], [None], [low, high]):
        output = running.epoch(pa.table({"k": ["a"] * len(values), "x": pa.array(values, written)})).output
        assert output.schema.field("low").type == output.schema.field("high").type == written
        assert output.select(["low", "high"]).to_pylist() == [{"low": low, "high": high}]


def test_the_type_that_a_message_names_is_one_that_can_be_written() -> None:
    """Spark's timestamps have a zone."""
    batch = pa.table({"k": ["a"], "x": pa.array([1], pa.timestamp("us", "UTC"))})
    with pytest.raises(Invalid) as caught:
        trial(op.aggregate("k", last=op.max("x"))).epoch(batch)
    said = re.search(r"say op.max\('x', '(.*)'\)", str(caught.value))
    assert said is not None, str(caught.value)
    assert trial(op.aggregate("k", last=op.max("x", said[1]))).epoch(batch).output["last"] == batch["x"]


def test_sums_of_floats_in_decimals_do_not_depend_on_how_rows_are_spread() -> None:
    values = [0.1, 1e15, -1e15, 0.3] * 25
    batch = pa.table({"k": ["a"] * 100, "x": pa.array([Decimal(str(v)) for v in values], pa.decimal128(20, 2))})
    answers = {
        trial(op.aggregate("k", x=op.sum("x", "decimal128(20, 2)")), senders).epoch(batch).output["x"][0].as_py()
        for senders in (1, 2, 3, 7)
    }
    assert answers == {Decimal("10.00")}


def test_the_same_epoch_gives_the_same_float_bits() -> None:
    batch = pa.table({"k": [str(i % 7) for i in range(20_000)], "x": [(i * 0.37) % 1.1 for i in range(20_000)]})
    runs = [trial(op.aggregate("k", x=op.sum("x", "float64")), 2, 2).epoch(batch).output for _ in range(5)]
    assert all(run.equals(runs[0]) for run in runs)


@pytest.mark.parametrize("cut", [1, 2])
def test_a_sum_that_overflows_is_reported(cut: int) -> None:
    running = trial(op.aggregate("key", total=op.sum("x")))
    rows = [("a", 2**62), ("a", 2**62)]
    with pytest.raises(Invalid, match=r"total: the sum does not fit int64; sum it as decimal128"):
        for start in range(0, 2, 2 // cut):
            running.epoch(table(rows[start : start + 2 // cut]))


def test_whole_numbers_that_no_float_has_are_rounded_where_they_are_added_as_floats_only() -> None:
    large = 2**53 + 1
    batch = pa.table({"key": ["a", "a"], "x": [large, large]})
    added = trial(op.aggregate("key", mean=op.mean("x"), sum=op.sum("x", "float64"), var=op.variance("x")))
    assert added.epoch(batch).output.to_pylist() == [{"key": "a", "mean": 2.0**53, "sum": 2.0**54, "var": 0.0}]
    with pytest.raises(Invalid, match="column 'x' does not fit double"):
        trial(op.aggregate("key", most=op.max("x", "float64"))).epoch(batch)
    with pytest.raises(Invalid, match="column 'x' does not fit double"):
        trial(op.aggregate({"x": "float64"}, n=op.count())).epoch(batch)


def test_large_values_that_cancel_are_summed_exactly() -> None:
    output = (
        trial(op.aggregate("key", total=op.sum("x"))).epoch(table([("a", 2**62), ("a", 2**62), ("a", -(2**62))])).output
    )
    assert output["total"].to_pylist() == [2**62]


def test_nan_is_passed_over_by_min_and_max() -> None:
    batch = pa.table({"k": ["a", "a", "b"], "x": [float("nan"), 1.0, 2.0]})
    running = trial(op.aggregate("k", low=op.min("x", "float64"), high=op.max("x", "float64")))
    running.epoch(batch)
    assert running.epoch(batch).output.to_pylist() == [
        {"k": "a", "low": 1.0, "high": 1.0},
        {"k": "b", "low": 2.0, "high": 2.0},
    ]


def test_empty_batches_with_and_without_columns_keep_the_schema() -> None:
    running = trial(everything(), 2, 2)
    for batch in (pa.table({}), SCHEMA.empty_table()):
        output = running.epoch(batch).output
        assert output.num_rows == 0
        assert output.schema.field("two").type == pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"word": ["a"], "x": [1]}, "aggregate by key, input rows: input has no column 'key'; found: word, x"),
        ({"key": [1], "x": [1]}, "column 'key' must be string, found int64; keys are declared as {'key': 'string'}"),
        ({"key": ["a"], "x": [1.5]}, "column 'x' must be int64, found double; say op.sum('x', 'float64')"),
        ({"key": ["a"]}, "aggregate by key: input has no column 'x'; found: key"),
    ],
)
def test_what_does_not_fit_is_named(batch: dict[str, list[object]], message: str) -> None:
    running = trial(op.aggregate("key", total=op.sum("x")))
    with pytest.raises(Invalid) as caught:
        running.epoch(pa.table(batch))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: op.aggregate("key"), "aggregate by key: name at least one aggregation"),
        (lambda: op.aggregate([], n=op.count()), "aggregate: name at least one column"),
        (lambda: op.aggregate("key", key=op.count()), "'key' cannot name an aggregation"),
        (lambda: op.aggregate("key", n=5), "n must be an aggregation such as op.count()"),
        (lambda: op.aggregate({"key": "text"}, n=op.count()), "aggregate: unknown type 'text'"),
        (lambda: op.aggregate(["a", "a"], n=op.count()), "column 'a' is named twice"),
        (lambda: op.sum("x", "string"), "sum of x: only numbers can be added, got string"),
        (lambda: op.max("x", "float16"), "max of x: halffloat values cannot be compared here"),
        (lambda: op.min("x", pa.list_(pa.int64())), "min of x: list<item: int64> values cannot be compared here"),
        (lambda: op.max("x", "timestamp[us, tz=Nowhere/At all]"), "unknown type 'timestamp[us, tz=Nowhere/At all]'"),
        (lambda: op.largest(0, "x"), "largest of x: keep at least 1 value, got 0"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(make: object, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        make()  # type: ignore[operator]
    assert message in str(caught.value)


TIMED = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.one_of(st.none(), st.integers(0, 60))), max_size=6
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(epochs=st.lists(TIMED, max_size=7), ttl=st.sampled_from([1, 7, 20]), senders=st.integers(1, 2))
def test_a_key_not_seen_for_its_span_is_forgotten_and_begins_anew(
    epochs: list[list[tuple[str | None, int | None]]], ttl: int, senders: int
) -> None:
    kept = op.aggregate("key", n=op.count(), two=op.largest(2, "time"), ttl=ttl, time="time")
    source = op.source("rows", event_time="time", delay_seconds=3, parallelism=senders)
    running = op.Trial(op.Pipeline(source, op.step("answer", kept, "rows", parallelism=2)))
    plain, now = naive.Lasting(ttl), None
    for rows in epochs:
        before = now
        now = max(
            (t - 3 for t in [None if now is None else now + 3, *(t for _, t in rows)] if t is not None), default=None
        )
        expected = plain.epoch(rows, before, now)
        batch = pa.table(
            {"key": pa.array([k for k, _ in rows], pa.string()), "time": pa.array([t for _, t in rows], pa.int64())}
        )
        output = running.epoch(batch).output
        assert output.column_names == ["key", "n", "two"], "when a key was seen is not told"
        assert dict(zip(output["key"].to_pylist(), output["n"].to_pylist(), strict=True)) == expected
        held = {key for task in running.states for key in held_by(running, task)}
        alive = {key for key, each in plain.held.items() if not plain.over(each[1], now)}
        assert alive <= held, "never freed before its time"
    running.epoch(pa.table({"key": ["z"], "time": [1000]}))
    running.epoch(pa.table({"key": ["z"], "time": [2000]}))
    untimed = {key for key, (_, seen) in plain.held.items() if seen is None}
    assert {key for task in running.states for key in held_by(running, task)} == {"z"} | untimed


@pytest.mark.parametrize("senders", [1, 2])
def test_a_row_without_a_time_keeps_its_key_beside_one_that_has_an_old_time(senders: int) -> None:
    """However they are spread over senders; and what arrives first stays first."""
    kept = op.aggregate("key", n=op.count(), all=op.collect("x"), ttl=15, time="time")
    source = op.source("rows", event_time="time", parallelism=senders)
    running = op.Trial(op.Pipeline(source, op.step("answer", kept, "rows")))

    def epoch(*rows: tuple[str, int | None, int]) -> list[tuple[int, list[int]]]:
        names, times, xs = zip(*rows, strict=True)
        batch = pa.table({"key": names, "time": pa.array(times, pa.int64()), "x": xs})
        output = running.epoch(batch).output.to_pylist()
        return [(row["n"], row["all"]) for row in output if row["key"] == "a"]

    assert epoch(("b", 100, 0)) == []
    assert epoch(("a", None, 1), ("a", 10, 2), ("a", None, 3), ("b", 101, 0)) == [(3, [1, 2, 3])]
    assert epoch(("a", 102, 4)) == [(4, [1, 2, 3, 4])]


def test_what_an_earlier_version_sent_is_taken_from_its_journal() -> None:
    """It has no column for rows without a time."""
    kept = op.aggregate("key", n=op.count(), ttl=15, time="time")
    view = State(TaskState.empty(kept.tables).tables, Task("answer", 0), 1, 100_000_000, 99_000_000)
    sent = kept.prepare("rows", pa.table({"key": ["a", "b"], "time": pa.array([None, 10], pa.int64())}))
    assert kept.process(sent.drop_columns(["key.untimed"]), view).num_rows == 2
    assert view.scan()["key"].to_pylist() == ["a"]


def held_by(running: op.Trial, task: Task) -> list[str | None]:
    return running.states[task]["state"].to_table()["key"].to_pylist() if task.operator == "answer" else []


def test_a_span_needs_a_time_and_a_time_a_span() -> None:
    for wrong in ({"ttl": "1 hour"}, {"time": "t"}):
        with pytest.raises(Invalid, match="aggregate by key: ttl and time belong together"):
            op.aggregate("key", n=op.count(), **wrong)
    with pytest.raises(Invalid, match="it needs event time, but no source upstream of it names one"):
        trial(op.aggregate("key", n=op.count(), ttl=1, time="time"))
