"""Who is there: looked at ten times a second, and told to the coordinator whenever it believes something else.

What is told is everybody, never a difference, so that nobody who is gone can stay in its mind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.errors import Invalid
from holdfast.runtime.driver.ports import Failed, Timer
from holdfast.runtime.driver.requests import Request
from holdfast.runtime.driver.running import RunFailed
from holdfast.runtime.driver.telling import told
from holdfast.runtime.messages import AnswerOverdue, NodeInfo, NodesSeen
from holdfast.state import Unusable

if TYPE_CHECKING:
    from holdfast.runtime.driver.driver import Driver

LOOK_EVERY = 0.1
TOGETHER = 0.05
"""Losses within so many seconds of one another are one failure."""
SOON = 2.0
"""Epochs that follow one another within so many seconds: after a loss the next is waited for before recovery begins."""
TRIES = 3
"""So many looks in a row may fail."""

Look = tuple[Mapping[str, NodeInfo], tuple[str, ...]]
"""Nodes, and who was refused."""


class Watching:
    """``nodes``: as they were seen last. Until they are gathered nobody is told."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.nodes: Mapping[str, NodeInfo] = {}
        self.gathered = False
        self._looking = self._asking = False
        self._failures = 0
        self._second = False
        self._overdue: Timer | None = None

    def look(self) -> None:
        ports = self._driver.ports
        if not self._looking and not self._driver.ended:
            self._looking = True
            ports.background.submit("nodes", self._look, self._looked)
        if (requests := ports.requests) is not None and self.gathered and not self._asking and not self._driver.ended:
            # In a queue of its own: a store may take minutes to answer.
            self._asking = True
            ports.background.submit("requests", lambda: tuple(requests()), self._asked)

    def begin(self) -> None:
        """Enough nodes are there, or nobody else is coming."""
        self.gathered = True
        self._driver.tell(NodesSeen(self.nodes))

    def play(self, faults: Callable[[], None], then: Callable[[], None]) -> None:
        """Let faults happen, and what can be seen of them at once be known before anything else is begun."""

        def play_and_look() -> Mapping[str, NodeInfo]:
            faults()
            return self._driver.ports.nodes.look()

        def played(nodes: Mapping[str, NodeInfo] | Failed) -> None:
            if isinstance(nodes, Failed):
                self._driver.fail(nodes.error)
                return
            if self.gathered and not self._driver.ended:
                self._see(nodes, epoch_here=True)
            then()

        self._driver.ports.background.submit("nodes", play_and_look, played)

    def _look(self) -> Look:
        ports = self._driver.ports
        if ports.faults is not None:
            ports.faults.tick()
        return ports.nodes.look(), tuple(ports.nodes.refused())

    def _asked(self, result: tuple[Request | str, ...] | Failed) -> None:
        driver, self._asking = self._driver, False
        if driver.ended or driver.autoscaler is None:
            return
        if not isinstance(result, Failed):
            driver.autoscaler.take(result)
        elif not isinstance(result.error, Unusable):  # trouble with the store is met by whoever writes
            driver.fail(result.error)

    def _looked(self, result: Look | Failed) -> None:
        driver, self._looking = self._driver, False
        if driver.ended:
            return
        if isinstance(result, Failed):
            self._failures += 1
            if isinstance(result.error, Invalid):
                driver.fail(result.error)  # a fault script asks for what is not there
            elif self._failures >= TRIES:
                driver.fail(RunFailed(f"the nodes cannot be watched any more: {told(result.error)}"))
            return
        self._failures = 0
        nodes, refused = result
        for line in refused:
            driver.note("node refused", {"reason": line})
            if not self.gathered:
                driver.fail(RunFailed(line))
                return
        if not self.gathered:
            self.nodes = nodes
            driver.mind()
            return
        if self._gone(nodes) and not self._second:
            self._second = True
            driver.clock.after(TOGETHER, self.look)
            return
        self._second = False
        self._see(nodes)
        driver.running.settle_suspects()
        if driver.autoscaler is not None:
            driver.autoscaler.look()

    def _gone(self, nodes: Mapping[str, NodeInfo]) -> list[str]:
        return [n for n, info in self.nodes.items() if n not in nodes or nodes[n].incarnation != info.incarnation]

    def _see(self, nodes: Mapping[str, NodeInfo], epoch_here: bool = False) -> None:
        driver = self._driver
        gone = self._gone(nodes)
        joined = [name for name in nodes if name not in self.nodes or name in gone]
        self.nodes = nodes
        if not gone and not joined and set(driver.snapshot.nodes) <= nodes.keys():
            return
        due = bool(gone) and (epoch_here or driver.epoch_due(SOON))
        if gone:
            if self._overdue is not None:
                self._overdue.cancel()
            self._overdue = driver.clock.after(SOON, lambda: driver.tell(AnswerOverdue())) if due else None
        if driver.autoscaler is not None:
            driver.autoscaler.moved(gone, joined)
        driver.tell(NodesSeen(nodes, answer_due=due))
