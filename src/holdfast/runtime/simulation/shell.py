"""The simulation shell: the same coordinator on a virtual clock, with nodes, failures and costs of a scenario.

It plays the part of the Spark shell: carries instructions out, level by level and slot by slot, and reports.
A node that dies takes its states along; a run it took part in is called off when the death is noticed, half done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from holdfast.runtime.coordinator import Coordinator
from holdfast.runtime.elastic import Elastic
from holdfast.runtime.events import (
    CapacityLifted,
    Checkpoint,
    CheckpointBroken,
    CheckpointDurable,
    CheckpointWanted,
    EpochArrived,
    EpochDone,
    Event,
    Halt,
    Instruction,
    NodesJoined,
    NodesLost,
    NodesUnneeded,
    Publish,
    Record,
    Release,
    ReplicasPlanned,
    Reshape,
    Run,
    ScaleWanted,
    Trim,
)
from holdfast.runtime.history import History
from holdfast.runtime.shape import Shape, reshaped
from holdfast.runtime.simulation.clock import Environment, Timer
from holdfast.runtime.simulation.endings import Hopeless, Unfinished
from holdfast.runtime.simulation.machine import Engine, Machine, Missing
from holdfast.runtime.simulation.runs import Runs
from holdfast.runtime.simulation.scenario import Scenario
from holdfast.runtime.simulation.store import MemoryStore
from holdfast.topology import Task, Topology

Watcher = Callable[[Event, list[Instruction]], None]


class Simulation:
    """One scenario. ``engine`` None: costs alone, no rows.

    ``record``: a file that the history goes to as well, in virtual time, as that of a real job does.
    """

    def __init__(
        self,
        scenario: Scenario,
        engine: Engine | None = None,
        record: History | None = None,
    ) -> None:
        self.scenario = scenario
        self.timing = scenario.timing
        self.engine = engine
        self.record = record
        self.watchers: list[Watcher] = []
        """Each is shown every event with the coordinator's answer, before it is carried out."""
        self.clock = Environment()
        self.store = MemoryStore()
        self.coordinator = Coordinator(scenario.topology, scenario.settings, scalable=scenario.scalable)
        self._topologies: dict[int, Topology] = {}
        self.elastic: Elastic | None = None
        if scenario.elastic is not None:
            self.elastic = Elastic(scenario.topology, self.coordinator.scaling.scalable, scenario.elastic)
        self.machines: dict[str, Machine] = {}
        self.history: list[dict[str, Any]] = []
        self.restarts = 0
        self.finished = False
        self.answered: dict[int, tuple[float, float]] = {}
        """When each epoch had arrived and was answered."""
        self.random = Random(scenario.seed)
        self.runs = Runs(self)
        self.outputs: dict[tuple[int, str, int, Task], Any] = {}
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
            self.clock.after(moment, partial(self._replan, tasks))
        for moment, operator, to in self.scenario.scalings:
            self.clock.after(moment, partial(self.scale, operator, to))
        for moment, nodes in self.scenario.drains:
            self.clock.after(moment, partial(self.drain, nodes))
        if self.elastic is not None:
            self.clock.after(self.elastic.policy.every, self._scale_by_load)
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
            there = self.coordinator.topology.index
            self.tell(ReplicasPlanned(tuple(task for task in tasks if task in there)))

    def scale(self, operator: str, to: int, why: str = "asked for") -> None:
        """Ask for another number of tasks of an operator."""
        if not self._restarting:
            self.tell(ScaleWanted(operator, to, why=why))

    def drain(self, nodes: tuple[str, ...], why: str = "asked for") -> None:
        """The job can do without these nodes."""
        if not self._restarting:
            self.tell(NodesUnneeded(nodes, why))

    def _scale_by_load(self) -> None:
        if self.elastic is None or self.finished:
            return
        self.clock.after(self.elastic.policy.every, self._scale_by_load)
        wanted, hopeless = self.elastic.decide(self.clock.now, self.coordinator.samples)
        for each in hopeless:
            self.note("cannot scale", {"task": str(each.task), "why": each.why})
        for request in wanted if not self._restarting else ():
            self.tell(request)

    def topology_of(self, run: Run) -> Topology:
        """The topology that a run is of."""
        version = run.shape.version
        if version not in self._topologies:
            self._topologies[version] = reshaped(self.scenario.topology, run.shape)
        return self._topologies[version]

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

    def _release(self, names: tuple[str, ...]) -> None:
        """These are given back, with all that was left on them."""
        for name in names:
            machine = self.machines[name]
            machine.alive = False
            machine.versions.clear()
            machine.kept.clear()

    def stall(self, names: tuple[str, ...], seconds: float) -> None:
        """These nodes answer nobody for a while, then are back with all they had; short stalls go unnoticed."""
        for name in names:
            machine = self.machines.get(name)
            if machine is None or not machine.alive:
                continue
            machine.stalled = max(machine.stalled, self.clock.now + seconds)
            if seconds > self.timing.detect:
                self._lose(name)
                self.clock.after(seconds, partial(self._back, machine))

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
        under_way = list(self.runs.jobs.values())
        self.tell(NodesLost(gone))
        for job in under_way:
            hit = any(name in job.machines for name in gone)
            if not job.finished and (hit or self.random.random() < 0.5):
                self.runs.call_off(job, "nodes were lost")
        if self._checkpoint is not None:
            hit = any(name in self._checkpoint[2] for name in gone)
            if hit or self.random.random() < 0.5:
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
        for job in list(self.runs.jobs.values()):
            self.runs.drop(job)
        if self._checkpoint is not None:
            self._checkpoint[1].cancel()
            self._checkpoint = None
        for timer in self._noticing.values():
            timer.cancel()
        self._noticing.clear()
        self.outputs.clear()
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
        published: dict[Task, int] = {}
        for epoch, task in self.store.final:
            published[task] = max(epoch, published.get(task, -1))
        self.coordinator = Coordinator(
            self.scenario.topology,
            self.scenario.settings,
            found,
            head,
            shape=self.store.shape,
            saved=self.store.saved_in.get(found, Shape()),
            published=published,
            scalable=self.scenario.scalable,
        )
        self._topologies.clear()
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
            self.clock.after(self.random.random(), partial(self._back, machine))
        self.clock.after(0.0, self._fetch)

    # The coordinator's word

    def tell(self, event: Event) -> None:
        if self.finished:
            return
        answer = self.coordinator.handle(event)
        for watch in self.watchers:
            watch(event, answer)
        for instruction in answer:
            self._carry_out(instruction)
        self._mind_stuck()
        self._mind_end()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Record(kind, fields):
                self.note(kind, fields)
            case Run():
                self.runs.start(instruction)
            case Checkpoint():
                self._begin_checkpoint(instruction)
            case Publish():
                self._publish(instruction)
            case Reshape(shape):
                self.store.shape = shape
            case Trim(epoch):
                self.store.trim(epoch)
            case EpochDone(epoch):
                self._epoch_done(epoch)
            case Release(nodes):
                self._release(nodes)
            case Halt(message):
                raise Unfinished(f"the job halted: {message}")

    def note(self, kind: str, fields: Mapping[str, Any]) -> None:
        self.history.append({"time": round(self.clock.now, 6), "kind": kind, **fields})
        if self.elastic is not None:
            self.elastic.hear({"kind": kind, **fields}, self.coordinator.shape, self.clock.now)
        if self.record is not None:
            self.record.add(self.clock.now, kind, fields)

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
        if (
            self._committed + 1 < self.scenario.epochs
            or not self.coordinator.idle
            or self.runs.jobs
            or self._restarting
        ):
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
            self.clock.after(self.random.random() * self.timing.run, action)
        self.tell(EpochArrived(epoch))

    def _epoch_done(self, epoch: int) -> None:
        self._committed = max(self._committed, epoch)
        arrived, answered = self.answered[epoch]
        if answered < 0:
            self.answered[epoch] = (arrived, self.clock.now)
            self.note("answered", {"epoch": epoch, "seconds": round(self.clock.now - arrived, 6)})
        self.clock.after(0.0, self._fetch)

    # Checkpoints and outputs

    def _begin_checkpoint(self, wanted: Checkpoint) -> None:
        if self._checkpoint is not None:
            raise Unfinished("a second checkpoint is to begin while one is under way")
        delay = self.timing.checkpoint * (0.5 + self.random.random())
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
                    states[task] = machine.saved(
                        self.engine, task, wanted.since_of(task), wanted.epoch, wanted.shape.born.get(task, 0)
                    )
                except Missing as error:
                    self._break_checkpoint(str(error))
                    return
        if self.full:
            self._break_checkpoint("no space left in the store", again=0.2)
            return
        whole = [task for task in wanted.homes if wanted.since_of(task) < 0]
        self.store.commit(wanted.epoch, wanted.since, states, wanted.shape, whole)
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
        return self.outputs[run, lane, epoch, task]

    def _publish(self, wanted: Publish) -> None:
        lane = "exact" if wanted.kind == "final" else "tentative"
        for epoch, task in wanted.outputs:
            output = self.outputs.pop((wanted.run, lane, epoch, task))
            if wanted.kind == "final":
                self.store.final.setdefault((epoch, task), output)
            else:
                self.store.tentative[epoch, task] = (output, wanted.fidelity)
        for key in [key for key in self.outputs if key[0] == wanted.run and key[1] == lane]:
            del self.outputs[key]
        epochs = sorted({epoch for epoch, _ in wanted.outputs})
        self.note(
            "published",
            {
                "of": wanted.kind,
                "epochs": epochs,
                "outputs": len(wanted.outputs),
                "run": wanted.run,
                "rows": wanted.rows,
                "fidelity": wanted.fidelity,
            },
        )
