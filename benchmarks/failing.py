"""One turn of failover.py: a keyed count on one system, two of whose nodes are killed at a given moment of an epoch.

What both systems are started with is here too: ``SAME``, and what is chosen for each.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from lateness import LOOKED_BACK, WATCHED, answers_of, outcome, parts, schedule, whole_of
from standalone import ARCHIVE, COME, NODES, executors, kill

SYSTEMS = ("structured", "holdfast")
SETTINGS = ("same", "chosen")
DEADLINE = 60.0
"""Seconds after the kill after which it counts as not answered, or as never exact."""
COMMON = {
    "spark.executor.memory": "1g",
    "spark.sql.shuffle.partitions": str(NODES),
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
SPARKS_OWN = {"spark.task.maxFailures": "4", "spark.stage.maxConsecutiveAttempts": "4", "spark.locality.wait": "3s"}
"""Spark's defaults, where ``holdfast.spark_session`` has others that Structured Streaming cannot live with: a query
would end with the first lost task, and wait a minute for an executor that is gone."""
CHOSEN = {
    "spark.executor.heartbeatInterval": "1s",
    "spark.storage.blockManagerHeartbeatTimeoutMs": "10000",
    "spark.network.timeoutInterval": "2s",
    "spark.shuffle.io.connectionTimeout": "4s",
    "spark.shuffle.io.maxRetries": "0",
    "spark.task.maxFailures": "8",
    "spark.stage.maxConsecutiveAttempts": "10",
    "spark.locality.wait": "0s",
    "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "5",
    "spark.sql.streaming.pollingDelay": "1ms",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.shuffle.compress": "false",
    "spark.ui.enabled": "false",
}
"""For Structured Streaming: a lost executor is noticed as soon, rows that it held are made anew at once instead of
being asked for three times, five seconds apart, no task waits for an executor that is gone, and snapshots are half as
old."""
PROTECTED: dict[str, dict[str, Any]] = {
    "same": {"checkpoint_every": 10},
    "chosen": {"checkpoint_every": 5, "budget": 2.0},
}
"""For Holdfast: checkpoints as often as RocksDB's snapshots; or twice as often, and replicas for two of four tasks."""


@dataclass(frozen=True, slots=True)
class Turn:
    """``interval``: of the trigger, in seconds; None: no trigger. ``moment``: of the kill, from 0 to 1, after an answer
    and in times of the pace. ``victims``: which of the executors. ``epochs``, ``seconds``: how long the job runs first,
    at least.
    """

    system: str
    settings: str
    interval: float | None
    keys: int
    rows: int
    moment: float
    victims: tuple[int, int]
    epochs: int
    seconds: float


def settings_of(system: str, settings: str) -> dict[str, str]:
    """What a session is started with, beside the master and where it runs."""
    from holdfast.runtime.spark.session import SETTINGS as OURS

    if settings == "same":
        return {**OURS, **SPARKS_OWN, **COMMON}
    return {**(OURS if system == "holdfast" else CHOSEN), **COMMON}


def session(turn: Turn, master: str) -> Any:
    """A new session, with all its executors there."""
    from pyspark.sql import SparkSession

    from holdfast.runtime.spark.session import chosen_settings, spark_session

    chosen = settings_of(turn.system, turn.settings)
    if ARCHIVE:  # executors start in half the time; nothing else changes
        chosen["spark.executor.extraJavaOptions"] = ARCHIVE
    if turn.system == "holdfast" or turn.settings == "same":
        spark = spark_session(master, settings=chosen)
    else:
        builder = SparkSession.builder.master(master)
        where = {name: value for name, value in chosen_settings(master, {}).items() if name.startswith("spark.driver.")}
        for name, value in {**where, **chosen}.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    scala: Any = spark.sparkContext._jsc.sc()
    until = time.monotonic() + COME
    while scala.getExecutorMemoryStatus().size() < NODES + 1:  # the driver is one of them
        if time.monotonic() > until:
            raise TimeoutError(f"{scala.getExecutorMemoryStatus().size() - 1} of {NODES} executors came")
        time.sleep(0.05)
    return spark


def stream_of(spark: Any, keys: int, rows: int) -> Any:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", NODES)
    return stream.load().selectExpr(f"value % {keys} AS key")


def run(turn: Turn, master: str, folder: Path) -> dict[str, Any]:
    """One turn. On a standalone cluster whole nodes die, on a local cluster executors."""
    spark = session(turn, master)
    try:
        return (_structured if turn.system == "structured" else _holdfast)(turn, spark, master, folder)
    finally:
        spark.stop()


def _structured(turn: Turn, spark: Any, master: str, folder: Path) -> dict[str, Any]:
    answers: dict[int, float] = {}

    def write(frame: Any, epoch: int) -> None:
        frame.write.mode("append").parquet(str(folder / "output"))
        answers.setdefault(epoch, time.time())

    counted = stream_of(spark, turn.keys, turn.rows).groupBy("key").count()
    writing = counted.writeStream.outputMode("update").foreachBatch(write)
    if turn.interval is not None:
        writing = writing.trigger(processingTime=_words(turn.interval))
    query = writing.option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        killed = _kill(turn, spark, master, lambda: dict(answers), lambda: query.isActive)
        _wait(lambda: len(_after(killed, dict(answers))) >= WATCHED or not query.isActive)
    finally:
        query.stop()
    found = dict(answers)
    whole: dict[int, float | None] = {**found}
    told = outcome(killed, found, whole, schedule(found, killed, turn.interval))
    return {**asdict(told), "fidelity": 1.0 if told.answer is not None else None, "parts": None}


def _holdfast(turn: Turn, spark: Any, master: str, folder: Path) -> dict[str, Any]:
    import pyarrow as pa

    from holdfast import operators as op
    from holdfast.runtime.spark import start

    pipeline = op.Pipeline(
        op.source("keys", parallelism=2),
        op.step("counts", op.aggregate({"key": pa.int64()}, count=op.count()), "keys", parallelism=NODES),
    )
    events: list[dict[str, Any]] = []
    answers: dict[int, float] = {}
    whole: dict[int, float | None] = {}
    lost = threading.Event()

    def listen(event: dict[str, Any]) -> None:
        events.append(event)
        for epoch, at in answers_of([event]).items():
            answers.setdefault(epoch, at)
        whole.update(whole_of([event]))
        if event["kind"] == "nodes lost":
            lost.set()

    def over() -> bool:
        """The loss was noticed, and enough epochs were answered since the kill, the last of them exactly."""
        return lost.is_set() and len(_after(killed, dict(answers))) >= WATCHED and whole[max(whole)] is not None

    job = start(
        stream_of(spark, turn.keys, turn.rows), pipeline, store=folder / "store", nodes=NODES,
        trigger=None if turn.interval is None else _words(turn.interval), listeners=[listen],
        **PROTECTED[turn.settings],
    )  # fmt: skip
    try:
        killed = _kill(turn, spark, master, lambda: dict(answers), lambda: job.isActive)
        _wait(lambda: over() or not job.isActive)
    finally:
        job.stop()
    found = outcome(killed, answers, whole, schedule(answers, killed, turn.interval))
    after = _after(killed, answers)
    said = next((e["fidelity"] for e in events if e["kind"] == "published" and after and after[0] in e["epochs"]), None)
    exact = None if found.exact_by is None else after[0] + found.exact_by - 1
    return {**asdict(found), "fidelity": said, "parts": parts(killed, events, exact)}


def _kill(
    turn: Turn, spark: Any, master: str, answers: Callable[[], Mapping[int, float]], lives: Callable[[], bool]
) -> float:
    """Once the job has run for a while, at the given moment after an answer."""
    begun = 0.0

    def ran() -> bool:
        nonlocal begun
        found = answers()
        begun = begun or (time.monotonic() if found else 0.0)
        enough = len(found) >= max(turn.epochs, LOOKED_BACK) and time.monotonic() - begun >= turn.seconds
        return enough or not lives()

    _wait(ran, 5 * DEADLINE)
    if not lives():
        raise RuntimeError(f"{turn.system} ended before anything was killed")
    application, there = spark.sparkContext.applicationId, sorted(executors(spark.sparkContext.applicationId))
    known = len(answers())
    _wait(lambda: len(answers()) > known)
    last = sorted(answers().values())[-LOOKED_BACK:]
    pace = statistics.median(later - earlier for earlier, later in pairwise(last))
    time.sleep(max(0.0, last[-1] + turn.moment * pace - time.time()))
    return kill(application, [there[number] for number in turn.victims], not master.startswith("local"))


def _after(killed: float, answers: Mapping[int, float]) -> list[int]:
    return sorted(epoch for epoch, at in answers.items() if at > killed)


def _wait(until: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """Looks often, but not so often that it takes CPU from what is measured."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while time.monotonic() < deadline and not until():
        pause.wait(0.02)


def _words(interval: float) -> str:
    return f"{interval * 1000:.0f} milliseconds"
