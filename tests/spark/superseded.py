"""Jobs that give their answers to user code, and are stopped in the middle of that while another driver takes over.

As a program (`python superseded.py FOLDER sink batches json`): these jobs, each of which waits at one epoch, within its
user code or in the middle of a file write, until the file `resumed` is there. The test stops the whole process group
meanwhile.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from promised import DEADLINE, ROWS, keyed, numbers
from pyspark import TaskContext
from pyspark.sql import functions as F

import holdfast
from holdfast import operators as op
from holdfast.errors import HoldfastError

STOPPED_AT = 2
"""The epoch in whose user code the older driver is stopped."""
EPOCHS = 4
TASKS = 3
LEASE = 2.0


class Latest:
    """A table in SQLite with the newest count of each key, and a log of every call that wrote to it."""

    def __init__(self, folder: Path, name: str, who: str) -> None:
        self._table = folder / f"{name}.db"
        self._log = folder / f"{name}.log"
        self._who = who
        with closing(sqlite3.connect(self._table)) as table:
            table.execute("create table if not exists latest (key integer primary key, epoch integer, count integer)")

    def begin(self, epoch: int) -> None:
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"{self._who} {epoch}\n")

    def upsert(self, epoch: int, rows: pa.Table) -> None:
        upsert = "insert into latest values (?, ?, ?) on conflict (key) do update set epoch = ?2, count = ?3"
        values = [(row["key"], epoch, row["count"]) for row in rows.to_pylist()]
        with closing(sqlite3.connect(self._table)) as table, table:
            table.executemany(upsert, values)

    def rows(self) -> list[tuple[int, int, int]]:
        with closing(sqlite3.connect(self._table)) as table:
            return table.execute("select key, epoch, count from latest order by key").fetchall()

    def calls(self) -> list[tuple[str, int]]:
        return [(who, int(epoch)) for who, epoch in (line.split() for line in self._log.read_text().splitlines())]


def job_with_sink(spark: Any, folder: Path, who: str, within: Callable[[int], None], **options: Any) -> holdfast.Job:
    """Counts by key in three tasks, each of which gives an output in every epoch: one delivery has several."""
    latest = Latest(folder, "sink", who)
    counts = op.aggregate({"key": pa.int64()}, count=op.count())
    pipeline = op.Pipeline(
        op.source("rows", keyed, parallelism=2),
        op.step("counts", counts, op.stream("rows", key="key"), parallelism=TASKS),
    )

    def sink(output: Any) -> None:
        latest.begin(output.epoch)
        latest.upsert(output.epoch, output.table)
        within(output.epoch)

    return holdfast.start(numbers(spark), pipeline, store=folder / "of-sink", sink=sink, lease=LEASE, **options)


def query_with_batches(spark: Any, folder: Path, who: str, within: Callable[[int], None], **options: Any) -> Any:
    """The same counts by a plain query, whose foreachBatch loses its connection over the stop."""
    latest = Latest(folder, "batches", who)

    def take(frame: Any, epoch: int) -> None:
        latest.begin(epoch)
        latest.upsert(epoch, frame.toArrow())
        within(epoch)

    frame = numbers(spark).selectExpr("value & 15 as key").groupBy("key").count()
    writer = holdfast.writeStream(frame).outputMode("update").foreachBatch(take)
    writer.resilience(lease=LEASE, **options).option("checkpointLocation", str(folder / "of-batches"))
    return writer.start()


def query_with_files(
    format_: str, spark: Any, folder: Path, who: str, within: Callable[[int], None], **options: Any
) -> Any:
    """Every number once, as files. One of the two tasks that write an epoch goes on ``within``, the other is done."""

    def passed(value: int) -> int:
        if TaskContext.get().partitionId():
            within(value // ROWS)
        return value

    frame = (
        numbers(spark).dropDuplicates(["value"]).select(F.udf(passed, "long", useArrow=False)("value").alias("value"))
    )
    writer = holdfast.writeStream(frame).format(format_).resilience(lease=LEASE, **options)
    return writer.option("checkpointLocation", str(folder / f"of-{format_}")).start(str(folder / format_))


FILES = ("json", "parquet")
STARTS: dict[str, Callable[..., Any]] = {
    "sink": job_with_sink,
    "batches": query_with_batches,
    **{format_: partial(query_with_files, format_) for format_ in FILES},
}


def waiting(name: str, folder: Path, epoch: int, seconds: float) -> Callable[[int], None]:
    """Made here with all that it needs, since Spark's Python workers do not know this module."""

    def wait(at: int) -> None:
        if at != epoch:
            return
        (folder / f"{name}.inside").touch()
        until = time.monotonic() + seconds
        while not (folder / "resumed").exists() and time.monotonic() < until:
            time.sleep(0.01)
        if name == "batches":
            raise ConnectionError("the server has closed the connection")

    return wait


def main(folder: Path, names: list[str]) -> None:

    spark = holdfast.spark_session("local[2]", name="superseded")
    jobs: dict[str, Any] = {}
    for name in names:
        jobs[name] = STARTS[name](spark, folder, "old", waiting(name, folder, STOPPED_AT, 10 * DEADLINE))
    while not (folder / "resumed").exists():
        time.sleep(0.01)
    for name, job in jobs.items():
        try:
            job.awaitTermination(DEADLINE)
        except HoldfastError as error:
            (folder / f"{name}.ended").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
