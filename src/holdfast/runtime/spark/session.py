"""A Spark session as Holdfast wants it: loopback, Arrow, cheap Python tasks. Users may bring their own instead."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from holdfast.errors import Invalid

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "holdfast.runtime.spark.daemon",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500000",
    "spark.sql.shuffle.partitions": "2",
    "spark.shuffle.compress": "false",
    "spark.locality.wait": "60s",
    "spark.shuffle.io.connectionTimeout": "4s",
    "spark.shuffle.io.maxRetries": "0",
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.cleaner.referenceTracking.blocking": "false",
    "spark.sql.codegen.hugeMethodLimit": "8000",
    "spark.sql.maxPlanStringLength": "20000",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.ui.retainedDeadExecutors": "20",
}
"""What is set, unless ``settings`` says otherwise, over what spark-defaults.conf has.

A Python task costs about a third with unix domain sockets. State is on its node, so a task waits for it rather than run
elsewhere. A task that has waited four seconds for rows from another executor fails, and they are not asked for again:
without that, it is two minutes, and three times. What the driver writes on a local disk through Hadoop, the stream's
own offset and commit logs above all, goes without Hadoop's checksum files: two less an epoch.

What was shuffled or broadcast is let go of without waiting for word from every executor: one that is cut off would hold
up the end of the session for two minutes.

The driver remembers the last thousand queries with their plans as text, page or no page, and every epoch is a query: a
plan of a megabyte (a query with a large literal) fills the heap within minutes. So few are kept, and their texts short.
"""

HEARTBEATS = {
    "spark.executor.heartbeatInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "10000",
    "spark.network.timeoutInterval": "2s",
}
"""An executor that has said nothing for ten seconds is lost, instead of two minutes.

Not in local mode, where the driver is the executor: Spark ends a process whose heartbeats took longer than the interval
60 times in a row, which on a busy machine a second may be too short for.
"""

REGIONS = "-XX:G1HeapRegionSize=32m"
"""For a heap of 4 GB or more, as far as the settings given to ``spark_session`` say: a small one would have too few.

For the JVM's collector an object of half a region is huge, and each makes it look through the whole heap. By default
regions are so small that every Arrow batch is one: that took a tenth of the CPU of a batch of a million rows. What is
gained was not measured.
"""

NEVER = "100000000s"

_LOCAL = re.compile(r"local(\[(\d+|\*)(,\s*\d+)?\])?")
_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\]")


def spark_session(
    master: str = "local[*]", *, name: str = "holdfast", settings: dict[str, str] | None = None
) -> SparkSession:
    """A new session for this master, or the running one. On this machine alone everything is bound to loopback."""
    check_master(master)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if _here(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
        os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in chosen_settings(master, settings or {}).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    context: Any = session.sparkContext
    disk = context._jvm.java.net.URI.create("file:///")
    context._jvm.org.apache.hadoop.fs.FileSystem.get(disk, context._jsc.hadoopConfiguration()).setWriteChecksum(False)
    if _CLUSTER.fullmatch(master):
        # Workers of a local cluster keep the folders of their executors in the installed package, and leave them there.
        left = Path(os.environ["SPARK_HOME"], "work", session.sparkContext.applicationId)
        atexit.register(shutil.rmtree, left, ignore_errors=True)
    return session


def chosen_settings(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """All that a session for this master is started with; what is ``given`` counts most."""
    quiet = Path(__file__).with_name("log4j2.properties").as_uri()
    options = f"-Dlog4j2.configurationFile={quiet}"
    if _large(given.get("spark.driver.memory", "")):
        options += f" {REGIONS}"
    chosen = {**SETTINGS, "spark.driver.extraJavaOptions": options}
    if not is_local(master):
        chosen |= HEARTBEATS
    if _here(master):
        chosen |= {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
    cluster = _CLUSTER.fullmatch(master)
    if cluster:
        memory = int(cluster[3])
        chosen["spark.executor.memory"] = f"{memory - memory // 4}m"
        if _large(given.get("spark.executor.memory", chosen["spark.executor.memory"])):
            # On clusters this setting is the administrators', and what is set here would take the place of theirs.
            chosen["spark.executor.defaultJavaOptions"] = REGIONS
    return {**chosen, **given}


def growing(master: str, nodes: int, most: int) -> dict[str, str]:
    """Settings with which a cluster gives a job so many executors at first, and up to ``most`` when it is asked.

    A standalone master gives all it has at once, unless dynamic allocation is on. So it is, but for deciding anything:
    no backlog and no idle executor ever makes it act, and only what Holdfast asks for changes the number.
    """
    if most <= nodes or is_local(master) or _CLUSTER.fullmatch(master):
        return {}
    if not master.startswith("spark://"):
        return {"spark.executor.instances": str(nodes)}
    of = "spark.dynamicAllocation."
    return {
        f"{of}enabled": "true",
        f"{of}shuffleTracking.enabled": "true",
        f"{of}minExecutors": str(nodes),
        f"{of}initialExecutors": str(nodes),
        f"{of}maxExecutors": str(most),
        f"{of}schedulerBacklogTimeout": NEVER,
        f"{of}sustainedSchedulerBacklogTimeout": NEVER,
        f"{of}executorIdleTimeout": NEVER,
        f"{of}cachedExecutorIdleTimeout": NEVER,
        f"{of}shuffleTracking.timeout": NEVER,
    }


def check_master(master: str) -> None:
    """Invalid if this cannot be a Spark master."""
    known = ("spark://", "yarn", "k8s://", "mesos://")
    if _LOCAL.fullmatch(master) or _CLUSTER.fullmatch(master) or master.startswith(known):
        return
    raise Invalid(
        f"--master {master}: not a Spark master; expected local[*], local[2], local-cluster[4,1,1024], "
        f"spark://host:7077, yarn or k8s://..."
    )


def nodes_of(master: str) -> int | None:
    """How many nodes a job has where nobody says: one by itself, as many as a local cluster; None: others know."""
    cluster = _CLUSTER.fullmatch(master)
    return 1 if is_local(master) else int(cluster[1]) if cluster else None


def _large(heap: str) -> bool:
    """Whether a heap, as Spark writes it, has 4 GB or more."""
    said = re.fullmatch(r"(\d+)([mgt])b?", heap.strip().lower())
    return said is not None and int(said[1]) * {"m": 1, "g": 1024, "t": 1024 * 1024}[said[2]] >= 4096


def _here(master: str) -> bool:
    return master.startswith("local") or "127.0.0.1" in master or "localhost" in master


def is_local(master: str) -> bool:
    """Whether driver and executor are one process, so that nodes are logical."""
    return _LOCAL.fullmatch(master) is not None
