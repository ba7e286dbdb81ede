"""Runs under way in a simulation: level by level and slot by slot on the machines, or by their costs alone.

A slot does its works when its time is over, not before: a run that is called off leaves done what was done by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from holdfast.runtime.blocks import Block
from holdfast.runtime.events import CheckpointLost, Report, Run, RunBroken, RunDone
from holdfast.runtime.layout import Layout, Slot, depths, lay_out
from holdfast.runtime.simulation.clock import Timer
from holdfast.runtime.simulation.endings import Hopeless, Unfinished
from holdfast.runtime.simulation.machine import Machine, Order
from holdfast.topology import Task

if TYPE_CHECKING:
    from holdfast.runtime.simulation.shell import Simulation


@dataclass(slots=True)
class Job:
    """A run under way."""

    run: Run
    machines: Mapping[str, Machine]
    layout: Layout | None = None
    order: Order | None = None
    level: int = 0
    left: int = 0
    blocks: list[Block] = field(default_factory=list)
    pieces: list[list[Block]] | None = None
    reports: list[Report] = field(default_factory=list)
    outputs: dict[tuple[str, int, Task], Any] = field(default_factory=dict)
    timers: list[Timer] = field(default_factory=list)
    finished: bool = False


class Runs:
    """The runs of one simulation."""

    def __init__(self, host: Simulation) -> None:
        self.host = host
        self.jobs: dict[int, Job] = {}
        self._depth = depths(host.scenario.topology)

    def start(self, run: Run) -> None:
        host = self.host
        used = {work.node for work in run.works} | {node for node, _, _ in run.buffers.values()}
        if gone := [name for name in used if name not in host.machines]:
            raise Unfinished(f"run {run.number} is to use {gone[0]}, which never was")
        job = Job(run, {name: host.machines[name] for name in used})
        self.jobs[run.number] = job
        for machine in job.machines.values():
            machine.busy += 1
        if host.engine is None:
            self._start_costed(job)
            return
        engine = host.engine.shaped(run.shape)
        if run.live is not None:
            job.pieces = engine.ingest(run.live)
            pieces = {run.live: job.pieces}
        else:
            needed = range(run.first, run.last + 1)
            if lost := [epoch for epoch in needed if epoch not in host.store.journal]:
                raise Unfinished(f"run {run.number} replays epoch {lost[0]}, which is not in the journal any more")
            pieces = {
                epoch: [engine.recut(part, host.store.journalled_in[epoch]) for part in host.store.journal[epoch]]
                for epoch in needed
            }
        counts = {epoch: len(parts) for epoch, parts in pieces.items()}
        job.layout = lay_out(engine.topology, run, {name: name for name in used}, counts)
        job.order = Order(
            run.number,
            job.layout,
            host.coordinator.retain,
            host.coordinator.forks,
            host.coordinator.output_tasks,
            run.shape,
            run.settled,
        )
        job.blocks = [block for parts in pieces.values() for part in parts for block in part]
        job.timers.append(host.clock.after(host.timing.run, lambda: self._next_level(job)))

    def _next_level(self, job: Job) -> None:
        assert job.layout is not None
        job.timers.clear()
        if job.level == len(job.layout.levels):
            self._end(job)
            return
        slots = job.layout.levels[job.level]
        shares = job.layout.spread(job.blocks, job.level)
        job.left = len(slots)
        for slot, share in zip(slots, shares, strict=True):
            self._wait_for_slot(job, slot, share, self._duration(job, slot))

    def _duration(self, job: Job, slot: Slot) -> float:
        host = self.host
        machine = job.machines[slot.place]
        costs = host.topology_of(job.run).operator
        units = sum(len(work.epochs) * costs[work.task.operator].costs[work.task.number] for work in slot.works)
        restores = sum(work.origin == "checkpoint" and work.start >= 0 for work in slot.works)
        jitter = 1.0 + 0.2 * host.random.random()
        busy = max(machine.busy, 1)
        return host.timing.level * jitter + (units * host.timing.unit + restores * host.timing.restore) * (
            busy / machine.speed
        )

    def _wait_for_slot(self, job: Job, slot: Slot, share: list[Block], delay: float) -> None:
        host = self.host
        job.timers.append(host.clock.after(delay, lambda: self._slot_done(job, slot, share)))

    def _slot_done(self, job: Job, slot: Slot, share: list[Block]) -> None:
        host = self.host
        assert host.engine is not None and job.order is not None
        machine = job.machines[slot.place]
        if not machine.alive:
            return  # the run hangs until somebody notices
        if machine.stalled > host.clock.now:
            self._wait_for_slot(job, slot, share, machine.stalled - host.clock.now)
            return
        mine = {work.task for work in slot.works}
        arrived = [block for block in share if block.receiver in mine]
        sent, told = machine.carry_out(
            host.engine.shaped(job.run.shape), host.store, job.order, slot.works, slot.feeds, arrived
        )
        job.blocks += sent
        for report, outputs in told:
            job.reports.append(report)
            for epoch, output in outputs.items():
                job.outputs[report.lane, epoch, report.task] = output
        job.left -= 1
        if job.left == 0:
            job.level += 1
            self._next_level(job)

    def _end(self, job: Job) -> None:
        """Every slot has answered; the driver journals a live epoch, and hears the reports a moment later."""
        host = self.host
        if host.full and (job.run.live is not None or job.outputs):
            self.call_off(job, "no space left in the store", again=0.2)
            return
        if job.run.live is not None and all(report.status == "committed" for report in job.reports):
            host.store.journal[job.run.live] = job.pieces or []
            host.store.journalled_in[job.run.live] = job.run.shape
        job.finished = True
        job.timers.append(host.clock.after(host.timing.report, lambda: self._report(job)))

    def _report(self, job: Job) -> None:
        host = self.host
        self.drop(job)
        for (lane, epoch, task), output in job.outputs.items():
            host.outputs[job.run.number, lane, epoch, task] = output
        if any(report.status == "damaged" for report in job.reports):
            lost = min(report.reached for report in job.reports if report.status == "damaged")
            found = host.store.latest()
            if found is None:
                raise Hopeless("no whole checkpoint is left and the journal does not go back to the start")
            host.tell(CheckpointLost(lost, found))
        if host.elastic is not None and job.run.live is not None:
            costs, unit = host.topology_of(job.run).operator, host.timing.unit
            host.elastic.worked(
                replace(report, seconds=costs[report.task.operator].costs[report.task.number] * unit)
                for report in job.reports
            )
        host.tell(RunDone(job.run.number, tuple(job.reports)))

    def _start_costed(self, job: Job) -> None:
        """Costs alone: the run takes as long as the slowest node of each level, and everything it said is committed."""
        host = self.host
        costs, speed = host.topology_of(job.run).operator, job.machines
        levels: dict[int, dict[str, float]] = {}
        for work in job.run.works:
            units = len(work.epochs) * costs[work.task.operator].costs[work.task.number] * host.timing.unit
            units += host.timing.restore if work.origin == "checkpoint" and work.start >= 0 else 0.0
            nodes = levels.setdefault(self._depth[work.task.operator], {})
            nodes[work.node] = (
                nodes.get(work.node, 0.0) + units * max(speed[work.node].busy, 1) / speed[work.node].speed
            )
        total = host.timing.run + sum(host.timing.level + max(nodes.values()) for nodes in levels.values())
        job.timers.append(host.clock.after(total, lambda: self._costed(job)))

    def _costed(self, job: Job) -> None:
        host = self.host
        if any(not machine.alive for machine in job.machines.values()):
            return
        if (stalled := max((m.stalled for m in job.machines.values()), default=0.0)) > host.clock.now:
            job.timers.append(host.clock.after(stalled - host.clock.now, lambda: self._costed(job)))
            return
        wanted = host.coordinator.output_tasks
        topology = host.topology_of(job.run)
        rates, index = topology.rates, topology.index
        for work in job.run.works:
            says = work.task in wanted and work.lane in ("exact", "tentative")
            named = dict.fromkeys(work.epochs, "") if says else {}
            rows = rates[index[work.task]]
            job.reports.append(
                Report(
                    work.task,
                    work.lane,
                    work.node,
                    "committed",
                    work.last,
                    rows_out=int(rows * len(work.epochs)),
                    outputs=named,
                    output_rows=dict.fromkeys(named, int(rows)),
                )
            )
            for epoch in named:
                job.outputs[work.lane, epoch, work.task] = None
        job.pieces = []
        self._end(job)

    def call_off(self, job: Job, reason: str, again: float = 0.0) -> None:
        host = self.host
        self.drop(job)
        delay = again + host.random.random() * host.timing.detect
        number = job.run.number
        before = host.restarts
        host.clock.after(delay, lambda: host.tell(RunBroken(number, reason)) if host.restarts == before else None)

    def drop(self, job: Job) -> None:
        for timer in job.timers:
            timer.cancel()
        if self.jobs.pop(job.run.number, None) is not None:
            for machine in job.machines.values():
                machine.busy -= 1
