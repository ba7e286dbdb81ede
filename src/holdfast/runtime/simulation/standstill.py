"""Late writers: a driver's process stops in the middle of a call, another driver takes over, the first one resumes.

After it resumes, the stopped call runs to its end: the rest of a delivery, a commit or a deletion. The other threads
of that driver do not resume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Standstill:
    """``step`` runs the next action of the world; ``restart`` gives the driver up and launches another.

    ``alive``: whether there is a driver to stop; ``over``: whether the job has ended; ``resumed`` is called when a
    driver resumes.
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
        """Within a launch, and in a driver that was superseded: these are not stopped."""
        self._broken: Exception | None = None

    def in_sink(self, seconds: float) -> None:
        """Stop the driver within its next call of the sink, for this many seconds."""
        self._in_sink.append(seconds)

    def called(self) -> None:
        """To be called within each call of the sink, once it has the output."""
        if self._in_sink and not self._held:
            self.here(self._in_sink.pop(0))

    def here(self, seconds: float) -> None:
        """Stop the driver in the call at hand, for this many seconds of the world."""
        if self._held or not self._alive():
            return
        self._restart()
        until = self._now() + seconds
        try:
            while self._now() < until and not self._over():
                self._step()
        except Exception as error:
            self._broken = error  # raised here, the stopped driver would handle it as an error of its own work
        self._held = True
        self._resumed()

    @contextmanager
    def not_now(self) -> Iterator[None]:
        """Stop no driver within this context."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    def stepping(self) -> None:
        """To be called before each action: the call of a driver that resumed has ended."""
        self._held = False

    def check(self) -> None:
        """Raise the error of an action that ran while a driver was stopped."""
        if self._broken is not None:
            raise self._broken
