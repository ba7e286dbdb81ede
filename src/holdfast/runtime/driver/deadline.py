"""The time by which an epoch should be answered; when it is up, who holds the epoch up is found out and told.

A few times what epochs usually take, unless it was said. The first epochs, which start processes, have all they need.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from holdfast.runtime.driver.ports import Failed, Runner, Timer
from holdfast.runtime.messages import AnswerLate

if TYPE_CHECKING:
    from holdfast.runtime.driver.driver import Driver

USUAL = 10
"""What is usual is the median of so many epochs."""
FIRST = 5
"""So many epochs are needed to know it; before them nothing is late."""
TIMES = 2.5
LEAST = 1.0
ASKING = 0.5
"""To find out who is silent takes so long: it is begun so much before the time is up."""


class Deadline:
    """``within``: seconds that an epoch may take; None: by what is usual; infinite: nobody asks."""

    def __init__(self, driver: Driver, runner: Runner, within: float | None) -> None:
        self._driver = driver
        self._runner = runner
        self._within = within
        self._took: deque[float] = deque(maxlen=USUAL)
        self._timer: Timer | None = None

    @property
    def seconds(self) -> float:
        """What an epoch has now."""
        if len(self._took) < FIRST:
            return float("inf")
        return max(LEAST, TIMES * median(self._took)) if self._within is None else self._within

    def begin(self, epoch: int) -> None:
        """An epoch has come."""
        self._arm(epoch, self._driver.clock.now())

    def met(self, seconds: float) -> None:
        """It was answered after so long."""
        self.cancel()
        self._took.append(seconds)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, epoch: int, since: float) -> None:
        seconds = self.seconds
        self.cancel()
        if seconds < float("inf"):
            soon = max(seconds - ASKING, seconds / 2)
            self._timer = self._driver.clock.after(soon, partial(self._up, epoch, since))

    def _up(self, epoch: int, since: float) -> None:
        """Somebody may fall silent later: it is asked again as long as the epoch is not answered."""
        driver = self._driver
        if driver.ended or driver.snapshot.pending != epoch:
            return
        self._arm(epoch, since)
        if (run := driver.running.of_epoch(epoch)) is None:
            return
        nodes = dict(driver.nodes)

        def found(silent: frozenset[str] | Failed) -> None:
            if not isinstance(silent, Failed) and driver.snapshot.pending == epoch:
                names = frozenset(name for name, info in nodes.items() if info.place in silent)
                driver.tell(AnswerLate(epoch, names, driver.clock.now() - since))

        places = sorted({info.place for info in nodes.values()})
        driver.ports.background.submit("ask", lambda: self._runner.silent(run, places), found)
