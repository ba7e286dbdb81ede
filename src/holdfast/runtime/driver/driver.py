"""The driver: the one shell. It tells the coordinator what happened and carries out what it says, through ports.

All of it runs on one thread, the clock's. It blocks on nothing and calls no user code: what does is submitted to the
background or handed to the runner, and comes back as an event. Its parts each own what they keep: runs, checkpoints,
nodes, outputs, what is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.driver.autoscaling import Autoscaler
from holdfast.runtime.driver.checkpoints import Checkpoints
from holdfast.runtime.driver.config import JobConfig
from holdfast.runtime.driver.deadline import Deadline
from holdfast.runtime.driver.durable import Durable
from holdfast.runtime.driver.ports import Failed, Ports, Runner, Timer
from holdfast.runtime.driver.publishing import BACKLOG, Publisher
from holdfast.runtime.driver.running import RunFailed, Running
from holdfast.runtime.driver.shedding import Shedder
from holdfast.runtime.driver.telling import Telling, told
from holdfast.runtime.driver.watching import LOOK_EVERY, Watching
from holdfast.runtime.messages import (
    CancelCheckpoint,
    CancelRun,
    CapacityLifted,
    CheckpointWanted,
    CommitShape,
    EpochArrived,
    EpochDone,
    Event,
    GiveUp,
    Halt,
    Instruction,
    NodeInfo,
    Publish,
    Record,
    ReleaseNodes,
    ReplicasPlanned,
    Report,
    Run,
    ShapeCommitted,
    TakeCheckpoint,
    TrimJournal,
)
from holdfast.runtime.raised import remote
from holdfast.state import Unusable, Writer
from holdfast.state.journal import Journal
from holdfast.state.origin import BatchChanged, Origin
from holdfast.topology import Task, Topology

MEASURED_AFTER = 3
"""Epochs after which a budget is spent anew, on measured rates and costs."""
PLANNED_EVERY = 10
DRIFT = 0.15
"""In every such epoch it is spent anew if nodes came or went, or other tasks send so large a share of all rows now."""
FINISH = 60.0
"""Seconds that the epoch at hand has to come to its end when the job is stopped."""

Watcher = Callable[[Event, list[Instruction]], None]
TIDYING = 5.0
"""Seconds that a job which ends waits for what is deleted and folded meanwhile."""


@dataclass(slots=True)
class _Wait:
    """What is to happen once something is so, or its time is up."""

    until: Callable[[], bool]
    then: Callable[[], None]
    timer: Timer | None = None


class Driver:
    """One job, from its launch (launch.py puts it together) to its end."""

    def __init__(
        self,
        config: JobConfig,
        ports: Ports,
        coordinator: Coordinator,
        journal: Journal,
        writer: Writer,
        runner: Runner,
        extra: Mapping[str, Any],
    ) -> None:
        self.config = config
        self.ports = ports
        self.clock = ports.clock
        self.coordinator = coordinator
        self.error: HoldfastError | None = None
        self.ended = False
        self.watchers: list[Watcher] = []
        """Each is shown every event with the coordinator's answer, before it is carried out."""
        self.notes: list[str] = []
        """What is to be said at the start."""
        self.snapshot = coordinator.snapshot()
        self.telling = Telling(ports.clock, ports.background, ports.recorder, ports.listeners, self.fail)
        self.note = self.telling.note
        self.durable = Durable(ports.clock, ports.background, self.note, self.fail, self.mind)
        self.publisher = Publisher(
            writer.store.files, writer.token, writer.store.sync.outputs, self.durable, ports.clock, ports.background,
            self.tell, self.note, self.fail, writer.check, writer.guard, lambda: self.snapshot.checkpoint,
            ports.sink, self._delivered,
        )  # fmt: skip
        self.running = Running(self, runner, journal, writer)
        self.checkpoints = Checkpoints(self, runner, journal, writer, extra)
        self.watching = Watching(self)
        self.deadline = Deadline(self, runner, config.settings.within)
        self.autoscaler: Autoscaler | None = None
        self.shedder = Shedder(above) if (above := config.scaling.shed_above) is not None else None
        self._runner = runner
        self._journal = journal
        self.writer = writer
        self._at_hand: tuple[int, object] | None = None
        self._arrived_at = float("-inf")
        self._interval = float("inf")
        """When the last epoch came, and how long after the one before."""
        self._held: int | None = None
        """An epoch that is answered, but not released: the sink is too far behind."""
        self._epochs_here = 0
        self._planned_for: tuple[tuple[str, ...], Topology] | None = None
        self._replicas_planned: dict[Task, str] | None = None
        self._stuck: Timer | None = None
        self._waits: list[_Wait] = []
        self._timers: dict[str, Timer] = {}
        self._stopping = False

    @property
    def token(self) -> int:
        """Of the writer that this driver is to its store."""
        return self.writer.token

    @property
    def nodes(self) -> Mapping[str, NodeInfo]:
        return self.watching.nodes

    # Life

    def begin(self) -> None:
        """Look for nodes, and when they are there let the source begin."""
        self.note("started", self.config.described(self.coordinator.topology))
        for line in self.notes:
            self.note("note", {"message": line})
        self._every("look", LOOK_EVERY, self.watching.look)
        self._every("beat", self.writer.lease / 3, self._beat)
        self.watching.look()
        self._when(lambda: len(self.nodes) >= self.config.settings.nodes, self._gathered, self.config.gather)

    def _gathered(self) -> None:
        if not self.nodes:
            seconds = self.config.gather
            self.fail(RunFailed(f"no executor came within {seconds:.0f} s; is the cluster up and has it free cores?"))
            return
        self.watching.begin()
        self._plan_replicas()
        if self.autoscaler is not None:
            self.autoscaler.provide_nodes()
        if self._enough(self.snapshot.head):
            self.stop()
        else:
            self.ports.source.open(
                lambda *offered: self.clock.post(partial(self._offered, *offered)), self._journal.origin
            )
        self.ports.on_begun()

    def stop(self, deadline: float = 120.0) -> None:
        """Finish the epoch at hand, recover what was lost, checkpoint what is not safe, deliver, and end."""
        if not self._stopping and not self.ended:
            self._stopping = True
            self._when(lambda: self._at_hand is None, partial(self._quiet, deadline), FINISH)

    def _quiet(self, deadline: float) -> None:
        self.ports.source.close(None)
        self._when(lambda: self.snapshot.idle, partial(self._last_checkpoint, deadline), deadline)

    def _last_checkpoint(self, deadline: float) -> None:
        def done() -> bool:
            return not self.snapshot.checkpoint_needed and self.durable.idle and not self.publisher.backlog

        self.tell(CheckpointWanted())
        self._when(done, self._end, deadline)

    def fail(self, error: BaseException) -> None:
        """The job ends with this; what came first counts."""
        if self.error is None and not self.ended:
            self.error = error if isinstance(error, HoldfastError) else RunFailed(told(error))
            self._stopping = True
            self.clock.post(self._end)

    def _end(self) -> None:
        if self.ended:
            return
        self.ports.source.close(self.error)
        self.note("stopped", {"error": str(self.error) if self.error else None})
        self.ended = True
        self.deadline.cancel()
        for timer in self._timers.values():
            timer.cancel()
        for wait in self._waits:
            if wait.timer is not None:
                wait.timer.cancel()
        self._waits.clear()
        self.running.cancel_all()
        self.checkpoints.cancel()

        def close() -> None:
            self.ports.nodes.close()
            self._runner.close()
            self.writer.close()

        def leave(_: object = None) -> None:
            timer.cancel()
            if not left:
                left.append(True)
                self.ports.background.submit("nodes", close, lambda _: self.telling.close(self._closed))

        # Nothing of the store changes any more once a job has ended, unless tidying it takes long.
        left: list[bool] = []
        timer = self.clock.after(TIDYING, leave)
        self.ports.background.submit("tidy", lambda: None, leave)

    def _closed(self) -> None:
        self.ports.on_end(self.error)

    def _every(self, name: str, seconds: float, action: Callable[[], None]) -> None:
        def again() -> None:
            if not self.ended:
                self._every(name, seconds, action)
                action()

        self._timers[name] = self.clock.after(seconds, again)

    def _when(self, until: Callable[[], bool], then: Callable[[], None], deadline: float) -> None:
        wait = _Wait(until, then)
        wait.timer = self.clock.after(deadline, lambda: self._waited(wait))
        self._waits.append(wait)
        self.mind()

    def _waited(self, wait: _Wait) -> None:
        if wait in self._waits and not self.ended:
            self._waits.remove(wait)
            wait.then()

    def mind(self) -> None:
        """After anything has happened: what waited for it."""
        for wait in [wait for wait in self._waits if wait.until()]:
            assert wait.timer is not None
            wait.timer.cancel()
            self._waited(wait)
        stuck = bool(self.snapshot.down) and bool(self.nodes) and self.watching.gathered
        if not stuck and self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
        elif stuck and self._stuck is None:
            self._stuck = self.clock.after(self.config.settings.patience, self._lift)

    def _lift(self) -> None:
        """Nobody came to take what is down: after a while the nodes that are there carry everything."""
        self._stuck = None
        if not self.ended:
            self.note("capacity lifted", {"after_seconds": self.config.settings.patience})
            self.tell(CapacityLifted())

    def _beat(self) -> None:
        def done(result: object) -> None:
            # Trouble with the store is met by whoever writes; a newer writer is the end.
            if isinstance(result, Failed) and not isinstance(result.error, Unusable):
                self.fail(result.error)

        self.ports.background.submit("lease", self.writer.beat, done)

    # The coordinator's word

    def tell(self, event: Event) -> None:
        """Pass an event on and carry out the answer."""
        if self.ended:
            return
        answer = self.coordinator.handle(event)
        self.snapshot = self.coordinator.snapshot()
        for watch in self.watchers:
            watch(event, answer)
        for instruction in answer:
            self._carry_out(instruction)
        self.mind()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Record(kind, fields):
                self.note(kind, fields)
            case Run():
                self.running.request(instruction)
            case CancelRun(number):
                self.running.cancel(number)
            case TakeCheckpoint():
                self.checkpoints.request(instruction)
            case CancelCheckpoint():
                self.checkpoints.cancel()
            case Publish():
                self.publisher.place(instruction)
            case CommitShape(shape):
                put = partial(self.writer.commit_shape, shape.to_json())
                self.durable.submit("commit", put, lambda _: self.tell(ShapeCommitted(shape.version)))
            case TrimJournal(epoch):
                self.checkpoints.trim(epoch)
            case EpochDone(epoch):
                self._answered(epoch)
            case ReleaseNodes(nodes):
                self.ports.background.submit("nodes", partial(self.ports.nodes.release, nodes), self._or_fail)
            case GiveUp(nodes=given):
                self.ports.background.submit("nodes", partial(self.ports.nodes.give_up, given), self._or_fail)
            case Halt(message, raised):
                failed = RunFailed(message)
                failed.__cause__ = remote(raised)
                self.fail(failed)

    def _or_fail(self, result: object) -> None:
        if isinstance(result, Failed):
            self.fail(result.error)

    # Epochs

    def _offered(self, epoch: int, batch: object, origin: Origin) -> None:
        if self.ended or self._stopping or not self._follows(epoch, origin):
            return
        now = self.clock.now()
        self._interval, self._arrived_at = now - self._arrived_at, now
        self._at_hand = (epoch, batch)
        if self.ports.faults is None:
            self._begin_epoch(epoch)
        else:
            self.watching.play(partial(self.ports.faults.epoch, epoch), partial(self._begin_epoch, epoch))

    def _follows(self, epoch: int, origin: Origin) -> bool:
        """Whether an epoch that the source offers is to be answered. What the journal has in another form ends the job.

        A batch that comes again behind epochs without rows was answered before them: the source may go on.
        """
        journal = self._journal
        try:
            journal.check_again(epoch, origin)
        except BatchChanged as error:
            self.fail(error)
            return False
        if epoch > journal.newest:
            return True
        known = journal.origin
        if known is None:
            self.note(
                "note",
                {
                    "message": f"epoch {epoch} comes again: its journal entry, of an earlier version, does "
                    f"not say which batch it was, so its rows are not compared"
                },
            )
        elif known.idle and known.batch == origin.batch and epoch < journal.newest:
            self.ports.source.release(epoch)
            return False
        return True

    def _begin_epoch(self, epoch: int) -> None:
        self.deadline.begin(epoch)
        self.tell(EpochArrived(epoch))

    def batch(self, epoch: int) -> object:
        """The rows of the epoch at hand."""
        assert self._at_hand is not None and self._at_hand[0] == epoch
        return self._at_hand[1]

    def epoch_due(self, soon: float) -> bool:
        """Whether an epoch will come any moment, by the pace of the last ones."""
        return self._interval < soon and self.clock.now() - self._arrived_at < soon

    def answered_by(self, reports: Sequence[Report]) -> None:
        """What the works of the epoch at hand took."""
        if self.shedder is not None:
            inputs_of = self.coordinator.topology.inputs_of
            rows = sum(report.rows_in for report in reports if not inputs_of(report.task.operator))
            self.shedder.observe(rows, self.clock.now() - self._arrived_at)
        if self.autoscaler is not None:
            self.autoscaler.worked(reports)

    def _answered(self, epoch: int) -> None:
        """Everything that this epoch could give for now was given."""
        took = self.clock.now() - self._arrived_at
        self.note("answered", {"epoch": epoch, "seconds": round(took, 6)})
        self.deadline.met(took)
        self._at_hand = None
        self._epochs_here += 1
        if self._epochs_here == MEASURED_AFTER or (self._epochs_here % PLANNED_EVERY == 0 and self._outdated()):
            self.clock.post(self._plan_replicas)
        if self.publisher.backlog > BACKLOG and not self._enough(epoch):
            self._held = epoch
            return
        self.ports.source.release(epoch)
        if self._enough(epoch):
            self.clock.post(self.stop)

    def _outdated(self) -> bool:
        """Whether replicas were planned for other nodes, or for other rates."""
        if self.config.budget is None or self._planned_for is None:
            return self.config.budget is not None
        nodes, rated = self._planned_for
        return nodes != self.snapshot.nodes or self.coordinator.drift(rated) > DRIFT

    def _plan_replicas(self) -> None:
        if self.config.budget is None or self.ended:
            return
        plan = self.coordinator.replicas_within(self.config.budget)
        if plan is None:
            return
        self._planned_for = (self.snapshot.nodes, self.coordinator.rated())

        def planned(result: ReplicasPlanned | Failed) -> None:
            if isinstance(result, Failed):
                self.note("note", {"message": f"replicas could not be planned: {told(result.error)}"})
            elif dict(result.nodes) != self._replicas_planned:
                self._replicas_planned = dict(result.nodes)
                self.tell(result)

        self.ports.background.submit("plan", plan, planned)

    def _delivered(self) -> None:
        if self._held is not None and self.publisher.backlog <= BACKLOG:
            epoch, self._held = self._held, None
            self.ports.source.release(epoch)
        self.mind()

    def _enough(self, epoch: int) -> bool:
        return self.config.epochs is not None and epoch + 1 >= self.config.epochs
