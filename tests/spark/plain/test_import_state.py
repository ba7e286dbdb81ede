"""A query moves over from Structured Streaming with its state: what follows is what would have followed there."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast as hold
from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.statistics import moments
from holdfast.queries.buffers import parts_of
from holdfast.queries.functions import Function
from holdfast.queries.stateful import NotCovered
from holdfast.state.verify import verify

SCHEMA = "k string, n int, x double, cents decimal(7,2), big decimal(20,2), ts timestamp, day date, yes boolean"
BATCHES, STOPPED, ROWS = 4, 2, 90
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
Rows = list[tuple[Any, ...]]
spark_test = pytest.mark.spark


def written(folder: Path, batch: int) -> None:
    """One micro-batch. Times go on by twenty minutes a batch; a third of the rows is late. Nobody has values of zed."""
    draw, rows = random.Random(batch), []
    for number in range(ROWS):
        minute = batch * 20 + draw.randrange(20) - draw.choice((0, 0, 30))
        name = draw.choice(["ann", "bob", "cy", None, "zed"])
        row = {
            "k": name, "ts": f"2026-01-01 {5 + minute // 60:02d}:{minute % 60:02d}:{number % 60:02d}",
            "n": draw.choice([None, *range(9)]), "x": draw.choice([draw.uniform(-5, 9), -0.0, 0.0, "NaN"]),
            "cents": f"{draw.randrange(-999, 9999) / 100:.2f}", "big": f"{draw.randrange(10**15)}.25",
            "day": f"2026-01-{1 + draw.randrange(3):02d}", "yes": draw.choice([True, False, None]),
        }  # fmt: skip
        if name == "zed":
            row = {"k": name, "ts": row["ts"], "x": "NaN" if batch < STOPPED else 1.5}
        rows.append(row)
    path = folder / f"{batch}.json"
    path.write_text("\n".join(map(json.dumps, rows)))
    os.utime(path, (1_700_000_000 + batch,) * 2)


class Moved:
    """A stream that Structured Streaming reads for a while, and then Holdfast."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self.spark, self.place = spark, place
        self.folder, self.old, self.store = place / "in", place / "old", place / "store"
        self.folder.mkdir()
        for batch in range(STOPPED):
            written(self.folder, batch)
        spark.conf.set("spark.sql.shuffle.partitions", "2")

    @property
    def events(self) -> DataFrame:
        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return stream.option("allowNonNumericNumbers", True).json(str(self.folder))

    def through(self, frame: DataFrame, mode: str) -> dict[int, Rows]:
        """Structured Streaming stops after some batches, and what it would have answered had it gone on."""
        answers(frame.writeStream, mode, self.old)
        shutil.copytree(self.old, self.place / "through")
        for batch in range(STOPPED, BATCHES):
            written(self.folder, batch)
        return answers(frame.writeStream, mode, self.place / "through")

    def stopped(self, frame: DataFrame, mode: str = "update") -> None:
        answers(frame.writeStream, mode, self.old)


@pytest.fixture
def moved(spark: SparkSession, tmp_path: Path) -> Any:
    provider = spark.conf.get(PROVIDER)
    yield Moved(spark, tmp_path)
    assert provider is not None
    spark.conf.set(PROVIDER, provider)


def answers(writer: Any, mode: str, store: Path) -> dict[int, Rows]:
    got: dict[int, Rows] = {}

    def take(frame: DataFrame, epoch: int) -> None:
        rows = [tuple(f"{v:.12g}" if isinstance(v, float) else v for v in row) for row in frame.collect()]
        got[epoch] = sorted(rows, key=str)

    writing = writer.outputMode(mode).foreachBatch(take).option("checkpointLocation", str(store))
    writing.trigger(availableNow=True).start().awaitTermination()
    return got


def files(place: Path) -> dict[str, tuple[bytes, int]]:
    found = [path for path in place.rglob("*") if path.is_file()]
    return {str(path.relative_to(place)): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def timed(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 minutes")


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "functions, one unread": lambda e: e.groupBy(F.upper("k").alias("K")).agg(
        F.count("*").alias("c"), F.max("n").alias("unread"), F.count("n"), F.sum("n"), F.avg("n"), F.sum("x"),
        F.min("x"), F.max("x"), F.sum("cents"), F.avg("cents"), F.sum("big"), F.avg("big"), F.max("cents"), F.max("ts"),
        F.min("day"), F.max("yes"), F.max("k"), F.sum(F.col("n") + 0).alias("again"),
    ).where("c > 3").drop("c", "unread"),
    "windows": lambda e: timed(e).groupBy(F.window("ts", "10 minutes"), "k").agg(F.count("*"), F.sum("n"), F.min("x")),
    "no keys": lambda e: e.agg(F.count("*"), F.avg("n"), F.max("x")),
    "event time": lambda e: timed(e).groupBy("ts", "k").count(),
    "keys alone, a struct": lambda e: e.selectExpr("k", "if(n < 3, null, struct(day, yes)) as s").groupBy(
        "k", "s"
    ).count().select("k", "s"),
}  # fmt: skip
CASES = [
    ("functions, one unread", "update", None),
    pytest.param("windows", "append", ROCKS, marks=pytest.mark.long),
    pytest.param("windows", "complete", None, marks=pytest.mark.long),
    pytest.param("windows", "update", None, marks=pytest.mark.long),
    pytest.param("functions, one unread", "complete", ROCKS, marks=pytest.mark.long),
    pytest.param("no keys", "update", None, marks=pytest.mark.long),
    pytest.param("event time", "append", None, marks=pytest.mark.long),
    pytest.param("keys alone, a struct", "update", None, marks=pytest.mark.long),
]


@spark_test
@pytest.mark.parametrize(("name", "mode", "provider"), CASES)
def test_batches_after_the_move_are_those_of_structured_streaming(
    moved: Moved, name: str, mode: str, provider: str | None
) -> None:
    if provider is not None:
        moved.spark.conf.set(PROVIDER, provider)
    frame = QUERIES[name](moved.events)
    expected = moved.through(frame, mode)
    first = min(expected)  # batches without rows have numbers too
    assert first >= STOPPED and len(expected) >= BATCHES - STOPPED and any(expected.values())
    before = files(moved.old)
    told: list[int] = []
    done = hold.import_state(frame, moved.old, moved.store, mode=mode, parallelism=3, told=told.append)
    assert files(moved.old) == before, "the old checkpoint stays as it is"
    assert (done.epoch, done.planned, told[-1:]) == (first - 1, False, [done.groups]) and done.groups > 0
    assert verify_whole(moved.store)
    writer = hold.writeStream(frame).resilience(parallelism=3)
    assert answers(writer, mode, moved.store) == expected
    assert answers(writer, mode, moved.store) == {}, "nothing is given twice"


def verify_whole(store: Path) -> bool:
    from holdfast.state import Store

    return verify(Store(store)).whole


@spark_test
def test_a_batch_that_was_planned_is_run_again_and_tasks_may_be_others(
    moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the old query had died after it wrote the state of a batch, and before it said so. Memory is short."""
    monkeypatch.setattr("holdfast.queries.importing.PIECE", 3)
    monkeypatch.setattr("holdfast.queries.importing.HELD", 5)
    frame = moved.events.groupBy("k", "day").agg(F.count("*"), F.sum("n"))
    expected = answers(frame.writeStream, "update", moved.old)
    for path in (moved.old / "commits").glob("*1*"):
        path.unlink()
    told: list[int] = []
    done = hold.import_state(frame, moved.old, moved.store, parallelism=5, told=told.append)
    assert (done.epoch, done.planned, done.tasks) == (0, True, 5) and len(told) > 1
    assert not (moved.store / "scratch").exists()
    assert answers(hold.writeStream(frame).resilience(parallelism=2), "update", moved.store) == {1: expected[1]}


@spark_test
def test_the_command_answers_json_and_refuses_by_name(
    moved: Moved, holdfast: Callable[..., CompletedProcess[str]]
) -> None:
    moved.stopped(moved.events.groupBy("k").count())
    job = moved.place / "job.py"
    job.write_text(
        "from pyspark.sql import SparkSession\n"
        "def totals():\n"
        f"    stream = SparkSession.getActiveSession().readStream.schema({SCHEMA!r}).json({str(moved.folder)!r})\n"
        "    return stream.groupBy('k').count()\n"
    )
    words = ("import-state", str(moved.old), f"{job}:totals", "--store", str(moved.store), "--format", "json")
    done = holdfast(*words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "checkpoint": str(moved.old), "store": str(moved.store), "epoch": 1, "next": 2, "groups": 5, "tasks": 2,
        "watermark": None, "planned": False,
    }  # fmt: skip
    again = holdfast(*words)
    assert again.returncode == 2 and "it must be empty or not there yet; found" in again.stderr and not again.stdout


@spark_test
def test_what_does_not_fit_is_refused_and_leaves_nothing(moved: Moved) -> None:
    frame = moved.events.groupBy("k").agg(F.count("*"), F.sum("n"))
    moved.stopped(frame)

    def refused(told: str, frame: DataFrame = frame, old: Path = moved.old, store: Path | str = moved.store) -> None:
        before = sorted(moved.place.iterdir())
        with pytest.raises(Invalid, match=told):
            hold.import_state(frame, old, store)
        assert sorted(moved.place.iterdir()) == before

    other = moved.events.groupBy("k").agg(F.count("*"), F.sum("x"))
    refused(
        r"another query: the value of its state is \(count bigint, sum bigint\), that .* \(count bigint, sum do", other
    )
    refused(r"another query: the key of its state is \(k string\), that of this query \(day date\)",
            moved.events.groupBy("day").agg(F.count("*"), F.sum("n")))  # fmt: skip
    two = moved.events.union(moved.events.where("n > 1")).groupBy("k").agg(F.count("*"), F.sum("n"))
    refused("another query: sources of that one: 1, of this one: 2", two)
    refused("nothing is there", old=moved.place / "nowhere")
    refused("offsets is missing|metadata is missing", old=moved.folder)
    refused("state is imported into a local folder", store="s3://bucket/job")
    (moved.place / "full").mkdir()
    (moved.place / "full" / "note").touch()
    refused("it must be empty or not there yet; found note", store=moved.place / "full")
    refused("a store is a folder", store=moved.place / "full" / "note")
    hold.import_state(frame, moved.old, moved.place / "ours")
    refused("this is a Holdfast store", old=moved.place / "ours")
    wrong = {"offsets": "batch 1 was committed, but offsets/1 is missing", "commits": "no batch was committed"}
    for name, told in wrong.items():
        broken = moved.place / f"without {name}"
        shutil.copytree(moved.old, broken)
        for path in (broken / name).glob("*1*" if name == "offsets" else "*"):
            path.unlink()
        refused(told, old=broken)
    for content in ("v1\n{", '{"id": ', "[]", ""):
        shutil.copytree(moved.old, moved.place / "torn", dirs_exist_ok=True)
        (moved.place / "torn" / "metadata").write_text(content)
        (moved.place / "torn" / ".metadata.crc").unlink(missing_ok=True)
        refused("^checkpoint [^\n]*/torn: metadata is torn or is not Spark's$", old=moved.place / "torn")
    shutil.copytree(moved.old, moved.place / "without state")
    shutil.rmtree(moved.place / "without state" / "state" / "0" / "1")
    refused("state cannot be read", old=moved.place / "without state")


@spark_test
def test_a_query_that_still_runs_and_other_kinds_of_state_are_refused(moved: Moved) -> None:
    frame = moved.events.groupBy("k").count()
    query = frame.writeStream.outputMode("update").format("noop").option("checkpointLocation", str(moved.old)).start()
    try:
        query.processAllAvailable()
        with pytest.raises(Invalid, match=f"it is in use: query {query.id} runs in this session; stop the old query"):
            hold.import_state(frame, moved.old, moved.store)
    finally:
        query.stop()
    with pytest.raises(Invalid, match="it is in use: it has gone on meanwhile; stop the old query first"):
        hold.import_state(frame, moved.old, moved.store, told=lambda _: (moved.old / "commits" / "2").touch())
    moved.old = moved.place / "duplicates"
    moved.stopped(moved.events.dropDuplicates(["k"]), "append")
    with pytest.raises(NotCovered, match="the state of a query that keeps firsts cannot be imported"):
        hold.import_state(moved.events.dropDuplicates(["k"]), moved.old, moved.store)
    with pytest.raises(Invalid, match=r"one aggregate \(stateStoreSave\) is needed; operators with state: dedupe"):
        hold.import_state(frame, moved.old, moved.store)
    windows = QUERIES["windows"](moved.events)
    moved.old = moved.place / "complete"
    moved.stopped(windows, "complete")
    with pytest.raises(Invalid, match="groups that the watermark has passed, so the old query ran in mode complete"):
        hold.import_state(windows, moved.old, moved.store, mode="append")
    assert not moved.store.exists() and not list(moved.place.glob(".*"))


def test_buffers_become_parts() -> None:
    def parts(
        what: str, *buffers: pa.Array, kept: dict[str, op.Aggregation] | None = None, scale: int | None = None
    ) -> dict[str, list[Any]]:
        each = Function(f"{what.lower()}(v)", kept or {"r": op.count()}, (), ())
        return {name: values.to_pylist() for name, values in parts_of(what, each, buffers, scale).items()}

    cents, nan = pa.decimal128(20, 2), float("nan")
    assert parts("Count", pa.array([3, 0])) == {"r": [3, 0]}
    assert parts("Sum", pa.array([3, None])) == {"r": [3, None]}
    empty = pa.array([False, True])
    assert parts("Sum", pa.array([Decimal("1.25"), Decimal(0)], cents), empty) == {"r": [Decimal("1.25"), None]}
    with pytest.raises(Invalid, match=r"sum\(v\): the sum of a group had overflowed"):
        parts("Sum", pa.array([None, Decimal(0)], cents), empty)
    assert parts("Sum", pa.array([-125, None]), scale=2) == {"r": [Decimal("-1.25"), None]}
    mean = {"s": op.sum("a0", "float64"), "c": op.count("a0")}
    assert parts("Average", pa.array([1.5, 0.0]), pa.array([2, 0]), kept=mean) == {"s": [1.5, None], "c": [2, 0]}
    found = parts("Average", pa.array([125.0, 0.0]), pa.array([2, 0]), kept=mean, scale=2)
    assert found == {"s": [Decimal("1.25"), None], "c": [2, 0]}
    for name in ("Min", "Max"):
        both = {"r": op.max("a0", "float64"), "r.nan": op.max("a1", "bool")}
        found = parts(name, pa.array([1.0, nan, None]), kept=both)
        assert found["r.nan"] == [False, True, False] and found["r"][::2] == [1.0, None]
    found = parts("VarianceSamp", *map(pa.array, ([2.0, 0.0], [1.5, 0.0], [0.5, 0.0])), kept={"r": moments("a0", 2)})
    assert found == {"r": [{"n": 2.0, "avg": 1.5, "m2": 0.5}, None]}
