"""The simulation shell: the same coordinator on a virtual clock, with nodes, failures and costs of a scenario.

It plays the part of the Spark shell: carries instructions out, level by level and slot by slot, and reports.
A node that dies takes its states along; a run it took part in is called off when the death is noticed, half done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from holdfast.runtime.blocks import Block
from holdfast.runtime.coordinator import Coordinator
from holdfast.runtime.events import (
    CapacityLifted,
    Checkpoint,
    CheckpointBroken,
    CheckpointDurable,
    CheckpointLost,
    CheckpointWanted,
    EpochArrived,
    EpochDone,
    Event,
    Halt,
    Instruction,
    NodesJoined,
    NodesLost,
    Publish,
    Record,
    ReplicasPlanned,
    Report,
    Run,
    RunBroken,
    RunDone,
    Trim,
)
from holdfast.runtime.layout import Layout, Slot, depths, lay_out
from holdfast.runtime.simulation.clock import Environment, Timer
from holdfast.runtime.simulation.machine import Engine, Machine, Missing, Order
from holdfast.runtime.simulation.scenario import Scenario
from holdfast.runtime.simulation.store import MemoryStore
from holdfast.topology import Task

Watcher = Callable[[Event, list[Instruction]], None]


class Unfinished(Exception):
    """The simulation cannot go on although the job is not done."""


class Hopeless(Unfinished):
    """Nothing whole is left in the store to recover from."""


@dataclass(slots=True)
class _Job:
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


class Simulation:
    """One scenario. ``engine`` None: costs alone, no rows. ``watch`` sees every event with its instructions."""

    def __init__(self, scenario: Scenario, engine: Engine | None = None, watch: Watcher | None = None) -> None:
        self.scenario = scenario
        self.timing = scenario.timing
        self.engine = engine
        self.watch = watch
        self.listener: Callable[[list[Instruction]], None] | None = None
        self.clock = Environment()
        self.store = MemoryStore()
        self.coordinator = Coordinator(scenario.topology, scenario.settings)
        self.machines: dict[str, Machine] = {}
        self.history: list[dict[str, Any]] = []
        self.restarts = 0
        self.finished = False
        self.answered: dict[int, tuple[float, float]] = {}
        """When each epoch had arrived and was answered."""
        self._random = Random(scenario.seed)
        self._depth = depths(scenario.topology)
        self._jobs: dict[int, _Job] = {}
        self._staged: dict[tuple[int, str, int, Task], Any] = {}
        self._checkpoint: tuple[Checkpoint, Timer, dict[str, Machine]] | None = None
        self._noticing: dict[str, Timer] = {}
        self._committed = -1
        self._fetched = -1
        self._filled = 0.0
        self._stuck: Timer | None = None
        self._restarting = False
        self._at_epoch: dict[int, list[Callable[[], None]]] = {}

    # Life

    def run(self) -> Simulation:
        """Until every epoch is answered and exact, checkpointed, and nothing is left to do."""
        from holdfast.runtime.simulation.mishaps import schedule_faults

        schedule_faults(self)
        for moment, tasks in self.scenario.replans:
            self.clock.after(moment, lambda tasks=tasks: self._replan(tasks))  # type: ignore[misc]
        self.boot(self.scenario.names)
        self.clock.after(0.0, self._fetch)
        while not self.finished:
            if not self.clock.step():
                raise Unfinished(f"nothing is left to happen, but {self._missing()}")
            if self.clock.now > self.scenario.longest:
                raise Unfinished(f"{self.scenario.longest:g} s have passed, but {self._missing()}")
        return self

    def _replan(self, tasks: tuple[Task, ...]) -> None:
        if not self._restarting:
            self.tell(ReplicasPlanned(tasks))

    def _missing(self) -> str:
        standing = self.coordinator.standing
        down = ", ".join(map(str, standing.down[:5])) or "none"
        return (
            f"epoch {self._committed + 1} of {self.scenario.epochs} is to be answered, head {standing.head}, "
            f"checkpoint {standing.checkpoint}, {len(standing.nodes)} nodes, down: {down}, "
            f"behind: {[(str(c.task), c.lane, c.position) for c in standing.behind()][:5]}"
        )

    def boot(self, names: tuple[str, ...]) -> None:
        """These nodes come up, empty."""
        new = [name for name in names if name not in self.machines or not self.machines[name].alive]
        for name in new:
            if name in self._noticing:
                self.notice()
            self.machines[name] = Machine(name, self.scenario.domains.get(name, name))
        if new and not self._restarting:
            self._greet(tuple(new))

    def _greet(self, names: tuple[str, ...]) -> None:
        self.tell(NodesJoined(names, domains={name: self.machines[name].domain for name in names}))

    def die(self, names: tuple[str, ...]) -> None:
        """These nodes die at once; they are noticed a moment later, together with others that went meanwhile."""
        for name in names:
            machine = self.machines.get(name)
            if machine is None or not machine.alive:
                continue
            machine.alive = False
            machine.versions.clear()
            machine.kept.clear()
            self._lose(name)
        if self.scenario.replace is not None:
            self.clock.after(self.scenario.replace, lambda: self.boot(names))

    def stall(self, names: tuple[str, ...], seconds: float) -> None:
        """These nodes answer nobody for a while, then are back with all they had; short stalls go unnoticed."""
        for name in names:
            machine = self.machines.get(name)
            if machine is None or not machine.alive:
                continue
            machine.stalled = max(machine.stalled, self.clock.now + seconds)
            if seconds > self.timing.detect:
                self._lose(name)
                self.clock.after(seconds, lambda machine=machine: self._back(machine))  # type: ignore[misc]

    def _back(self, machine: Machine) -> None:
        if machine is not self.machines.get(machine.name) or not machine.alive or self._restarting:
            return
        if machine.stalled <= self.clock.now and machine.name not in self.coordinator.standing.nodes:
            self._greet((machine.name,))

    def _lose(self, name: str) -> None:
        if name not in self._noticing and not self._restarting:
            self._noticing[name] = self.clock.after(self.timing.detect, self.notice)

    def notice(self) -> None:
        """Tell of the nodes that went, and call off the runs under way: all that used them, and some of the others."""
        if not self._noticing:
            return
        gone = tuple(self._noticing)
        for timer in self._noticing.values():
            timer.cancel()
        self._noticing.clear()
        under_way = list(self._jobs.values())
        self.tell(NodesLost(gone))
        for job in under_way:
            hit = any(name in job.machines for name in gone)
            if not job.finished and (hit or self._random.random() < 0.5):
                self._call_off(job, "nodes were lost")
        if self._checkpoint is not None:
            hit = any(name in self._checkpoint[2] for name in gone)
            if hit or self._random.random() < 0.5:
                self._break_checkpoint("nodes were lost")

    def at_epoch(self, epoch: int, action: Callable[[], None]) -> None:
        """Let this happen once the epoch has begun, in the midst of its run."""
        self._at_epoch.setdefault(epoch, []).append(action)

    def fill(self, seconds: float) -> None:
        self._filled = max(self._filled, self.clock.now + seconds)

    @property
    def full(self) -> bool:
        return self.clock.now < self._filled

    def restart(self) -> None:
        """The driver dies, and everything with it but the store; a new one comes and finds what is there."""
        if self._restarting:
            return
        self._restarting = True
        self.restarts += 1
        for job in list(self._jobs.values()):
            self._drop(job)
        if self._checkpoint is not None:
            self._checkpoint[1].cancel()
            self._checkpoint = None
        for timer in self._noticing.values():
            timer.cancel()
        self._noticing.clear()
        self._staged.clear()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        alive = tuple(name for name, machine in self.machines.items() if machine.alive)
        self.note("driver lost", {})
        self.clock.after(self.timing.restart, lambda: self._restarted(alive))

    def _restarted(self, alive: tuple[str, ...]) -> None:
        found = self.store.latest()
        if found is None:
            raise Hopeless("no whole checkpoint is left and the journal does not go back to the start")
        head = max(found, self.store.head)
        self.coordinator = Coordinator(self.scenario.topology, self.scenario.settings, found, head)
        self._restarting = False
        self._fetched = self._committed
        self.note("driver back", {"checkpoint": found, "head": head})
        for name in alive:
            if self.machines[name].alive:
                self.machines[name] = Machine(name, self.machines[name].domain)
        here = [name for name, machine in self.machines.items() if machine.alive]
        first = here[: max(1, len(here) // 2)]
        if first:
            self._greet(tuple(first))
        for name in here[len(first) :]:
            machine = self.machines[name]
            self.clock.after(self._random.random(), lambda machine=machine: self._back(machine))  # type: ignore[misc]
        self.clock.after(0.0, self._fetch)

    # The coordinator's word

    def tell(self, event: Event) -> None:
        if self.finished:
            return
        answer = self.coordinator.handle(event)
        if self.listener is not None:
            self.listener(answer)
        if self.watch is not None:
            self.watch(event, answer)
        for instruction in answer:
            self._carry_out(instruction)
        self._mind_stuck()
        self._mind_end()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Record(kind, fields):
                self.note(kind, fields)
            case Run():
                self._start(instruction)
            case Checkpoint():
                self._begin_checkpoint(instruction)
            case Publish():
                self._publish(instruction)
            case Trim(epoch):
                self.store.trim(epoch)
            case EpochDone(epoch):
                self._epoch_done(epoch)
            case Halt(message):
                raise Unfinished(f"the job halted: {message}")

    def note(self, kind: str, fields: Mapping[str, Any]) -> None:
        self.history.append({"time": round(self.clock.now, 6), "kind": kind, **fields})

    def _mind_stuck(self) -> None:
        stuck = bool(self.coordinator.standing.down) and bool(self.coordinator.standing.nodes)
        if not stuck and self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        elif stuck and self._stuck is None:
            self._stuck = self.clock.after(self.timing.patience, self._lift)

    def _lift(self) -> None:
        self._stuck = None
        self.note("capacity lifted", {"after_seconds": self.timing.patience})
        self.tell(CapacityLifted())

    def _mind_end(self) -> None:
        if self._committed + 1 < self.scenario.epochs or not self.coordinator.idle or self._jobs or self._restarting:
            return
        if self.coordinator.checkpoint_needed():
            if self._checkpoint is None:
                self.clock.after(0.0, lambda: self.tell(CheckpointWanted()))
            return
        self.finished = True

    # Epochs

    def _fetch(self) -> None:
        """The source brings its next batch: when its time has come and the last one was done."""
        epoch = self._fetched + 1
        if epoch >= self.scenario.epochs or self._restarting or self._fetched > self._committed:
            return
        due = epoch * self.timing.interval
        if self.clock.now < due:
            self.clock.after(due - self.clock.now, self._fetch)
            return
        self._fetched = epoch
        self.answered.setdefault(epoch, (due if self.timing.interval else self.clock.now, -1.0))
        for action in self._at_epoch.pop(epoch, ()):
            self.clock.after(self._random.random() * self.timing.run, action)
        self.tell(EpochArrived(epoch))

    def _epoch_done(self, epoch: int) -> None:
        self._committed = max(self._committed, epoch)
        arrived, answered = self.answered[epoch]
        if answered < 0:
            self.answered[epoch] = (arrived, self.clock.now)
            self.note("answered", {"epoch": epoch, "seconds": round(self.clock.now - arrived, 6)})
        self.clock.after(0.0, self._fetch)

    # Runs

    def _start(self, run: Run) -> None:
        used = {work.node for work in run.works} | {node for node, _, _ in run.buffers.values()}
        if gone := [name for name in used if name not in self.machines]:
            raise Unfinished(f"run {run.number} is to use {gone[0]}, which never was")
        job = _Job(run, {name: self.machines[name] for name in used})
        self._jobs[run.number] = job
        for machine in job.machines.values():
            machine.busy += 1
        if self.engine is None:
            self._start_costed(job)
            return
        if run.live is not None:
            job.pieces = self.engine.ingest(run.live)
            pieces = {run.live: job.pieces}
        else:
            needed = range(run.first, run.last + 1)
            if lost := [epoch for epoch in needed if epoch not in self.store.journal]:
                raise Unfinished(f"run {run.number} replays epoch {lost[0]}, which is not in the journal any more")
            pieces = {epoch: self.store.journal[epoch] for epoch in needed}
        counts = {epoch: len(parts) for epoch, parts in pieces.items()}
        job.layout = lay_out(self.scenario.topology, run, {name: name for name in used}, counts)
        job.order = Order(
            run.number, job.layout, self.coordinator.retain, self.coordinator.forks, self.coordinator.output_tasks
        )
        job.blocks = [block for parts in pieces.values() for part in parts for block in part]
        job.timers.append(self.clock.after(self.timing.run, lambda: self._next_level(job)))

    def _next_level(self, job: _Job) -> None:
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

    def _duration(self, job: _Job, slot: Slot) -> float:
        machine = job.machines[slot.place]
        costs = self.scenario.topology.operator
        units = sum(len(work.epochs) * costs[work.task.operator].costs[work.task.number] for work in slot.works)
        restores = sum(work.origin == "checkpoint" and work.start >= 0 for work in slot.works)
        jitter = 1.0 + 0.2 * self._random.random()
        busy = max(machine.busy, 1)
        return self.timing.level * jitter + (units * self.timing.unit + restores * self.timing.restore) * (
            busy / machine.speed
        )

    def _wait_for_slot(self, job: _Job, slot: Slot, share: list[Block], delay: float) -> None:
        job.timers.append(self.clock.after(delay, lambda: self._slot_done(job, slot, share)))

    def _slot_done(self, job: _Job, slot: Slot, share: list[Block]) -> None:
        assert self.engine is not None and job.order is not None
        machine = job.machines[slot.place]
        if not machine.alive:
            return  # the run hangs until somebody notices
        if machine.stalled > self.clock.now:
            self._wait_for_slot(job, slot, share, machine.stalled - self.clock.now)
            return
        mine = {work.task for work in slot.works}
        arrived = [block for block in share if block.receiver in mine]
        sent, told = machine.carry_out(self.engine, self.store, job.order, slot.works, slot.feeds, arrived)
        job.blocks += sent
        for report, outputs in told:
            job.reports.append(report)
            for epoch, output in outputs.items():
                job.outputs[report.lane, epoch, report.task] = output
        job.left -= 1
        if job.left == 0:
            job.level += 1
            self._next_level(job)

    def _end(self, job: _Job) -> None:
        """Every slot has answered; the driver journals a live epoch, and hears the reports a moment later."""
        if self.full and (job.run.live is not None or job.outputs):
            self._call_off(job, "no space left in the store", again=0.2)
            return
        if job.run.live is not None and all(report.status == "committed" for report in job.reports):
            self.store.journal[job.run.live] = job.pieces or []
        job.finished = True
        job.timers.append(self.clock.after(self.timing.report, lambda: self._report(job)))

    def _report(self, job: _Job) -> None:
        self._drop(job)
        for (lane, epoch, task), output in job.outputs.items():
            self._staged[job.run.number, lane, epoch, task] = output
        if any(report.status == "damaged" for report in job.reports):
            lost = min(report.reached for report in job.reports if report.status == "damaged")
            found = self.store.latest()
            if found is None:
                raise Hopeless("no whole checkpoint is left and the journal does not go back to the start")
            self.tell(CheckpointLost(lost, found))
        self.tell(RunDone(job.run.number, tuple(job.reports)))

    def _start_costed(self, job: _Job) -> None:
        """Costs alone: the run takes as long as the slowest node of each level, and everything it said is committed."""
        costs, speed = self.scenario.topology.operator, job.machines
        levels: dict[int, dict[str, float]] = {}
        for work in job.run.works:
            units = len(work.epochs) * costs[work.task.operator].costs[work.task.number] * self.timing.unit
            units += self.timing.restore if work.origin == "checkpoint" and work.start >= 0 else 0.0
            nodes = levels.setdefault(self._depth[work.task.operator], {})
            nodes[work.node] = (
                nodes.get(work.node, 0.0) + units * max(speed[work.node].busy, 1) / speed[work.node].speed
            )
        total = self.timing.run + sum(self.timing.level + max(nodes.values()) for nodes in levels.values())
        job.timers.append(self.clock.after(total, lambda: self._costed(job)))

    def _costed(self, job: _Job) -> None:
        if any(not machine.alive for machine in job.machines.values()):
            return
        if (stalled := max((m.stalled for m in job.machines.values()), default=0.0)) > self.clock.now:
            job.timers.append(self.clock.after(stalled - self.clock.now, lambda: self._costed(job)))
            return
        wanted = self.coordinator.output_tasks
        rates, index = self.scenario.topology.rates, self.scenario.topology.index
        for work in job.run.works:
            says = work.task in wanted and work.lane in ("exact", "tentative")
            named = dict.fromkeys(work.epochs, "") if says else {}
            rows = int(rates[index[work.task]] * len(work.epochs))
            job.reports.append(
                Report(work.task, work.lane, work.node, "committed", work.last, rows_out=rows, outputs=named)
            )
            for epoch in named:
                job.outputs[work.lane, epoch, work.task] = None
        job.pieces = []
        self._end(job)

    def _call_off(self, job: _Job, reason: str, again: float = 0.0) -> None:
        self._drop(job)
        delay = again + self._random.random() * self.timing.detect
        number = job.run.number
        before = self.restarts
        self.clock.after(delay, lambda: self.tell(RunBroken(number, reason)) if self.restarts == before else None)

    def _drop(self, job: _Job) -> None:
        for timer in job.timers:
            timer.cancel()
        if self._jobs.pop(job.run.number, None) is not None:
            for machine in job.machines.values():
                machine.busy -= 1

    # Checkpoints and outputs

    def _begin_checkpoint(self, wanted: Checkpoint) -> None:
        if self._checkpoint is not None:
            raise Unfinished("a second checkpoint is to begin while one is under way")
        delay = self.timing.checkpoint * (0.5 + self._random.random())
        machines = {node: self.machines[node] for node in wanted.homes.values()}
        self._checkpoint = (wanted, self.clock.after(delay, self._end_checkpoint), machines)

    def _end_checkpoint(self) -> None:
        assert self._checkpoint is not None
        wanted, _, machines = self._checkpoint
        states = {}
        for task, node in wanted.homes.items():
            machine = machines[node]
            if not machine.alive or machine.stalled > self.clock.now:
                self._break_checkpoint(f"{node} is gone")
                return
            if self.engine is not None:
                try:
                    states[task] = machine.saved(self.engine, task, wanted.since, wanted.epoch)
                except Missing as error:
                    self._break_checkpoint(str(error))
                    return
        if self.full:
            self._break_checkpoint("no space left in the store", again=0.2)
            return
        self.store.commit(wanted.epoch, wanted.since, states)
        self._checkpoint = None
        before = self.restarts
        done = CheckpointDurable(wanted.epoch)
        # The manifest is in place; the coordinator hears of it a moment later, or never, if the driver dies first.
        self.clock.after(self.timing.report, lambda: self.tell(done) if self.restarts == before else None)

    def _break_checkpoint(self, reason: str, again: float = 0.0) -> None:
        assert self._checkpoint is not None
        wanted, timer, _ = self._checkpoint
        timer.cancel()
        self._checkpoint = None
        before = self.restarts
        broken = CheckpointBroken(wanted.epoch, reason)
        delay = again + self.timing.detect
        self.clock.after(delay, lambda: self.tell(broken) if self.restarts == before else None)

    def staged(self, run: int, lane: str, epoch: int, task: Task) -> Any:
        """What a run under publication wrote."""
        return self._staged[run, lane, epoch, task]

    def _publish(self, wanted: Publish) -> None:
        lane = "exact" if wanted.kind == "final" else "tentative"
        for epoch, task in wanted.outputs:
            output = self._staged.pop((wanted.run, lane, epoch, task))
            if wanted.kind == "final":
                self.store.final.setdefault((epoch, task), output)
            else:
                self.store.tentative[epoch, task] = (output, wanted.fidelity)
        for key in [key for key in self._staged if key[0] == wanted.run and key[1] == lane]:
            del self._staged[key]
        epochs = sorted({epoch for epoch, _ in wanted.outputs})
        self.note("published", {"of": wanted.kind, "epochs": epochs, "outputs": len(wanted.outputs), "run": wanted.run})
