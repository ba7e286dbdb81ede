"""Answers go before what can wait: a job of an epoch overtakes a replay that has many tasks left."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.runtime.spark.pools import PROPERTY, join_pool
from waiting import DEADLINE, until

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
TASKS, EPOCH, CORES = 400, 8, 2


def test_an_epoch_overtakes_a_replay(spark: SparkSession) -> None:
    """As long as a task of the epoch waits, no task of the replay is launched: by when Spark launched each of them."""
    context: Any = spark.sparkContext
    counted: list[int] = []

    def slow(_: Iterable[int]) -> Iterator[int]:
        time.sleep(0.05)  # as tasks that have something to do: the replay must last until the epoch comes
        yield 1

    def run(kind: str, tasks: int) -> None:
        join_pool(context, kind)
        assert context.getLocalProperty(PROPERTY) == f"holdfast-{kind}"
        context.setJobGroup(f"pools-{kind}", kind)
        with contextlib.suppress(Exception):  # the replay is called off in the end
            counted.append(context.parallelize(range(tasks), tasks).mapPartitions(slow).sum())

    def launched(kind: str) -> list[int]:
        """When each task was that has begun, in milliseconds, in order."""
        context._jsc.sc().listenerBus().waitUntilEmpty()
        tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
        (job,) = tracker.getJobIdsForGroup(f"pools-{kind}")
        (stage,) = tracker.getJobInfo(job).stageIds
        tasks = store.taskList(stage, 0, TASKS)
        return sorted(int(tasks.apply(number).launchTime().getTime()) for number in range(tasks.size()))

    def under_way() -> bool:
        return bool(context.statusTracker().getJobIdsForGroup("pools-replay")) and len(launched("replay")) > CORES

    replay = threading.Thread(target=run, args=("replay", TASKS))
    replay.start()
    until(under_way)
    epoch = threading.Thread(target=run, args=("epoch", EPOCH))
    epoch.start()
    epoch.join(DEADLINE)
    context.cancelJobGroup("pools-replay")
    replay.join(DEADLINE)
    assert counted == [EPOCH]
    of_epoch, of_replay = launched("epoch"), launched("replay")
    assert len(of_epoch) == EPOCH and len(of_replay) < TASKS, "the replay was to be under way all the time"
    between = [at for at in of_replay if of_epoch[0] < at < of_epoch[-1]]
    assert len(between) <= CORES, "but for those that were chosen when the epoch came"
