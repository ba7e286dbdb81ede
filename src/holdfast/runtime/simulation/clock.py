"""The environment that holds virtual time: actions wait in a heap and happen one after the other, none at once."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

Action = Callable[[], None]


@dataclass(slots=True)
class Timer:
    """An action to come; a cancelled one never happens."""

    time: float
    action: Action | None

    def cancel(self) -> None:
        self.action = None


@dataclass(slots=True)
class Environment:
    """``now`` in seconds since the start. Actions due at the same time happen in the order in which they were set."""

    now: float = 0.0
    _heap: list[tuple[float, int, Timer]] = field(default_factory=list)
    _count: int = 0

    def after(self, delay: float, action: Action) -> Timer:
        timer = Timer(self.now + max(delay, 0.0), action)
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
