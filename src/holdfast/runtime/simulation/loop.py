"""Virtual time: actions wait in a heap and happen one after the other. What a thread would do happens between them.

Work of the background is done in one piece when its turn has come, and its word arrives a moment later: the driver can
die between what was done and hearing of it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from holdfast.runtime.driver.ports import Failed, Queue
from holdfast.runtime.simulation.disk import Crash

Action = Callable[[], None]
START = 1_700_000_000.0
"""The virtual world begins at this second since 1970."""


@dataclass(slots=True)
class VirtualTimer:
    """An action to come; a cancelled one never happens."""

    time: float
    action: Action | None

    def cancel(self) -> None:
        self.action = None


@dataclass(slots=True)
class Environment:
    """``now`` in seconds since the start. Actions due at the same time happen in the order in which they were set."""

    now: float = 0.0
    _heap: list[tuple[float, int, VirtualTimer]] = field(default_factory=list)
    _count: int = 0

    def after(self, delay: float, action: Action) -> VirtualTimer:
        timer = VirtualTimer(self.now + max(delay, 0.0), action)
        heapq.heappush(self._heap, (timer.time, self._count, timer))
        self._count += 1
        return timer

    def step(self) -> bool:
        """Let the next action happen; False if there is none."""
        while self._heap:
            time, _, timer = heapq.heappop(self._heap)
            if timer.action is not None:
                self.now = time
                timer.action()
                return True
        return False


class VirtualLoop:
    """Clock and Background of one life of a driver; when that is over, nothing of it happens any more."""

    def __init__(self, world: Environment, random: Random, lag: float) -> None:
        self.world = world
        self.alive = True
        self._random = random
        self._lag = lag
        self._queues: dict[Queue, deque[tuple[Callable[[], Any], Callable[[Any], None]]]] = {}

    def now(self) -> float:
        return self.world.now

    def wall(self) -> float:
        return START + self.world.now

    def post(self, action: Action) -> None:
        self.after(0.0, action)

    def after(self, seconds: float, action: Action) -> VirtualTimer:
        return self.world.after(seconds, lambda: action() if self.alive else None)

    def submit(self, queue: Queue, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if queue == "history":
            self._do(work, done, 0.0)
            return
        waiting = self._queues.setdefault(queue, deque())
        waiting.append((work, done))
        if len(waiting) == 1:
            self.after(self._drawn(), partial(self._next, queue))

    def _next(self, queue: Queue) -> None:
        waiting = self._queues[queue]
        work, done = waiting[0]
        self._do(work, done, self._drawn())
        waiting.popleft()
        if waiting:
            self.after(self._drawn(), partial(self._next, queue))

    def _do(self, work: Callable[[], Any], done: Callable[[Any], None], later: float) -> None:
        result: Any
        try:
            result = work()
        except Crash:
            raise
        except BaseException as error:
            result = Failed(error)
        self.after(later, partial(done, result))

    def _drawn(self) -> float:
        return self._lag * self._random.random()
