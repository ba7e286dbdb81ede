"""Runs by their costs alone: no workers, no rows. For questions of order and time over thousands of tasks.

The driver, the coordinator and the store are the real ones. A run takes as long as the slowest node of each level, all
of it is committed, and every output is the same few bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.runtime.driver.ports import Asked, Failed, Recorder, RunResult
from holdfast.runtime.messages import Report, Work
from holdfast.runtime.shape import reshaped
from holdfast.runtime.simulation.cluster import Node, SimulatedBatch, SimulatedNodes
from holdfast.runtime.simulation.loop import VirtualTimer
from holdfast.runtime.simulation.operators import digesting
from holdfast.runtime.simulation.schedule import FaultSchedule
from holdfast.runtime.simulation.simulation import Simulation
from holdfast.runtime.worker.plan import RunPlan, Slot
from holdfast.runtime.worker.versions import Saved, Upload
from holdfast.runtime.worker.worker import JobContext
from holdfast.state import Unusable
from holdfast.state.entries import checksum
from holdfast.state.files import Files
from holdfast.state.output import STAGED, Kind, StagedOutput, output_name
from holdfast.topology import Topology


def costed(schedule: FaultSchedule, record: Recorder | None = None) -> Simulation:
    """A simulation of this schedule in which only costs run."""
    pipeline = digesting(schedule.topology, ordered=False)
    batches = [SimulatedBatch(())] * schedule.epochs
    return Simulation(schedule, pipeline, batches, record, _runner)


def _runner(simulation: Simulation, context: JobContext) -> CostedRunner:
    return CostedRunner(context, simulation.nodes, simulation.store("nodes").files)


@dataclass(slots=True)
class _Run:
    plan: RunPlan
    done: Callable[[RunResult | Failed], None]
    nodes: Sequence[Node]
    timer: VirtualTimer


class CostedRunner:
    """Runs of one life of a driver. ``files``: of the store, where outputs are staged."""

    def __init__(self, context: JobContext, nodes: SimulatedNodes, files: Files) -> None:
        self._context = context
        self._nodes = nodes
        self._files = files
        self._runs: dict[int, _Run] = {}
        self._saves: dict[int, tuple[VirtualTimer, Callable[[Saved | Failed], None]]] = {}
        self._topologies: dict[int, Topology] = {}
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"rows": [1], "fidelity": [1.0]}), sink)
        self._output = sink.getvalue().to_pybytes()
        self._checksum = checksum(pa.py_buffer(self._output))

    def start(self, plan: RunPlan, batch: object, done: Callable[[RunResult | Failed], None]) -> None:
        places = sorted({slot.place for level in plan.levels for slot in level})
        nodes = [self._nodes.here[place] for place in places]
        for node in nodes:
            node.busy += 1
        timing = self._nodes.timing
        seconds = sum(timing.level + max(self._seconds(plan, slot) for slot in level) for level in plan.levels)
        timer = self._nodes.world.after(timing.run + seconds, partial(self._end, plan.run))
        self._runs[plan.run] = _Run(plan, done, nodes, timer)

    def _seconds(self, plan: RunPlan, slot: Slot) -> float:
        timing, node = self._nodes.timing, self._nodes.here[slot.place]
        restores = sum(work.origin == "checkpoint" and work.start >= 0 for work in slot.works)
        spent = sum(self._cost(plan, work) for work in slot.works) + restores * timing.restore
        return spent * node.busy / node.speed

    def _cost(self, plan: RunPlan, work: Work) -> float:
        costs = self._topology(plan).operator[work.task.operator].costs
        return len(work.epochs) * costs[work.task.number] * self._nodes.timing.unit

    def _end(self, number: int) -> None:
        run, world = self._runs[number], self._nodes.world
        if any(not node.alive for node in run.nodes):
            return  # it hangs until somebody notices
        if (stalled := max((node.stalled for node in run.nodes), default=0.0)) > world.now:
            run.timer = world.after(stalled - world.now, partial(self._end, number))
            return
        works = [work for level in run.plan.levels for slot in level for work in slot.works]
        reports = tuple(self._report(run.plan, work) for work in works)
        self._leave(run)
        world.after(self._nodes.timing.report, lambda: run.done(RunResult(reports)))

    def _report(self, plan: RunPlan, work: Work) -> Report:
        topology = self._topology(plan)
        rows = int(topology.rates[topology.index[work.task]] * len(work.epochs))
        said = filter(work.says, work.epochs) if work.task.operator in self._context.outputs else ()
        try:
            outputs = {epoch: self._stage(plan, work, epoch) for epoch in said}
        except Unusable as error:
            return Report(work.task, work.lane, work.node, "unusable", work.start, message=str(error))
        seconds = self._cost(plan, work)
        return Report(
            work.task, work.lane, work.node, "committed", work.last, rows, rows, seconds, outputs=outputs
        )  # fmt: skip

    def _stage(self, plan: RunPlan, work: Work, epoch: int) -> StagedOutput:
        kind: Kind = "final" if work.lane == "exact" else "tentative"
        name = output_name(kind, epoch, str(work.task)).rpartition("/")[2]
        path = f"{STAGED}/{self._context.token}-{plan.run}-{kind}-{name}"
        self._files.put(path, self._output, sync=False)
        size, proof = len(self._output), self._checksum
        return StagedOutput(epoch, str(work.task), kind, path, size, proof, 1, work.fidelity)

    def _topology(self, plan: RunPlan) -> Topology:
        if plan.shape.version not in self._topologies:
            self._topologies[plan.shape.version] = reshaped(self._context.pipeline.coordinated, plan.shape)
        return self._topologies[plan.shape.version]

    def _leave(self, run: _Run) -> None:
        del self._runs[run.plan.run]
        for node in run.nodes:
            node.busy -= 1

    def cancel(self, run: int) -> None:
        if run in self._runs:
            cancelled = self._runs[run]
            cancelled.timer.cancel()
            self._leave(cancelled)
            cancelled.done(Failed(ConnectionError("cancelled")))

    # Checkpoints

    def save(self, epoch: int, uploads: Mapping[str, Sequence[Upload]], done: Callable[[Saved | Failed], None]) -> None:
        nodes = [self._nodes.here[place] for place in uploads]
        timer = self._nodes.world.after(self._nodes.timing.checkpoint, partial(self._save, epoch, nodes))
        self._saves[epoch] = (timer, done)

    def _save(self, epoch: int, nodes: Sequence[Node]) -> None:
        if all(node.alive and node.stalled <= self._nodes.world.now for node in nodes):
            self._saves.pop(epoch)[1](Saved({}, {}))

    def silent(self, run: int, places: Sequence[str]) -> Asked:
        return Asked({})

    def failing(self, run: int, places: Sequence[str]) -> frozenset[str]:
        return frozenset()

    def cancel_save(self, epoch: int) -> None:
        if epoch in self._saves:
            timer, done = self._saves.pop(epoch)
            timer.cancel()
            done(Failed(ConnectionError("cancelled")))

    def close(self) -> None: ...
