"""Event time in a job: what windows count beside their rows comes with the epoch, and times can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import operators as op
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import start
from waiting import DEADLINE

pytestmark = pytest.mark.spark

ROWS, EPOCHS = 100, 4


# A row a second; every seventh has no time, of the others every eleventh comes 60 seconds late.
COLUMNS = {
    "key": "if(value % 11 = 0, 'late', 'on time')",
    "time": "if(value % 7 = 0, null, value - if(value % 11 = 0, 60, 0))",
    "at": "timestamp_seconds(value)",
    "odd": "value % 7 < 4",
}


class Seen(op.Operator):
    def process(self, batch: pa.Table, state: op.State) -> pa.Table:
        state.count("seen", batch.num_rows)
        return batch


def rows_of(epoch: int) -> pa.Table:
    """The same rows without Spark."""
    values = range(ROWS * epoch, ROWS * (epoch + 1))
    late = [value % 11 == 0 for value in values]
    times = [None if v % 7 == 0 else v - 60 * behind for v, behind in zip(values, late, strict=True)]
    at = pa.array([value * 1_000_000 for value in values]).cast(pa.timestamp("us", "UTC"))
    keys = ["late" if behind else "on time" for behind in late]
    return pa.table({"key": keys, "time": times, "at": at, "odd": [value % 7 < 4 for value in values]})


def pipeline() -> op.Pipeline:
    last = {"at": op.max("at", "timestamp[us, tz=UTC]"), "odd": op.min("odd", "bool")}
    windows = op.sliding("40 seconds", "20 seconds", by="key", time="time", rows=op.count(), **last)
    return op.Pipeline(
        op.source("rows", Seen(), event_time="time", parallelism=2),
        op.step("windows", windows, "rows", parallelism=2),
        op.step("ever", op.aggregate("key", **last), "rows", parallelism=2),
    )


def test_what_windows_count_comes_with_the_progress_of_each_epoch(spark: Any, tmp_path: Path) -> None:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
    rows = stream.load().selectExpr(*(f"{written} AS {name}" for name, written in COLUMNS.items()))
    job = start(rows, pipeline(), store=tmp_path, nodes=2, epochs=EPOCHS)
    assert job.awaitTermination(DEADLINE), job.status
    trial = op.Trial(pipeline())
    told = [trial.epoch(rows_of(epoch)) for epoch in range(EPOCHS)]
    assert {what for epoch in told for what in epoch.counters["windows"]} == {"late", "partly_late", "untimed"}
    assert [progress["counters"] for progress in job.recentProgress] == [epoch.counters for epoch in told]
    assert [e["counters"] for e in read_history(tmp_path) if e["kind"] == "epoch"] == [e.counters for e in told]
    for query in ("windows", "ever"):
        right = [row for epoch in told for row in epoch.outputs[query].to_pylist()]
        output = read_output(tmp_path, "final").to_pylist()
        mine = [{name: row[name] for name in right[0]} for row in output if row["task"].startswith(query)]
        assert sorted(mine, key=str) == sorted(right, key=str) != []
