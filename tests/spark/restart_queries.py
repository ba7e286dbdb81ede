"""Queries over folders of files, with sinks that keep every epoch, and what each of them must answer.

The rows of a query are at ``rows``, its store at ``stores/NAME``, what its sink was given at ``sunk/NAME``.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import planned
import planned_pipeline
import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import operators as op
from holdfast.runtime.driver.ports import Output

DELAY, SIZE, GAP, WITHIN = 30, 20, 5, 25
"""Seconds: of the watermark, of a window, between sessions, between a view and its click."""
BEGIN = 1_767_225_600
EVENTS = planned.Marked("at", DELAY)
SCHEMAS = {
    "events": "k string, id long, n long, tags array<string>, at long",
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
"""The other door."""
COLUMNS = {
    "totals": ("k", "w", "c", "s"),
    "best": ("end", "rank", "tag", "c"),
    "sessions": ("start", "end", "k", "c"),
    "pairs": ("start", "k", "n", "id"),
}
"""Of the queries of the pipeline."""
ALL = (*QUERIES, PIPELINE)
FILES = {name: 1 if name in ("once within", PIPELINE) else 2 for name in ALL}
"""In a batch of the trial at most. Which row of a key is the first depends on their order, which is that of a file."""


def pipeline() -> op.Pipeline:
    """Ten operators; ``planned_pipeline.py`` has the same by plain loops."""
    by, time, size = "k", "at_ts", f"{SIZE} seconds"
    long = f"{2 * SIZE} seconds"
    closes = {"end": pa.timestamp("us", "UTC")}
    sides = op.side("hot", {"n": "int64"}, time=time), op.side("once", {"id": "int64"}, time=time)
    return op.Pipeline(
        op.source("events", op.filter("n < 8"), event_time=time, parallelism=2),
        op.step("tags", op.flat_map(tag=pl.col("tags"), keep=time), "events", parallelism=2),
        op.step("hot", op.filter("n >= 6"), "events", parallelism=2),
        op.step("once", op.deduplicate({"id": "int64"}, time=time, within=f"{WITHIN} seconds"), "events"),
        op.step("windows", op.tumbling(size, by=by, time=time, c=op.count(), s=op.sum("n")), "once", parallelism=2),
        op.step("sliding", op.sliding(long, size, by="tag", time=time, c=op.count()), "tags", parallelism=2),
        op.step("sessions", op.session(f"{GAP} seconds", by=by, time=time, c=op.count()), "events", parallelism=2),
        op.step("totals", op.aggregate(by, w=op.count(), c=op.sum("c"), s=op.sum("s")), "windows", parallelism=2),
        op.step("best", op.top_k(2, "c", "tag", within=closes, closes="end"), "sliding"),
        op.step("pairs", op.join(*sides, on=by, size=size), ["hot", "once"], correlated=True, parallelism=2),
    )


Idle = Iterable[tuple[int, int]]
"""Epochs without rows and the batches before them, where some are older than those that a store still tells of."""


def epochs_of(root: Path, name: str, idle: Idle | None = None) -> list[planned.Epoch]:
    """Of a query, or the pipeline, which has none without rows: by the batches that Spark planned."""
    store = root / "stores" / name
    batches = planned.planned(store / "spark")
    if name == PIPELINE:
        return planned.epochs(batches, [EVENTS])
    behind = [batch for batch, _ in (planned.idle(store) if idle is None else idle)]
    return planned.epochs(planned.with_idle(batches, behind), [mark for _, mark in QUERIES[name].sources])


def answers(name: str, epochs: Sequence[planned.Epoch]) -> dict[str, dict[int, planned.Answer]]:
    """What each sink of a query must have been given."""
    if name == PIPELINE:
        return planned_pipeline.answers(epochs, SIZE, GAP, WITHIN)
    return {"rows": QUERIES[name].answers(epochs)}


def drop(root: Path, number: int, seed: int = 0) -> None:
    """One more file for each source. Times go on by 40 seconds a file; a quarter of the rows is late by up to 100."""
    draw = random.Random(f"{seed} {number}")

    def at() -> int:
        late = draw.choice((0, 0, 0, draw.randrange(100)))
        return max(BEGIN, BEGIN + number * 40 + draw.randrange(40) - late)

    rows = [
        {
            "k": draw.choice("abcdef"),
            "id": draw.randrange(60),
            "n": draw.randrange(9),
            "tags": draw.sample("xyz", draw.randrange(3)),
            "at": at(),
        }
        for _ in range(50)
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


def begin(
    spark: SparkSession,
    root: Path,
    name: str,
    files: int = 1,
    ends: bool = True,
    named: str | None = None,
    **options: Any,
) -> Any:
    """Start a query or the pipeline.

    ``files``: so many at most in a batch. ``ends``: when it has read all files there are. ``named``: Spark's query.
    """
    store, sink = root / "stores" / name, Sink(root, name)
    trigger: dict[str, Any] = {"availableNow": True} if ends else {"processingTime": "100 milliseconds"}
    if name == PIPELINE:
        rows, given = events(spark, root / "rows", files), {"sink": sink.output, "name": named, **options}
        return holdfast.start(rows, pipeline(), store=store, watermarked=True, trigger=trigger, **given)
    query = QUERIES[name]
    writer = holdfast.writeStream(query.make(spark, root / "rows", files)).outputMode(query.mode)
    writer.foreachBatch(sink.batch).option("checkpointLocation", str(store)).trigger(**trigger)
    if named is not None:
        writer.queryName(named)
    return writer.resilience(**options).start()


def assert_as_planned(root: Path, *names: str, idles: bool = True) -> None:
    """Every sink was given every row of every epoch, and nothing else.

    ``idles``: the queries run epochs without rows, so one of their epochs goes by the last watermark.
    """
    wrong = [each for name in names for each in differences(root, name)]
    wrong += [each for name in names if idles and name in QUERIES for each in still_open(root, name)]
    assert not wrong, "\n".join(wrong)


def still_open(root: Path, name: str, idle: Idle | None = None) -> Iterator[str]:
    """Whether no epoch goes by the watermark of all rows."""
    last = epochs_of(root, name, idle)[-1]
    if last.closes < last.leaves:
        yield f"{name}: no epoch goes by the watermark {last.leaves}, the last by {last.closes}"


def differences(root: Path, name: str, idle: Idle | None = None, whole: bool = True) -> Iterator[str]:
    """What the sinks of a query were given that differs, by epoch.

    ``whole``: all was read, and nothing more will be given; else epochs may be missing, and of the pipeline's what some
    tasks answered.
    """
    got, planned_epochs = sunk(root, name), epochs_of(root, name, idle)
    if whole:
        yield from _unread(root, name, planned_epochs)
    for of, epochs in answers(name, planned_epochs).items():
        given = got.pop(of, {})
        for epoch in sorted(given.keys() | epochs.keys() if whole else given):
            here, right = Counter(given.get(epoch, ())), Counter(epochs.get(epoch, ()))
            more, less = (planned.ordered(each.elements()) for each in (here - right, right - here))
            if name == PIPELINE:  # its sink is told of no task that has no rows
                absent, less = epoch not in epochs, less if whole else []
            else:
                absent = epoch not in epochs or epoch not in given
            if more or less or absent:
                yield f"{name}, {of}, epoch {epoch}{' is one too many or too few' * absent}: {more} and not {less}"
    assert not got, f"{name}: {sorted(got)} are none of its queries"


def _unread(root: Path, name: str, epochs: Sequence[planned.Epoch]) -> Iterator[str]:
    """Whether rows are in no epoch, or in two."""
    sources = QUERIES[name].sources if name in QUERIES else (("events", EVENTS),)
    for number, (of, _) in enumerate(sources):
        there = Counter(line for path in (root / "rows" / of).glob("*.json") for line in path.read_text().splitlines())
        read = Counter(json.dumps(row) for epoch in epochs for row in epoch.rows[number])
        if there != read:
            yield f"{name}: of {of} {(there - read).total()} rows are in no epoch, {(read - there).total()} too often"
