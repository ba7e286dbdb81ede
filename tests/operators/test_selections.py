"""First, last, best, all and distinct values against plain Python, however rows are cut into epochs and senders."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.folds import Registers
from holdfast.operators.selections import registers
from holdfast.operators.statistics import comoments, moments

KEYS = st.sampled_from(["a", "b", None])
FLOATS = st.sampled_from([None, 1.5, -2.0, 0.0, -0.0, math.inf, math.nan])
ROWS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(-3, 3)), FLOATS), max_size=12)
SCHEMA = pa.schema({"key": pa.string(), "x": pa.int64(), "y": pa.float64()})
Row = tuple[str | None, int | None, float | None]


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


def trial(operator: op.Operator, senders: int = 1, tasks: int = 1) -> op.Trial:
    return op.Trial(
        op.Pipeline(op.source("rows", parallelism=senders), op.step("answer", operator, "rows", parallelism=tasks))
    )


def everything() -> op.Operator:
    return op.aggregate(
        "key",
        first=op.first("x"),
        last=op.last("y", "float64"),
        best=op.max_by("x", "y", by_type="float64"),
        least=op.min_by("y", "x", "float64"),
        all=op.collect("x"),
        set=op.collect_set("y", "float64"),
        distinct=op.count_distinct("x"),
        total=op.sum("x"),
    )


def ranked(y: float) -> tuple[bool, float]:
    """NaN is larger than any number."""
    return (True, 0.0) if math.isnan(y) else (False, y)


def plain(rows: list[Row]) -> dict[str, Any]:
    """A loop over the rows of a key, in their order."""
    xs, ys = [x for _, x, _ in rows if x is not None], [y for _, _, y in rows if y is not None]
    best: Row | None = None
    least: Row | None = None
    seen: dict[str, float] = {}
    for row in rows:
        if row[2] is not None and (best is None or ranked(row[2]) >= ranked(best[2] or 0.0)):
            best = row
        if row[1] is not None and (least is None or row[1] <= (least[1] or 0)):
            least = row
        if row[2] is not None:
            seen.setdefault(repr(row[2]), row[2])
    return {
        "first": xs[0] if xs else None,
        "last": ys[-1] if ys else None,
        "best": best[1] if best else None,
        "least": least[2] if least else None,
        "all": xs,
        "set": list(seen.values()),
        "distinct": len(set(xs)),
        "total": sum(xs) if xs else None,
    }


@settings(deadline=None, derandomize=True, max_examples=30)
@given(epochs=st.lists(ROWS, max_size=4), senders=st.integers(1, 3), tasks=st.integers(1, 2))
def test_values_are_kept_in_the_order_of_arrival(epochs: list[list[Row]], senders: int, tasks: int) -> None:
    running, so_far = trial(everything(), senders, tasks), list[Row]()
    for rows in epochs:
        so_far += rows
        output = running.epoch(table(rows)).output.to_pylist()
        assert {row["key"] for row in output} == {key for key, _, _ in rows}
        for answer in output:
            expected = plain([row for row in so_far if row[0] == answer["key"]])
            assert repr({"key": answer["key"], **expected}) == repr(answer)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (pa.bool_(), False, True),
        (pa.string(), "B", "a"),
        (pa.binary(), b"a", b"\xff"),
        (pa.date32(), datetime(1969, 1, 1).date(), datetime(2026, 1, 1).date()),
        (pa.timestamp("us", "Europe/Berlin"), datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.duration("us"), timedelta(seconds=-1), timedelta(seconds=1)),
        (pa.decimal128(9, 2), Decimal("-1.00"), Decimal("0.10")),
        (pa.int8(), -1, 1),
    ],
)
def test_values_and_orders_of_any_type(kind: pa.DataType, low: Any, high: Any) -> None:
    running = trial(
        op.aggregate(
            "k",
            first=op.first("x", kind),
            best=op.max_by("n", "x", by_type=kind),
            least=op.min_by("x", "x", kind, kind),
            all=op.collect("x", kind),
            set=op.collect_set("x", kind),
        ),
        senders=2,
    )
    for values in ([None, high], [low, None, high, low], [high]):
        batch = pa.table({"k": ["a"] * len(values), "x": pa.array(values, kind), "n": range(len(values))})
        (row,) = running.epoch(batch).output.to_pylist()
    assert row == {"k": "a", "first": high, "best": 0, "least": low, "all": [high, low, high, low, high],
                   "set": [high, low]}  # fmt: skip


def test_structs_lists_and_what_is_null_within() -> None:
    pair = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
    inner = pa.list_(pa.int64())
    running = trial(
        op.aggregate(
            "k",
            first=op.first("s", pair),
            set=op.collect_set("s", pair),
            n=op.count_distinct("s", pair),
            lists=op.collect("l", inner),
            best=op.max_by("s", "n", pair),
        )
    )
    nothing, half = {"a": None, "b": None}, {"a": None, "b": {"c": None}}
    rows = [nothing, {"a": 1, "b": {"c": "x"}}, half, None, nothing]
    batch = pa.table(
        {"k": ["a"] * 5, "s": pa.array(rows, pair), "l": pa.array([[1, None], [], None, [2], []], inner), "n": range(5)}
    )
    for times in (1, 2):
        (row,) = running.epoch(batch).output.to_pylist()
        assert row == {"k": "a", "first": nothing, "set": [nothing, rows[1], half], "n": 3, "best": nothing,
                       "lists": [[1, None], [], [2], []] * times}  # fmt: skip


def test_a_field_that_is_never_null_is_taken_for_one_that_may_be() -> None:
    """So that what Spark knows of a column does not matter, and nothing else is converted within a struct."""
    kind = pa.struct([("a", pa.int64())])
    running = trial(op.aggregate("k", all=op.collect("s", kind)))
    strict = pa.struct([pa.field("a", pa.int64(), nullable=False)])
    output = running.epoch(pa.table({"k": ["a"], "s": pa.array([{"a": 1}], strict)})).output
    assert output["all"].type == pa.list_(kind) and output["all"].to_pylist() == [[{"a": 1}]]
    for other in (pa.struct([("b", pa.int64())]), pa.struct([("a", pa.string())]), pa.list_(pa.int64())):
        with pytest.raises(Invalid, match="column 's' must be struct<a: int64>, found"):
            running.epoch(pa.table({"k": ["a"], "s": pa.nulls(1, other)}))


def test_a_sliding_window_has_its_values_in_the_order_of_time() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    windows = op.sliding(
        "30 seconds", "10 seconds", "k", "t", first=op.first("x"), last=op.last("x"), all=op.collect("x")
    )
    running = op.Trial(op.Pipeline(op.source("rows", event_time="t"), op.step("answer", windows, "rows")))
    seconds = [25, 3, 14, 8]
    times = pa.array([at + timedelta(seconds=each) for each in seconds], pa.timestamp("us", "UTC"))
    output = running.run([pa.table({"k": ["a"] * 4, "t": times, "x": seconds})], ends=True)[0].output
    found = {(row["start"] - at).seconds: row["all"] for row in output.to_pylist() if row["start"] >= at}
    assert found == {0: [3, 8, 14, 25], 10: [14, 25], 20: [25]}
    assert all(row["first"] == row["all"][0] and row["last"] == row["all"][-1] for row in output.to_pylist())


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    hashes=st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.integers(-9, 9)), max_size=30),
    cut=st.integers(0, 30),
    bits=st.integers(4, 6),
)
def test_a_sketch_of_the_kept_values_is_that_of_all(hashes: list[int | None], cut: int, bits: int) -> None:
    """By HyperLogLog's own rule: a register has the most leading zeros of what comes after its number."""

    def sketch(found: list[int]) -> dict[int, int]:
        made: dict[int, int] = {}
        for value in found:
            rest = f"{value % 2**64:064b}"[bits:] + "1"
            place = value % 2**64 >> 64 - bits
            made[place] = max(made.get(place, 0), len(rest) - len(rest.lstrip("0")))
        return made

    running = trial(op.aggregate("k", kept=registers(bits, "x", "h", "int64")), senders=2)
    batch = pa.table({"k": ["a"] * len(hashes), "x": pa.array(hashes, pa.int64()), "h": pa.array(hashes, pa.int64())})
    running.epoch(batch[:cut])
    kept = [x for row in running.epoch(batch[min(cut, 1) :]).output.to_pylist() for x in row["kept"]]
    assert len(kept) <= 2**bits
    if len(hashes) > min(cut, 1):
        assert sketch(kept) == sketch([value for value in hashes if value is not None])


def test_the_same_rows_give_the_same_bytes() -> None:
    draw = np.random.default_rng(3)
    batch = pa.table(
        {"key": draw.integers(0, 50, 5000).astype(str), "x": draw.integers(0, 90, 5000), "y": draw.random(5000)}
    )
    runs = [trial(everything(), 3, 2).run([batch, batch])[-1].output for _ in range(3)]
    assert all(run.equals(runs[0]) for run in runs)


def test_another_function_does_not_fit_what_the_first_has_kept() -> None:
    made = [op.first("x"), op.last("x"), op.max_by("x", "y"), op.min_by("x", "y"), op.collect("x"), op.collect_set("x"),
            op.count_distinct("x"), op.variance("x"), op.stddev("x"), op.stddev("x", population=True), op.max("x"),
            moments("x", 2), moments("x", 3), comoments("x", "y"), registers(9, "x", "y", "int64"),
            registers(8, "x", "y", "int64"), op.largest(2, "x"), op.largest(3, "x")]  # fmt: skip
    described = [str(op.aggregate("key", answer=each).describe()) for each in made]
    assert len(set(described)) == len(made)
    assert "stddev(population, x)" in described[9] and Registers(9) != Registers(8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: op.collect_set("x", pa.list_(pa.int64())), "list<item: int64> values cannot be told apart here"),
        (lambda: op.count_distinct("x", pa.map_("string", "int8")), "count_distinct of x: map<"),
        (lambda: op.max_by("x", "y", by_type=pa.struct([])), "max_by of x: struct<> values cannot be compared here"),
        (lambda: op.variance("x", "string"), "variance of x: only numbers can be added, got string"),
        (lambda: op.first("x", "text"), "first of x: unknown type 'text'"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        make()
    assert message in str(caught.value)


def test_a_message_says_which_type_to_write() -> None:
    batch = pa.table({"k": ["a"], "x": [1], "y": [1.5]})
    with pytest.raises(Invalid, match=r"say op.max_by\('x', 'y', by_type='float64'\)"):
        trial(op.aggregate("k", best=op.max_by("x", "y"))).epoch(batch)
    assert (
        trial(op.aggregate("k", best=op.max_by("x", "y", by_type="float64"))).epoch(batch).output["best"][0].as_py()
        == 1
    )
