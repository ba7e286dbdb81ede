"""What stands between two stateful nodes: each expression evaluated by Spark and in Arrow, row by row the same."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from grammar import VALUES, Grammar
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast import operators as op
from holdfast.errors import HoldfastError
from holdfast.queries import NotCovered
from holdfast.queries.aggregates import Groups
from holdfast.queries.between import Between, between
from holdfast.queries.expressions.compiling import Compiler
from holdfast.queries.expressions.evaluation import Evaluation
from holdfast.queries.expressions.values import Expression, Struct
from holdfast.queries.plans import Plans, items, kind, type_of

pytestmark = pytest.mark.spark

ROWS = 60
ZONES = ["America/New_York", "UTC", "America/Sao_Paulo", "GMT+05:30"]
REORDERING = ["ReorderAssociativeOperator", "NullPropagation", "BooleanSimplification", "SimplifyConditionals"]
"""Rules by which errors of ANSI mode come and go: (a + 1) + b may overflow where a + (1 + b) does not."""
EXCLUDED = "spark.sql.optimizer.excludedRules"
ERRORS = r"(?i)overflow|BY_ZERO|OUT_OF_RANGE|CAST_"


@contextmanager
def settings(spark: SparkSession, zone: str = "UTC", ansi: bool = True) -> Iterator[None]:
    """A session's zone and mode, for a while."""
    wanted = {"spark.sql.session.timeZone": zone, "spark.sql.ansi.enabled": str(ansi).lower()}
    before = {name: str(spark.conf.get(name)) for name in wanted}
    rules = ",".join(f"org.apache.spark.sql.catalyst.optimizer.{name}" for name in REORDERING)
    try:
        for name, value in (wanted | {EXCLUDED: rules}).items():
            spark.conf.set(name, value)
        yield
    finally:
        spark.conf.unset(EXCLUDED)
        for name, value in before.items():
            spark.conf.set(name, value)


def rows_of(spark: SparkSession) -> DataFrame:
    """A table of extremes, whose times are instants whatever the zone. It is local: Spark's optimizer evaluates it."""
    draw = random.Random(5)
    rows = []
    for number in range(ROWS):
        cells = [str(number)]
        for type_, values in VALUES.values():
            value = draw.choice(values) + (" UTC" if type_ == "timestamp" else "")
            cells.append("null" if draw.random() < 0.1 else f"cast('{value}' as {type_})")
        rows.append(f"({', '.join(cells)})")
    return spark.sql(f"select * from values {', '.join(rows)} as t(id, {', '.join(VALUES)})")


def compiled(frame: DataFrame, *texts: str) -> list[Expression | Struct]:
    plans = Plans(frame.sparkSession)
    project = plans.normal(frame.selectExpr(*texts)._jdf.queryExecution().analyzed())
    output = items(frame._jdf.queryExecution().analyzed().output())
    compiler, names = Compiler(plans), {int(each.exprId().id()): (str(each.name()),) for each in output}
    return [compiler.compiled(each, names) for each in items(project.projectList())]


def shown(values: Any) -> list[str]:
    """To the bit: -0.0 is not 0.0, but a NaN is a NaN; times as numbers."""
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64())
    return [repr(each) for each in values.to_pylist()]


def compared(frame: DataFrame, texts: list[str], tried: int) -> int:
    """Expressions by Spark and here, in rows without an error; some of those with one, to see that Spark raises it too.

    How many have an error in some row.
    """
    table, made = frame.toArrow(), compiled(frame, *texts)
    lanes = [Evaluation(table).lanes(each) for each in pickle.loads(pickle.dumps(made))]
    wrong = [
        [] if each.failed is None else [n for n, text in enumerate(each.failed.to_pylist()) if text is not None]
        for each in lanes
    ]
    asked = [
        f"case when id not in ({', '.join(map(str, rows))}) then {text} end as c{n}" if rows else f"{text} as c{n}"
        for n, (text, rows) in enumerate(zip(texts, wrong, strict=True))
    ]
    theirs = frame.selectExpr(*asked).toArrow()
    for text, rows, each, column in zip(texts, wrong, lanes, theirs.columns, strict=True):
        assert column.type == each.values.type or pa.types.is_timestamp(column.type), text
        ours, there = shown(each.values), shown(column)
        different = [n for n in range(table.num_rows) if n not in rows and ours[n] != there[n]]
        detail = [(table.slice(n, 1).to_pylist()[0], ours[n], there[n]) for n in different[:2]]
        assert not different, f"{text}: {len(different)} rows differ, such as {detail}"
    failing = [(text, rows[0]) for text, rows in zip(texts, wrong, strict=True) if rows]
    for text, row in failing[:tried]:
        with pytest.raises(Exception, match=ERRORS):
            pytest.fail(f"{text}: {frame.where(f'id = {row}').selectExpr(text).collect()}")
    return len(failing)


def fuzzed(spark: SparkSession, seed: int, ansi: bool, count: int, tried: int) -> None:
    with settings(spark, ZONES[seed % len(ZONES)], ansi):
        grammar = Grammar(seed * 2 + ansi, ansi)
        failing = compared(rows_of(spark), [grammar.any(1 + n % 3) for n in range(count)], tried)
        assert not ansi or failing


@pytest.mark.parametrize("ansi", [True, False], ids=["ansi", "legacy"])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_expressions_of_a_grammar(spark: SparkSession, seed: int, ansi: bool) -> None:
    fuzzed(spark, seed, ansi, count=60, tried=5)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 22))
def test_many_expressions_of_a_grammar(spark: SparkSession, seed: int) -> None:
    for ansi in (True, False):
        fuzzed(spark, seed, ansi, count=150, tried=50)


def test_the_clocks_of_zones(spark: SparkSession) -> None:
    """Over a thousand years, which is more than Arrow's own zones know, and close to changes."""
    texts = [
        "cast(ts as date)", "cast(ts as string)", "cast(cast(ts as date) as timestamp)", "ts + interval 1 day",
        "ts - interval 25 hours", "timestampadd(hour, 40, ts)", "timestampadd(week, -1, ts)", "cast(ts as double)",
        "ts + cast('1 day -30 minutes' as interval)",
    ]  # fmt: skip
    for zone in ("America/New_York", "America/Sao_Paulo", "Australia/Lord_Howe", "Europe/Dublin", "PST"):
        with settings(spark, zone):
            spread = "timestamp_seconds(-4000000000 + id * 17999999)"
            near = "timestamp_seconds(1710053999 - 86400 * 240 + id * 7200)"
            frame = spark.range(2000).selectExpr("id", spread + " as ts")
            assert compared(frame.union(spark.range(4000).selectExpr("id", near)), texts, 0) == 0


def test_errors_are_those_of_rows_that_are_asked_for(spark: SparkSession) -> None:
    with settings(spark):
        frame = spark.sql("select * from values (1L, 0L), (7L, 2L), (null, 0L), (9223372036854775807, 1L) as t(a, b)")
        table = frame.toArrow()
        good = [
            "if(b = 0, 0, a div b)",
            "b <> 0 and a % b = 0",
            "coalesce(b, a div 0)",
            "try_add(a, b)",
            "a in (a, a div 0)",
        ]
        for text, expression in zip(good, compiled(frame, *good), strict=True):
            there = frame.selectExpr(text).toArrow().column(0)
            assert shown(Evaluation(table).column(expression)) == shown(there), text
        for text, reason in {"a div b": "division by zero in 1 of 4 rows", "a + b": "overflow in 1 of 4 rows"}.items():
            with pytest.raises(HoldfastError, match=reason):
                Evaluation(table).column(compiled(frame, text)[0])


UPPER = {
    "windows of windows": lambda low: low.groupBy(F.window("window", "1 hour"), "k").agg(
        F.sum("n"), F.max("mean"), F.min("spread"), F.avg("each")
    ),
    "sliding": lambda low: low.groupBy(F.window(F.window_time("window"), "1 hour", "20 minutes", "5 minutes")).agg(
        F.sum(F.col("n") * 2)
    ),
    "a filter and arithmetic": lambda low: low.where("n > 1 and k is not null").selectExpr(
        "window.start + interval 1 day as t", "n % 3 as m", "cents / n as part", "upper(k) as k", "window"
    ).where("part > 1").groupBy("m", "k", F.window("t", "1 day")).agg(F.sum("part"), F.max("t"), F.count("window")),
    "structs": lambda low: low.selectExpr("*", "if(n > 3, struct(k, nullif(n, 0) as m), null) as pair").groupBy(
        "pair"
    ).agg(F.max_by(F.struct("cents", "window"), "mean"), F.count("pair"), F.expr("sum(n) filter (where pair.m > 4)")),
    "no keys": lambda low: low.select(F.lit(1)).agg(F.count("*")),
}  # fmt: skip


def lower(spark: SparkSession) -> DataFrame:
    rows = spark.range(300).selectExpr(
        "timestamp_seconds(1710030000 + id * 61) as ts", "case when id % 7 < 6 then concat('k', id % 3) end as k",
        "cast(id as decimal(10,2)) / 4 as e", "double(id) as d",
    )  # fmt: skip
    groups = rows.groupBy(F.window("ts", "15 minutes"), "k")
    functions = {
        "n": F.count("*"),
        "cents": F.sum("e"),
        "each": F.avg("e"),
        "mean": F.avg("d"),
        "spread": F.stddev("d"),
    }
    return groups.agg(*(each.alias(name) for name, each in functions.items()))


def cut(plans: Plans, frame: DataFrame) -> tuple[Groups, list[Any], Groups]:
    """Two aggregates and the nodes between them, from the top."""
    top = plans.normal(frame._jdf.queryExecution().analyzed())
    node, nodes = top.child(), []
    while kind(node) != "Aggregate":
        nodes.append(node)
        node = node.child()
    low = Groups(plans, node)
    return Groups(plans, top), [*nodes, *(items(each) for each in reversed(low.projections))], low


def passed(plans: Plans, frame: DataFrame) -> tuple[Between, Groups, Groups]:
    upper, nodes, low = cut(plans, frame)
    given = {int(each.attribute.exprId().id()): each.columns for each in low.values}
    return between(plans, nodes, given, [(str(each.name()), each) for each in upper.columns]), upper, low


def rows_below(plans: Plans, node: Groups) -> pa.Table:
    """What Spark gives to a node, with times in the zone of the session."""
    frame = plans.frame(plans.project(plans.seq(node.columns), node.child))
    return frame.toArrow().cast(pa.schema([(each.name(), node.arrow(type_of(each))) for each in node.columns]))


@pytest.mark.parametrize("name", UPPER)
def test_nodes_between_two_aggregates(spark: SparkSession, name: str) -> None:
    """What the lower operator answers becomes what Spark would give to the upper one."""
    with settings(spark, "America/New_York"):
        plans = Plans(spark)
        made, upper, low = passed(plans, UPPER[name](lower(spark)))
        groups = op.Pipeline(op.source("rows"), op.step("groups", low.operator("complete"), "rows"))
        answers = low.finished(op.Trial(groups).epoch(rows_below(plans, low)).output)
        got, wanted = pickle.loads(pickle.dumps(made)).apply(answers), rows_below(plans, upper)
        assert got.schema == made.schema == wanted.schema
        assert got.num_rows == wanted.num_rows > 10
        assert sorted(map(rounded, got.to_pylist())) == sorted(map(rounded, wanted.to_pylist()))
        assert made.apply(answers.slice(0, 0)).num_rows == 0
        again, _, _ = passed(plans, UPPER[name](lower(spark)))
        assert again.version == made.version != between(plans, [], {}, []).version


def rounded(row: dict[str, Any]) -> str:
    """Variances are kept otherwise here than there."""
    return repr([float(f"{each:.12g}") if isinstance(each, float) else each for each in row.values()])


@pytest.mark.parametrize("type_", ["bigint", "double", "decimal(10,2)", "decimal(38,4)"])
def test_an_average_is_finished_as_spark_finishes_it(spark: SparkSession, type_: str) -> None:
    """From its sum and its count, which is what the lower operator answers."""
    with settings(spark):
        plans = Plans(spark)
        mean = plans.normal(spark.range(1).selectExpr(f"avg(cast(id as {type_}))")._jdf.queryExecution().analyzed())
        function = plans.catalyst.planning.PhysicalAggregation.unapply(mean).get()._2().apply(0).aggregateFunction()
        total, count = items(function.aggBufferAttributes())
        summed = total.dataType().sql()
        rows = spark.range(50).selectExpr(f"cast(if(id = 0, null, id * 7919.13) as {summed}) as s", "id as c")
        plan = rows._jdf.queryExecution().analyzed()
        renamed = [plans.renamed(old, new) for old, new in zip(items(plan.output()), (total, count), strict=True)]
        finished = plans.alias(function.evaluateExpression(), "mean")
        theirs = plans.frame(plans.project(plans.seq([finished]), plans.project(plans.seq(renamed), plan))).toArrow()
        names = {int(total.exprId().id()): ("s",), int(count.exprId().id()): ("c",)}
        made = between(plans, [[finished]], names, [("mean", finished.toAttribute())])
        assert shown(made.apply(rows.toArrow()).column(0)) == shown(theirs.column(0))


def test_structs_travel_as_fields(spark: SparkSession) -> None:
    """With a column that says where they are, or in one column: the answers are the same."""
    with settings(spark):
        plans = Plans(spark)
        frame = (
            spark.range(9)
            .selectExpr("nullif(id, 7) as id")
            .selectExpr("if(id % 3 = 0, null, struct(id as a, if(id % 2 = 0, null, struct(-id as c)) as b)) as s")
        )
        texts = ["s", "s.b", "s.b.c", "isnull(s)", "isnotnull(s.b)", "coalesce(s.b.c, s.a)", "coalesce(s, s)"]
        number = int(frame._jdf.queryExecution().analyzed().output().apply(0).exprId().id())
        project = frame.selectExpr(*texts)._jdf.queryExecution().analyzed()
        wanted = [(f"c{n}", each) for n, each in enumerate(items(project.projectList()))]
        names = {"s": "s is not null", "s_a": "s.a", "s_b": "s.b is not null", "s_b_c": "s.b.c"}
        fields = frame.selectExpr(*(f"{text} as {name}" for name, text in names.items())).toArrow()
        theirs = frame.selectExpr(*texts).toArrow()
        for given, table in (({number: tuple(names)}, fields), ({number: ("s",)}, frame.toArrow())):
            got = between(plans, [], given, wanted).apply(table)
            assert [each.to_pylist() for each in got.columns] == [each.to_pylist() for each in theirs.columns]
        with pytest.raises(NotCovered, match="4 columns are needed, got 2"):
            between(plans, [], {number: ("a", "b")}, wanted)


REFUSED = {
    "hour(ts)": "Hour",
    "cast(w as int)": "Cast .* string to int32",
    "cast(d as string)": "Cast .* double to string",
    "cast(d as decimal(10,2))": "Cast",
    "rand()": "Rand",
    "current_timestamp()": "CurrentTimestamp",
    "ts > current_timestamp()": "CurrentTimestamp",
    "w like 'a%'": "Like",
    "array(i)": "CreateArray",
    "ts + interval 1 month": "TimestampAddYMInterval",
    "ts - ts": "SubtractTimestamps",
    "e div 2": "IntegralDivide .* decimals",
    "struct(i, l) = struct(j, m)": "EqualTo .* struct",
    "w collate UNICODE = 'a'": "collation|Collat",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_covered_is_named(spark: SparkSession, text: str) -> None:
    with settings(spark), pytest.raises(NotCovered, match=REFUSED[text]) as error:
        compiled(rows_of(spark), text)
    assert "between two stateful nodes is not covered" in str(error.value)
    assert "below the first of them or above the last" in str(error.value)


def test_nodes_that_are_not_covered_are_named(spark: SparkSession) -> None:
    plans, frame = Plans(spark), spark.range(3)
    number = frame._jdf.queryExecution().analyzed().output().apply(0)
    stream = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    made = {"PythonUDF": frame.select(F.udf(str)("id")), "EventTimeWatermark": stream, "Sort": frame.orderBy("id")}
    for name, each in made.items():
        plan = plans.normal(each._jdf.queryExecution().analyzed())
        with pytest.raises(NotCovered, match=f"{name} between two stateful nodes is not covered"):
            between(plans, [plan], {int(number.exprId().id()): ("id",)}, [])
    with pytest.raises(NotCovered, match="not among the answers"):
        between(plans, [], {}, [("x", number)])
