"""A running job, with a handle in the manner of StreamingQuery: its status, its end, and what can be asked of it."""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from typing import Any

from holdfast.errors import HoldfastError, Infeasible, Invalid
from holdfast.runtime.driver.driver import Driver
from holdfast.runtime.driver.ports import Listener
from holdfast.runtime.driver.requests import OUTCOMES
from holdfast.runtime.shape import check_scalable
from holdfast.runtime.spark.source import StreamSource

PROGRESS_KEPT = 100
LEAVING = 10.0
"""Seconds that Spark's query is given to end."""


class Job:
    """A running job, in the manner of pyspark's StreamingQuery."""

    def __init__(self, store: str) -> None:
        self.store = store
        self._driver: Driver | None = None
        self._source: StreamSource | None = None
        self._progress: deque[dict[str, Any]] = deque(maxlen=PROGRESS_KEPT)
        self._begun = threading.Event()
        self._ended = threading.Event()
        self._error: HoldfastError | None = None
        self._latest: dict[str, Any] = {}

    @property
    def driver(self) -> Driver:
        """The shell of this job; its snapshot is what anybody may look at."""
        assert self._driver is not None
        return self._driver

    @property
    def id(self) -> str:
        return self.driver.config.job

    def pace(self) -> None:
        """Returns when another epoch may come. On the stream's own thread."""

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
        seen = self.driver.snapshot
        if self._ended.is_set():
            message = "Stopped" if self._error is None else f"Failed: {self._error}"
        elif seen.silent:
            message = f"Waiting for {', '.join(seen.silent)}"
        elif seen.down:
            message = f"Recovering: {len(seen.down)} tasks are down"
        elif seen.behind:
            message = f"Recovering: {seen.behind} tasks are catching up"
        elif seen.scaling is not None:
            message = f"Scaling {seen.scaling[0]}"
        else:
            message = "Running"
        floor = seen.floor
        query = self._source.query if self._source is not None else None
        return {
            "message": message,
            "isTriggerActive": seen.pending is not None,
            "isDataAvailable": bool(query is not None and query.status.get("isDataAvailable")),
            "epoch": seen.head,
            "checkpoint": seen.checkpoint,
            "nodes": sorted(seen.nodes),
            "silent": list(seen.silent),
            "down": [str(task) for task in seen.down],
            "tasks": dict(seen.tasks),
            "scaling": None if seen.scaling is None else {"operator": seen.scaling[0], "tries": seen.scaling[1]},
            "replicas": {str(task): {"node": node, "behind": far} for task, (node, far) in seen.replicas.items()},
            "floor": None if floor is None else {"fidelity": floor[0], "lost": floor[1]},
        }

    def exception(self) -> HoldfastError | None:
        """What ended the job, if it failed."""
        return self._error if self._ended.is_set() else None

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until the job ends, or for ``timeout`` seconds; raises what ended it, if it failed."""
        ended = self._ended.wait(timeout)
        if ended and self._error is not None:
            raise self._error
        return ended

    def stop(self) -> None:
        """Finish the epoch at hand, checkpoint, and end."""
        self.driver.clock.post(self.driver.stop)
        self._ended.wait()
        self._leave()

    def scale(self, operator: str, to: int, timeout: float = 60.0) -> dict[str, Any]:
        """Let an operator have so many tasks, out or in, while the job runs; results stay what they are.

        Waits until it is done and returns the event that tells of it; Infeasible, with the reason, when it was given
        up or ``timeout`` seconds have passed (it may still happen then). Invalid for an operator that cannot be scaled.
        """
        driver = self.driver
        check_scalable(driver.config.pipeline, operator)
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

        def ask() -> None:
            driver.telling.listen(hear)
            assert driver.autoscaler is not None
            driver.autoscaler.scale(operator, to, request)

        driver.clock.post(ask)
        until = time.monotonic() + timeout
        while not done.wait(0.05) and time.monotonic() < until and not self._ended.is_set():
            pass
        driver.clock.post(lambda: driver.telling.unlisten(hear))
        if not said:
            what = "the job ended before it was done" if self._ended.is_set() else f"not done after {timeout:g} s"
            raise Infeasible(f"operator {operator} to {to} tasks: {what}")
        if said[-1]["kind"] != "scaled":
            raise Infeasible(f"operator {operator} to {to} tasks: {said[-1]['reason']}")
        return said[-1]

    def add_listener(self, listener: Listener) -> None:
        """Call this with every event of the history as it happens: a dict with ``time`` and ``kind``."""
        self.driver.clock.post(lambda: self.driver.telling.listen(listener))

    # Inside

    def _attach(self, driver: Driver, source: StreamSource) -> None:
        self._driver, self._source = driver, source

    def _finish(self, error: HoldfastError | None) -> None:
        self._error = error
        self._ended.set()
        self._begun.set()

    def _await_begin(self) -> None:
        """Until the stream has begun; what ended the job before that is raised."""
        self._begun.wait()
        if self._ended.is_set() and self._error is not None:
            self._leave()
            raise self._error

    def _leave(self) -> None:
        if self._source is not None:
            self._source.wait(LEAVING)

    def _notice(self, event: dict[str, Any]) -> None:
        if event["kind"] == "epoch":
            self._latest = dict(event)
        elif event["kind"] == "answered" and self._latest.get("epoch") == event["epoch"]:
            seconds = max(event["seconds"], 1e-6)
            latest = self._latest
            self._progress.append(
                {
                    "id": self.id,
                    "batchId": event["epoch"],
                    "timestamp": event["time"],
                    "numInputRows": latest["rows_in"],
                    "processedRowsPerSecond": latest["rows_in"] / seconds,
                    "durationMs": {"triggerExecution": round(seconds * 1000, 1)},
                    "fidelity": latest["fidelity"],
                    "tasks": {lane: latest[lane] for lane in ("exact", "tentative", "replicas", "absent")},
                    "stateOperators": [
                        {"numRowsTotal": latest["state_rows"], "memoryUsedBytes": latest["state_bytes"]}
                    ],
                    "counters": latest["counters"],
                    "checkpointEpoch": self.driver.snapshot.checkpoint,
                }
            )
