"""Runs under way: what counts of them when they end, and how often the like may be tried in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.runtime.coordinator.facts import Committed, Lost, Refused, Said, StoodIn, Told, record
from holdfast.runtime.coordinator.lanes import Fork
from holdfast.runtime.failures import ONCE_MORE
from holdfast.runtime.messages import CancelRun, Halt, Report, Run, RunBroken, RunDone, RunKind, Work
from holdfast.topology import Task

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts
    from holdfast.runtime.coordinator.shadow import Shadow

PATIENCE = 5
"""A run that fails for one reason is repeated this often before the job gives up."""


@dataclass(frozen=True, slots=True)
class RunUnderWay:
    """``checkpoint``: the one when it began, and ``forks``: the tentative branches that there were then; ``gone``: the
    nodes that went since, even if they are back; ``off``: it was called off, though nobody went.
    """

    run: Run
    checkpoint: int
    forks: Mapping[Task, Fork] = field(default_factory=dict)
    gone: frozenset[str] = field(default_factory=frozenset)
    off: bool = False


class Runs:
    """At most one run of each kind. ``attempts``: failures in a row by kind, reason and task ("": all)."""

    def __init__(self) -> None:
        self.under_way: dict[int, RunUnderWay] = {}
        self.next = 0
        self.attempts: Counter[tuple[str, str, str]] = Counter()

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case Lost(nodes):
                for key in [key for key in self.attempts if key[1] == "broken"]:
                    del self.attempts[key]  # those may have been the reason
                for number, running in self.under_way.items():
                    self.under_way[number] = replace(running, gone=running.gone | nodes)
                    yield CancelRun(number)
            case RunDone(number, reports, time) if number in self.under_way:
                yield from self._done(self.under_way.pop(number), reports, time, parts)
            case RunBroken(number, reason) if number in self.under_way:
                running = self.under_way.pop(number)
                if running.run.kind == "stopgap" and running.run.last <= parts.answering.head:
                    return  # nobody needs it any more
                yield record("run broken", run=number, reason="called off" if running.off else reason)
                if not running.gone and not running.off and running.run.kind != "stopgap":
                    yield from self._count(running.run, [("broken", "", reason)])

    def _done(self, running: RunUnderWay, reports: tuple[Report, ...], time: int | None, parts: Parts) -> Said:
        run = running.run
        wrong = [report for report in reports if report.status != "committed"]
        if run.kind == "stopgap":
            broken = record("run broken", run=run.number, reason=wrong[0].message) if wrong else None
            yield broken or StoodIn(run, reports, time)
            return
        if wrong:
            refused = Refused(run, tuple(report for report in wrong if report.node not in running.gone))
            yield refused
            if run.settled:
                yield from self._judge(refused)
            return
        if run.epoch is not None and run.epoch != parts.answering.journalled:
            raise AssertionError(f"run {run.number} is done, but its epoch {run.epoch} is not journalled")
        works = {(work.task, work.lane): work for work in run.works}
        named = [(works.get((report.task, report.lane)), report) for report in reports]
        counted = tuple((work, report) for work, report in named if work and work.node not in running.gone)
        done = {"", *(str(work.task) for work in run.works if run.settled)}
        for key in [key for key in self.attempts if key[0] == run.kind and key[2] in done]:
            del self.attempts[key]
        yield Committed(run, reports, counted, running.checkpoint == parts.checkpointing.durable, running.forks)

    def _judge(self, refused: Refused) -> Said:
        """Whatever fails is repeated, but not for ever; a function that raises, once, if it was not an error of I/O.

        A task that waits for a barrier in vain is no wonder when others failed. A store that takes nothing does not
        count: who carries runs out waits for it.
        """
        failed = [report for report in refused.reports if report.status == "failed" and report.lane != "tentative"]
        if failed:
            yield from self._raised(refused.run, failed)
            return
        if elsewhere := [report for report in refused.reports if report.status == "misplaced"]:
            tasks = sorted(str(report.task) for report in elsewhere)
            yield record("misplaced", run=refused.run.number, tasks=tasks, message=elsewhere[0].message)
            self.attempts[refused.run.kind, "misplaced", ""] += 1  # who carries runs out pauses, longer each time
            return
        again = [r for r in refused.reports if r.status in ("damaged", "missing") or refused.only_blocked]
        yield from self._count(refused.run, [(r.status, str(r.task), r.message) for r in again])

    def _raised(self, run: Run, failed: list[Report]) -> Said:
        """Counts a run in which functions raised or broke their contract; the last try of them ends the job.

        Not by task: the source is no work of a run, so that nothing would show that it succeeded.
        """
        worst = next((report for report in failed if not report.may_pass), failed[0])
        of = "raised" if not worst.may_pass else "I/O"
        self.attempts[run.kind, of, ""] += 1
        limit = PATIENCE + 1 if worst.may_pass else ONCE_MORE if worst.raised else 1
        if self.attempts[run.kind, of, ""] < limit:
            yield record("run broken", run=run.number, reason=worst.message)
            return
        yield record("failed", task=str(worst.task), message=worst.message)
        yield Halt(worst.message, worst.raised)

    def _count(self, run: Run, failures: Iterable[tuple[str, str, str]]) -> Said:
        """One more failure of each task for its reason; the first that was tried too often ends the job."""
        for reason, task, message in failures:
            self.attempts[run.kind, reason, task] += 1
            if (tries := self.attempts[run.kind, reason, task]) > PATIENCE:
                of = f"{task} was {reason}" if task else f"runs were {reason}"
                yield Halt(f"{of} {tries} times in a row, in {run.kind} runs up to {run.number}; at last: {message}")
                return

    def start(
        self,
        kind: RunKind,
        works: Iterable[Work],
        parts: Parts,
        *,
        epoch: int | None = None,
        ingest: int | None = None,
        buffers: Mapping[Task, tuple[str, int, int]] | None = None,
        shadow: Shadow | None = None,
        avoid: frozenset[str] = frozenset(),
    ) -> Run:
        """The instruction to begin a run, of the shape in force or of a shadow's; it is under way now."""
        shape = shadow.shape if shadow is not None else parts.rescaling.shape
        if shape.born:
            works = (replace(work, born=shape.born.get(work.task, 0)) for work in works)
        works = tuple(works if shadow is not None else map(parts.answering.unsaid, works))
        of = {"", *(str(work.task) for work in works if shadow is None)}
        tries = [count for (what, _, task), count in self.attempts.items() if what == kind and task in of]
        attempt = max([0 if shadow is None else shadow.tries - 1, *tries])
        run = Run(self.next, kind, works, ingest, buffers or {}, shape, shadow is None, attempt, epoch, avoid)
        self.next += 1
        self.under_way[run.number] = RunUnderWay(run, parts.checkpointing.durable, dict(parts.answering.forks))
        return run

    def call_off(self, run: Run) -> CancelRun:
        """What it does is of no use, and nobody is to blame: the like is begun anew when it has ended."""
        self.under_way[run.number] = replace(self.under_way[run.number], off=True)
        return CancelRun(run.number)

    def of(self, kind: RunKind) -> Run | None:
        return next((each.run for each in self.under_way.values() if each.run.kind == kind), None)

    @property
    def replaying(self) -> set[tuple[Task, str]]:
        """Copies that a replay under way is bringing forward."""
        run = self.of("replay")
        return {(work.task, work.lane) for work in run.works} if run is not None and run.settled else set()

    def tasks(self, *lanes: str) -> set[Task]:
        """Tasks that runs under way work on, in these lanes or in any."""
        runs = (running.run for running in self.under_way.values())
        return {work.task for run in runs for work in run.works if not lanes or work.lane in lanes}

    def check(self, parts: Parts) -> Iterable[str]:
        kinds = Counter(running.run.kind for running in self.under_way.values())
        for kind, count in kinds.items():
            if count > 1:
                yield f"{count} {kind} runs are under way at once"
        works = (work for running in self.under_way.values() for work in running.run.works)
        for copy, count in Counter((work.task, work.born, work.lane, work.node, work.fork) for work in works).items():
            if count > 1:
                yield f"the {copy[2]} copy of {copy[0]} on {copy[3]} is worked on by {count} runs at once"
        for key, tries in self.attempts.items():
            if tries > PATIENCE + 1 and key[1] != "misplaced":
                yield f"{' '.join(key)}: tried {tries} times"
