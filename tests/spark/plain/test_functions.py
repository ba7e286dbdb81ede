"""Every aggregate function that Spark has: as Structured Streaming answers, or a batch query where it refuses."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from queries import EVENTS
from side_by_side import BATCHES, answers, by_spark, tidy

import holdfast
from holdfast.operators.description import remembers
from holdfast.queries import NotCovered
from holdfast.queries.split import Split
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history

pytestmark = pytest.mark.spark

MERGING = (
    "var_samp(n)", "var_pop(cents)", "stddev(n)", "stddev_pop(x)", "stddev(n) filter (where yes)", "skewness(n)",
    "kurtosis(n)", "corr(n, cents)", "covar_pop(n, cents)", "covar_samp(n, cents) filter (where n > 2)",
    "first(n)", "first(n) ignore nulls", "last(n)", "last(n, true)", "last(yes)", "first(ts)", "any_value(day)",
    "first(n) filter (where yes)", "last(n) filter (where n is null or yes)", "last(struct(n, x)) as pair",
    "max_by(ts, n)", "min_by(n, x)", "max_by(n, x)", "min_by(yes, cents)", "max_by(struct(x, n), k)",
    "max_by(n, ts) filter (where yes)", "count(n, yes)", "count(n, yes) filter (where n > 2)", "count(null)",
    "count(*) filter (where n > 2)", "sum(n) filter (where yes)", "max(x) filter (where yes)", "avg(n + x)",
)  # fmt: skip
LISTING = (
    "collect_list(n)", "collect_list(n) filter (where yes)", "collect_list(struct(ts, cents)) as pairs",
    "array_agg(array(n, 1)) as arrays", "sort_array(collect_set(x)) as xs", "sort_array(collect_set(day)) as days",
    "sort_array(collect_set(struct(n, yes))) as both", "sort_array(collect_set(array(n))) as lists",
    "approx_count_distinct(x)", "approx_count_distinct(cents, 0.39)",
    "approx_count_distinct(n, 0.2) filter (where yes)",
    "percentile_approx(n, array(0.1, 0.5))", "percentile_approx(ts, 0.5)", "percentile(x, 0.5, n + 1)", "median(cents)",
    "percentile_cont(0.3) within group (order by n desc)", "mode(n)", "mode() within group (order by day)",
    "bit_and(n)", "bit_or(n)", "bit_xor(n)", "regr_slope(n, cents)", "regr_count(n, x)",
    "string_agg(k, '+')", "listagg(string(n), ',') within group (order by cents desc)", "bool_or(yes)", "every(yes)",
    "try_sum(n)", "try_avg(n)", "sum(make_dt_interval(n))", "max(struct(n, x))", "min(array(n))", "max_by(n, array(x))",
    "hll_sketch_estimate(hll_sketch_agg(n))", "count_if(yes)", "max(k collate unicode_ci)",
    "max_by(n, k collate unicode_ci)", "count(*)", "avg(n)", "collect_list(n) filter (where n > 99)",
    "percentile(n, 0.5) filter (where n > 99)",
)  # fmt: skip
BY_BATCH = (
    "count(distinct n)", "count(distinct x)", "count(distinct n, yes)", "count(distinct k, x) filter (where yes)",
    "count(distinct struct(n, x))", "count(distinct array(n))", "count(distinct k collate unicode_ci)",
    "sum(distinct n)", "avg(distinct x) filter (where not isnan(x))", "max(distinct n)", "count(*)", "sum(n)",
    "sort_array(collect_list(distinct n)) as ns", "percentile(distinct n, 0.5)", "stddev(distinct n)",
    "histogram_numeric(n, 20)",
)  # fmt: skip
"""Structured Streaming refuses DISTINCT, and its histogram depends on how rows were cut into batches."""


def computed(events: DataFrame, functions: tuple[str, ...], *by: str | Column) -> DataFrame:
    named = [f if " as " in f else f"{f} as c{number}" for number, f in enumerate(functions)]
    return events.groupBy(*(by or ("k",))).agg(*map(F.expr, named))


def columns(rows: dict[int, list[tuple[object, ...]]], functions: tuple[str, ...]) -> dict[str, list[object]]:
    """By function, so that a difference names it."""
    return {each: [(epoch, row[0], row[place + 1]) for epoch, batch in rows.items() for row in batch]
            for place, each in enumerate(functions)}  # fmt: skip


@pytest.mark.long
def test_every_batch_is_that_of_structured_streaming(events: DataFrame, tmp_path: Path) -> None:
    functions = MERGING + LISTING
    frame = computed(events, functions)
    ours = answers(holdfast.writeStream(frame), "update", tmp_path / "ours")
    theirs = by_spark(frame, "update", tmp_path / "theirs")
    assert columns(ours, functions) == columns(theirs, functions)
    assert ours == theirs and len(ours) == BATCHES


@pytest.mark.long
def test_distinct_values_are_those_of_all_rows_so_far(
    events: DataFrame, spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    ours = answers(holdfast.writeStream(computed(events, BY_BATCH)), "complete", tmp_path / "ours")
    reader = spark.read.schema(EVENTS).option("allowNonNumericNumbers", True)
    for epoch in range(BATCHES):
        rows = reader.json([str(root / "events" / f"{batch}.json") for batch in range(epoch + 1)]).coalesce(1)
        theirs = {epoch: tidy(computed(rows, BY_BATCH))}
        assert columns({epoch: ours[epoch]}, BY_BATCH) == columns(theirs, BY_BATCH)


@pytest.mark.long
def test_a_node_dies_and_lists_stay_what_they_are(events: DataFrame, tmp_path: Path) -> None:
    """In windows that close, so that most epochs have nothing to say of most functions."""
    functions = (
        "collect_list(n)", "percentile_approx(x, 0.5)", "stddev(n)", "first(cents)", "last(k)", "max_by(k, cents)",
        "approx_count_distinct(cents, 0.3)", "sort_array(collect_set(n)) as ns", "mode(n) filter (where yes)",
    )  # fmt: skip
    frame = computed(events.withWatermark("ts", "10 minutes"), functions, F.window("ts", "10 minutes"))
    writer = holdfast.writeStream(frame)
    faults = parse_faults("kill node-1,node-2 at epoch 2")
    writer.resilience(nodes=4, parallelism=4, checkpoint_every=3, faults=faults, rejoin_after=0.5)
    ours = answers(writer, "append", tmp_path / "ours")
    assert ours == by_spark(frame, "append", tmp_path / "theirs")
    assert any(event["kind"] == "nodes lost" for event in read_history(tmp_path / "ours"))
    assert any(ours.values()) and not all(ours.values())


def test_what_is_kept_decides_whether_a_store_fits(events: DataFrame) -> None:
    def kept(function: str) -> str:
        node = Split(computed(events, (function,))).top
        return str(remembers(node.operator("update").describe()))

    others = ["first(n)", "last(n)", "first(n) ignore nulls", "max_by(n, x)", "min_by(n, x)", "max_by(x, n)", "sum(n)",
              "collect_list(n)", "collect_set(n)", "collect_set(x)", "stddev(n)", "stddev(x)", "kurtosis(n)", "mode(n)",
              "mode(x)", "mode(n) filter (where yes)", "approx_count_distinct(n)", "approx_count_distinct(n, 0.2)",
              "corr(n, x)", "count(n)", "count(n, x)", "count(distinct n)", "bit_or(n)"]  # fmt: skip
    assert len({kept(function) for function in others}) == len(others)
    assert kept("percentile(n, 0.5)") == kept("percentile(n, 0.9)") == kept("mode(n)"), "made of the same rows"
    assert kept("stddev(n)") == kept("var_pop(n)"), "made of the same numbers"


def test_explain_says_which_functions_keep_what(events: DataFrame) -> None:
    functions = ("mode(n)", "count(distinct n)", "approx_count_distinct(n)", "stddev(n)", "collect_list(n)")
    told = holdfast.explain(computed(events, functions))
    assert "mode(n) (keeps every value of a group), count(DISTINCT n) (keeps every distinct value of a group)" in told
    assert "approx_count_distinct(n) (keeps at most 512 values of a group), stddev(" in told
    assert "collect_list(n) (keeps every value of a group) by k" in told


def test_functions_of_the_same_rows_share_them(events: DataFrame) -> None:
    functions = ("mode(n)", "median(n)", "percentile(n, 0.1)", "bit_xor(n)")
    operator = Split(computed(events, functions)).top.operator("update")
    (table,) = operator.tables.values()
    assert [name.split("_")[0] for name in table.value.names] == ["all"] * len(table.value.names)
    assert len(table.value.names) < 4, "percentiles take doubles, the others integers"


def test_a_python_function_of_a_group_is_refused_by_its_name(events: DataFrame) -> None:
    @F.arrow_udf("double")
    def middle(values: pa.Array) -> float:
        return float(pc.mean(values).as_py())

    with pytest.raises(NotCovered, match=r"aggregate middle\(x.*\): PythonUDAF is not covered; Spark's own functions"):
        holdfast.writeStream(events.groupBy("k").agg(middle("x")))
