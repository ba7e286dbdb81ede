"""Answers go before what can wait: a job of an epoch overtakes a replay that has many tasks left."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator

import pytest
from pyspark.sql import SparkSession

from holdfast.runtime.spark.pools import PROPERTY, join_pool

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
TASKS = 40


def test_an_epoch_overtakes_a_replay(spark: SparkSession) -> None:
    context = spark.sparkContext
    counted: list[int] = []

    def slow(_: Iterable[int]) -> Iterator[int]:
        time.sleep(0.05)  # what is shown is who goes first; a task must last longer than it takes to ask
        yield 1

    def run(kind: str, group: str, tasks: int) -> None:
        join_pool(context, kind)
        assert context.getLocalProperty(PROPERTY) == f"holdfast-{kind}"
        context.setJobGroup(group, group)
        with contextlib.suppress(Exception):  # the replay is called off in the end
            counted.append(context.parallelize(range(tasks), tasks).mapPartitions(slow).sum())

    def left() -> int:
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for job in tracker.getJobIdsForGroup("pools-replay")
                  for stage in tracker.getJobInfo(job).stageIds]  # type: ignore[union-attr]  # fmt: skip
        return sum(stage.numTasks - stage.numCompletedTasks for stage in stages if stage is not None)

    replay = threading.Thread(target=run, args=("replay", "pools-replay", TASKS))
    replay.start()
    until = time.monotonic() + 60
    while not 0 < left() < TASKS and time.monotonic() < until:
        time.sleep(0.005)
    before = left()
    epoch = threading.Thread(target=run, args=("epoch", "pools-epoch", 8))
    epoch.start()
    epoch.join(60)
    after = left()
    context.cancelJobGroup("pools-replay")
    replay.join(60)
    assert counted == [8] and before > 8
    assert before - after <= 6, "those that had begun, one each while a core was being handed over"
