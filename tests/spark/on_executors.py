"""A program, since a process has one Spark: a job on four executors is scaled, and some are killed meanwhile.

    python on_executors.py FOLDER

What happens is decided by what the history says, never by time. The listener runs under the lock of the job, so whoever
it kills is dead before anything else can be decided.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from holdfast import operators as op
from holdfast.operators import Pipeline
from holdfast.runtime.spark import Job, spark_session, start

MASTER = "local-cluster[4,1,900]"
KEYS, ROWS = 64, 400


def keyed(batch: pa.Table) -> pa.Table:
    return pa.table({"key": pc.cast(pc.bit_wise_and(batch["value"], KEYS - 1), pa.int64())})


def counts(tasks: int = 2) -> Pipeline:
    count = op.aggregate({"key": pa.int64()}, count=op.count())
    return Pipeline(
        op.source("rows", keyed, parallelism=2),
        op.step("counts", count, op.stream("rows", key="key"), parallelism=tasks),
    )


def counted(epochs: int) -> list[tuple[int, int, int]]:
    """(epoch, key, count) of what on_executors.py runs, by a plain loop."""
    counts: Counter[int] = Counter()
    answers = []
    for epoch in range(epochs):
        keys = [value & (KEYS - 1) for value in range(epoch * ROWS, (epoch + 1) * ROWS)]
        counts.update(keys)
        answers += [(epoch, key, counts[key]) for key in sorted(set(keys))]
    return answers


class Trial:
    """Scale to 4 tasks, and kill a node that has new ones when their replay begins; when they have taken over and are
    in a checkpoint, scale to 3, and kill a node that has old ones alone when the replay begins.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.over = threading.Event()
        self.killed: list[str] = []
        self.new: set[str] = set()

    def hear(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "scaling begun":
            self.new = set(event["new"].values())
        if kind == "answered" and event["epoch"] == 2:
            self.ask(4)
        elif kind == "replay" and event.get("scaling"):
            if not self.killed:
                self.kill(with_new=True)
            elif len(self.killed) == 1 and self.job.status["tasks"]["counts"] == 4:
                self.kill(with_new=False)
        elif kind == "checkpoint" and len(self.killed) == 1 and self.job.status["tasks"]["counts"] == 4:
            self.ask(3)
        elif kind == "scaled" and event["tasks"] == 3:
            self.over.set()

    def ask(self, to: int) -> None:
        driver = self.job.driver
        assert driver.autoscaler is not None
        scale = driver.autoscaler.scale
        driver.clock.post(lambda: scale("counts", to, f"to-{to}"))

    def kill(self, with_new: bool) -> None:
        old = set(self.job.driver.snapshot.homes.values())
        victim = min(self.new - old or self.new) if with_new else min(old - self.new or old)
        self.killed.append(victim)
        self.job.driver.ports.nodes.kill([victim])


def scaled(spark: SparkSession, folder: Path) -> None:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
    os.chdir(folder.parent)  # executors have working folders of their own: a relative store is the driver's to resolve
    job = start(
        stream.load().select("value"), counts(), store=folder.name, nodes=4, checkpoint_every=2, rebalance=False
    )
    trial = Trial(job)
    job.add_listener(trial.hear)
    if not trial.over.wait(150):
        raise SystemExit(f"it did not come to its end: {job.status}")
    job.stop()
    spark.stop()


def main() -> None:
    settings = {"spark.driver.memory": "2g", "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", "")}
    spark = spark_session(MASTER, name="on-executors", settings=settings)
    scaled(spark, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
