"""What operators say they look at is all they look at: without the other columns they answer the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import polars as pl
import pyarrow as pa
import pytest

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.contract import Operator, State, columns_read
from holdfast.operators.trial import Trial

KEY = {"key": "int64"}
ROWS = pa.table(
    {
        "note": ["a b", "c", "d e f", "g"] * 5,
        "key": [1, 2, 3, 1, 2] * 4,
        "value": list(range(20)),
        "other": [1.5] * 20,
        "time": list(range(0, 40, 2)),
    }
)
OPERATORS: dict[str, tuple[Operator, set[str] | None]] = {
    "aggregate": (op.aggregate(KEY, n=op.count(), top=op.max("value")), {"key", "value"}),
    "aggregate, ttl": (op.aggregate(KEY, ttl=5, time="time", n=op.count()), {"key", "time"}),
    "combine": (op.combine(KEY, total=op.sum("value")), {"key", "value"}),
    "tumbling": (op.tumbling(10, KEY, "time", n=op.count(), mean=op.mean("value")), {"key", "time", "value"}),
    "sliding": (op.sliding(10, 5, KEY, "time", n=op.count()), {"key", "time"}),
    "sessions": (op.session(3, KEY, "time", n=op.count("note")), {"key", "time", "note"}),
    "top k": (op.top_k(2, "value", KEY), {"key", "value"}),
    "top k within": (op.top_k(2, "value", KEY, within={"time": "int64"}, closes="time"), {"key", "value", "time"}),
    "map": (op.map("key", twice=pl.col("value") * 2), {"key", "value"}),
    "map of all": (op.map(pl.all()), None),
    "map by a function": (op.map(lambda rows: rows), None),
    "filter": (op.filter("value > 3 and other < 2"), {"value", "other"}),
    "filter by a function": (op.filter(lambda rows: pa.array([True] * rows.num_rows)), None),
    "flat map": (op.flat_map(word=pl.col("note").str.split(" "), keep="key"), {"key", "note"}),
    "flat map by a function": (op.flat_map(lambda row: [row], {"key": "int64"}), None),
    "chain": (op.chain(op.filter("value > 3"), op.map("key"), op.map("key")), {"value", "key"}),
    "chain with a function": (op.chain(op.filter("value > 3"), op.map(lambda rows: rows)), None),
    "deduplicate": (op.deduplicate(KEY), {"key"}),
    "deduplicate within": (op.deduplicate(KEY, time="time", within=5), {"key", "time"}),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_answers_the_same_without_the_columns_that_it_does_not_read(name: str) -> None:
    operator, reads = OPERATORS[name]
    assert columns_read(operator, "rows") == reads
    if reads is None:
        return
    event_time = "time" if operator.event_time else None

    def answers(rows: pa.Table) -> list[list[dict[str, Any]]]:
        pipeline = op.Pipeline(op.source("rows", event_time=event_time), op.step("it", operator, "rows"))
        trial = Trial(pipeline)
        parts = [rows.slice(0, 10), rows.slice(10)]
        return [trial.epoch(part, ends=part is parts[-1]).outputs["it"].to_pylist() for part in parts]

    narrow = ROWS.select([column for column in ROWS.column_names if column in reads])
    whole = answers(ROWS)
    assert any(whole)
    if operator.passes:
        whole = [[{column: row[column] for column in narrow.column_names} for row in rows] for rows in whole]
    assert answers(narrow) == whole


def source(**options: Any) -> op.Step:
    return op.source("rows", **options)


COUNT = op.aggregate(KEY, n=op.count())


@pytest.mark.parametrize(
    ("steps", "columns"),
    [
        ([source(), op.step("n", COUNT, "rows")], {"key"}),
        ([source(event_time="time"), op.step("n", COUNT, "rows")], {"key", "time"}),
        ([source(), op.step("n", COUNT, op.stream("rows", key="key"), parallelism=2)], {"key"}),
        ([source(), op.step("n", COUNT, "rows"), op.step("same", lambda rows: rows, "rows")], None),
        ([source(), op.step("few", op.filter("value > 1"), "rows"), op.step("n", COUNT, "few")], {"key", "value"}),
        ([source(), op.step("few", op.filter("value > 1"), "rows")], None),
        ([source(), op.step("few", op.filter("value > 1"), "rows", priority=1), op.step("n", COUNT, "few")], None),
        (
            [source(), op.step("once", op.deduplicate({"id": "int64"}), "rows"), op.step("n", COUNT, "once")],
            {"id", "key"},
        ),
        ([op.source("rows", op.map("key")), op.step("n", COUNT, "rows")], {"key"}),
        ([op.source("rows", lambda rows: rows), op.step("n", COUNT, "rows")], None),
        (
            [op.source("rows", op.filter("value > 1")), op.step("n", op.aggregate(KEY, m=op.max("other")), "rows")],
            {"key", "value", "other"},
        ),
    ],
)
def test_of_a_stream_the_columns_are_read_that_anybody_looks_at(steps: list[op.Step], columns: set[str] | None) -> None:
    assert op.Pipeline(*steps).columns_of("rows") == columns


def test_each_side_of_a_join_has_its_own_columns() -> None:
    sides = (op.side("left", {"speed": "int64"}, time="at"), op.side("right", {"what": "string"}, time="when"))
    pipeline = op.Pipeline(
        op.source("left", event_time="at"),
        op.source("right", event_time="when"),
        op.step("both", op.join(*sides, on=KEY, size=10), ["left", "right"]),
    )
    assert pipeline.columns_of("left") == {"key", "speed", "at"}
    assert pipeline.columns_of("right") == {"key", "what", "when"}


WHATEVER_IS_THERE = {
    "all": pl.struct(pl.all()),
    "the last": pl.last(),
    "by number": pl.nth(0),
    "by pattern": pl.sum_horizontal(pl.col("^v.*$")),
    "by type": pl.sum_horizontal(pl.col(pl.Int64)),
    "all but one": pl.concat_list(pl.exclude("note", "other")),
    "the type of another": pl.col("value").cast(pl.dtype_of("other")),
}


@pytest.mark.parametrize("name", WHATEVER_IS_THERE)
def test_an_expression_that_takes_what_is_there_is_given_all(name: str) -> None:
    """This rests on what polars tells of its expressions."""
    assert columns_read(op.map("key", made=WHATEVER_IS_THERE[name]), "rows") is None


@pytest.mark.parametrize(
    ("expression", "columns"),
    [
        (pl.col("value").over("key", order_by="time"), {"value", "key", "time"}),
        (pl.col("value").sort_by("time"), {"value", "time"}),
        (pl.col("value").filter(pl.col("other") > 1), {"value", "other"}),
        (pl.when(pl.col("other") > 1).then("value").otherwise("time"), {"other", "value", "time"}),
        (pl.sql_expr("CASE WHEN other > 1 THEN value ELSE 0 END"), {"other", "value"}),
        (pl.col("value").rolling_sum_by("time", window_size="4i"), {"value", "time"}),
        (pl.len(), set()),
    ],
)
def test_an_expression_names_all_that_it_looks_at(expression: pl.Expr, columns: set[str]) -> None:
    assert columns_read(op.map(made=expression), "rows") == columns
    whole = pl.from_arrow(ROWS)
    assert isinstance(whole, pl.DataFrame)
    kept = whole.select(sorted(columns) or ["note"])
    assert kept.select(made=expression).equals(whole.select(made=expression))


def test_a_class_that_does_something_else_with_its_rows_is_given_all_of_them() -> None:
    aggregate = type(COUNT)

    class Also(aggregate):  # type: ignore[misc, valid-type]
        def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
            return super().prepare(stream, batch.filter(batch["value"]))

    class Named(Also):
        def reads(self, stream: str) -> frozenset[str]:
            return super().reads(stream) | {"value"}

    class Own(Operator):
        def process_inputs(self, inputs: Mapping[str, pa.Table], state: State) -> pa.Table | None:
            return None

    assert columns_read(Also(KEY, n=op.count()), "rows") is None
    assert columns_read(Named(KEY, n=op.count()), "rows") == {"key", "value"}
    assert columns_read(Own(), "rows") is None
    patched = op.aggregate(KEY, n=op.count())
    patched.process = lambda batch, state: batch  # type: ignore[method-assign]
    assert columns_read(patched, "rows") is None


def test_what_an_operator_of_ones_own_reads_counts_when_it_says_whether_rows_leave_as_they_came() -> None:
    class Good(Operator):
        def reads(self, stream: str) -> frozenset[str]:
            return frozenset({"value"})

        def process(self, batch: pa.Table, state: State) -> pa.Table:
            return batch.filter(batch["value"])

    class Whole(Good):
        passes = True

    assert columns_read(Good(), "rows") is None and columns_read(Whole(), "rows") == {"value"}
    assert op.Pipeline(source(), op.step("good", Whole(), "rows")).columns_of("rows") is None
    counted = op.Pipeline(source(), op.step("good", Whole(), "rows"), op.step("n", COUNT, "good"))
    assert counted.columns_of("rows") == {"key", "value"}


@pytest.mark.parametrize("said", ["value", ["value", 3], 7])
def test_an_operator_that_names_its_columns_wrongly_is_told_so(said: Any) -> None:
    class Own(Operator):
        passes = False

        def reads(self, stream: str) -> Any:
            return said

    with pytest.raises(Invalid, match=r"Own\.reads: give the names of columns, as a frozenset, or None; got"):
        columns_read(Own(), "rows")


def test_names_that_an_operator_keeps_are_its_own() -> None:
    class Own(Operator):
        passes = True
        looks: ClassVar = {"value"}

        def reads(self, stream: str) -> Any:
            return self.looks

    pipeline = op.Pipeline(source(), op.step("own", Own(), "rows"), op.step("n", COUNT, "own"))
    assert pipeline.columns_of("rows") == {"key", "value"}
    assert Own.looks == {"value"}
