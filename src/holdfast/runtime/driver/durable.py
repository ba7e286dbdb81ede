"""Writes to the store: in order within a queue, and what the store refuses is tried again while the queue waits.

A store that refuses, since it is full or out of reach, holds the stream up instead of ending the job; not for ever.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, TypeVar

from holdfast.errors import HoldfastError
from holdfast.runtime.driver.ports import Background, Clock, Failed, Queue, Retry
from holdfast.state import Unusable

GIVE_UP = 300.0
"""Seconds after which a store that takes nothing ends the job."""
AGAIN = Retry(first=0.2, most=2.0)
T = TypeVar("T")


class StoreRefused(HoldfastError):
    """The store has taken nothing for too long."""


def taken(work: Callable[[], T], pause: Callable[[float], None] = time.sleep) -> T:
    """Do this until the store has taken it, on a thread that waits meanwhile. ``pause`` may raise to give it up."""
    since = time.monotonic()
    for tries in count(1):
        try:
            return work()
        except Unusable as error:
            if time.monotonic() - since > GIVE_UP:
                raise StoreRefused(f"{error}; it was asked again for {GIVE_UP:.0f} s") from error
        pause(AGAIN.pause(tries))
    raise AssertionError


class Durable:
    """``note`` tells the history, ``fail`` ends the job; ``settled`` is called whenever something was taken."""

    def __init__(
        self,
        clock: Clock,
        background: Background,
        note: Callable[[str, Mapping[str, Any]], None],
        fail: Callable[[BaseException], None],
        settled: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._background = background
        self._note = note
        self._fail = fail
        self._settled = settled
        self._lanes: dict[Queue, deque[tuple[Callable[[], Any], Callable[[Any], None]]]] = {}
        self._since: float | None = None
        self._tries = 0

    def submit(self, queue: Queue, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Do this until the store has taken it; then, and not before, ``done`` and what follows in the queue."""
        lane = self._lanes.setdefault(queue, deque())
        lane.append((work, done))
        if len(lane) == 1:
            self._begin(queue)

    @property
    def idle(self) -> bool:
        return not any(self._lanes.values())

    def refused(self, message: str) -> float | None:
        """The store said no: the pause before it is asked again; None when it has said so for too long."""
        now = self._clock.now()
        if self._since is None:
            self._since, self._tries = now, 0
            self._note("store unusable", {"message": message, "retry_seconds": AGAIN.most})
        if now - self._since > GIVE_UP:
            self._fail(StoreRefused(f"{message}; it was asked again for {GIVE_UP:.0f} s"))
            return None
        self._tries += 1
        return AGAIN.pause(self._tries)

    def usable(self) -> None:
        """The store has taken something."""
        if self._since is not None:
            self._note("store usable", {"after_seconds": round(self._clock.now() - self._since, 3)})
            self._since = None

    def _begin(self, queue: Queue) -> None:
        self._background.submit(queue, self._lanes[queue][0][0], partial(self._ended, queue))

    def _ended(self, queue: Queue, result: Any) -> None:
        lane = self._lanes[queue]
        if isinstance(result, Failed) and isinstance(result.error, Unusable):
            if (pause := self.refused(str(result.error))) is not None:
                self._clock.after(pause, partial(self._begin, queue))
            return
        _, done = lane.popleft()
        if lane:
            self._begin(queue)
        if isinstance(result, Failed):
            self._fail(result.error)
            return
        self.usable()
        done(result)
        self._settled()
