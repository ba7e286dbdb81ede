"""What must hold after every event of a simulation, whatever fails: checked against the coordinator and the store.

A breach raises at once, so that the history ends where it happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from holdfast.runtime.messages import (
    CheckpointDurable,
    CheckpointLost,
    EpochDone,
    Event,
    Instruction,
    Publish,
    Record,
    ReleaseNodes,
    Run,
    TakeCheckpoint,
)
from holdfast.runtime.simulation.engines import Output, same
from holdfast.runtime.simulation.shell import Simulation
from holdfast.topology import Task


class Breach(AssertionError):
    """An invariant does not hold; the message says which."""


class Auditor:
    """Watches one simulation. ``expected``: the output of a run in which nothing fails; None when only costs run.

    Where operators are scaled, tasks say what others would have said: then the rows of an operator's tasks together are
    what counts in an epoch.
    """

    def __init__(self, expected: Output | None) -> None:
        self.expected = expected
        self.events = 0
        self._published: set[tuple[int, Task]] = set()
        self._restarts = 0
        self._fallen_back = False
        """After a fall back a run that began before may sweep away younger sides: they are computed again."""
        self._done = -1
        self._whole: dict[tuple[int, str], Counter[Any]] = {}
        self._said: dict[tuple[int, str], Counter[Any]] = {}
        for (epoch, task), output in (expected or {}).items():
            self._whole.setdefault((epoch, task.operator), Counter()).update(rows_of(output))
        self.simulation: Simulation | None = None

    @property
    def scales(self) -> bool:
        assert self.simulation is not None
        scenario = self.simulation.scenario
        return bool(scenario.scalings) or scenario.settings.parallel_recovery > 1

    def watch(self, event: Event, answer: list[Instruction]) -> None:
        simulation = self.simulation
        assert simulation is not None
        self.events += 1
        self._fallen_back |= isinstance(event, CheckpointLost)
        if simulation.restarts != self._restarts:
            self._restarts = simulation.restarts
            self._published.clear()
            self._said.clear()  # what was about to be put in its place when the driver died was not said
            for (epoch, task), output in simulation.store.final.items():
                self._said.setdefault((epoch, task.operator), Counter()).update(rows_of(output))
        try:
            simulation.coordinator.check()
        except AssertionError as error:
            raise Breach(str(error)) from None
        for instruction in answer:
            match instruction:
                case Record("missing", fields) if not (self._fallen_back and fields["lane"] == "side"):
                    raise Breach(f"the coordinator believes in a state that is not there: {fields['message']}")
                case Record("checkpoint broken", fields) if "version" in fields["reason"]:
                    raise Breach(f"a checkpoint is to take what is not there: {fields['reason']}")
                case Run():
                    self._run(instruction)
                case TakeCheckpoint(epoch):
                    if lacking := self._published - simulation.store.final.keys():
                        raise Breach(f"checkpoint {epoch} is to be taken, but {min(lacking)} is not in its place")
                case Publish(kind="final"):
                    self._final(instruction)
                case Publish():
                    self._tentative(instruction)
                case EpochDone(epoch):
                    self._answered(epoch)
                case ReleaseNodes(nodes):
                    self._released(nodes)
                case Record("moved", fields):
                    self._moved(fields["tasks"])
                case _:
                    pass
        if isinstance(event, CheckpointDurable):
            self._empty_buffers()

    def _run(self, run: Run) -> None:
        """One primary for each task, on a live node; nobody does the same work twice at once."""
        simulation = self.simulation
        assert simulation is not None
        parts = simulation.coordinator.parts
        under_way = [other.run for number, other in parts.runs.under_way.items() if number != run.number]
        if any(other.kind == run.kind for other in under_way):
            raise Breach(f"run {run.number}: another {run.kind} run is under way")
        seen = {(work.task, work.born, work.lane, work.node) for other in under_way for work in other.works}
        shadow = parts.rescaling.shadow
        for work in run.works:
            if work.node not in parts.members.nodes:
                raise Breach(f"run {run.number}: {work.task} is to run on {work.node}, which is gone")
            if (work.task, work.born, work.lane, work.node) in seen:
                raise Breach(f"run {run.number}: the {work.lane} copy of {work.task} is worked on twice at once")
            seen.add((work.task, work.born, work.lane, work.node))
            if work.lane == "tentative" and not 0 < work.fidelity <= 1:
                raise Breach(f"run {run.number}: tentative {work.task} with a fidelity of {work.fidelity}")
            homes = parts.assignment.primaries if work.lane != "replica" else parts.assignment.replicas
            if not run.settled:
                homes = shadow.copies if shadow is not None else {}
            if work.lane != "side" and (work.task not in homes or homes[work.task].node != work.node):
                raise Breach(f"run {run.number}: {work.task} ({work.lane}) does not live on {work.node}")
        for task, (node, _, _) in run.buffers.items():
            if node not in parts.members.nodes:
                raise Breach(f"run {run.number}: the buffer of {task} is on {node}, which is gone")

    def _released(self, nodes: tuple[str, ...]) -> None:
        """Who is given back takes nothing along."""
        simulation = self.simulation
        assert simulation is not None
        parts = simulation.coordinator.parts
        if down := parts.assignment.down:
            raise Breach(f"{', '.join(nodes)} was given back with {down[0]} on it")
        if not parts.members.nodes:
            raise Breach("the last node was given back")
        for run in (running.run for running in parts.runs.under_way.values()):
            if hit := [work for work in run.works if work.node in nodes]:
                raise Breach(f"{hit[0].node} was given back while {hit[0].task} ran on it")

    def _moved(self, tasks: Iterable[str]) -> None:
        """Who takes a task over has come as far as it had: no epoch waits for it."""
        simulation = self.simulation
        assert simulation is not None
        parts = simulation.coordinator.parts
        moved = set(tasks)  # some of them may have been scaled away since, in the same breath
        for task, copy in parts.assignment.primaries.items():
            if str(task) in moved and (task in parts.assignment.cold or copy.position < parts.answering.head):
                raise Breach(f"{task} was moved before its new copy had caught up")

    def _final(self, wanted: Publish) -> None:
        """No final output is repeated or contradicted, and none of it comes from a fork."""
        simulation = self.simulation
        assert simulation is not None
        for epoch, task in wanted.outputs:
            if (epoch, task) in self._published:
                raise Breach(f"the final output of {task} in epoch {epoch} is published twice")
            self._published.add((epoch, task))
            if self.expected is None:
                continue
            output = simulation.staged(wanted.run, "exact", epoch, task)
            if self.scales:
                self._part(epoch, task, output)
                continue
            if (epoch, task) not in self.expected:
                raise Breach(f"final output of {task} in epoch {epoch}, where there should be none: {brief(output)}")
            if not same(output, self.expected[epoch, task]):
                raise Breach(
                    f"the final output of {task} in epoch {epoch} is {brief(output)}, "
                    f"undisturbed it is {brief(self.expected[epoch, task])}"
                )

    def _part(self, epoch: int, task: Task, output: Any) -> None:
        """What a task says is part of what its operator should say, and nobody said it before."""
        simulation = self.simulation
        assert simulation is not None
        if (epoch, task) in simulation.store.final:
            if not same(output, simulation.store.final[epoch, task]):
                raise Breach(f"{task} contradicts what was published in its name in epoch {epoch}: {brief(output)}")
            return
        said = self._said.setdefault((epoch, task.operator), Counter())
        said.update(rows_of(output))
        if wrong := said - self._whole.get((epoch, task.operator), Counter()):
            raise Breach(f"{task} says in epoch {epoch} what is wrong or was said before: {brief(list(wrong))}")

    def _tentative(self, wanted: Publish) -> None:
        simulation = self.simulation
        assert simulation is not None
        for epoch, task in wanted.outputs:
            if (epoch, task) in simulation.store.final:
                raise Breach(f"a tentative output of {task} in epoch {epoch} comes after the final one")

    def _answered(self, epoch: int) -> None:
        """Epochs are answered in order, and what was answered can be replayed."""
        simulation = self.simulation
        assert simulation is not None
        if epoch > self._done + 1:
            raise Breach(f"epoch {epoch} is answered, but {self._done + 1} was not")
        self._done = max(self._done, epoch)
        store = simulation.store
        if epoch not in store.journal and epoch > max(store.checkpoints, default=-1):
            raise Breach(f"epoch {epoch} is answered, but it is not in the journal")

    def _empty_buffers(self) -> None:
        simulation = self.simulation
        assert simulation is not None
        parts = simulation.coordinator.parts
        whole = parts.assignment.all_up and not parts.assignment.cold
        if whole and parts.recovering.kept and not parts.recovering.backup:
            raise Breach("buffers are kept although nothing is down and a checkpoint was made")

    def finish(self) -> None:
        """Everything is recovered and caught up, and no final output is missing."""
        simulation = self.simulation
        assert simulation is not None
        parts = simulation.coordinator.parts
        if not parts.whole:
            raise Breach("the job has ended, but something is still down or behind")
        if parts.recovering.kept and not parts.recovering.backup:
            raise Breach("the job has ended and is whole, but buffers are kept")
        if self.expected is None:
            return
        if self.scales:
            for (epoch, name), rows in self._whole.items():
                if lacking := rows - self._said.get((epoch, name), Counter()):
                    raise Breach(f"final rows of {name} in epoch {epoch} were lost: {brief(list(lacking))}")
            return
        if lost := [key for key in self.expected if key not in simulation.store.final]:
            raise Breach(f"the final output of {lost[0][1]} in epoch {lost[0][0]} was lost ({len(lost)} in all)")


def audited(simulation: Simulation, expected: Output | None) -> Auditor:
    """Run this simulation with an auditor watching it; Breach or Unfinished if it goes wrong."""
    auditor = Auditor(expected)
    auditor.simulation = simulation
    simulation.watchers.append(auditor.watch)
    simulation.run()
    auditor.finish()
    return auditor


def rows_of(output: Any) -> list[Any]:
    """The rows of an output as values that can be counted."""
    if isinstance(output, pa.Table):
        return [tuple(sorted((name, repr(value)) for name, value in row.items())) for row in output.to_pylist()]
    return list(output) if isinstance(output, tuple) else [output]


def brief(value: Any) -> str:
    text = value.hex() if isinstance(value, bytes) else " ".join(str(value).split())
    return text if len(text) <= 120 else text[:117] + "..."
