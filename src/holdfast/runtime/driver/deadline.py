"""The time by which an epoch should be answered; when it is up, who holds the epoch up is found out and told.

What epochs usually take and some more, unless it was said: with fewer nodes as much longer as each has more to do. The
first epochs, which start processes, have all they need. Where nodes are lost it begins anew: what that took, and the
states that come from the store since, are no delay of those who are left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from holdfast.runtime.driver.hearing import MOST
from holdfast.runtime.driver.ports import Asked, Failed, Runner, Timer
from holdfast.runtime.messages import AnswerLate

if TYPE_CHECKING:
    from holdfast.runtime.driver.driver import Driver

USUAL = 10
"""What is usual is the median of so many epochs."""
FIRST = 5
"""So many epochs are needed to know it; before them nothing is late."""
TIMES, MARGIN, HALF = 2.5, 1.0, 0.5
"""An epoch has so many times what is usual, or so many seconds more, or half as much more, if that is less or more."""
LEAST = 1.0
AGAIN = 0.25
"""Seconds until it is asked again."""
ASKING = 0.5
"""To find out who is silent takes so long: it is begun so much before the time is up."""


class Deadline:
    """``within``: seconds that an epoch may take; None: by what is usual; infinite: nobody asks."""

    def __init__(self, driver: Driver, runner: Runner, within: float | None) -> None:
        self._driver = driver
        self._runner = runner
        self._within = within
        self._took: deque[tuple[float, int]] = deque(maxlen=USUAL)
        """What the last epochs took, and with how many nodes."""
        self._due = 0.0
        """When the time of the epoch at hand is up."""
        self._timer: Timer | None = None

    @property
    def seconds(self) -> float:
        """What an epoch has now."""
        if len(self._took) < FIRST:
            return float("inf")
        if self._within is not None:
            return self._within
        usual = median(took * max(1.0, nodes / self._nodes) for took, nodes in self._took)
        return max(LEAST, min(TIMES * usual, usual + max(MARGIN, HALF * usual)))

    @property
    def _nodes(self) -> int:
        return max(1, len(self._driver.snapshot.nodes))

    def begin(self, epoch: int) -> None:
        """An epoch has come."""
        self.cancel()
        now, seconds = self._driver.clock.now(), self.seconds
        self._due = now + seconds
        if seconds < float("inf"):
            self._arm(max(seconds - ASKING, seconds / 2), epoch, now)

    def heard(self, event: Mapping[str, Any]) -> None:
        """After a loss the epoch at hand begins anew."""
        if event["kind"] == "nodes lost":
            self._due = self._driver.clock.now() + self.seconds

    def met(self, seconds: float) -> None:
        """It was answered after so long."""
        self.cancel()
        self._took.append((seconds, self._nodes))

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, seconds: float, epoch: int, since: float) -> None:
        clock = self._driver.clock
        self._timer = clock.after(seconds, partial(self._up, epoch, since, clock.now() + seconds))

    def _up(self, epoch: int, since: float, due: float) -> None:
        """Somebody may fall silent later: it is asked again as long as the epoch is not answered.

        Nobody is told of who is only slow before the time is up. How late it is called itself says how short of time
        the driver is.
        """
        driver = self._driver
        if driver.ended or driver.snapshot.pending != epoch:
            return
        if (run := driver.running.of_epoch(epoch)) is None:
            self._arm(AGAIN, epoch, since)
            return
        nodes = {name: info.place for name, info in driver.nodes.items() if name in driver.snapshot.nodes}

        behind = driver.clock.now() - due

        def found(asked: Asked | Failed) -> None:
            if driver.ended or driver.snapshot.pending != epoch:
                return
            left = self._due - driver.clock.now()
            self._arm(min(AGAIN, left) if left > 0 else AGAIN, epoch, since)
            if not isinstance(asked, Failed) and driver.running.of_epoch(epoch) == run:
                names = frozenset(name for name, place in nodes.items() if place in asked.silent)
                mute = frozenset(name for name in names if asked.silent[nodes[name]] == "mute")
                if left > 0 and not mute:
                    return
                pace = max(asked.pace, min(behind, MOST))
                driver.tell(AnswerLate(epoch, names, driver.clock.now() - since, mute, self.seconds, pace))

        places = sorted(set(nodes.values()))
        driver.ports.background.submit("ask", lambda: self._runner.silent(run, places), found)
