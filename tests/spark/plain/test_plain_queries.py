"""Plain queries: writers, nodes that die, restarts, what is explained and what is refused."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from queries import NAMED, Streams
from side_by_side import BATCHES, ROWS, Rows, answers, by_spark, tidy

import holdfast
from holdfast.errors import HoldfastError, Invalid
from holdfast.queries import NotCovered
from holdfast.queries.split import Split
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history
from holdfast.state import Damaged, Fenced, Held, Store, Unusable
from holdfast.state.fence import held
from holdfast.state.files import open_files
from waiting import DEADLINE

pytestmark = pytest.mark.spark


def test_nodes_die_and_batches_stay_what_they_are(streams: Streams, tmp_path: Path) -> None:
    """Early answers come meanwhile, and say how good they are."""
    frame = NAMED["tumbling"].make(streams)
    early: list[tuple[int, float]] = []
    writer = holdfast.writeStream(frame).early(lambda rows, epoch, fidelity: early.append((epoch, fidelity)))
    faults = parse_faults("kill node-1,node-2 at epoch 2")
    writer.resilience(nodes=4, parallelism=4, checkpoint_every=3, faults=faults, rejoin_after=0.5)
    ours = answers(writer, "update", tmp_path / "ours")
    assert ours == by_spark(frame, "update", tmp_path / "theirs")
    assert any(event["kind"] == "nodes lost" for event in read_history(tmp_path / "ours"))
    assert {epoch for epoch, _ in early} == set(range(BATCHES)) and all(0 < told <= 1 for _, told in early)
    assert any(epoch == 2 and told < 1 for epoch, told in early), "who was lost answers from the checkpoint"


def test_a_window_closes_when_nothing_more_comes(streams: Streams, tmp_path: Path) -> None:
    """The watermark has moved with the last rows; numbers of batches go on after a restart."""
    frame, theirs = NAMED["tumbling"].make(streams), dict[int, Rows]()
    writer = holdfast.writeStream(frame).option("checkpointLocation", str(tmp_path / "ours"))
    writer.foreachBatch(lambda rows, epoch: theirs.update({epoch: tidy(rows)}))
    query = writer.trigger(processingTime="100 milliseconds").start()
    query.processAllAvailable()
    query.stop()
    assert theirs == by_spark(frame, "append", tmp_path / "theirs")
    again = writer.trigger(availableNow=True).start()
    again.awaitTermination()
    assert sorted(theirs) == list(range(BATCHES + 1)) and again.exception() is None


def test_a_query_that_cannot_start_leaves_nothing_running(
    streams: Streams, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is found only once the store is claimed: the store is free again, and Spark's query has ended."""
    files = open_files(tmp_path / "ours")
    files.put("cursor/batches-0000000001.json", b"torn", True)
    writer = holdfast.writeStream(NAMED["tumbling"].make(streams)).queryName("torn").foreachBatch(lambda *_: None)
    writer.option("checkpointLocation", str(tmp_path / "ours")).trigger(processingTime="1 second")
    with pytest.raises(Damaged, match=r"batches-0000000001\.json is torn"):
        writer.start()
    assert not any(each.name == "torn" for each in spark.streams.active)
    assert not held(files, time.time())

    def silent(*_: object) -> None:
        raise Unusable("the store is silent")

    files.delete("cursor/batches-0000000001.json")
    monkeypatch.setattr("holdfast.runtime.spark.starting.asked", silent)
    with pytest.raises(Unusable, match="the store is silent"):
        writer.start()
    assert not held(files, time.time())


def test_a_store_by_url_that_another_holds_is_left_without_a_trace(streams: Streams, tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    writer = holdfast.writeStream(NAMED["tumbling"].make(streams)).foreachBatch(lambda *_: None)
    writer.option("checkpointLocation", url).resilience(spark_log=str(tmp_path / "log"))
    with Store(url).writer("another"), pytest.raises(Held):
        writer.start()
    assert not [thread.name for thread in threading.enumerate() if thread.name == "holdfast-history-put"]


def test_an_epoch_without_rows_that_fails_ends_the_query(
    streams: Streams, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own query too, which would read on for nobody."""

    def full(*_: object) -> None:
        raise Fenced("another has the store")

    monkeypatch.setattr("holdfast.runtime.spark.idle.IdleEpochs.add", full)
    writer = holdfast.writeStream(NAMED["tumbling"].make(streams)).queryName("idle").foreachBatch(lambda *_: None)
    query = (
        writer.option("checkpointLocation", str(tmp_path / "ours")).trigger(processingTime="100 milliseconds").start()
    )
    with pytest.raises(HoldfastError, match=r"^another has the store$"):
        query.awaitTermination(DEADLINE)
    assert query._source is not None and query._source.thread is not None
    query._source.thread.join(DEADLINE)
    assert not any(each.name == "idle" for each in spark.streams.active)


@pytest.mark.usefixtures("nobody_suspected")
def test_a_batch_that_spark_cannot_read_is_not_taken_for_a_shorter_one(streams: Streams, tmp_path: Path) -> None:
    """It fails in the middle of its rows, and those before are not all."""
    failing = F.expr("if(n = 8, cast(-cents as decimal(2,0)), cents)")
    with pytest.raises(HoldfastError, match=r"NUMERIC_VALUE_OUT_OF_RANGE.* cannot be represented as Decimal\(2, 0\)"):
        answers(holdfast.writeStream(streams.e.groupBy(failing).count()), "update", tmp_path / "ours")
    assert not list((tmp_path / "ours" / "journal").rglob("*.arrow"))


def test_a_restart_goes_on_with_the_next_batch(streams: Streams, tmp_path: Path) -> None:
    frame, got = NAMED["functions"].make(streams), dict[int, Rows]()

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


def test_a_window_of_another_name_lasts_as_long(streams: Streams, events: DataFrame) -> None:
    named = events.select(F.window("ts", "10 minutes").alias("w"), "k").groupBy("w", "k").count()
    again = streams.timed.groupBy(F.window("ts", "5 minutes"), "k").count().groupBy("window").count()
    assert Split(named).top.meaning["g0_end"].startswith("window of 600 s")
    split = Split(again)
    assert [node.name for node in split.nodes] == ["groups", "groups-2"]
    assert split.top.meaning["g0_end"].startswith("window of 300 s")


def test_the_clock_does_not_stand_still(events: DataFrame) -> None:
    split = Split(events.where("ts < now()").groupBy("k").agg(F.expr("count_if(ts > current_timestamp())")))
    below = str(split.below._jdf.queryExecution().analyzed())
    assert "now()" in below and "current_timestamp()" in below


def test_a_query_is_explained(streams: Streams, events: DataFrame) -> None:
    text = holdfast.explain(NAMED["tumbling"].make(streams), mode="append", nodes=4, budget=1.0)
    assert "groups, 4 tasks, until the watermark has reached window of 600 s" in text
    assert ": count(1), sum(n) by window of 600 s" in text
    assert "when any node is lost, live copies leave a fidelity of at least 0.750, with replicas of groups/" in text
    assert "EventTimeWatermark" in text
    with pytest.raises(Invalid, match="nodes must be at least 1, got 0"):
        holdfast.explain(events.groupBy("k").count(), nodes=0)


@pytest.mark.usefixtures("offered_at_once")
def test_what_is_not_taken_ends_the_query_by_name(events: DataFrame, tmp_path: Path) -> None:
    def refuse(rows: DataFrame, epoch: int) -> None:
        raise ValueError("the table is locked")

    writer = holdfast.writeStream(events.groupBy("k").count()).outputMode("update").foreachBatch(refuse)
    query = writer.option("checkpointLocation", str(tmp_path / "ours")).start()
    with pytest.raises(HoldfastError, match="batch 0 was not taken after 2 tries: ValueError: the table is locked"):
        query.awaitTermination(DEADLINE)


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


def test_files_and_memory_have_the_rows(
    streams: Streams, events: DataFrame, spark: SparkSession, tmp_path: Path
) -> None:
    frame = NAMED["tumbling"].make(streams)
    expected = [row for batch in by_spark(frame, "append", tmp_path / "theirs").values() for row in batch]
    writer = holdfast.writeStream(frame).option("checkpointLocation", str(tmp_path / "ours")).trigger(availableNow=True)
    writer.format("parquet").start(str(tmp_path / "rows")).awaitTermination()
    assert tidy(spark.read.parquet(str(tmp_path / "rows")).drop("epoch")) == sorted(expected, key=str)
    writer = holdfast.writeStream(streams.e.groupBy("k").count()).outputMode("complete").queryName("counts")
    writer.option("checkpointLocation", str(tmp_path / "counts")).format("memory")
    query = writer.start()
    query.processAllAvailable()
    assert query.isActive and sum(row["count"] for row in spark.table("counts").collect()) == BATCHES * ROWS
    query.stop()
