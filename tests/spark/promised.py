"""What the tests of promises share: a stream, a pipeline whose answers depend on every row, and a plain loop beside it.

As a program (`python promised.py FOLDER DELIVERED`): a job that is killed while its sink holds the output of an epoch.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from total import Total

import holdfast
from holdfast import operators as op
from holdfast.errors import HoldfastError
from holdfast.runtime.history.history import read_history
from waiting import DEADLINE

ROWS = 400
KILLED_AT = 3
"""The epoch whose output the sink of the program is given when it is killed."""


def numbers(spark: Any, rows: int = ROWS) -> Any:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2)
    return stream.load().select("value")


def keyed(batch: pa.Table) -> pa.Table:
    return pa.table({"key": pc.cast(pc.bit_wise_and(batch["value"], 15), pa.int64()), "value": batch["value"]})


def counting(function: Callable[[pa.Table], pa.Table] = keyed) -> op.Pipeline:
    """Source, keyed counts, and a total over all keys: three levels, two of them with state."""
    counts = op.aggregate({"key": pa.int64()}, count=op.count())
    return op.Pipeline(
        op.source("rows", function, parallelism=2),
        op.step("counts", counts, op.stream("rows", key="key"), parallelism=2),
        op.step("all", Total(), "counts"),
    )


def passing() -> op.Pipeline:
    """Two tasks that give every row back."""
    return op.Pipeline(op.source("rows", parallelism=2), op.step("kept", keyed, "rows", parallelism=2))


def breaking(marker: Path, epoch: int) -> Callable[[pa.Table], pa.Table]:
    """``keyed``, but while the marker is there it raises at an epoch: the job ends with epochs since its checkpoint."""

    def function(batch: pa.Table) -> pa.Table:
        if marker.exists() and batch.num_rows and pc.max(batch["value"]).as_py() >= epoch * ROWS:
            raise ValueError("the marker is there")
        return keyed(batch)

    return function


def waiting_for(gate: Path, value: int, function: Callable[[pa.Table], pa.Table] = keyed) -> Any:
    """``function``, but rows with this value and larger ones wait until the file is there: a test that has something to
    do in between has the time for it, and no epoch passes meanwhile.
    """

    def held(batch: pa.Table) -> pa.Table:
        if batch.num_rows and pc.max(batch["value"]).as_py() >= value:
            end = time.monotonic() + DEADLINE
            while not gate.exists():
                assert time.monotonic() < end, f"{gate.name} never came"
                time.sleep(0.005)
        return function(batch)

    return held


def expected(epochs: int) -> list[tuple[int, int, int]]:
    """(epoch, keys, sum) of ``all``, worked out row by row."""
    counts = dict.fromkeys(range(16), 0)
    keys = total = 0
    answers = []
    for epoch in range(epochs):
        for value in range(epoch * ROWS, (epoch + 1) * ROWS):
            counts[value & 15] += 1
        keys, total = keys + len(counts), total + sum(counts.values())
        answers.append((epoch, keys, total))
    return answers


def totals(folder: Path) -> list[tuple[int, int, int]]:
    table = holdfast.read_output(folder, "final")
    return list(zip(*(table[name].to_pylist() for name in ("epoch", "keys", "sum")), strict=True))


def finished(job: holdfast.Job, seconds: float = DEADLINE) -> holdfast.Job:
    assert job.awaitTermination(seconds), job.status
    return job


def ended(job: holdfast.Job, seconds: float = DEADLINE) -> HoldfastError | None:
    """What ended the job, if it did not come to its end by itself."""
    try:
        finished(job, seconds)
    except HoldfastError as error:
        return error
    return None


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_history(folder) if event["kind"] == kind]


def main(folder: str, delivered: str) -> None:
    def sink(output: Any) -> None:
        if output.epoch == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        with Path(delivered).open("a", encoding="utf-8") as file:
            file.write(f"{output.epoch}\n")

    spark = holdfast.spark_session("local[2]", name="killed")
    holdfast.start(numbers(spark), counting(), store=folder, nodes=2, checkpoint_every=2, sink=sink).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
