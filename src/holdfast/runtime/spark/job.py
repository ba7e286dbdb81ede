"""A running job, with a handle in the manner of StreamingQuery: its status, its end, and what can be asked of it."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import HoldfastError, Infeasible, Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.requests import OUTCOMES
from holdfast.runtime.shape import check_scalable
from holdfast.runtime.spark.jobs import Batch
from holdfast.runtime.spark.shell import Shell
from holdfast.runtime.spark.shipping import first_line
from holdfast.topology import topology_to

PROGRESS_KEPT = 100
MEASURED_AFTER = 3
"""Epochs after which a budget is spent anew, on measured rates and costs."""
Listener = Callable[[dict[str, Any]], None]


class Job:
    """A running job, in the manner of pyspark's StreamingQuery."""

    def __init__(
        self,
        shell: Shell,
        streams: Mapping[str, DataFrame],
        store: str,
        epochs: int | None,
        trigger: str | None,
        budget: float | None = None,
        bounded: bool = False,
    ) -> None:
        self.id = shell.context.job
        self.store = store
        self.shell = shell
        self._streams = streams
        self._epochs = epochs
        self._trigger = trigger
        self._budget = budget
        self._last = epochs - 1 if bounded and epochs is not None else None
        self._epochs_here = 0
        self._query: StreamingQuery | None = None
        self._progress: deque[dict[str, Any]] = deque(maxlen=PROGRESS_KEPT)
        self._ended = threading.Event()
        self._enough = threading.Event()
        self._stop_lock = threading.Lock()
        self._latest: dict[str, Any] = {}
        shell.listeners.append(self._notice)

    # What StreamingQuery has

    @property
    def isActive(self) -> bool:
        return not self._ended.is_set()

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self._progress[-1] if self._progress else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return list(self._progress)

    @property
    def status(self) -> dict[str, Any]:
        standing = self.shell.coordinator.standing
        shadow = self.shell.coordinator.scaling.shadow
        down, behind = standing.down, standing.behind()
        if self._ended.is_set():
            message = "Stopped" if self.shell.error is None else f"Failed: {self.shell.error}"
        elif down:
            message = f"Recovering: {len(down)} tasks are down"
        elif any(copy.lane == "exact" for copy in behind):
            message = f"Recovering: {len(behind)} tasks are catching up"
        elif shadow is not None:
            message = f"Scaling {shadow.operator}"
        else:
            message = "Running"
        return {
            "message": message,
            "isTriggerActive": self.shell.coordinator.pending is not None,
            "isDataAvailable": bool(self._query is not None and self._query.status.get("isDataAvailable")),
            "epoch": standing.head,
            "checkpoint": standing.checkpoint,
            "nodes": sorted(standing.nodes),
            "down": [str(task) for task in down],
            "tasks": {operator.name: operator.parallelism for operator in self.shell.coordinator.topology.operators},
            "scaling": None if shadow is None else {"operator": shadow.operator, "tries": shadow.tries},
            "replicas": {
                str(task): {"node": home.node, "behind": standing.head - home.position}
                for task, home in standing.replicas.items()
            },
        }

    def exception(self) -> HoldfastError | None:
        """What ended the job, if it failed."""
        return self.shell.error if self._ended.is_set() else None

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until the job ends, or for ``timeout`` seconds; raises what ended it, if it failed."""
        ended = self._ended.wait(timeout)
        if ended and self.shell.error is not None:
            raise self.shell.error
        return ended

    def stop(self) -> None:
        """Finish the epoch at hand, checkpoint, and end."""
        self._finish(checkpoint=True)

    def scale(self, operator: str, to: int, timeout: float = 60.0) -> dict[str, Any]:
        """Let an operator have so many tasks, out or in, while the job runs; results stay what they are.

        Waits until it is done and returns the event that tells of it; Infeasible, with the reason, when it was given
        up or ``timeout`` seconds have passed (it may still happen then). Invalid for an operator that cannot be scaled.
        """
        check_scalable(self.shell.context.pipeline, operator)
        if to < 1:
            raise Invalid(f"operator {operator}: needs at least 1 task, got {to}")
        if self._ended.is_set():
            raise Infeasible(f"operator {operator}: the job has ended")
        request, done = uuid.uuid4().hex[:12], threading.Event()
        said: list[dict[str, Any]] = []

        def hear(event: dict[str, Any]) -> None:
            if event.get("request") == request and event["kind"] in OUTCOMES and not event.get("again"):
                said.append(event)
                done.set()

        self.shell.listeners.append(hear)
        try:
            self.shell.scale(operator, to, request)
            until = time.monotonic() + timeout
            while not done.wait(0.05) and time.monotonic() < until and not self._ended.is_set():
                pass
        finally:
            self.shell.listeners.remove(hear)
        if not said:
            what = "the job ended before it was done" if self._ended.is_set() else f"not done after {timeout:g} s"
            raise Infeasible(f"operator {operator} to {to} tasks: {what}")
        if said[-1]["kind"] != "scaled":
            raise Infeasible(f"operator {operator} to {to} tasks: {said[-1]['reason']}")
        return said[-1]

    def add_listener(self, listener: Listener) -> None:
        """Call this with every event of the history as it happens: a dict with ``time`` and ``kind``."""
        self.shell.listeners.append(listener)

    # Inside

    def _begin(self, nodes: int) -> None:
        self.shell.publisher.clean()
        self.shell.note("started", self._description(nodes))
        self.shell.start(nodes)
        if self._budget is not None:
            self.shell.tell(self.shell.coordinator.replicas_within(self._budget))
        frame, sources = _one_stream(self._streams)
        writing = frame.writeStream.foreachBatch(self._each(sources)).option(
            "checkpointLocation", f"{self.store}/spark"
        )
        if self._trigger is not None:
            writing = writing.trigger(processingTime=self._trigger)
        if self._epochs is not None and self.shell.coordinator.standing.head + 1 >= self._epochs:
            self._enough.set()
        else:
            self._query = writing.start()
        threading.Thread(target=self._attend, name="holdfast-job", daemon=True).start()

    def _description(self, nodes: int) -> dict[str, Any]:
        """What a reader of the history must know of the job to make sense of the rest."""
        settings = self.shell.coordinator.settings
        return {
            "job": self.id,
            "nodes": nodes,
            "epochs": self._epochs,
            "master": str(self.shell.spark.sparkContext.master),
            "topology": topology_to(self.shell.coordinator.topology),
            "scalable": _scalable(self.shell.context.pipeline),
            "settings": {
                "checkpoint_every": settings.checkpoint_every,
                "budget": self._budget,
                "replicas": [str(task) for task in settings.replicas],
                "scheduler": settings.scheduler,
                "recovery": settings.recovery,
                "capacity": settings.capacity,
                "parallel_recovery": settings.parallel_recovery,
                "rebalance": settings.rebalance,
                "trigger": self._trigger,
            },
        }

    def _each(self, sources: Mapping[str, str | None]) -> Callable[[DataFrame, int], None]:
        def each(frame: DataFrame, epoch: int) -> None:
            if self._enough.is_set():
                # Spark may begin one more batch before it hears that it should stop; it is left uncommitted.
                raise _Enough
            try:
                self.shell.epoch(Batch(frame, sources, epoch == self._last), epoch)
            except Exception as error:
                # Spark would pass it on wrapped in frames of its own.
                self.shell.fail(error, f"epoch {epoch}")
                raise
            self._epochs_here += 1
            if self._budget is not None and self._epochs_here == MEASURED_AFTER:
                self.shell.tell(self.shell.coordinator.replicas_within(self._budget))
            if self._epochs is not None and epoch + 1 >= self._epochs:
                self._enough.set()

        return each

    def _attend(self) -> None:
        """Wait for the end: enough epochs, an error, or the stream's own."""
        query = self._query
        while not self._enough.is_set() and self.shell.error is None:
            if query is not None and not query.isActive:
                break
            if self._enough.wait(0.05) or self._ended.is_set():
                break
        if query is not None and not query.isActive and not self._enough.is_set() and self.shell.error is None:
            failure = query.exception()
            if failure is not None and not self._ended.is_set():
                self.shell.fail(Invalid(f"the stream ended: {first_line(failure)}"))
        self._finish(checkpoint=self.shell.error is None)

    def _finish(self, checkpoint: bool) -> None:
        with self._stop_lock:
            if self._ended.is_set():
                return
            if self._query is not None and self._enough.is_set():
                self._query.stop()
            elif self._query is not None:
                self._stop_between_epochs()
            self.shell.note("stopped", {"error": str(self.shell.error) if self.shell.error else None})
            self.shell.stop(checkpoint)
            self._ended.set()

    def _stop_between_epochs(self) -> None:
        """Let the epoch at hand come to its end: a stop is not a failure."""
        assert self._query is not None
        self._enough.set()
        until = time.monotonic() + 60
        while self.shell.coordinator.pending is not None and self.shell.error is None and time.monotonic() < until:
            time.sleep(0.02)
        self._query.stop()

    def _notice(self, event: dict[str, Any]) -> None:
        if event["kind"] == "epoch":
            self._latest = dict(event)
        elif event["kind"] == "answered" and self._latest.get("epoch") == event["epoch"]:
            seconds = max(event["seconds"], 1e-6)
            entry = {
                "id": self.id,
                "batchId": event["epoch"],
                "timestamp": event["time"],
                "numInputRows": self._latest["rows_in"],
                "processedRowsPerSecond": self._latest["rows_in"] / seconds,
                "durationMs": {"triggerExecution": round(seconds * 1000, 1)},
                "fidelity": self._latest["fidelity"],
                "tasks": {lane: self._latest[lane] for lane in ("exact", "tentative", "replicas", "absent")},
                "stateOperators": [
                    {"numRowsTotal": self._latest["state_rows"], "memoryUsedBytes": self._latest["state_bytes"]}
                ],
                "counters": self._latest["counters"],
                "checkpointEpoch": self.shell.coordinator.standing.checkpoint,
            }
            self._progress.append(entry)


def _scalable(pipeline: Pipeline) -> dict[str, str | None]:
    """For each operator None, or why it cannot be scaled."""
    told: dict[str, str | None] = {}
    for step in pipeline.steps:
        try:
            check_scalable(pipeline, step.name)
            told[step.name] = None
        except Invalid as error:
            told[step.name] = str(error)
    return told


class _Enough(Exception):
    """Ends the stream from within when the epochs asked for are done."""


def _one_stream(streams: Mapping[str, DataFrame]) -> tuple[DataFrame, dict[str, str | None]]:
    """One DataFrame for all sources: as it is, or a union in which each source's rows are a struct of their own."""
    if len(streams) == 1:
        ((name, frame),) = streams.items()
        return frame, {name: None}
    columns = {name: f"source_{number}" for number, name in enumerate(streams)}
    union: DataFrame | None = None
    for name, frame in streams.items():
        packed = F.struct(*[F.col(f"`{column}`") for column in frame.columns])
        selected = frame.select(
            *[
                packed.alias(columns[other])
                if other == name
                else F.lit(None).cast(streams[other].schema).alias(columns[other])
                for other in streams
            ]
        )
        union = selected if union is None else union.union(selected)
    assert union is not None
    return union, dict(columns)
