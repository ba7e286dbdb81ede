"""A program, since a process has one Spark: jobs in one session, on executors with several cores.

    python on_cores.py EXECUTORS CORES FOLDER
    python on_cores.py EXECUTORS CORES FOLDER WORDS...    # a command of holdfast

The tasks of one job go on only when as many of them are at work on their executor as it has cores, and say how many
were: one after the other they would never be. Then comes the command; without one, two jobs count at once, and one
executor is killed in the middle.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from on_executors import ROWS, counts, keyed
from pyspark.sql import DataFrame

from holdfast import operators as op
from holdfast.operators import Pipeline, State
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import spark_session, start

MEETINGS, EPOCHS, KILLED_AT = 3, 8, 3
PATIENCE = 100.0


def meeting(folder: Path, cores: int) -> Callable[[pa.Table, State], pa.Table]:
    """A function that waits for its neighbours: processes of one executor have one parent."""

    def meet(rows: pa.Table, state: State) -> pa.Table:
        here = folder / f"{os.getppid()}.{state.epoch}"
        here.mkdir(parents=True, exist_ok=True)
        (here / str(os.getpid())).touch()
        until = time.monotonic() + PATIENCE
        while (present := len(list(here.iterdir()))) < cores and time.monotonic() < until:
            time.sleep(0.005)
        return pa.table({"executor": [os.getppid()], "process": [os.getpid()], "present": [present]})

    return meet


def all_at_work(folder: Path, executors: int, cores: int) -> None:
    """What the tasks that waited for each other said."""
    met = read_output(folder / "meeting", "final").to_pylist()
    assert len(met) == MEETINGS * executors * cores
    assert {row["present"] for row in met} == {cores}
    each = Counter((row["epoch"], row["executor"]) for row in met)
    assert set(each.values()) == {cores} and len({row["executor"] for row in met}) == executors


def main() -> None:
    executors, cores, folder, words = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    settings = {"spark.driver.memory": "2g", "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", "")}
    spark = spark_session(f"local-cluster[{executors},{cores},900]", name="on-cores", settings=settings)
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
    values = stream.load().select("value")
    meeting_job = Pipeline(
        op.source("rows", keyed, parallelism=2),
        op.step("meet", meeting(folder / "met", cores), op.stream("rows", key="key"), parallelism=executors * cores),
    )
    first = start(values, meeting_job, store=folder / "meeting", nodes=executors, epochs=MEETINGS)
    first.awaitTermination()
    if words:
        from holdfast.cli import main as holdfast

        sys.argv = ["holdfast", *words]
        holdfast()
    else:
        two_jobs(values, folder, executors)
        spark.stop()


def two_jobs(values: DataFrame, folder: Path, executors: int) -> None:
    second = start(values, counts(4), store=folder / "counts", nodes=executors, epochs=EPOCHS, checkpoint_every=2)
    third = start(values, counts(4), store=folder / "beside", nodes=executors, epochs=EPOCHS, checkpoint_every=2)
    killed = threading.Event()

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "answered" and event["epoch"] == KILLED_AT and not killed.is_set():
            killed.set()
            second.driver.ports.nodes.kill(["node-0"])

    second.add_listener(hear)
    second.awaitTermination()
    third.awaitTermination()


if __name__ == "__main__":
    main()
