"""Queries over folders of files, with sinks that keep every epoch; as a program, a driver that can be killed.

The rows of a query are at ``rows``, its store at ``stores/NAME``, what its sink was given at ``sunk/NAME``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import planned
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import operators as op
from holdfast.runtime.driver.ports import Output
from holdfast.runtime.spark.source import StreamSource
from spark_settings import SETTINGS

DELAY, SIZE, GAP, WITHIN = 30, 20, 5, 25
"""Seconds: of the watermark, of a window, between sessions, between a view and its click."""
BEGIN = 1_767_225_600
RETAINED = {"spark.sql.streaming.minBatchesToRetain": "1000000"}
"""Spark's log keeps every batch: the reference reads them all."""
EVENTS = planned.Marked("at", DELAY)
SCHEMAS = {
    "events": "k string, id long, n long, at long",
    "views": "ad long, seen long",
    "clicks": "ad long, clicked long",
}


@dataclass(frozen=True)
class Query:
    """``sources``: the folders that it reads, with their watermarks; ``answers``: what it must answer."""

    make: Callable[[SparkSession, Path, int], DataFrame]
    answers: planned.Reference
    mode: str = "append"
    sources: tuple[tuple[str, planned.Marked], ...] = (("events", EVENTS),)


def stream(spark: SparkSession, rows: Path, of: str, time: str, files: int) -> DataFrame:
    """``files``: so many at most in a batch."""
    read = spark.readStream.schema(SCHEMAS[of]).option("maxFilesPerTrigger", files).json(str(rows / of))
    return read.withColumn(f"{time}_ts", F.timestamp_seconds(time)).withWatermark(f"{time}_ts", f"{DELAY} seconds")


def events(spark: SparkSession, rows: Path, files: int) -> DataFrame:
    return stream(spark, rows, "events", "at", files)


def counted(spark: SparkSession, rows: Path, files: int) -> DataFrame:
    window = F.window("at_ts", f"{SIZE} seconds").alias("w")
    made = events(spark, rows, files).groupBy(window, "k").agg(F.count("*").alias("c"), F.sum("n").alias("s"))
    return made.select(F.unix_timestamp("w.start").alias("start"), "k", "c", "s")


def visits(spark: SparkSession, rows: Path, files: int) -> DataFrame:
    window = F.session_window("at_ts", f"{GAP} seconds").alias("w")
    made = events(spark, rows, files).groupBy(window, "k").agg(F.count("*").alias("c"))
    return made.select(F.unix_timestamp("w.start").alias("start"), F.unix_timestamp("w.end").alias("end"), "k", "c")


def once(spark: SparkSession, rows: Path, files: int) -> DataFrame:
    return (
        events(spark, rows, files)
        .select("id", "at_ts")
        .dropDuplicates(["id", "at_ts"])
        .select(F.unix_timestamp("at_ts").alias("at"), "id")
    )


def once_within(spark: SparkSession, rows: Path, files: int) -> DataFrame:
    return (
        events(spark, rows, files)
        .select("id", "at_ts")
        .dropDuplicatesWithinWatermark(["id"])
        .select(F.unix_timestamp("at_ts").alias("at"), "id")
    )


def clicked(spark: SparkSession, rows: Path, files: int) -> DataFrame:
    views = stream(spark, rows, "views", "seen", files).alias("v")
    clicks = stream(spark, rows, "clicks", "clicked", files).alias("c")
    soon = f"v.ad = c.ad and clicked_ts between seen_ts and seen_ts + interval {WITHIN} seconds"
    return views.join(clicks, F.expr(soon), "left").select("seen", "v.ad", "clicked")


QUERIES = {
    "windows": Query(counted, planned.windows(SIZE)),
    "sessions": Query(visits, planned.sessions(GAP)),
    "once": Query(once, planned.firsts("id", "at")),
    "once within": Query(once_within, planned.firsts("id", within=DELAY)),
    "join": Query(
        clicked,
        planned.pairs(WITHIN),
        sources=(("views", planned.Marked("seen", DELAY)), ("clicks", planned.Marked("clicked", DELAY))),
    ),
    "update": Query(counted, planned.windows(SIZE, update=True), "update"),
}
PIPELINE = "pipeline"
"""The other door: windows and sessions of the same rows, as a pipeline."""
COLUMNS = {"windows": ("start", "k", "c", "s"), "sessions": ("start", "end", "k", "c")}
ALL = (*QUERIES, PIPELINE)


def pipeline() -> op.Pipeline:
    rows = op.source("events", event_time="at_ts", delay_seconds=DELAY, parallelism=2)
    windows = op.tumbling(f"{SIZE} seconds", by="k", time="at_ts", c=op.count(), s=op.sum("n"))
    sessions = op.session(f"{GAP} seconds", by="k", time="at_ts", c=op.count())
    return op.Pipeline(
        rows,
        op.step("windows", windows, "events", parallelism=2),
        op.step("sessions", sessions, "events", parallelism=2),
    )


def expected(root: Path, name: str) -> dict[str, dict[int, planned.Answer]]:
    """What each sink of a query must have been given, by the batches that Spark planned."""
    store = root / "stores" / name
    batches = planned.planned(store / "spark")
    if name == PIPELINE:
        epochs = planned.epochs(batches, [EVENTS])
        return {"windows": planned.windows(SIZE)(epochs), "sessions": planned.sessions(GAP)(epochs)}
    query = QUERIES[name]
    epochs = planned.epochs(planned.with_idle(batches, store), [mark for _, mark in query.sources])
    return {"rows": query.answers(epochs)}


def drop(root: Path, number: int, seed: int = 0) -> None:
    """One more file for each source. Times go on by 40 seconds a file; a quarter of the rows is late by up to 100."""
    draw = random.Random(f"{seed} {number}")

    def at() -> int:
        late = draw.choice((0, 0, 0, draw.randrange(100)))
        return max(BEGIN, BEGIN + number * 40 + draw.randrange(40) - late)

    rows = [
        {"k": draw.choice("abcdef"), "id": draw.randrange(60), "n": draw.randrange(9), "at": at()} for _ in range(50)
    ]
    put(root, "events", number, [*rows, *draw.sample(rows, 10)])
    put(root, "views", number, [{"ad": draw.randrange(25), "seen": at()} for _ in range(30)])
    put(root, "clicks", number, [{"ad": draw.randrange(25), "clicked": at()} for _ in range(30)])


def put(root: Path, of: str, number: int, rows: Iterable[planned.Row]) -> None:
    """A file is there at once and whole, and files are read in the order of their numbers."""
    path = root / "rows" / of / f"{number:05d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    part.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    os.utime(part, (BEGIN + number,) * 2)
    part.rename(path)


class Sink:
    """Keeps the rows of each epoch. An epoch that comes again must have the same."""

    def __init__(self, root: Path, name: str) -> None:
        self._folder = root / "sunk" / name

    def batch(self, frame: DataFrame, epoch: int) -> None:
        self._keep("rows", epoch, [tuple(row) for row in frame.collect()])

    def output(self, output: Output) -> None:
        operator, index = str(output.task).split("/")
        rows = [tuple(_seconds(row[name]) for name in COLUMNS[operator]) for row in output.table.to_pylist()]
        if output.kind == "final":
            self._keep(operator, output.epoch, rows, index)

    def _keep(self, of: str, epoch: int, rows: planned.Answer, part: str = "0") -> None:
        path = self._folder / of / f"{epoch}-{part}.json"
        told = json.dumps(planned.ordered(rows))
        if path.exists():
            assert path.read_text() == told, f"{path}: {path.read_text()} and then {told}"
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".part").open("w") as file:
            file.write(told)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".part").rename(path)


def _seconds(value: Any) -> Any:
    return int(value.timestamp()) if hasattr(value, "timestamp") else value


def sunk(root: Path, name: str) -> dict[str, dict[int, planned.Answer]]:
    """What each sink of a query was given, by epoch."""
    found: dict[str, dict[int, planned.Answer]] = {}
    for path in (root / "sunk" / name).glob("*/*.json"):
        epochs = found.setdefault(path.parent.name, {})
        epoch = int(path.stem.partition("-")[0])
        epochs[epoch] = planned.ordered([*epochs.get(epoch, ()), *map(tuple, json.loads(path.read_text()))])
    return found


def begin(spark: SparkSession, root: Path, name: str, files: int = 1, ends: bool = True, **options: Any) -> Any:
    """Start a query or the pipeline. ``ends``: when it has read all files there are."""
    store, sink = root / "stores" / name, Sink(root, name)
    trigger: dict[str, Any] = {"availableNow": True} if ends else {"processingTime": "20 milliseconds"}
    if name == PIPELINE:
        rows = events(spark, root / "rows", files)
        return holdfast.start(
            rows, pipeline(), store=store, watermarked=True, trigger=trigger, sink=sink.output, **options
        )
    query = QUERIES[name]
    writer = holdfast.writeStream(query.make(spark, root / "rows", files)).outputMode(query.mode)
    writer.foreachBatch(sink.batch).option("checkpointLocation", str(store)).trigger(**trigger)
    return writer.resilience(**options).start()


def killed_once_answered(epoch: int, queries: int) -> None:
    """This process is killed when so many queries have answered an epoch, and Spark has not committed its batch."""
    release, answered, lock = StreamSource.release, [0], threading.Lock()

    def released(source: StreamSource, at: int) -> None:
        if at != epoch:
            release(source, at)
            return
        with lock:
            answered[0] += 1
            if answered[0] == queries:
                os.kill(os.getpid(), signal.SIGKILL)

    StreamSource.release = released  # type: ignore[method-assign]


def main(root: str, epoch: str, *names: str) -> None:
    """Run these until all have answered an epoch."""
    killed_once_answered(int(epoch), len(names))
    spark = holdfast.spark_session("local[2]", name="restarts", settings=SETTINGS | RETAINED)
    for query in [begin(spark, Path(root), name) for name in names]:
        query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
