"""Time and threads: the driver's own thread, and one for each queue of background work.

No thread ends unseen: what escapes from an action goes to ``failed``, what escapes from work comes back as ``Failed``.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.runtime.driver.ports import Failed, Queue

Action = Callable[[], None]
IDLE = 3600.0


@dataclass(slots=True)
class _Timer:
    action: Action | None

    def cancel(self) -> None:
        self.action = None


class Loop:
    """Clock and Background of a real job."""

    def __init__(self) -> None:
        self.failed: Callable[[BaseException], None] = lambda error: None
        self._actions: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, _Timer]] = []
        self._count = 0
        self._queues: dict[str, queue.SimpleQueue[Action | None]] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="holdfast-driver", daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def post(self, action: Action) -> None:
        self._actions.put(action)

    def after(self, seconds: float, action: Action) -> _Timer:
        timer = _Timer(action)
        with self._lock:
            self._count += 1
            heapq.heappush(self._timers, (time.monotonic() + seconds, self._count, timer))
        if threading.current_thread() is not self._thread:
            self._actions.put(lambda: None)  # it may wait for a later one
        return timer

    def submit(self, queue_name: Queue, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        with self._lock:
            waiting = self._queues.get(queue_name)
            if waiting is None:
                waiting = self._queues[queue_name] = queue.SimpleQueue()
                name = f"holdfast-{queue_name}"
                threading.Thread(target=_serve, args=(waiting,), name=name, daemon=True).start()
        waiting.put(partial(self._do, work, done))

    def close(self) -> None:
        """Let all threads end once they have done what they were given before."""
        with self._lock:
            for waiting in self._queues.values():
                waiting.put(None)
        self._actions.put(None)

    def _do(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except BaseException as error:
            result = Failed(error)
        self.post(partial(done, result))

    def _run(self) -> None:
        while True:
            with self._lock:
                due = self._timers[0][0] - time.monotonic() if self._timers else IDLE
                timer = heapq.heappop(self._timers)[2] if due <= 0 else None
            if timer is not None:
                self._call(timer.action)
                continue
            try:
                action = self._actions.get(timeout=due)
            except queue.Empty:
                continue
            if action is None:
                return
            self._call(action)

    def _call(self, action: Action | None) -> None:
        try:
            if action is not None:
                action()
        except BaseException as error:
            self.failed(error)


def _serve(waiting: queue.SimpleQueue[Action | None]) -> None:
    while (job := waiting.get()) is not None:
        job()
