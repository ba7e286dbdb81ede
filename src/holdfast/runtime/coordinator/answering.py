"""The epoch at hand: who processes it, exactly or tentatively, what is published of it, and when it is done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from holdfast.runtime.coordinator.facts import Committed, CopiesLost, Lost, Refused, Reshaped, Said, Told, record
from holdfast.runtime.coordinator.lanes import (
    Fork,
    answered,
    caught_up,
    exact_works,
    forked,
    restamped,
    stamps_of,
    tentative_works,
)
from holdfast.runtime.coordinator.promising import promised, survive_of, told_with
from holdfast.runtime.messages import (
    SHED,
    AnswerOverdue,
    EpochArrived,
    EpochDone,
    EpochJournalled,
    Halt,
    Publish,
    Published,
    Record,
    Report,
    Run,
    Work,
)
from holdfast.topology import Task, Topology

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts


@dataclass(frozen=True, slots=True)
class Before:
    """What was found at the start of each task's final outputs.

    ``found``: up to which epoch there are some; ``whole``: of which epochs since the checkpoint they are there,
    verified; ``missing``: up to which some have to be made again.
    """

    found: Mapping[Task, int] = field(default_factory=dict)
    whole: Mapping[Task, frozenset[int]] = field(default_factory=dict)
    missing: Mapping[Task, int] = field(default_factory=dict)


class Answering:
    """``head``: the newest epoch that was answered; ``journalled`` may lead it by one. ``pending``: the epoch at hand.

    ``answer``: the run that answered it; ``story``: how it did, told when readers have it. ``forks``: tentative
    branches of tasks; ``mute``: tasks that cannot cope with incomplete input. ``published``: up to which epoch each
    task's output is, or is about to be; ``before``: what was found of it at the start; ``publishing``: what was asked
    for and is not in its place yet, by run and kind. ``owed``: after a failure an answer comes before recovery: once an
    epoch is at hand, or even if it is only to come. ``floor``: what is promised of the next answer. ``failed``:
    something was lost since the job began; who only goes on where it stopped has states restored before it answers.
    """

    def __init__(self, outputs: frozenset[str], head: int, done: Mapping[Task, int], before: Before) -> None:
        self.head = self.journalled = head
        self.pending: int | None = None
        self.answer: int | None = None
        self.story: Record | None = None
        self.forks: dict[Task, Fork] = {}
        self.mute: set[Task] = set()
        self.outputs = outputs
        self.published = dict(done)
        self.before = before
        self.publishing: set[tuple[int, str]] = set()
        self.failed = False
        self.floor: float | None = None
        self.owed: Literal["nothing", "answer", "answer soon"] = "nothing"

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case EpochArrived(epoch):
                yield from self._arrived(epoch)
            case EpochJournalled(epoch):
                yield from self._journalled(epoch)
            case Published(run, kind):
                self.publishing.discard((run, kind))
            case AnswerOverdue() if self.owed == "answer soon":
                self.owed = "answer"
            case Lost():
                self.failed = True
                self.owed = "answer soon" if told.answer_due else "answer"
            case CopiesLost(tasks):
                for task in tasks:
                    self.forks.pop(task, None)
            case Committed(run) if run.settled:
                yield from self._committed(told, parts)
            case Refused(run) if run.settled:
                yield from self._refused(told)
            case Reshaped(shape=shape):
                self.forks = {task: fork for task, fork in self.forks.items() if told.untouched(task)}
                self.mute = {task for task in self.mute if told.untouched(task)}
                self.published = {task: epoch for task, epoch in self.published.items() if told.untouched(task)} | {
                    task: epoch for task, epoch in shape.done.items() if not told.untouched(task)
                }
        if self.pending == self.head and not any(run == self.answer for run, _ in self.publishing):
            if self.story is not None:
                yield self.story
            self.pending = self.story = None
            yield EpochDone(self.head)

    # What happened

    def _arrived(self, epoch: int) -> Said:
        head = self.head
        if epoch < head:
            yield Halt(
                f"epoch {epoch} came again, but the store has epochs up to {head}: the stream's own log (the folder "
                f"spark/ of the store) is gone or belongs to another stream"
            )
        elif epoch > head + 1:
            has = f"epochs up to {head} only" if head >= 0 else "none"
            lost = f"epochs {head + 1} to {epoch - 1}" if epoch > head + 2 else f"epoch {head + 1}"
            yield Halt(
                f"epoch {epoch} came, but the store has {has}: {lost} would be lost; the store is older than the "
                f"stream's own log (the folder spark/ of the store): put both back from the same day, or start with "
                f"a new store"
            )
        elif epoch != self.pending:
            self.pending, self.answer = epoch, None

    def _journalled(self, epoch: int) -> Said:
        if epoch == self.journalled + 1 == self.head + 1 and epoch == self.pending:
            self.journalled = epoch
            return
        at_hand = "no epoch is at hand" if self.pending is None else f"epoch {self.pending} is at hand"
        yield Halt(
            f"epoch {epoch} was journalled, but {at_hand}, the journal has epochs up to {self.journalled} and those up "
            f"to {self.head} are answered: only the one at hand can be next"
        )

    def _committed(self, told: Committed, parts: Parts) -> Said:
        run, primaries, memory = told.run, parts.assignment.primaries, parts.measurements.memory
        if run.epoch is not None:
            self.head = run.epoch
            topology, measured = parts.assignment.topology, parts.measurements.before
            run = replace(run, works=restamped(topology, run.works, told.forks, measured, memory))
        given = {work.task: work.given for work in run.works if work.lane == "tentative"}
        for work, _ in told.counted:
            if work.lane == "tentative" and work.task in primaries and primaries[work.task].node == work.node:
                rows = given[work.task] * memory.ledger.rows(work.last, work.last)
                self.forks[work.task] = forked(work, told.forks).advanced(work.last, rows)
            elif work.last >= self.head and parts.assignment.holds(work):
                self.mute.discard(work.task)
        self.forks = {task: fork for task, fork in self.forks.items() if primaries[task].position < self.head}
        if run.epoch is not None:
            self.answer, self.owed = run.number, "nothing"
            self.story = self._told(run, told.reports, parts)
        yield from self._publish(run, told.reports, parts)

    def _refused(self, told: Refused) -> Said:
        for report in told.reports:
            if report.lane == "tentative" and report.status == "failed":
                # It was given less than it is made for: it has no say until its input is whole again.
                self.mute.add(report.task)
                yield record("mute", task=str(report.task), message=report.message)
            elif report.status == "missing" and told.of_fork(report):
                self.forks.pop(report.task, None)

    def _publish(self, run: Run, reports: Iterable[Report], parts: Parts) -> Said:
        final, tentative, stamps = [], [], stamps_of(run.works)
        for report in reports:
            for epoch in sorted(report.outputs):
                if report.lane == "exact" and epoch > self.published.get(report.task, -1):
                    final.append((epoch, report.task))
                elif report.lane == "tentative" and stamps[report.task] > 0:
                    tentative.append((epoch, report.task))
        for epoch, task in final:
            self.published[task] = max(epoch, self.published.get(task, -1))
        if not final and not tentative:
            return
        if run.epoch is not None and self.story is not None:
            told = float(self.story.fields["fidelity"])
        else:
            newest = max(epoch for epoch, _ in (*final, *tentative))
            told = caught_up(parts.measurements.before, parts.assignment.primaries, newest)
        if final:
            self.publishing.add((run.number, "final"))
            yield Publish(run.number, tuple(sorted(final)), "final", told)
        if tentative:
            self.publishing.add((run.number, "tentative"))
            yield Publish(run.number, tuple(sorted(tentative)), "tentative", told, stamps)

    def unsaid(self, work: Work) -> Work:
        """The same work, which knows what of its output is there: a replay would write it again for nobody."""
        said = self.published.get(work.task, -1)
        whole = self.before.whole.get(work.task, frozenset()).intersection(work.epochs)
        return replace(work, said=said, whole=whole) if work.lane == "exact" and (work.first <= said or whole) else work

    def _told(self, run: Run, reports: tuple[Report, ...], parts: Parts) -> Record:
        """How the epoch was answered, for the history."""
        lanes = [work.lane for work in run.works]
        active = {work.task for work in run.works if work.lane in ("exact", "tentative")}
        absent = [task for task in parts.assignment.tasks if task not in active]
        measured = parts.measurements.before
        fidelity, queries = answered(measured, run.works) if absent or "tentative" in lanes else (1.0, {})
        sources = [report for report in reports if not parts.assignment.topology.inputs_of(report.task.operator)]
        rows, shed = sum(r.rows_in for r in sources), sum(r.counters.get(SHED, 0) for r in sources)
        if run.ingest is None and run.epoch is not None:  # it was read by a run that did not come to its end
            rows = int(parts.measurements.memory.ledger.rows(run.epoch, run.epoch))
        if shed:
            kept = rows / (rows + shed)
            fidelity, queries = fidelity * kept, {name: value * kept for name, value in queries.items()}
        exact = [report for report in reports if report.lane == "exact"]
        sizes: dict[str, int] = {}
        for report in exact:
            if report.state_bytes:
                sizes[report.task.operator] = sizes.get(report.task.operator, 0) + report.state_bytes
        return record(
            "epoch",
            epoch=run.epoch,
            exact=lanes.count("exact"),
            tentative=lanes.count("tentative"),
            replicas=lanes.count("replica"),
            absent=len(absent),
            inexact={
                **{str(work.task): "tentative" for work in run.works if work.lane == "tentative"},
                **{str(task): "absent" for task in absent},
            },
            fidelity=fidelity,
            queries=queries,
            floor=self._foresee(run.epoch or 0, parts),
            survive=survive_of(parts),
            rows_in=rows,
            shed=shed,
            state_bytes=sum(report.state_bytes for report in exact),
            state_rows=sum(report.state_rows for report in exact),
            state=sizes,
            counters=_counted(reports),
        )

    def _foresee(self, epoch: int, parts: Parts) -> float | None:
        """The least that the next answer is worth if as many nodes are lost as are to be survived."""
        if told_with(parts, epoch):
            found = promised(parts)
            self.floor = None if found is None else round(found.bound, 6)
        return self.floor

    # What to do now

    def run(self, parts: Parts) -> Said:
        """The epoch at hand: exact where it can be, tentative where not, unless waiting a moment gives more."""
        epoch, assignment = self.pending, parts.assignment
        if epoch is None or epoch <= self.head or parts.runs.of("epoch") is not None:
            return
        behind = assignment.behind(self.head)
        if self.owed == "nothing" and (parts.recovering.joins(behind, parts) or parts.rescaling.joins(behind, parts)):
            return
        if parts.recovering.overtaken(parts):
            return
        if parts.settings.recovery == "blocking" and (not assignment.all_up or assignment.cold):
            return
        exact, said_by = assignment.exact(epoch, self.head), self.output_tasks(assignment.topology)
        measured, memory, number = parts.measurements.before, parts.measurements.memory, parts.runs.next
        mute = self.mute if self.failed else self.mute | assignment.cold
        works = exact_works(assignment, exact, epoch, parts.recovering.keep)
        for unasked in (parts.measurements.dear(parts.settings.restore_within), ()):
            tentative = tentative_works(
                assignment.topology,
                assignment.primaries,
                self.forks,
                exact,
                epoch,
                number,
                measured,
                memory,
                mute,
                said_by,
                unasked,
            )
            if any(work.task in said_by for work in (*works, *tentative)):
                break  # somebody answers without them
        works += tentative
        if not works:
            return
        if not any(work.task in said_by for work in works):
            # What cannot give an answer goes on all the same, but need not come before the recovery.
            self.owed = "nothing"
        ingest = epoch if self.journalled < epoch else None
        yield parts.runs.start("epoch", works, parts, epoch=epoch, ingest=ingest)

    def output_tasks(self, topology: Topology) -> frozenset[Task]:
        """The tasks whose output somebody gets."""
        return frozenset(task for task in topology.tasks if task.operator in self.outputs)

    @property
    def finals_unplaced(self) -> bool:
        """Whether final outputs were asked for that are not in their place yet."""
        return any(kind == "final" for _, kind in self.publishing)

    def check(self, parts: Parts) -> Iterable[str]:
        if not self.head <= self.journalled <= self.head + 1:
            yield f"epochs up to {self.journalled} are journalled, but those up to {self.head} are answered"
        if self.pending not in (None, self.head, self.head + 1):
            yield f"epoch {self.pending} is at hand after {self.head}"
        for task in self.forks.keys() - parts.assignment.primaries.keys():
            yield f"{task} is down and has a fork"
        for task, epoch in self.published.items():
            if epoch > self.head:
                yield f"{task} has published epoch {epoch}, beyond the head {self.head}"


def _counted(reports: Iterable[Report]) -> dict[str, dict[str, int]]:
    """What operators counted in this epoch: late rows, and what users count. What was shed is told apart."""
    counted: dict[str, dict[str, int]] = {}
    for report in reports:
        for what, rows in report.counters.items() if report.lane in ("exact", "tentative") else ():
            if rows and what != SHED:
                mine = counted.setdefault(report.task.operator, {})
                mine[what] = mine.get(what, 0) + rows
    return counted
