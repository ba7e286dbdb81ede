"""The simulation shell: the same coordinator on a virtual clock, with nodes, failures and costs of a scenario.

It plays the part of the Spark shell: carries instructions out, level by level and slot by slot, and reports.
A node that dies takes its states along; a run it took part in is called off when the death is noticed, half done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.driver.autoscaling import Elastic
from holdfast.runtime.history.history import History
from holdfast.runtime.messages import (
    CancelCheckpoint,
    CancelRun,
    CapacityLifted,
    CheckpointBroken,
    CheckpointDurable,
    CheckpointWanted,
    CommitShape,
    EpochArrived,
    EpochDone,
    Event,
    Halt,
    Instruction,
    NodeInfo,
    NodesSeen,
    NodesUnneeded,
    Publish,
    Published,
    Record,
    ReleaseNodes,
    ReplicasPlanned,
    Run,
    ScaleWanted,
    ShapeCommitted,
    TakeCheckpoint,
    TrimJournal,
)
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
            self.elastic = Elastic(scenario.topology, self.coordinator.scalable, scenario.elastic)
        self.machines: dict[str, Machine] = {}
        self.history: list[dict[str, Any]] = []
        self.restarts = 0
        self.finished = False
        self.answered: dict[int, tuple[float, float]] = {}
        """When each epoch had arrived and was answered."""
        self.random = Random(scenario.seed)
        self.runs = Runs(self)
        self.outputs: dict[tuple[int, str, int, Task], Any] = {}
        self._checkpoint: tuple[TakeCheckpoint, Timer, dict[str, Machine]] | None = None
        self._noticing: dict[str, Timer] = {}
        self._seen: dict[str, NodeInfo] = {}
        self._incarnations = 0
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
        now = self.coordinator.snapshot()
        down = ", ".join(map(str, now.down[:5])) or "none"
        behind = [str(task) for task, position in now.positions.items() if position < now.head]
        return (
            f"epoch {self._committed + 1} of {self.scenario.epochs} is to be answered, head {now.head}, "
            f"checkpoint {now.checkpoint}, {len(now.nodes)} nodes, down: {down}, behind: {behind[:5]}"
        )

    def boot(self, names: tuple[str, ...]) -> None:
        """These nodes come up, empty."""
        new = [name for name in names if name not in self.machines or not self.machines[name].alive]
        for name in new:
            if name in self._noticing:
                self.notice()
            self.machines[name] = Machine(name, self.scenario.domains.get(name, name), self._incarnation())
        if new and not self._restarting:
            self._greet(tuple(new))

    def _incarnation(self) -> str:
        self._incarnations += 1
        return str(self._incarnations)

    def _greet(self, names: tuple[str, ...]) -> None:
        """These are there from now on: everybody who was seen is told of."""
        self._seen |= {name: NodeInfo(self.machines[name].incarnation, self.machines[name].domain) for name in names}
        self.tell(NodesSeen(dict(self._seen)))

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
            self._seen.pop(name, None)

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
        if machine.stalled <= self.clock.now and machine.name not in self._seen:
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
        for name in gone:
            self._seen.pop(name, None)
        self.tell(NodesSeen(dict(self._seen)))

    def _cancel(self, number: int) -> None:
        """A run that used a node that is gone ends, and some of the others."""
        job = self.runs.jobs.get(number)
        if job is not None and not job.finished:
            hit = any(name not in self._seen for name in job.machines)
            if hit or self.random.random() < 0.5:
                self.runs.call_off(job, "nodes were lost")

    def _cancel_checkpoint(self) -> None:
        if self._checkpoint is not None:
            hit = any(name not in self._seen for name in self._checkpoint[2])
            if hit or self.random.random() < 0.5:
                self._break_checkpoint("nodes were lost")

    def _later(self, event: Event, delay: float) -> None:
        """Told after a while, unless the driver dies first."""
        before = self.restarts
        self.clock.after(delay, lambda: self.tell(event) if self.restarts == before else None)

    def _put_down(self, shape: Shape) -> None:
        """Durable a moment later; told a moment after that."""
        before = self.restarts

        def put() -> None:
            if self.restarts == before:
                self.store.shape = shape
                self._later(ShapeCommitted(shape.version), self.random.random() * self.timing.report)

        self.clock.after(self.random.random() * self.timing.report, put)

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
                self.machines[name] = Machine(name, self.machines[name].domain, self._incarnation())
        self._seen.clear()
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
            case TakeCheckpoint():
                self._begin_checkpoint(instruction)
            case Publish():
                self._publish(instruction)
            case CommitShape(shape):
                self._put_down(shape)
            case CancelRun(number):
                self._cancel(number)
            case CancelCheckpoint():
                self._cancel_checkpoint()
            case TrimJournal(epoch):
                self.store.trim(epoch)
            case EpochDone(epoch):
                self._epoch_done(epoch)
            case ReleaseNodes(nodes):
                self._release(nodes)
            case Halt(message):
                raise Unfinished(f"the job halted: {message}")

    def note(self, kind: str, fields: Mapping[str, Any]) -> None:
        self.history.append({"time": round(self.clock.now, 6), "kind": kind, **fields})
        if self.elastic is not None:
            self.elastic.hear({"kind": kind, **fields}, self.coordinator.parts.rescaling.shape, self.clock.now)
        if self.record is not None:
            self.record.add(self.clock.now, kind, fields)

    def _mind_stuck(self) -> None:
        stuck = bool(self.coordinator.parts.assignment.down) and bool(self.coordinator.parts.members.nodes)
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
            or not self.coordinator.parts.idle
            or self.runs.jobs
            or self._restarting
        ):
            return
        if self.coordinator.snapshot().checkpoint_needed:
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

    def _begin_checkpoint(self, wanted: TakeCheckpoint) -> None:
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
            self._checkpoint = (wanted, self.clock.after(0.2, self._end_checkpoint), machines)
            return
        whole = [task for task in wanted.homes if wanted.since_of(task) < 0]
        self.store.commit(wanted.epoch, wanted.since, states, wanted.shape, whole)
        self._checkpoint = None
        self._later(CheckpointDurable(wanted.epoch), self.timing.report)

    def _break_checkpoint(self, reason: str) -> None:
        assert self._checkpoint is not None
        wanted, timer, _ = self._checkpoint
        timer.cancel()
        self._checkpoint = None
        self._later(CheckpointBroken(wanted.epoch, reason), self.timing.detect)

    def staged(self, run: int, lane: str, epoch: int, task: Task) -> Any:
        """What a run under publication wrote."""
        return self.outputs[run, lane, epoch, task]

    def _publish(self, wanted: Publish) -> None:
        """In its place a moment later, and told a moment after that; a driver that dies meanwhile does not do it."""
        before = self.restarts

        def put() -> None:
            if self.restarts == before:
                self._place(wanted)
                self._later(Published(wanted.run, wanted.kind), self.random.random() * self.timing.report)

        self.clock.after(self.random.random() * self.timing.report, put)

    def _place(self, wanted: Publish) -> None:
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
        self.note("published", {"of": wanted.kind, "epochs": epochs, "outputs": len(wanted.outputs), "run": wanted.run})
