"""Nodes that half work: alive by their heartbeats, but the epoch at hand does not come to its end with them.

Who says nothing for a while after an epoch was due, fails run after run, has a disk that takes nothing, or is not done
long after others have done all of the epoch without it, is given up: a loss like any other. What it wrote does not
count, and should it come to its senses it joins with nothing, as another incarnation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.runtime.coordinator.facts import Committed, Lost, Refused, Said, StoodIn, Told
from holdfast.runtime.messages import AnswerLate, RunBroken

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts

MUTE = 2.0
"""Seconds after which who says nothing is given up, counted from when it was first found out; no less than ``within``
says for an epoch."""
LATE = 3.0
"""Who is only slow has so many, counted from when others had answered in its place; no less than twice that."""
FAILURES = 2
"""Runs in a row that may fail by one node."""


class GivingUp:
    """``since``: when each silent node was first found so, in seconds of the epoch ``epoch``; ``proven``: when it was
    known that others had done its work. ``failures``: runs in a row that each node broke.
    """

    def __init__(self) -> None:
        self.epoch = -1
        self.since: dict[str, float] = {}
        self.stood_in = -1
        self.proven: float | None = None
        self.failures: Counter[str] = Counter()

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case AnswerLate() if told.epoch == parts.answering.pending and told.epoch > parts.answering.head:
                self._note(told)
                yield from self._give_up(self._stuck(told), told.silent, "silent", parts)
            case StoodIn(run):
                self.stood_in = run.last
            case RunBroken() if told.failing:
                self.failures.update(name for name in told.failing if name in parts.members.nodes)
                failing = {name for name in told.failing if self.failures[name] >= FAILURES}
                yield from self._give_up(failing, told.failing, "failing", parts)
            case Refused(reports=reports):
                nodes = parts.members.nodes
                unfit = {report.node for report in reports if report.status == "unfit"} & nodes.keys()
                hosts = {nodes[name].host or name for name in unfit}
                beside = frozenset(name for name, info in nodes.items() if (info.host or name) in hosts)
                yield from self._give_up(unfit, beside, "disk full", parts)
            case Committed(run):
                for work in run.works:
                    self.failures.pop(work.node, None)
            case Lost(nodes):
                for name in nodes:
                    self.since.pop(name, None)
                    self.failures.pop(name, None)

    def _note(self, late: AnswerLate) -> None:
        if late.epoch != self.epoch:
            self.epoch, self.since, self.proven = late.epoch, {}, None
        self.since = {name: self.since.get(name, late.seconds) for name in late.silent}
        if self.proven is None and self.stood_in == late.epoch:
            self.proven = late.seconds

    def _stuck(self, late: AnswerLate) -> set[str]:
        mute, slow = max(MUTE, late.within), max(LATE, 2 * late.within)
        stuck = {name for name in late.mute if late.seconds - self.since[name] >= mute}
        if self.proven is not None:
            began = {name: max(since, self.proven) for name, since in self.since.items()}
            stuck |= {name for name, since in began.items() if late.seconds - since >= slow}
        return stuck

    def _give_up(self, nodes: set[str], unwell: frozenset[str], why: str, parts: Parts) -> Said:
        """As long as somebody is well: where nobody is, it is not the nodes."""
        members = parts.members
        gone = nodes & members.nodes.keys()
        if gone and members.nodes.keys() - unwell - members.leaving:
            yield from members.give_up(gone, why, parts)

    def check(self, parts: Parts) -> Iterable[str]:
        return ()
