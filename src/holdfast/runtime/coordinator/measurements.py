"""What was measured of a running job: rates and costs of its tasks, and the topology with them in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from holdfast.elasticity import Sample, sample_of
from holdfast.recovery import with_costs
from holdfast.runtime.coordinator.facts import Committed, Lost, Reshaped, Said, Told
from holdfast.runtime.coordinator.lanes import Memory
from holdfast.runtime.messages import EpochJournalled, ReplicasPlanned, Report
from holdfast.state import Routing
from holdfast.topology import Task, Topology

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts

MEMORY = 10
"""Rates and costs are those of about so many epochs: a window closes now and then, and says nothing in between."""
LIGHT = 0.1
"""A state that comes from the store within so many seconds is waited for."""
WIDE = 1 << 20
"""What takes less than so many bytes shows how far the store is; what takes more shows how much it gives a second."""
READ = 160e6
"""Bytes a second that a store is taken to give until one was read."""
LEAST_COST = 1e-3
RATES_TOLD = 500
"""The history has measured rates for jobs of up to so many tasks."""


class Measurements:
    """Output rates in rows an epoch, and CPU seconds an epoch; declared rates stand until something is measured.

    ``before``: the topology with the rates measured before the last failure, and ``memory``: what answers rest on, by
    which fidelity is told.
    """

    def __init__(self, topology: Topology, memory: Memory, weighs: bool = True) -> None:
        """``weighs``: measured costs count; not where nodes have a capacity that was given in declared ones."""
        self.memory = memory
        self._weighs = weighs
        self._declared = self.before = topology
        self._rates = topology.rates.copy()
        self._epochs: dict[Task, int] = {}
        self._seconds: dict[Task, float] = {}
        self._took: dict[Task, float] = {}
        self._keys: dict[Task, NDArray[np.float64]] = {}
        self._sizes: dict[Task, int] = {}
        self._touched: dict[Task, float] = {}
        self._far: float | None = None
        self._read: float | None = None

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case Lost():
                self.before = self.topology()
            case ReplicasPlanned():
                self.weigh(parts)
            case Committed(run, reports, counted) if run.settled:
                for report in reports:
                    self._restored(report)
                for work, report in counted if parts.assignment.all_up else ():
                    if work.lane in ("exact", "replica") and parts.assignment.holds(work):
                        self.task(work.task, report, len(work.epochs))
                if run.epoch is not None:
                    self.sources(r for r in reports if not parts.assignment.topology.inputs_of(r.task.operator))
            case EpochJournalled(epoch, rows, time):
                self.memory.ledger.learn(epoch, rows, time)
            case Reshaped(topology=topology):
                self._reshape(topology, told.untouched)
        return ()

    def _reshape(self, topology: Topology, untouched: Callable[[Task], bool]) -> None:
        """What was measured of untouched tasks stays."""
        rates = topology.rates.copy()
        for task in topology.tasks:
            if untouched(task) and task in self._declared.index:
                rates[topology.index[task]] = self._rates[self._declared.index[task]]
        self._declared, self._rates = topology, rates
        self._seconds = {task: seconds for task, seconds in self._seconds.items() if untouched(task)}
        self._took = {task: took for task, took in self._took.items() if untouched(task)}
        self._epochs = {task: epochs for task, epochs in self._epochs.items() if untouched(task)}
        self._keys = {task: counts for task, counts in self._keys.items() if untouched(task)}
        self._sizes = {task: size for task, size in self._sizes.items() if untouched(task)}
        self._touched = {task: size for task, size in self._touched.items() if untouched(task)}
        self.before = self.topology()

    def rates(self) -> dict[str, list[float]]:
        """What was measured before the last failure, for the history; not of jobs so large that it would swell."""
        if len(self.before.tasks) > RATES_TOLD:
            return {}
        return {each.name: [round(rate, 3) for rate in each.rates] for each in self.before.operators}

    def check(self, parts: Parts) -> Iterable[str]:
        if self._declared != parts.assignment.topology:
            yield "rates are measured of another topology than the one in force"

    def sources(self, reports: Iterable[Report]) -> None:
        """Reports of the parts of a batch: several may be of one task."""
        rows: dict[Task, int] = {}
        for report in reports:
            rows[report.task] = rows.get(report.task, 0) + report.rows_out
        for task, count in rows.items():
            self._add(task, count, 0.0, 1)

    def task(self, task: Task, report: Report, epochs: int) -> None:
        self._add(task, report.rows_out, report.seconds, epochs, report.took)
        self._sizes[task] = report.state_bytes
        # The most of late: what looks through its state now and then needs all of it then.
        touched = report.state_bytes if report.touched is None else report.touched
        self._touched[task] = max(touched, self._touched.get(task, 0.0) * (1 - 1 / MEMORY))
        if report.keys:
            self._tallied(task, report.keys)

    def _restored(self, report: Report) -> None:
        """Each restore counts as much as all before it: stores are slow at times."""
        took, size = report.restored, report.state_bytes
        if took > 0 and size < WIDE:
            self._far = took if self._far is None else (self._far + took) / 2
        elif took > 0:
            speed = size / max(took - (self._far or 0.0), 1e-3)
            self._read = speed if self._read is None else (self._read + speed) / 2

    def restoring(self, task: Task) -> float:
        """The seconds that its state would take from the store, by what others took."""
        return (self._far or 0.0) + self._sizes.get(task, 0) / (self._read or READ)

    def forking(self, task: Task) -> float:
        """The seconds that a fork of it would take: it reads what an epoch touches."""
        size = self._sizes.get(task, 0)
        return (self._far or 0.0) + min(size, self._touched.get(task, size)) / (self._read or READ)

    @property
    def light(self) -> set[Task]:
        """Tasks whose state is restored in no time."""
        return {task for task in self._sizes if self.restoring(task) <= LIGHT}

    def dear(self, within: float) -> set[Task]:
        """Tasks of whose state a fork takes longer to read than an answer waits."""
        return {task for task, size in self._sizes.items() if size and self.forking(task) > within}

    def _tallied(self, task: Task, counts: Sequence[int]) -> None:
        """Each tally weighs half of all before it together: load wanders."""
        held, new = self._keys.get(task), np.array(counts, np.float64)
        self._keys[task] = new if held is None or len(held) != len(new) else held / 2 + new

    def samples(self, name: str, routing: Routing) -> dict[int, Sample]:
        """How the load of an operator's tasks lies over their keys, of those that had any."""
        return {
            number: sample_of(part, self._keys[task])
            for number, part in zip(routing.owners, routing.ranges, strict=True)
            if (task := Task(name, number)) in self._keys and self._keys[task].any()
        }

    def _add(self, task: Task, rows: int, seconds: float, epochs: int, took: float = 0.0) -> None:
        """A plain mean at first, then one that forgets: each epoch weighs a tenth of all before it."""
        known = min(self._epochs.get(task, 0), max(MEMORY - epochs, 0))
        index, total = self._declared.index[task], known + epochs
        self._rates[index] = (self._rates[index] * known + rows) / total
        self._seconds[task] = (self._seconds.get(task, 0.0) * known + seconds) / total
        self._took[task] = (self._took.get(task, took / epochs) * known + took) / total
        self._epochs[task] = self._epochs.get(task, 0) + epochs

    def replayed_in(self, seconds: float) -> int:
        """So many epochs of all tasks one core would carry out in this time, by what the last ones took.

        By the clock, not by CPU: an operator may wait for a service.
        """
        busy = sum(self._took.values())
        return int(seconds / busy) if busy > 0 else 0

    def weigh(self, parts: Parts) -> None:
        """Who places tasks knows what they take."""
        parts.assignment.weigh(self.costs() if self._weighs else {})

    def costs(self) -> dict[Task, float]:
        """What tasks cost by the CPU seconds they took, in the unit of declared costs: their sum is the same."""
        declared = self._declared
        seconds = {task: spent for task, spent in self._seconds.items() if declared.inputs_of(task.operator)}
        busy = sum(seconds.values())
        if busy <= 0:
            return {}
        unit = sum(declared.costs[declared.index[task]] for task in seconds) / busy
        return {task: max(spent * unit, LEAST_COST) for task, spent in seconds.items()}

    def topology(self) -> Topology:
        """The topology with measured rates and costs in place of the declared ones."""
        declared = self._declared
        rated = replace(
            declared,
            operators=tuple(
                replace(operator, rates=tuple(map(float, self._rates[declared.span[operator.name]])))
                for operator in declared.operators
            ),
        )
        return with_costs(rated, self.costs()) if self._weighs else rated

    def to_json(self) -> dict[str, Any]:
        """What was measured, for the next start of the job; nothing of jobs so large that it would swell."""
        epochs = [list(each) for each in self.memory.ledger.recent()]
        if len(self._declared.tasks) > RATES_TOLD:
            return {"epochs": epochs}
        rates = {str(task): round(float(self._rates[self._declared.index[task]]), 3) for task in self._epochs}
        seconds = {str(task): round(spent, 6) for task, spent in self._seconds.items()}
        return {"rates": rates, "seconds": seconds, "epochs": epochs}

    def recall(self, kept: Mapping[str, Any]) -> None:
        """What was measured before the job was started again; it counts as one epoch, so new figures soon prevail."""
        known = {str(task): task for task in self._declared.tasks}
        for name, rate in kept.get("rates", {}).items():
            if (task := known.get(name)) is not None:
                self._rates[self._declared.index[task]] = float(rate)
                self._epochs[task] = 1
                if name in kept.get("seconds", {}):
                    self._seconds[task] = float(kept["seconds"][name])
        self.before = self.topology()

    def with_costs(self) -> Topology:
        """The topology with measured rates, and with measured costs whatever they are to be used for."""
        return with_costs(self.topology(), self.costs())

    def drift(self, then: Topology) -> float:
        """How much rates have changed since then: the share of all rows that other tasks send now."""
        if then.tasks != self._declared.tasks:
            return 1.0
        one, two = (rates / max(float(rates.sum()), 1e-300) for rates in (then.rates, self._rates))
        return float(np.abs(one - two).sum()) / 2
