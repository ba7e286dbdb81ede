"""Answers by a deadline: an epoch that somebody holds up is answered tentatively by the others, beside it.

Nobody is declared dead, and the late run goes on. If it comes to its end, its exact results follow as usual; if who is
silent turns out lost, that is a loss like any other. Only where those who are to stand in do not get to it is the late
run called off, once, and begun anew: their cores wait for rows from who says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from holdfast.runtime.coordinator.facts import Committed, Copy, Said, StoodIn, Told, record
from holdfast.runtime.coordinator.lanes import Memory, answered, restamped, stamps_of, tentative_works
from holdfast.runtime.messages import AnswerLate, CancelRun, Publish, Work
from holdfast.topology import Task

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts

TRIES = 3
"""So often it is tried to stand in for an epoch; once where all are short of cores."""
SHORT = 0.5
"""Where those who are well take so many seconds to answer a question, all are short of cores."""


def short(late: AnswerLate, parts: Parts) -> bool:
    """Whether it is the machine, not the nodes: the driver and those who are well are slow too, or most nodes are."""
    return late.pace >= SHORT or 2 * len(late.silent) > len(parts.members.nodes)


class StandingIn:
    """``late``: what was said last of the epoch at hand, until it is acted upon; ``told``: of whom; ``recorded``: the
    history knows of these in that epoch.
    ``stood_in``: the newest epoch for which somebody stood in; once is enough. ``tried``: how often it was tried of
    which epoch. ``freed``: the epoch whose run was called off last, for the sake of those who stand in.
    """

    def __init__(self) -> None:
        self.late: AnswerLate | None = None
        self.told: tuple[int, frozenset[str]] = (-1, frozenset())
        self.recorded: frozenset[str] = frozenset()
        self.stood_in = -1
        self.tried = (-1, 0)
        self.freed = -1

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case AnswerLate() if told.epoch == parts.answering.pending and told.epoch > parts.answering.head:
                self.late = told
                known = self.recorded if self.told[0] == told.epoch else None
                self.told = (told.epoch, told.silent)
                yield from self._free(told, parts)
                if known is not None and told.silent <= known:
                    return
                self.recorded = told.silent | (known or frozenset())
                where = {"silent": sorted(told.silent), "alive": len(parts.members.nodes)}
                yield record("answer late", epoch=told.epoch, seconds=round(told.seconds, 3), **where)
            case Committed(run) if run.epoch is not None:
                self.late = None
                if (stopgap := parts.runs.of("stopgap")) is not None:
                    yield CancelRun(stopgap.number)
            case StoodIn() if told.run.last > parts.answering.head:
                self.stood_in = told.run.last
                yield from self._answer(told, parts)

    def _free(self, late: AnswerLate, parts: Parts) -> Said:
        """A stopgap was begun without somebody who says nothing still, and has not ended: let it have the cores."""
        stopgap, exact = parts.runs.of("stopgap"), parts.runs.of("epoch")
        if self.freed == late.epoch or stopgap is None or exact is None:
            return
        if short(late, parts):
            return  # to begin anew would take more of what there is too little of
        if stopgap.last == late.epoch and stopgap.avoid & late.mute:
            self.freed = late.epoch
            yield parts.runs.call_off(exact)

    def _answer(self, told: StoodIn, parts: Parts) -> Said:
        run, measured, topology = told.run, parts.measurements.before, parts.assignment.topology
        works = restamped(topology, run.works, {}, measured, self._memory(told, parts))
        fidelity, queries = answered(measured, works)
        stamps = stamps_of(works)
        said = [report for report in told.reports if report.outputs and stamps[report.task] > 0]
        rows = sorted((epoch, report.task) for report in said for epoch in report.outputs)
        silent, tasks = sorted(run.avoid), sorted(str(work.task) for work in run.works)
        yield record(
            "stood in", epoch=run.last, run=run.number, silent=silent, tasks=tasks, fidelity=fidelity, queries=queries
        )
        if rows:
            yield Publish(run.number, tuple(rows), "tentative", fidelity, stamps)

    def _memory(self, told: StoodIn, parts: Parts) -> Memory:
        """What answers rest on, with what this run has read of an epoch that the journal may not have."""
        memory, topology = parts.measurements.memory, parts.assignment.topology
        sources = [report for report in told.reports if not topology.inputs_of(report.task.operator)]
        if told.run.ingest is None or not sources:
            return memory
        return memory.knowing(told.run.last, sum(report.rows_in for report in sources), told.time)

    def run(self, parts: Parts) -> Said:
        """Let those who are not silent answer, on forks of what they have and of the last checkpoint."""
        if self.late is None or parts.runs.of("stopgap") is not None:
            return  # one that is called off may not have ended yet
        late, self.late = self.late, None
        if late.epoch <= max(parts.answering.head, self.stood_in) or parts.settings.recovery == "blocking":
            return
        tries = self.tried[1] if self.tried[0] == late.epoch else 0
        if tries >= (1 if short(late, parts) else TRIES):
            return
        if parts.runs.of("epoch") is None:
            return
        healthy = parts.members.nodes.keys() - late.silent - parts.members.leaving
        works = self._works(late.epoch, healthy, parts) if healthy and late.silent else []
        if works:
            self.tried = (late.epoch, tries + 1)
            ingest = late.epoch if parts.answering.journalled < late.epoch else None
            yield parts.runs.start("stopgap", works, parts, ingest=ingest, avoid=late.silent)

    def _works(self, epoch: int, healthy: Iterable[str], parts: Parts) -> list[Work]:
        assignment, answering = parts.assignment, parts.answering
        measured, memory = parts.measurements.before, parts.measurements.memory
        nobody = np.zeros(len(assignment.topology.tasks), dtype=bool)
        said_by, mute = answering.output_tasks(assignment.topology), answering.mute
        copies = self._copies(set(healthy), parts)
        return tentative_works(
            assignment.topology, copies, {}, nobody, epoch, parts.runs.next, measured, memory, mute, said_by
        )

    def _copies(self, healthy: set[str], parts: Parts) -> dict[Task, Copy]:
        """For every task a copy on one of these nodes: its own, its replica, or one from the last checkpoint."""
        assignment, found = parts.assignment, dict[Task, Copy]()
        carried = assignment.load()
        load = {node: carried.get(node, 0.0) for node in healthy}
        for task in assignment.tasks:
            there = (assignment.primaries.get(task), assignment.replicas.get(task))
            copy = next((each for each in there if each is not None and each.node in healthy), None)
            if copy is None:
                node = min(load, key=lambda name: (load[name], name))
                load[node] += assignment.cost(task)
                copy = Copy(node, parts.checkpointing.durable, fresh=True)
            found[task] = copy
        return found

    def silent(self, parts: Parts) -> frozenset[str]:
        """Nodes that hold up the epoch at hand, by what was told last."""
        epoch, nodes = self.told
        return nodes if epoch == parts.answering.pending and epoch > parts.answering.head else frozenset()

    def check(self, parts: Parts) -> Iterable[str]:
        if (stopgap := parts.runs.of("stopgap")) is None:
            return
        for work in stopgap.works:
            if work.lane != "tentative" or work.node in stopgap.avoid:
                yield f"{work.task} stands in as {work.lane} on {work.node}"
