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
from holdfast.runtime.coordinator.standing_in import SHORT, short
from holdfast.runtime.messages import AnswerLate, RunBroken

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts

PATIENCE = 5.0
"""Seconds after which who says nothing is given up, counted from when it was first found out, if what an epoch has is
not more; and who is only slow, from when others had answered in its place and were not short of cores, if half of what
an epoch has is not more."""
SILENCE = 5
"""Nobody is given up who has said nothing for less than so many times as long as those take who are well."""
EXCUSED = 6
"""That all are short of cores excuses who is only slow for so many times as long as it has otherwise."""
MUTE, TIMES = 3, 2
"""Who speaks now and then is given up too, when it was asked so often in vain, and so many times as often as any
other."""
FAILURES = 2
"""Runs in a row that may fail by one node, unless others have done the epoch at hand without it."""


class GivingUp:
    """``since``: when each silent node was first found so, in seconds of the epoch ``epoch``; ``unheard``: when each
    that says nothing was; ``mute``: how often each was asked in vain, ``first``: when that began. ``stood_in``: the
    epoch that others did ``without`` some; ``shown``: when that was known, which says nothing against anybody else;
    ``proven``: the same, or when others were last short of cores.
    ``failures``: runs in a row that each node broke.
    """

    def __init__(self) -> None:
        self.epoch = -1
        self.since: dict[str, float] = {}
        self.unheard: dict[str, float] = {}
        self.mute: Counter[str] = Counter()
        self.first: dict[str, float] = {}
        self.stood_in = -1
        self.without: frozenset[str] = frozenset()
        self.proven: float | None = None
        self.shown = 0.0
        self.failures: Counter[str] = Counter()

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case AnswerLate() if told.epoch == parts.answering.pending and told.epoch > parts.answering.head:
                self._note(told, parts)
                yield from self._give_up(self._stuck(told), told.silent, "silent", parts)
            case StoodIn(run):
                self.stood_in, self.without = run.last, run.avoid
            case RunBroken() if told.failing:
                self.failures.update(name for name in told.failing if name in parts.members.nodes)
                # What others have done without it, and broke with it, need not break twice.
                spared = self.without if self.stood_in == parts.answering.pending else frozenset()
                failing = {name for name in told.failing if name in spared or self.failures[name] >= FAILURES}
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
                self.without -= nodes
                for name in nodes:
                    self.since.pop(name, None)
                    self.unheard.pop(name, None)
                    self.mute.pop(name, None)
                    self.first.pop(name, None)
                    self.failures.pop(name, None)

    def _note(self, late: AnswerLate, parts: Parts) -> None:
        if late.epoch != self.epoch:
            self.epoch, self.since, self.unheard, self.first, self.proven = late.epoch, {}, {}, {}, None
            self.mute.clear()
        self.since = {name: self.since.get(name, late.seconds) for name in late.silent}
        self.unheard = {name: self.unheard.get(name, late.seconds) for name in late.mute}
        if not short(late, parts):
            self.mute.update(late.mute)
            self.first = {**dict.fromkeys(late.mute, late.seconds), **self.first}
        if self.stood_in != late.epoch:
            return
        if self.proven is None:
            self.proven = self.shown = late.seconds
        elif late.pace >= SHORT and late.seconds - self.shown < EXCUSED * max(PATIENCE, late.within / 2):
            self.proven = late.seconds  # who is slow where all are has time from when they are not

    def _stuck(self, late: AnswerLate) -> set[str]:
        patience = max(PATIENCE, late.within, SILENCE * late.pace)
        stuck = {name for name, since in self.unheard.items() if late.seconds - since >= patience}
        if self.mute and late.pace < SHORT:
            (worst, times), *rest = self.mute.most_common(2)
            often = times >= max([MUTE, *(TIMES * each for _, each in rest)])
            if worst in late.mute and often and late.seconds - self.first[worst] >= patience:
                stuck.add(worst)
        if self.proven is not None:
            slow = max(PATIENCE, late.within / 2)
            began = {name: max(since, self.proven) for name, since in self.since.items() if name in self.without}
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
