"""A real job under ``holdfast supervise``: its driver dies, it comes back, and nothing is lost or repeated."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from commands import running

from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.outputs import read_output
from waiting import DEADLINE, until

pytestmark = [pytest.mark.spark, pytest.mark.long]

EPOCHS, ROWS = 30, 100
JOB = """
import polars as pl
import holdfast
from holdfast import operators as op

def build():
    spark = holdfast.spark_session("local[2]")
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", {rows}).load()
    pipeline = op.Pipeline(
        op.source("numbers", op.map(key=(pl.col("value") % 7).cast(pl.String)), parallelism=2),
        op.step("count", op.aggregate("key", count=op.count()), "numbers", parallelism=2),
    )
    return holdfast.start(numbers, pipeline, store={store!r}, epochs={epochs}, trigger="200 milliseconds")
"""


def test_a_job_whose_driver_is_killed_comes_back_and_its_output_is_exact(tmp_path: Path) -> None:
    store, job = tmp_path / "store", tmp_path / "job.py"
    job.write_text(JOB.format(rows=ROWS, store=str(store), epochs=EPOCHS))
    program = [sys.executable, "-m", "holdfast", "supervise"]
    events: list[dict[str, object]] = []
    with running(f"{job}:build", "--json", "--pause", "0.1", program=program) as process:

        def read() -> None:
            assert process.stdout is not None
            events.extend(json.loads(line) for line in process.stdout)

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        written = (store / "history.jsonl").exists
        until(lambda: process.poll() is not None or (written() and answered(store) >= EPOCHS // 3))
        assert process.poll() is None, "it never got there"
        driver = next(event["process"] for event in events if event["kind"] == "started")
        assert isinstance(driver, int)
        os.kill(driver, signal.SIGKILL)
        assert process.wait(DEADLINE) == 0
        reading.join(DEADLINE)
    kinds = [event["kind"] for event in events]
    assert kinds.count("started") == 2 and kinds.count("crashed") == 1 and kinds[-1] == "ended"
    counts: Counter[int] = Counter()
    expected = []
    for epoch in range(EPOCHS):
        counts.update(value % 7 for value in range(epoch * ROWS, (epoch + 1) * ROWS))
        expected += [(epoch, str(key), counts[key]) for key in range(7)]
    table = read_output(store, "final")
    assert sorted(zip(*(table[name].to_pylist() for name in ("epoch", "key", "count")), strict=True)) == expected


RAISES = """
import holdfast

def write(rows, epoch):
    return 1 / 0

def build():
    spark = holdfast.spark_session("local[2]")
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    counts = numbers.groupBy("value").count()
    writer = holdfast.writeStream(counts).outputMode("update").foreachBatch(write)
    return writer.option("checkpointLocation", {store!r}).start()
"""


def test_an_error_of_the_job_s_own_code_is_one_line(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(RAISES.format(store=str(tmp_path / "store")))
    program = [sys.executable, "-m", "holdfast", "supervise"]
    with running(f"{job}:build", "--crashes", "1", program=program) as process:
        out, err = process.communicate(timeout=DEADLINE)
    cause = "batch 0 was not taken after 2 tries: ZeroDivisionError: division by zero (job.py, line 5, in write)"
    assert process.returncode == 1 and "Traceback" not in out + err
    assert err.splitlines()[-1] == f"holdfast: {job}:build: given up after 1 crashes in a row; the last: {cause}"


def answered(store: Path) -> int:
    return sum(event["kind"] == "answered" for event in read_history(store))
