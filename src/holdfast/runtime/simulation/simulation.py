"""A simulated job: the real driver, coordinator, worker and store upon drawn edges, killed and launched again.

What is drawn is the clock, who is there, the order in which things are done, and the disk. Everything behind the
driver's ports is a second implementation; docs/simulation.md lists what is therefore not simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from holdfast.errors import HoldfastError, Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.driver.config import JobConfig
from holdfast.runtime.driver.driver import Driver, Watcher
from holdfast.runtime.driver.launch import launch
from holdfast.runtime.driver.ports import Output, Ports, Recorder, Runner
from holdfast.runtime.driver.publishing import SinkFailed
from holdfast.runtime.driver.running import RunFailed
from holdfast.runtime.faults import Fault, expand_faults
from holdfast.runtime.messages import NodesUnneeded, ReplicasPlanned
from holdfast.runtime.options import Scaling
from holdfast.runtime.simulation.changing import changed
from holdfast.runtime.simulation.cluster import SimulatedBatch, SimulatedNodes, SimulatedRunner
from holdfast.runtime.simulation.disk import ONLOOKER, Crash, Disk
from holdfast.runtime.simulation.loop import START, Environment, VirtualLoop
from holdfast.runtime.simulation.schedule import FaultSchedule, Mishap
from holdfast.runtime.simulation.source import SimulatedSource, SourceLog
from holdfast.runtime.simulation.standstill import Standstill
from holdfast.runtime.worker.versions import WHOLE_FROM
from holdfast.runtime.worker.worker import JobContext
from holdfast.state import Store, Unusable, Writer, cursor, output
from holdfast.state.cursor import Cursor
from holdfast.state.fence import Identity
from holdfast.state.origin import BatchChanged
from holdfast.topology import Task

STORE = "store"
PERIOD = 0.1
"""How often the store is remembered, to be put back."""
DAMAGED = 6
"""An output that is damaged is one of so many of the newest."""


class Unfinished(Exception):
    """The simulation cannot go on although the job is not done."""


class JobRefused(Unfinished):
    """The job ended, or would not begin, with a word of its own; the simulation's user must say whether rightly."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


class MemoryRecorder:
    """The history of a simulated job."""

    def __init__(self, also: Recorder | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self._also = also

    def add(self, event: Mapping[str, Any]) -> None:
        self.events.append({**event, "time": round(event["time"] - START, 6)})
        if self._also is not None:
            self._also.add(self.events[-1])

    def close(self) -> None: ...


class Simulation:
    """One schedule for one pipeline. ``runner``: another way to carry runs out than by the real worker.

    ``record``: where the history goes too, in virtual time, as that of a real job does.
    """

    def __init__(
        self,
        schedule: FaultSchedule,
        pipeline: Pipeline,
        batches: list[SimulatedBatch],
        record: Recorder | None = None,
        runner: Callable[[Simulation, JobContext], Runner] | None = None,
    ) -> None:
        self.schedule = schedule
        self.timing = schedule.timing
        self.pipeline = pipeline
        self.batches = batches
        self.world = Environment()
        self.random = Random(schedule.seed)
        self.disk = Disk(lambda: self.world.now, late=schedule.late_listing)
        self.nodes = SimulatedNodes(self.world, schedule.timing, schedule.domains, schedule.replace, schedule.cores)
        self.recorder = MemoryRecorder(record)
        self.watchers: list[Watcher] = []
        self.delivered: list[tuple[int, Output]] = []
        """What the sink took, with the life of the driver in which it did."""
        self.source_log = SourceLog(Disk(lambda: self.world.now))
        self.late: list[tuple[int, Output]] = []
        """What of it a driver began to give after another one had taken over."""
        self.committed = -1
        """Up to here the source has once committed."""
        self.answered_as: dict[int, int] = {}
        """Of each batch that was journalled, its last chunk."""
        self.times: dict[int, tuple[float, float]] = {}
        """When each epoch had arrived and was answered."""
        self.excused: set[tuple[int, str]] = set()
        """Final outputs that were damaged when nothing could make them again any more."""
        self.lives = 0
        self.finished = False
        self.driver: Driver | None = None
        self.runner: Runner | None = None
        self._make_runner = runner
        self._loop: VirtualLoop | None = None
        self._refusing = 0
        self._storm = False
        self._raising = False
        self._stopped = False
        """Somebody stopped the job in good order, and will start it again."""
        self._past: list[dict[str, Any]] = []
        self._changed: Pipeline | None = None
        self._at_epoch: dict[int, list[Callable[[], None]]] = {}
        self._error: BaseException | None = None
        self._newest = 0
        """The newest life of a driver that has the store."""
        self._standstill = Standstill(
            lambda: self.world.now,
            self._step,
            self.restart,
            lambda: self._living is not None,
            lambda: self.finished,
            lambda: self.recorder.add({"time": START + self.world.now, "kind": "driver resumed"}),
        )

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.recorder.events

    def store(self, actor: str) -> Store:
        """The store as a process sees it."""
        identity = Identity(
            "here", f"driver-{self.lives}", lambda process: process == f"driver-{self.lives}", self._unique
        )
        return Store(self.disk.files(actor, STORE), clock=lambda: START + self.world.now, identity=identity)

    def _unique(self) -> str:
        return f"{self.random.getrandbits(128):032x}"

    # Life

    def run(self) -> Simulation:
        """Until every epoch is answered and exact, checkpointed, and nothing is left to do."""
        self._script()
        self.nodes.boot(self.schedule.names)
        self.world.after(0.0, self._launch)
        while not self.finished:
            self._step()
        return self

    def _step(self) -> None:
        """The next thing happens."""
        self._standstill.stepping()
        try:
            stepped = self.world.step()
        except Crash:
            self.restart()
            return
        self._standstill.check()
        if self._error is not None:
            raise JobRefused(self._error)
        if not stepped:
            raise Unfinished(f"nothing is left to happen, but {self._missing()}")
        if self.world.now > self.schedule.longest:
            raise Unfinished(f"{self.schedule.longest:g} s have passed, but {self._missing()}")

    def _missing(self) -> str:
        seen = self.driver.snapshot if self.driver is not None else None
        return f"epoch {self.committed + 1} of {len(self.batches)} is to be answered; {seen!r:.1500}"

    def _launch(self) -> None:
        loop = self._loop = VirtualLoop(self.world, self.random, self.timing.lag)
        pipeline = self.pipeline if self._changed is None else self._changed
        elastic, settings = self.schedule.elastic, self.schedule.settings
        config = JobConfig(
            f"job-{self.lives}",
            pipeline,
            replace(settings, patience=self.timing.patience, answer_within=self.schedule.answer_within),
            epochs=len(self.batches),
            scaling=Scaling(elastic, elastic.max_nodes) if elastic is not None else Scaling(),
            gather=self.schedule.longest,
            # Their states are small; so that both ways are tried, every other schedule keeps them whole.
            whole_from=0 if self.schedule.seed % 2 else WHOLE_FROM,
            watermarked=self.batches[0].watermark is not None,
        )
        ports = Ports(
            loop,
            loop,
            self.nodes,
            SimulatedSource(self, loop),
            self.store("driver"),
            self.recorder,
            self._runner,
            partial(self._sink, self.lives),
            (self._listen,),
            on_end=self._ended,
        )
        try:
            with self._standstill.not_now():
                self.driver = launch(config, ports)
            self._newest = self.lives
        except Unusable:
            self.restart()
            return
        except HoldfastError as error:
            if self._changed is not None and isinstance(error, Invalid):
                self._changed = None
                self.restart()
            else:
                self._error = error
            return
        if self._changed is not None:
            raise Unfinished("a pipeline that does something else was taken")
        self.driver.watchers += self.watchers
        loop.post(self.driver.begin)

    def _runner(self, context: JobContext, writer: Writer) -> Runner:
        if self._make_runner is not None:
            self.runner = self._make_runner(self, context)
        else:
            topology = self.pipeline.coordinated
            self.runner = SimulatedRunner(context, self.nodes, self.store, topology, self.random)
        return self.runner

    def _ended(self, error: HoldfastError | None) -> None:
        if error is None and self._stopped and self.committed + 1 < len(self.batches):
            self._stopped = False
            self.restart()
        elif error is None:
            self.finished = True
        elif self.source_log.lost and (isinstance(error, BatchChanged) or "came again" in str(error)):
            self.source_log.put_back()
            self.restart()
        elif isinstance(error, RunFailed) and "no reason" in str(error):
            self.restart()  # more flakes in a row than a job puts up with: somebody starts it again
        elif isinstance(error, SinkFailed):
            self._refusing = 0 if self._storm else self._refusing
            self._storm = False
            self.restart()  # somebody mends it and starts the job again
        else:
            self._error = error

    def restart(self) -> None:
        """The driver dies, and everything with it but the store; a new one comes and finds what is there."""
        if self._loop is not None and self._loop.alive:
            self._loop.alive = False
            self.lives += 1
            self.recorder.add({"time": START + self.world.now, "kind": "driver lost"})
            self.nodes.restart()
            self.world.after(self.timing.restart * (0.5 + self.random.random()), self._launch)

    # Epochs, as the source tells

    def arrived(self, epoch: int, due: float) -> None:
        self.times.setdefault(epoch, (due if self.timing.interval else self.world.now, -1.0))
        for action in self._at_epoch.pop(epoch, ()):
            self.world.after(self.random.random() * self.timing.run * 2, action)

    def answered(self, epoch: int) -> None:
        arrived, before = self.times[epoch]
        if before < 0:
            self.times[epoch] = (arrived, self.world.now)

    # User code

    def _sink(self, life: int, output: Output) -> None:
        if life < self._newest:
            self.late.append((life, output))
        if self._refusing > 0:
            self._refusing -= 1
            raise ConnectionError("the sink is not in the mood")
        self.delivered.append((life, output))
        self._standstill.called()

    def _listen(self, event: Mapping[str, Any]) -> None:
        if self._raising:
            raise RuntimeError("the listener is not in the mood")

    # What goes wrong

    def _script(self) -> None:
        schedule, lost_at = self.schedule, dict[str, Fault]()
        for fault in expand_faults(schedule.faults, schedule.names, schedule.epochs, schedule.domains):
            action = partial(self._fault, fault)
            if fault.what in ("kill", "unreachable"):
                lost_at.update(dict.fromkeys(fault.nodes, fault))
            before = next((lost_at[n] for n in fault.nodes if n in lost_at), None) if fault.when.after else None
            if before is not None:
                after = fault.when.seconds or 0.0
                self._at(before, partial(self._later, after, action))
            else:
                self._at(fault, action)
        for mishap in schedule.mishaps:
            self.world.after(mishap.at, partial(self._mishap, mishap))
        if any(mishap.kind == "rewind" for mishap in schedule.mishaps):
            self._remember()
        for moment, tasks in schedule.replans:
            self.world.after(moment, partial(self._replan, tasks))
        for moment, operator, to in schedule.scalings:
            self.world.after(moment, partial(self.scale, operator, to))
        for moment, nodes in schedule.drains:
            self.world.after(moment, partial(self._drain, nodes))

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self.world.after(seconds, action)

    def _remember(self) -> None:
        self._past.append(self.disk.copy())
        self.world.after(PERIOD, self._remember)

    def _at(self, fault: Fault, action: Callable[[], None]) -> None:
        if fault.when.epoch is not None:
            self._at_epoch.setdefault(fault.when.epoch, []).append(action)
        else:
            self.world.after(fault.when.seconds or 0.0, action)

    @property
    def _living(self) -> Driver | None:
        alive = self._loop is not None and self._loop.alive and self.driver is not None and not self.driver.ended
        return self.driver if alive else None

    def _replan(self, tasks: tuple[Task, ...]) -> None:
        if (driver := self._living) is not None and driver.watching.gathered:
            there = driver.coordinator.topology.index
            driver.tell(ReplicasPlanned(tuple(task for task in tasks if task in there)))

    def scale(self, operator: str, to: int, why: str = "asked for") -> None:
        """Ask for another number of tasks of an operator."""
        if (driver := self._living) is not None and driver.autoscaler is not None and driver.watching.gathered:
            driver.autoscaler.scale(operator, to, "", why)

    def _drain(self, nodes: tuple[str, ...]) -> None:
        if (driver := self._living) is not None and driver.watching.gathered:
            driver.tell(NodesUnneeded(nodes, "asked for"))

    def _fault(self, fault: Fault) -> None:
        self.recorder.add({"time": START + self.world.now, "kind": "fault", "fault": str(fault)})
        match fault.what:
            case "kill":
                self.nodes.kill(fault.nodes)
            case "join":
                self.nodes.boot(fault.nodes)
            case "slow":
                self.nodes.slow(fault.nodes, fault.seconds or 0.0, fault.factor or 1.0)
            case "unreachable":
                self.nodes.stall(fault.nodes, fault.seconds or 0.0)
            case "fill":
                self.disk.full_until = max(self.disk.full_until, self.world.now + (fault.seconds or 0.0))
            case "damage":
                self._damage(f"{STORE}/state/")
            case "restart":
                self.restart()

    def _damage(self, prefix: str, disk: Disk | None = None) -> None:
        """A file below there, the newest of them, is not what was written any more."""
        on = disk or self.disk
        found = [path for path in on.paths() if path.startswith(prefix)]
        if found:
            chosen = max(found, key=lambda path: path.rpartition("/")[2])
            on.damage(chosen, "flip")
            self.recorder.add({"time": START + self.world.now, "kind": "damaged", "file": chosen})

    def _stands(self) -> bool:
        """Whether the store has a checkpoint, with state that another pipeline could spoil."""
        found = Store(self.disk.files(ONLOOKER, STORE)).checkpoints()
        return bool(found) and bool(found[-1].tasks)

    def _damage_output(self, number: int) -> None:
        """One of the newest final outputs, but none that the sink still has to get and no checkpoint makes again.

        What the sink has had, and a checkpoint is later than, is not made again: readers are told its name.
        """
        store = Store(self.disk.files(ONLOOKER, STORE))
        made = [each.epoch for each in store.checkpoints()] or [-1]
        had = cursor.read(store.files) or Cursor()
        written = output.written(store.files, "final")
        if not written:
            return
        newest = sorted(written)[-DAMAGED:]
        epoch, task = chosen = newest[number // 3 % len(newest)]
        if epoch <= max(made) and had.given("final", task, epoch):
            self.excused.add(chosen)
        elif epoch <= max(made) and epoch <= min(made):
            return
        self.disk.damage(f"{STORE}/{written[chosen]}", ("flip", "cut", "lose")[number % 3])

    def _mishap(self, mishap: Mishap) -> None:
        self.recorder.add({"time": START + self.world.now, "kind": "mishap", "mishap": str(mishap)})
        written = self.disk.writes
        match mishap.kind:
            case "refuse":
                self.disk.refusals.add(written.get("*", 0) + mishap.count)
            case "crash":
                self.disk.crashes.setdefault("driver", set()).add(written.get("driver", 0) + mishap.count)
            case "node crash":
                name = self.schedule.names[0]
                self.disk.crashes.setdefault(name, set()).add(written.get(name, 0) + mishap.count)
            case "power":
                self.restart()
                self.disk.power_off(self.random)
                self.source_log.disk.power_off(self.random)
            case "log":
                self.restart()
                self.source_log.lose_newest()
            case "stop" if (driver := self._living) is not None and driver.watching.gathered:
                self._stopped = True
                driver.stop()
            case "rewind":
                self.restart()
                self.disk.put_back(self._past[max(0, len(self._past) - 1 - mishap.count)])
            case "flake":
                if isinstance(self.runner, SimulatedRunner):
                    self.runner.flakes += mishap.count
            case "sink":
                self._refusing += mishap.count
            case "sink storm":
                self._storm, self._refusing = True, 1 << 30
            case "listener":
                self._raising = True
            case "local":
                node = self.nodes.here.get(self.schedule.names[mishap.count % self.schedule.nodes])
                if node is not None:
                    self._damage(f"{node.folder}/main", node.disk)
            case "changed":
                self._changed = changed(self.pipeline) if self.disk.get(f"{STORE}/holdfast-store.json") else None
                if not self._stands():
                    self._changed = None
                self.restart()
            case "output":
                self.restart()
                self._damage_output(mishap.count)
            case "stopped in sink":
                self._standstill.in_sink(self._takeover())
            case "stopped at write":
                at = "driver", written.get("driver", 0) + mishap.count
                self.disk.stops[at] = partial(self._standstill.here, self._takeover())

    def _takeover(self) -> float:
        """Seconds in which another driver mostly has the store, and has given something."""
        return 2 * self.timing.restart + self.random.random() * 3
