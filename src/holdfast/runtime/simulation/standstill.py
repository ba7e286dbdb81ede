"""A driver whose process stands still in the middle of a call, while another one takes over, and then goes on.

What it was in the middle of it does to its end: the rest of a delivery, of a commit, of tidying. Nothing else of it
happens any more, since its other threads would meet the fence as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Standstill:
    """``step`` lets the next thing in the world happen. ``restart``: the driver counts as gone, and another comes.

    ``alive``: whether there is a driver to stop; ``over``: whether the job has ended. ``resumed`` hears of each.
    """

    def __init__(
        self,
        now: Callable[[], float],
        step: Callable[[], None],
        restart: Callable[[], None],
        alive: Callable[[], bool],
        over: Callable[[], bool],
        resumed: Callable[[], None],
    ) -> None:
        self._now = now
        self._step = step
        self._restart = restart
        self._alive = alive
        self._over = over
        self._resumed = resumed
        self._in_sink: list[float] = []
        self._held = False
        """By what must not be interrupted: a launch, or a driver that has been superseded."""
        self._broken: Exception | None = None

    def in_sink(self, seconds: float) -> None:
        """The next call of the sink lasts for so long."""
        self._in_sink.append(seconds)

    def called(self) -> None:
        """The sink was called, and has what it was called with."""
        if self._in_sink and not self._held:
            self.here(self._in_sink.pop(0))

    def here(self, seconds: float) -> None:
        """For so long this call does not go on, and the world does."""
        if self._held or not self._alive():
            return
        self._restart()
        until = self._now() + seconds
        try:
            while self._now() < until and not self._over():
                self._step()
        except Exception as error:
            self._broken = error  # the driver that was stopped would take it for its own
        self._held = True
        self._resumed()

    @contextmanager
    def not_now(self) -> Iterator[None]:
        """Nobody is stopped within this."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    def stepping(self) -> None:
        """Something else begins to happen: a driver that was stopped has done what it was in the middle of."""
        self._held = False

    def check(self) -> None:
        """Raise what broke while a driver stood still."""
        if self._broken is not None:
            raise self._broken
