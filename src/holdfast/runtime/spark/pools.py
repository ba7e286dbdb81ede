"""Spark's pools of jobs: answers go before what can wait.

Where a session schedules fairly, each kind of run has a pool of its own. One whose share is not reached goes before all
others, and that of epochs and stopgaps never is. What has begun is not called off: a replay keeps the cores it has
until its tasks are done. A session that was made to serve jobs in their order does so.
"""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext

from holdfast.runtime.spark.java import java

PROPERTY = "spark.scheduler.pool"
FIRST = ("epoch", "stopgap")
ALL = 2**20
"""More tasks than there will ever be at once."""


def join_pool(context: SparkContext, kind: str) -> None:
    """Let the jobs of this thread be of this kind, if the session has pools."""
    scala: Any = context._jsc.sc()
    if str(scala.getSchedulingMode()) != "FAIR":
        return
    jvm = java(context)
    name, root = f"holdfast-{kind}", scala.taskScheduler().rootPool()
    if root.getSchedulableByName(name) is None:
        mode = jvm.org.apache.spark.scheduler.SchedulingMode.FAIR()
        pool = jvm.org.apache.spark.scheduler.Pool(name, mode, ALL if kind in FIRST else 0, 1)
        root.addSchedulable(pool)
    context.setLocalProperty(PROPERTY, name)
