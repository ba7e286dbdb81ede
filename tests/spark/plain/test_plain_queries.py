"""Plain queries: each run by Structured Streaming and by Holdfast over the same micro-batches, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from side_by_side import BATCHES, ROWS, Rows, answers, by_spark, tidy

import holdfast
from holdfast.errors import HoldfastError, Invalid
from holdfast.queries import NotCovered
from holdfast.queries.split import Split
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history

pytestmark = pytest.mark.spark


def timed(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 minutes")


def sql(events: DataFrame, text: str) -> DataFrame:
    events.createOrReplaceTempView("events")
    return events.sparkSession.sql(text)


def half(name: str) -> Column:
    return F.udf(lambda n: None if n is None else n / 2, "double")(name)


QUERIES: dict[str, tuple[Callable[[DataFrame], DataFrame], tuple[str, ...]]] = {
    "functions": (
        lambda e: e.groupBy("k").agg(
            F.count("*"), F.count("n"), F.sum("n"), F.avg("n"), F.min("x"), F.max("x"), F.sum("cents"), F.avg("cents"),
            F.max("ts"), F.min("day"), F.max("yes"), F.max("k"),
        ),
        ("update", "complete"),
    ),
    "no keys": (lambda e: e.agg(F.count("*"), F.sum("n"), F.max("x")), ("update", "complete")),
    "above": (
        lambda e: e.groupBy((F.col("n") % 3).alias("m"), "day").agg(
            (F.max("n") - F.min("n")).alias("range"), F.count("*").alias("c"), F.sum(half("n"))
        ).where("c > 20").selectExpr("upper(string(day)) as day", "m", "range + c as both"),
        ("update",),
    ),
    "tumbling": (
        lambda e: timed(e).groupBy(F.window("ts", "10 minutes"), "k").agg(F.count("*").alias("c"), F.sum("n")),
        ("update", "append", "complete"),
    ),
    "sliding, window alone": (
        lambda e: timed(e).where("n > 2").groupBy(F.window("ts", "10 minutes", "5 minutes")).count().select(
            "window.end", "count"
        ),
        ("append",),
    ),
    "event time as a key": (lambda e: timed(e).groupBy("ts", "k").count(), ("append",)),
    "sql": (
        lambda e: sql(
            e,
            "with e as (select *, length(k) l from events where n > 1) select l * 2 as l2, sum(n) / count(*) as mean, "
            "count_if(n > 3) big, count(*) filter (where yes) y from e group by l * 2 having max(n) > 2",
        ),
        ("update",),
    ),
    "a static table, a union": (
        lambda e: e.select("k", "n").union(e.select("k", "n")).join(
            e.sparkSession.createDataFrame([("ann", "A"), ("bob", "B")], "k string, team string"), "k", "left"
        ).groupBy("team").agg(F.count("*"), F.avg("n")),
        ("update",),
    ),
    "structs as keys": (
        lambda e: e.groupBy(F.when(F.col("n") > 2, F.struct("k", F.struct("day"))).alias("s")).agg(F.sum("n")),
        ("update",),
    ),
    "sessions": (
        lambda e: timed(e).groupBy(F.session_window("ts", "40 seconds"), "k").agg(F.count("*"), F.max("n"))
        .where("k is not null"),
        ("append", "complete"),
    ),
    "sessions of their own length": (
        lambda e: timed(e).groupBy(
            F.session_window("ts", F.when(F.col("k") == "ann", "10 seconds").otherwise("2 minutes")), "yes", "day"
        ).agg(F.sum("n"), F.avg("cents")),
        ("append",),
    ),
    "windows of windows": (
        lambda e: timed(e).groupBy(F.window("ts", "5 minutes"), "k").agg(F.count("*").alias("c"), F.avg("n").alias("m"))
        .where("c > 1").groupBy(F.window(F.window_time("window"), "15 minutes", "5 minutes")).agg(
            F.sum("c"), F.max("m"), F.count(F.when(F.col("k") == "ann", 1))
        ),
        ("append",),
    ),
    "duplicates, then windows": (
        lambda e: timed(e).dropDuplicates(["ts", "k"]).groupBy(F.window("ts", "10 minutes")).agg(F.count("*")),
        ("append",),
    ),
    "distinct": (lambda e: e.select("k", "day").distinct(), ("update",)),
    "duplicates": (lambda e: e.select("k", "n").dropDuplicates(), ("append", "update")),
    "duplicates by event time": (
        lambda e: timed(e.withColumn("ts", F.when(F.col("n") != 3, F.col("ts"))))
        .select("ts", "k").dropDuplicates(["ts", "k"]).where("k is not null"),
        ("append",),
    ),
    "duplicates within the watermark": (
        lambda e: timed(e).selectExpr("ts", "n % 4 as m", "upper(k) as k").dropDuplicatesWithinWatermark(["m", "k"])
        .select("m", "k"),
        ("append", "update"),
    ),
}  # fmt: skip


SHORT = {
    ("tumbling", "append"),
    ("sliding, window alone", "append"),
    ("sql", "update"),
}
CASES = [
    pytest.param(name, mode, marks=[] if (name, mode) in SHORT else [pytest.mark.long])
    for name, (_, modes) in QUERIES.items()
    for mode in modes
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_every_batch_is_that_of_structured_streaming(events: DataFrame, tmp_path: Path, name: str, mode: str) -> None:
    frame = QUERIES[name][0](events)
    ours = answers(holdfast.writeStream(frame), mode, tmp_path / "ours")
    assert ours == by_spark(frame, mode, tmp_path / "theirs")
    assert len(ours) >= BATCHES and any(ours.values())


def test_nodes_die_and_batches_stay_what_they_are(events: DataFrame, tmp_path: Path) -> None:
    """Early answers come meanwhile, and say how good they are."""
    frame = QUERIES["tumbling"][0](events)
    early: list[tuple[int, float]] = []
    writer = holdfast.writeStream(frame).early(lambda rows, epoch, fidelity: early.append((epoch, fidelity)))
    faults = parse_faults("kill node-1,node-2 at epoch 2")
    writer.resilience(nodes=4, parallelism=4, checkpoint_every=3, faults=faults, rejoin_after=0.5)
    ours = answers(writer, "update", tmp_path / "ours")
    assert ours == by_spark(frame, "update", tmp_path / "theirs")
    assert any(event["kind"] == "nodes lost" for event in read_history(tmp_path / "ours"))
    assert {epoch for epoch, _ in early} == set(range(BATCHES)) and all(0 < told <= 1 for _, told in early)
    assert any(epoch == 2 and told < 1 for epoch, told in early), "who was lost answers from the checkpoint"


def test_a_window_closes_when_nothing_more_comes(events: DataFrame, tmp_path: Path) -> None:
    """The watermark has moved with the last rows; numbers of batches go on after a restart."""
    frame, theirs = QUERIES["tumbling"][0](events), dict[int, Rows]()
    writer = holdfast.writeStream(frame).option("checkpointLocation", str(tmp_path / "ours"))
    writer.foreachBatch(lambda rows, epoch: theirs.update({epoch: tidy(rows)}))
    query = writer.trigger(processingTime="1 second").start()
    query.processAllAvailable()
    query.stop()
    assert theirs == by_spark(frame, "append", tmp_path / "theirs")
    again = writer.trigger(availableNow=True).start()
    again.awaitTermination()
    assert sorted(theirs) == list(range(BATCHES + 1)) and again.exception() is None


def test_a_restart_goes_on_with_the_next_batch(events: DataFrame, folder: Path, tmp_path: Path) -> None:
    frame, got = QUERIES["functions"][0](events), dict[int, Rows]()

    def take(rows: DataFrame, epoch: int) -> None:
        if epoch == 2 and 1 in got and len(got) == 2:
            got[-1] = []
            raise ValueError("no more today")
        got[epoch] = tidy(rows)

    writer = holdfast.writeStream(frame).outputMode("update").trigger(availableNow=True)
    writer.foreachBatch(take).option("checkpointLocation", str(tmp_path / "ours"))
    writer.start().awaitTermination()
    del got[-1]  # it was given again
    assert got == by_spark(frame, "update", tmp_path / "theirs")
    writer.start().awaitTermination()
    assert sorted(got) == list(range(BATCHES)), "nothing is given twice"


def test_another_meaning_of_a_column_does_not_fit_the_store(events: DataFrame, tmp_path: Path) -> None:
    def run(frame: DataFrame) -> None:
        answers(holdfast.writeStream(frame), "update", tmp_path / "ours")

    run(events.groupBy("k").agg(F.sum("n")))
    with pytest.raises(HoldfastError, match="groups"):
        run(events.groupBy("k").agg(F.sum(F.col("n") * 2)))


def test_windows_of_another_step_are_others(events: DataFrame) -> None:
    def meant(*window: str) -> str:
        return Split(events.groupBy(F.window("ts", *window)).count()).top.meaning["g0_end"]

    texts = [meant("10 minutes"), meant("10 minutes", "5 minutes"), meant("10 minutes", "2 minutes"), meant("1 hour")]
    assert len(set(texts)) == 4 and texts[0] == meant("10 minutes")
    assert all(text.startswith("window of 600 s") for text in texts[:3]) and texts[3].startswith("window of 3600 s")


def test_a_window_of_another_name_lasts_as_long(events: DataFrame) -> None:
    named = events.select(F.window("ts", "10 minutes").alias("w"), "k").groupBy("w", "k").count()
    again = timed(events).groupBy(F.window("ts", "5 minutes"), "k").count().groupBy("window").count()
    assert Split(named).top.meaning["g0_end"].startswith("window of 600 s")
    split = Split(again)
    assert [node.name for node in split.nodes] == ["groups", "groups-2"]
    assert split.top.meaning["g0_end"].startswith("window of 300 s")


def test_the_clock_does_not_stand_still(events: DataFrame) -> None:
    split = Split(events.where("ts < now()").groupBy("k").agg(F.expr("count_if(ts > current_timestamp())")))
    below = str(split.below._jdf.queryExecution().analyzed())
    assert "now()" in below and "current_timestamp()" in below


def test_a_query_is_explained(events: DataFrame) -> None:
    text = holdfast.explain(QUERIES["tumbling"][0](events), mode="append", nodes=4, budget=1.0)
    assert "groups, 4 tasks, until the watermark has reached window of 600 s" in text
    assert ": count(1), sum(n) by window of 600 s" in text
    assert "when any node is lost, live copies leave a fidelity of at least 0.750, with replicas of groups/" in text
    assert "EventTimeWatermark" in text
    with pytest.raises(Invalid, match="nodes must be at least 1, got 0"):
        holdfast.explain(events.groupBy("k").count(), nodes=0)


def test_what_is_not_taken_ends_the_query_by_name(events: DataFrame, tmp_path: Path) -> None:
    def refuse(rows: DataFrame, epoch: int) -> None:
        raise ValueError("the table is locked")

    writer = holdfast.writeStream(events.groupBy("k").count()).outputMode("update").foreachBatch(refuse)
    query = writer.option("checkpointLocation", str(tmp_path / "ours")).start()
    with pytest.raises(HoldfastError, match="batch 0 was not taken after 6 tries: ValueError: the table is locked"):
        query.awaitTermination(60)


REFUSED: dict[str, tuple[Callable[[DataFrame], DataFrame], str]] = {
    "no state": (lambda e: e.where("x > 0"), "no stateful node in the plan: a query without state loses none"),
    "sorted": (lambda e: e.groupBy("k").count().orderBy("k"), "Sort above a node with state is not covered: sort in"),
    "limited": (lambda e: e.groupBy("k").count().limit(2), "GlobalLimit above a node with state is not covered"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_covered_is_refused_by_its_name(events: DataFrame, name: str) -> None:
    make, told = REFUSED[name]
    with pytest.raises(NotCovered, match=told):
        holdfast.writeStream(make(events))


def test_a_writer_says_what_is_wrong_before_anything_starts(events: DataFrame, tmp_path: Path) -> None:
    writer = holdfast.writeStream(events.groupBy("k").count())
    with pytest.raises(Invalid, match="outputMode must be update, append or complete, got 'all'"):
        writer.outputMode("all")
    with pytest.raises(Invalid, match="trigger: give one of processingTime, availableNow and once, got none"):
        writer.trigger()
    with pytest.raises(NotCovered, match="format 'kafka' is not covered"):
        writer.format("kafka")
    with pytest.raises(Invalid, match="resilience 'budgets': did you mean budget"):
        writer.resilience(budgets=3)
    with pytest.raises(Invalid, match="resilience nodes: a whole number of at least 1 is needed, got '4'"):
        writer.resilience(nodes=cast(Any, "4"))
    with pytest.raises(Invalid, match="checkpointLocation: say where state"):
        writer.format("noop").start()
    with pytest.raises(NotCovered, match="outputMode append: groups never close; it needs withWatermark"):
        writer.option("checkpointLocation", str(tmp_path / "none")).start()
    with pytest.raises(Invalid, match="this DataFrame is not streaming"):
        holdfast.writeStream(events.sparkSession.range(3))
    assert not (tmp_path / "none").exists()


def test_files_and_memory_have_the_rows(events: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    frame = QUERIES["tumbling"][0](events)
    expected = [row for batch in by_spark(frame, "append", tmp_path / "theirs").values() for row in batch]
    writer = holdfast.writeStream(frame).option("checkpointLocation", str(tmp_path / "ours")).trigger(availableNow=True)
    writer.format("parquet").start(str(tmp_path / "rows")).awaitTermination()
    assert tidy(spark.read.parquet(str(tmp_path / "rows")).drop("epoch")) == sorted(expected, key=str)
    writer = holdfast.writeStream(events.groupBy("k").count()).outputMode("complete").queryName("counts")
    writer.option("checkpointLocation", str(tmp_path / "counts")).format("memory")
    query = writer.start()
    query.processAllAvailable()
    assert query.isActive and sum(row["count"] for row in spark.table("counts").collect()) == BATCHES * ROWS
    query.stop()
