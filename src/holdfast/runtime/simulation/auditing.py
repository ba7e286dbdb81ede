"""What must hold after every event of a simulated job, whatever fails: checked upon the coordinator and the disk.

A breach raises at once, so that the history ends where it happened. What the store holds is read back from its files,
not from anybody's memory of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.messages import (
    CheckpointDurable,
    EpochDone,
    Event,
    Instruction,
    Publish,
    Published,
    Record,
    ReleaseNodes,
    Run,
    RunDone,
)
from holdfast.runtime.simulation.disk import ONLOOKER
from holdfast.runtime.simulation.operators import Output
from holdfast.runtime.simulation.simulation import STORE, Simulation
from holdfast.runtime.simulation.witness import Witness
from holdfast.state import Damaged, Store, output
from holdfast.state.journal import commit_names
from holdfast.topology import Task

CLOSE = 1e-9
STAGED_AT_MOST = 64
"""Files of broken runs that may wait to be cleared away when a job has ended."""


class Breach(AssertionError):
    """An invariant does not hold; the message says which."""


class Auditor:
    """Watches one simulation. ``expected``: the output of a run in which nothing fails; None when only costs run.

    Where operators are scaled, tasks say what others would have said: then the rows of an operator's tasks together are
    what counts in an epoch.
    """

    def __init__(self, simulation: Simulation, expected: Output | None, counting: str | None = None) -> None:
        """``counting``: an operator that answers how many rows of the source it knows, in a column ``rows``."""
        self.simulation = simulation
        self.expected = expected
        self.counting = counting
        schedule = simulation.schedule
        self.scales = bool(schedule.scalings or schedule.elastic or schedule.settings.parallel_recovery > 1)
        self._publishing: dict[tuple[int, str], Publish] = {}
        self._finals: dict[tuple[int, str], pa.Table] = {}
        self._said: dict[tuple[int, str], Counter[Any]] = {}
        self._whole: dict[tuple[int, str], Counter[Any]] = {}
        self._witness = Witness(simulation.pipeline, simulation.batches)
        self._runs: dict[int, Run] = {}
        self._worth: dict[int, Mapping[Task, float]] = {}
        self._stamped: dict[tuple[int, str], float | None] = {}
        self._life = 0
        self._done = -1
        for (epoch, task), rows in (expected or {}).items():
            self._whole.setdefault((epoch, operator_of(task)), Counter()).update(rows_of(rows))

    def watch(self, event: Event, answer: list[Instruction]) -> None:
        coordinator = self._coordinator
        if self.simulation.lives != self._life:
            self._life = self.simulation.lives
            self._publishing.clear()
            self._runs.clear()
            self._witness.forget()
            # What a driver placed that could not say so any more.
            there = output.written(self.simulation.disk.files(ONLOOKER, STORE), "tentative")
            self._stamped = {**dict.fromkeys(there), **self._stamped}
            self._done = min(self._done, self.simulation.committed)
        try:
            coordinator.check()
        except AssertionError as error:
            raise Breach(str(error)) from None
        if isinstance(event, RunDone) and all(report.status == "committed" for report in event.reports):
            self._done_with(self._runs[event.run], coordinator)
        if isinstance(event, CheckpointDurable):
            self._can_fall_back()
        if isinstance(event, Published):
            self._published(self._publishing.pop((event.run, event.kind)))
        for instruction in answer:
            match instruction:
                case Run():
                    self._runs[instruction.number] = instruction
                    self._run(coordinator, instruction)
                case Publish():
                    self._publishing[instruction.run, instruction.kind] = instruction
                case EpochDone(epoch):
                    self._answered(epoch)
                case ReleaseNodes(nodes):
                    self._released(coordinator, nodes)
                case Record("moved", fields):
                    self._moved(coordinator, set(fields["tasks"]))
                case Record("missing", fields) if not self._excused(fields):
                    raise Breach(f"the coordinator believes in a state that is not there: {fields['message']}")
                case _:
                    pass

    @property
    def _coordinator(self) -> Coordinator:
        assert self.simulation.driver is not None
        return self.simulation.driver.coordinator

    def _excused(self, fields: Mapping[str, Any]) -> bool:
        """A node's file was damaged, or a fall back to an older checkpoint has swept a side away."""
        mishaps = {mishap.kind for mishap in self.simulation.schedule.mishaps}
        damage = any(fault.what == "damage" for fault in self.simulation.schedule.faults)
        return "local" in mishaps or (fields["lane"] == "side" and (damage or "power" in mishaps))

    def _run(self, coordinator: Coordinator, run: Run) -> None:
        """On live nodes, nobody does the same work twice at once, and no copy is worked on that does not live there."""
        parts = coordinator.parts
        under_way = [each.run for number, each in parts.runs.under_way.items() if number != run.number]
        if any(other.kind == run.kind for other in under_way):
            raise Breach(f"run {run.number}: another {run.kind} run is under way")
        seen = {(work.task, work.born, work.lane, work.node, work.fork) for other in under_way for work in other.works}
        for work in run.works:
            if work.node not in parts.members.nodes:
                raise Breach(f"run {run.number}: {work.task} is to run on {work.node}, which is gone")
            if (work.task, work.born, work.lane, work.node, work.fork) in seen:
                raise Breach(f"run {run.number}: the {work.lane} copy of {work.task} is worked on twice at once")
            seen.add((work.task, work.born, work.lane, work.node, work.fork))
            if work.lane == "tentative" and not 0 < work.fidelity <= 1:
                raise Breach(f"run {run.number}: tentative {work.task} with a fidelity of {work.fidelity}")
        for task, (node, _, _) in run.buffers.items():
            if node not in parts.members.nodes:
                raise Breach(f"run {run.number}: the buffer of {task} is on {node}, which is gone")

    def _released(self, coordinator: Coordinator, nodes: tuple[str, ...]) -> None:
        """Who is given back takes nothing along, and somebody stays."""
        seen = coordinator.snapshot()
        if seen.down:
            raise Breach(f"{', '.join(nodes)} was given back with {seen.down[0]} on it")
        if not seen.nodes:
            raise Breach("the last node was given back")
        for each in coordinator.parts.runs.under_way.values():
            if hit := [work for work in each.run.works if work.node in nodes]:
                raise Breach(f"{hit[0].node} was given back while {hit[0].task} ran on it")

    def _moved(self, coordinator: Coordinator, tasks: set[str]) -> None:
        """Who takes a task over has come as far as it had: no epoch waits for it."""
        copies, head = coordinator.parts.assignment, coordinator.parts.answering.head
        for task, copy in copies.primaries.items():
            if str(task) in tasks and (task in copies.cold or copy.position < head):
                raise Breach(f"{task} was moved before its new copy had caught up")

    def _done_with(self, run: Run, coordinator: Coordinator) -> None:
        parts = coordinator.parts
        self._worth[run.number] = self._witness.followed(run, parts.assignment.topology, parts.measurements.before)

    # What is on the disk

    def _published(self, wanted: Publish) -> None:
        """What is said to be published is there; what is final is exact, one value for ever, and never of a fork."""
        files = self.simulation.disk.files(ONLOOKER, STORE)
        for epoch, task in wanted.outputs:
            key = (epoch, str(task))
            try:
                found = output.read(files, wanted.kind, *key)
            except (FileNotFoundError, Damaged) as error:
                raise Breach(f"{task} in epoch {epoch} is said to be published, but {error}") from None
            rows = _plain(found)
            if wanted.kind == "tentative":
                if key in self._finals:
                    raise Breach(f"a tentative output of {task} in epoch {epoch} comes after the final one")
                self._worthy(wanted.run, epoch, task, found)
                continue
            if key in self._finals:
                if not self._finals[key].equals(rows):
                    raise Breach(f"{task} contradicts in epoch {epoch} what was final: {brief(rows.to_pylist())}")
                continue
            self._finals[key] = rows
            if self.expected is not None:
                self._exact(key, rows)

    def _worthy(self, run: int, epoch: int, task: Task, rows: pa.Table) -> None:
        """What says how complete it is, says no more than is true. What is there, by whomever, stays as it is."""
        found = self._worth.get(run, {}).get(task)
        worth = self._stamped.setdefault((epoch, str(task)), found)
        if self.expected is None or worth is None or not len(rows):
            return
        stamp = rows["fidelity"][0].as_py()
        if not 0 < stamp <= worth + CLOSE:
            raise Breach(f"{task} says in epoch {epoch} that it is {stamp:.6f} complete; it is {worth:.6f}")
        if task.operator == self.counting:
            self._counted(epoch, task, rows, stamp)

    def _counted(self, epoch: int, task: Task, rows: pa.Table, stamp: float) -> None:
        """An answer that is itself the number of rows behind it is as complete as that number."""
        assert self.expected is not None
        there, whole = (sum(each["rows"].to_pylist()) for each in (rows, self.expected[epoch, str(task)]))
        if stamp > there / whole + CLOSE:
            raise Breach(
                f"{task} says in epoch {epoch} that it is {stamp:.6f} complete; {there} of {whole} rows are in it"
            )

    def _exact(self, key: tuple[int, str], rows: pa.Table) -> None:
        assert self.expected is not None
        epoch, task = key
        if self.scales:
            said = self._said.setdefault((epoch, operator_of(task)), Counter())
            said.update(rows_of(rows))
            if wrong := said - self._whole.get((epoch, operator_of(task)), Counter()):
                raise Breach(f"{task} says in epoch {epoch} what is wrong or was said before: {brief(list(wrong))}")
        elif key not in self.expected:
            raise Breach(f"final output of {task} in epoch {epoch}, where there should be none: {brief(rows)}")
        elif not rows.equals(self.expected[key]):
            raise Breach(
                f"the final output of {task} in epoch {epoch} is {brief(rows.to_pylist())}, "
                f"undisturbed it is {brief(self.expected[key].to_pylist())}"
            )

    def _answered(self, epoch: int) -> None:
        """Epochs are answered in order, and what was answered can be replayed: the journal has it, on the disk."""
        if epoch > self._done + 1:
            raise Breach(f"epoch {epoch} is answered, but {self._done + 1} was not")
        self._done = max(self._done, epoch)
        files = self.simulation.disk.files(ONLOOKER, STORE)
        if epoch not in commit_names(files, None, 0) and epoch > self._coordinator.snapshot().checkpoint:
            raise Breach(f"epoch {epoch} is answered, but it is not in the journal")

    def _can_fall_back(self) -> None:
        """Whichever retained checkpoint is left if others turn out damaged, the journal reaches it."""
        files = self.simulation.disk.files(ONLOOKER, STORE)
        there, kept = commit_names(files, None, 0), Store(files).checkpoints()
        oldest = min((each.epoch for each in kept), default=-1)
        head = self._coordinator.snapshot().journalled
        if gone := [epoch for epoch in range(oldest + 1, head + 1) if epoch not in there]:
            raise Breach(f"epoch {gone[0]} is not in the journal any more, but checkpoint {oldest} needs it")

    # The end

    def finish(self) -> None:
        """Everything is recovered, durable and delivered; nothing is missing, nothing is left behind."""
        simulation = self.simulation
        seen = self._coordinator.snapshot()
        if seen.down or seen.behind:
            raise Breach("the job has ended, but something is still down or behind")
        if seen.checkpoint_needed:
            raise Breach(f"the job has ended with checkpoint {seen.checkpoint} at epoch {seen.head}")
        files = simulation.disk.files(ONLOOKER, STORE)
        if len(left := files.list(output.STAGED)) > STAGED_AT_MOST:
            raise Breach(f"{len(left)} staged files were left behind")
        if self.expected is None:
            return
        there = output.written(files, "final")
        read = {key: _plain(output.read(files, "final", *key)) for key in there if key not in simulation.excused}
        for key, rows in read.items():
            if key not in self._finals:  # placed by a driver that died before it could say so
                self._exact(key, rows)
            elif not self._finals[key].equals(rows):
                raise Breach(f"the final output of {key[1]} in epoch {key[0]} is another at the end")
        if gone := [key for key in self._finals if key not in there and key not in simulation.excused]:
            raise Breach(f"the final output of {gone[0][1]} in epoch {gone[0][0]} was published and is gone")
        self._none_missing({**read, **{key: self._finals[key] for key in simulation.excused & self._finals.keys()}})
        self._all_delivered(read)

    def _none_missing(self, read: Mapping[tuple[int, str], pa.Table]) -> None:
        assert self.expected is not None
        if not self.scales:
            if lost := [key for key in self.expected if key not in read]:
                raise Breach(f"the final output of {lost[0][1]} in epoch {lost[0][0]} was lost ({len(lost)} in all)")
            return
        said: dict[tuple[int, str], Counter[Any]] = {}
        for (epoch, task), rows in read.items():
            said.setdefault((epoch, operator_of(task)), Counter()).update(rows_of(rows))
        for place, rows in self._whole.items():
            if lacking := rows - said.get(place, Counter()):
                raise Breach(f"final rows of {place[1]} in epoch {place[0]} were lost: {brief(list(lacking))}")

    def _all_delivered(self, read: Mapping[tuple[int, str], pa.Table]) -> None:
        """The sink took every final output at least once, whole, and each task's in order."""
        for life, late in self.simulation.late:
            raise Breach(f"driver {life} began to give epoch {late.epoch} of {late.task} after it was superseded")
        newest: dict[tuple[int, str, str], int] = {}
        taken: dict[tuple[int, str], pa.Table] = {}
        for life, each in self.simulation.delivered:
            place = (life, each.task, each.kind)
            if each.epoch < newest.get(place, -1):
                raise Breach(f"the sink was given epoch {each.epoch} of {each.task} after {newest[place]}")
            newest[place] = each.epoch
            if each.kind == "final":
                taken[each.epoch, each.task] = _plain(each.table)
        for key, rows in read.items():
            if key not in taken:
                raise Breach(f"the sink never heard of the final output of {key[1]} in epoch {key[0]}")
            if not taken[key].equals(rows):
                raise Breach(f"the sink was given something else for {key[1]} in epoch {key[0]}")


def audited(simulation: Simulation, expected: Output | None, counting: str | None = None) -> Auditor:
    """Run this simulation with an auditor watching it; Breach or Unfinished if it goes wrong."""
    auditor = Auditor(simulation, expected, counting)
    simulation.watchers.append(auditor.watch)
    simulation.run()
    auditor.finish()
    return auditor


def operator_of(task: str) -> str:
    return task.rpartition("/")[0]


def rows_of(rows: pa.Table) -> list[Any]:
    """Rows as values that can be counted."""
    return [tuple(sorted((name, repr(value)) for name, value in row.items())) for row in rows.to_pylist()]


def _plain(table: pa.Table) -> pa.Table:
    """Rows without the columns that Holdfast adds."""
    return table.drop_columns([name for name in output.OWN if name in table.column_names]).replace_schema_metadata(None)


def brief(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 160 else text[:157] + "..."
