"""The Spark shell: tells the coordinator what happens, and carries out what it says, on real executors.

Threads: the stream's own runs epochs; one runs replays, one checkpoints, one looks after the nodes. All of them talk to
the coordinator under one lock; Spark jobs run outside it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import HoldfastError, Invalid
from holdfast.runtime.coordinator import Coordinator
from holdfast.runtime.events import (
    AnswerOverdue,
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
    Release,
    Reshape,
    Run,
    RunBroken,
    RunDone,
    ScaleWanted,
    Trim,
)
from holdfast.runtime.history import History
from holdfast.runtime.shape import Shape, check_scalable
from holdfast.runtime.shedding import Shedder
from holdfast.runtime.spark import stages
from holdfast.runtime.spark.cluster import Cluster
from holdfast.runtime.spark.demand import Demand
from holdfast.runtime.spark.faulting import FaultPlayer
from holdfast.runtime.spark.insisting import AGAIN, Insistence
from holdfast.runtime.spark.jobs import Batch, Jobs, Situation
from holdfast.runtime.spark.publishing import Publisher, Sink
from holdfast.runtime.spark.shipping import first_line
from holdfast.runtime.worker import JobContext, journal_name
from holdfast.state import Unusable, Writer
from holdfast.state.entries import FileEntry

LOOK_EVERY = 0.1
SOON = 2.0
"""Epochs that follow one another within so many seconds: after a loss the next is waited for before recovery begins."""
TRIES = 3
"""A run that Spark cannot finish although no node was lost is tried this often."""


class RunFailed(HoldfastError):
    """The job cannot go on; the message is the coordinator's or Spark's own word."""


class Shell:
    """Runs one job. ``journalled``: into how many parts each journalled epoch was cut, and in which shape."""

    def __init__(
        self,
        spark: SparkSession,
        coordinator: Coordinator,
        context: JobContext,
        writer: Writer,
        cluster: Cluster,
        history: History,
        *,
        journalled: Mapping[int, tuple[int, Shape]],
        extra: Mapping[str, Any],
        patience: float = 10.0,
        sink: Sink | None = None,
    ) -> None:
        self.spark = spark
        self.coordinator = coordinator
        self.context = context
        self.writer = writer
        self.cluster = cluster
        self.history = history
        self.error: HoldfastError | None = None
        self.listeners: list[Callable[[dict[str, Any]], None]] = []
        self.player: FaultPlayer | None = None
        self.shedder: Shedder | None = None
        self.demand: Demand | None = None
        self._journalled = dict(journalled)
        self._extra = dict(extra)
        self._patience = patience
        self.jobs = Jobs(spark, context, cluster, writer)
        self.lock = threading.RLock()
        self._live: queue.SimpleQueue[Instruction | None] = queue.SimpleQueue()
        self._background: dict[str, queue.SimpleQueue[Instruction | None]] = {
            "replay": queue.SimpleQueue(),
            "checkpoint": queue.SimpleQueue(),
        }
        self._groups: dict[str, int] = {}
        self._called_off: set[int] = set()
        self._strikes = 0
        self._waiting_since: float | None = None
        self._kept_rows = 0
        self._arrived_at = 0.0
        self._interval = float("inf")
        """When the last epoch came, and how long after the one before."""
        self._overdue_at: float | None = None
        self._stopping = threading.Event()
        self._store = Insistence(self._stopping, self.note, lambda message: self.fail(RunFailed(message)))
        self.publisher = Publisher(writer.store.files, self._store.until_taken, self.note, sink)
        self._changed = threading.Condition(self.lock)
        self._threads: list[threading.Thread] = []

    # Life

    def start(self, nodes: int, deadline: float = 60.0) -> None:
        """Wait for the nodes, up to a deadline, and begin."""
        until = time.monotonic() + deadline
        found: list[str] = []
        while len(found) < nodes and time.monotonic() < until:
            found += self.cluster.look()[1]
            if len(found) < nodes:
                self._stopping.wait(LOOK_EVERY)
        if not found:
            raise RunFailed(f"no executor came within {deadline:.0f} s; is the cluster up and has it free cores?")
        self.tell(NodesJoined(tuple(found)))
        jobs = [("nodes", self._watch), ("replay", self._replays), ("checkpoint", self._checkpoints)]
        for name, job in jobs:
            thread = threading.Thread(target=job, name=f"holdfast-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, checkpoint: bool = True, deadline: float = 120.0) -> None:
        """Let what is under way finish, checkpoint what is not yet safe, and let go of everything."""
        if checkpoint and self.error is None:
            self.settle(deadline)
            self.tell(CheckpointWanted())
            self._wait_for(lambda: not self.coordinator.checkpoint_needed(), deadline)
        self._stopping.set()
        for waiting in self._background.values():
            waiting.put(None)
        self._live.put(None)
        for group in list(self._groups):
            self.spark.sparkContext.cancelJobGroup(group)
        self.jobs.end_saving()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=10)
        self.writer.close()
        self.history.close()
        self.jobs.close()
        self.cluster.close()

    def settle(self, deadline: float) -> bool:
        """Wait until everything that was lost is recovered and caught up."""
        return self._wait_for(lambda: self.coordinator.idle, deadline)

    def _wait_for(self, condition: Callable[[], bool], deadline: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: condition() or self.error is not None, deadline)

    # The coordinator's word

    def tell(self, event: Event) -> None:
        """Pass an event on and carry out the answer; long work goes to its own thread."""
        with self._changed:
            for instruction in self.coordinator.handle(event):
                if isinstance(instruction, Reshape) and not self._put_down(instruction.shape):
                    break
                self._carry_out(instruction)
            self._changed.notify_all()

    def _put_down(self, shape: Shape) -> bool:
        """Nothing that follows may happen without it in the store: else the job ends, and starts in the old shape."""
        done: list[bool] = []

        def put() -> None:
            self.writer.commit_shape(shape.to_json())
            done.append(True)

        try:
            self._store.until_taken(put)
        except HoldfastError as error:
            self.fail(error)
        self.coordinator.halted |= not done
        return bool(done)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Record(kind, fields):
                self.note(kind, fields)
            case Run(kind="epoch") | EpochDone():
                self._live.put(instruction)
            case Run():
                self._background["replay"].put(instruction)
            case Checkpoint():
                self._background["checkpoint"].put(instruction)
            case Publish():
                self.publisher.publish(instruction)
            case Trim(epoch):
                self.writer.trim(epoch)
                oldest = min(epoch, self._oldest())
                self._journalled = {e: held for e, held in self._journalled.items() if e > oldest}
            case Release(nodes):
                self.cluster.release(nodes)
            case Halt(message):
                self.fail(RunFailed(message))

    def _oldest(self) -> int:
        kept = self.writer.store.checkpoints()
        return kept[0].epoch if kept else -1

    def fail(self, error: Exception, during: str = "") -> None:
        """End the job; the first cause stands. What is not Holdfast's own word, a sink's say, is told by its name."""
        if not isinstance(error, HoldfastError):
            error = RunFailed(f"{during}: {type(error).__name__}: {first_line(error)}")
        self.error = self.error or error
        self._live.put(None)
        with self._changed:
            self._changed.notify_all()

    def note(self, kind: str, fields: Mapping[str, Any]) -> None:
        event = self.history.add(time.time(), kind, fields)
        if self.demand is not None:
            self.demand.heard(event)
        for listener in self.listeners:
            listener(event)

    # Epochs

    def epoch(self, batch: Batch, epoch: int) -> None:
        """One micro-batch, from arrival until everything it could give was given. Runs in the stream's thread."""
        head = self.coordinator.standing.head
        if epoch < head:
            self.fail(
                RunFailed(
                    f"epoch {epoch} came again, but the store has epochs up to {head}: the stream's own checkpoint "
                    f"(the folder spark/ of the store) is gone or belongs to another stream"
                )
            )
        began = time.monotonic()
        self._arrived_at, self._interval = began, began - self._arrived_at
        if self.player is not None:
            self.player.epoch(epoch)
        if self.error is None:
            self.tell(EpochArrived(epoch))
        while self.error is None:
            instruction = self._live.get()
            if isinstance(instruction, Run):
                self._run(instruction, batch)
            elif isinstance(instruction, EpochDone) and instruction.epoch == epoch:
                seconds = time.monotonic() - began
                self.note("answered", {"epoch": epoch, "seconds": round(seconds, 6)})
                if self.shedder is not None:
                    self.shedder.observe(self._kept_rows, seconds)
                return
            elif instruction is None:
                break
        raise self.error or RunFailed("the job was stopped")

    def _replays(self) -> None:
        while (run := self._background["replay"].get()) is not None:
            if isinstance(run, Run) and not self._stopping.is_set():
                try:
                    self._run(run, None)
                except Exception as error:
                    self.fail(error, f"replay of epochs {run.first} to {run.last}")

    def _run(self, run: Run, batch: Batch | None) -> None:
        """Carry a run out as one Spark job and report; whatever goes wrong, the coordinator hears of it."""
        group = f"holdfast-{self.context.job}-{run.number}"
        spark = self.spark.sparkContext
        began = time.monotonic()
        try:
            self._groups[group] = run.number
            spark.setJobGroup(group, f"holdfast {run.kind} {run.first} to {run.last}", interruptOnCancel=False)
            allowed = self.shedder.allowed if self.shedder is not None else None
            notes = self.jobs.run(run, batch, self._situation(run), self._journalled, allowed)
        except HoldfastError as error:
            self.fail(error)
            return
        except Exception as error:
            self._broken(run, error)
            return
        finally:
            self._groups.pop(group, None)
            self._called_off.discard(run.number)
        self._strikes = 0
        entries = {note.pop("journal"): note for note in notes if "journal" in note}
        task = self.jobs.topology(run.shape).task
        reports = tuple(stages.report_of(note, task) for note in notes if "status" in note)
        whole = all(report.status == "committed" for report in reports)
        if run.live is not None:
            inputs_of = self.coordinator.topology.inputs_of
            self._kept_rows = sum(report.rows_in for report in reports if not inputs_of(report.task.operator))
        if (live := run.live) is not None and whole:
            self._store.until_taken(lambda: self._journal(live, entries, run.shape))
        if unusable := [report.message for report in reports if report.status == "unusable"]:
            self._store.refused(unusable[0])
        self.publisher.staged(run.number, reports)
        if damaged := [report.reached for report in reports if report.status == "damaged"]:
            self._fall_back(min(damaged))
        if self.demand is not None and run.live is not None:
            with self.lock:
                self.demand.worked(reports)
        self.note("run", {"run": run.number, "of": run.kind, "seconds": round(time.monotonic() - began, 6)})
        self.tell(RunDone(run.number, reports))

    def _fall_back(self, epoch: int) -> None:
        """A checkpoint that is not whole any more: the newest one that is takes its place, if there is one."""
        try:
            found = self.writer.store.latest()
        except HoldfastError as error:
            self.fail(error)
            return
        self.tell(CheckpointLost(epoch, -1 if found is None else found.epoch))

    def _journal(self, epoch: int, entries: Mapping[int, Mapping[str, Any]], shape: Shape) -> None:
        files = {journal_name(piece): FileEntry.from_json(entry) for piece, entry in entries.items()}
        routings = {name: routing.to_json() for name, routing in shape.routings.items()}
        self.writer.journal_commit(epoch, files, {"pieces": len(files), "routings": routings})
        self._journalled[epoch] = (len(files), shape)

    def _situation(self, run: Run) -> Situation:
        with self.lock:
            places = self.cluster.places()
            if gone := {work.node for work in run.works if work.node not in places}:
                raise ConnectionError(f"{', '.join(sorted(gone))} went before the run began")
            folders = {node: self.cluster.folder(node) for node in places}
            return Situation(dict(places), folders, self.coordinator.retain, self.coordinator.forks)

    def _retained(self) -> int:
        with self.lock:
            return self.coordinator.retain

    def _broken(self, run: Run, error: Exception) -> None:
        """A job that did not finish: because nodes went (noticed here at the latest), or for no good reason."""
        if self._stopping.is_set():
            return
        until = time.monotonic() + 2.0
        gone = bool(self._look()) or isinstance(error, ConnectionError)
        while not gone and time.monotonic() < until and run.number in self.coordinator.runs:
            gone = run.number in self._called_off or self._stopping.wait(LOOK_EVERY) or bool(self._look())
        self._strikes = 0 if gone else self._strikes + 1
        if self._strikes > TRIES:
            self.fail(RunFailed(f"Spark could not finish a run in {TRIES} tries: {first_line(error)}"))
            return
        self.tell(RunBroken(run.number, "nodes were lost" if gone else first_line(error)))

    # Checkpoints

    def _checkpoints(self) -> None:
        while (wanted := self._background["checkpoint"].get()) is not None:
            if isinstance(wanted, Checkpoint) and not self._stopping.is_set():
                self._checkpoint(wanted)

    def _checkpoint(self, wanted: Checkpoint) -> None:
        spark = self.spark.sparkContext
        group = f"holdfast-{self.context.job}-checkpoint-{wanted.epoch}"
        try:
            self._groups[group] = -1
            spark.setJobGroup(group, f"holdfast checkpoint {wanted.epoch}", interruptOnCancel=False)
            entries = self.jobs.save(wanted, self._retained())
            extra = {**self._extra, "shape": wanted.shape.to_json()}
            done = self.writer.commit_checkpoint(wanted.epoch, entries, wanted.shape.routings, extra)
        except HoldfastError as error:
            if not isinstance(error, Unusable):
                self.note("checkpoint failed", {"epoch": wanted.epoch, "message": str(error)})
                self.fail(error)
            elif not self._stopping.wait(AGAIN):
                self.tell(CheckpointBroken(wanted.epoch, str(error)))
            return
        except Exception as error:
            if not self._stopping.wait(AGAIN):
                self.tell(CheckpointBroken(wanted.epoch, first_line(error)))
            return
        finally:
            self._groups.pop(group, None)
        size = sum(entry.bytes for files in entries.values() for entry in files)
        self.tell(CheckpointDurable(done.epoch, size))

    # Nodes

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK_EVERY):
            try:
                if self.player is not None:
                    self.player.tick()
                self._look()
                if self._overdue_at is not None and time.monotonic() > self._overdue_at:
                    self._overdue_at = None
                    self.tell(AnswerOverdue())
                self._lift_if_stuck()
                if self.demand is not None:
                    self.demand.look()
            except Exception as error:
                if not self._stopping.is_set():
                    self.fail(RunFailed(f"the nodes cannot be watched any more: {first_line(error)}"))
                return

    def scale(self, operator: str, to: int, request: str, why: str = "asked for") -> None:
        """Ask for another number of tasks; the history tells under ``request`` what became of it."""
        try:
            check_scalable(self.context.pipeline, operator)
        except Invalid as error:
            fields = {"operator": operator, "request": request, "reason": str(error)}
            self.note("scaling refused", fields)
            return
        self.tell(ScaleWanted(operator, to, why=why, request=request))

    def _look(self) -> list[str]:
        """Tell the coordinator who went and who came; jobs that were using a node that went are called off."""
        with self.lock:
            lost, joined = self.cluster.look()
            if lost:
                self._stopping.wait(LOOK_EVERY / 2)  # losses close together are one failure
                again, more = self.cluster.look()
                lost, joined = [*lost, *again], [*joined, *more]
                groups = dict(self._groups)
                self._called_off.update(self._groups.values())
                now = time.monotonic()
                due = self._interval < SOON and now - self._arrived_at < SOON
                self._overdue_at = self._arrived_at + SOON if due else None
                self.tell(NodesLost(tuple(lost), "executor lost", due))
            if joined:
                self.tell(NodesJoined(tuple(joined)))
            if self.demand is not None:
                self.demand.moved(lost, joined)
        if lost:
            for group, number in groups.items():
                self._call_off(group, number)
        return lost

    def _call_off(self, group: str, number: int) -> None:
        """A run that is about to be submitted is meant too: it would wait long for nodes that are gone.

        Checkpoints (-1) are tried again under the same name, so only what is under way of them is called off.
        """
        if number < 0:
            self.spark.sparkContext.cancelJobGroup(group)
        else:
            context: Any = self.spark.sparkContext._jsc.sc()
            context.cancelJobGroupAndFutureJobs(group)

    def _lift_if_stuck(self) -> None:
        """Nobody came to take what is down: after a while the nodes that are there carry everything."""
        with self.lock:
            stuck = bool(self.coordinator.standing.down) and bool(self.coordinator.standing.nodes)
        now = time.monotonic()
        self._waiting_since = (self._waiting_since or now) if stuck else None
        if self._waiting_since is not None and now - self._waiting_since > self._patience:
            self._waiting_since = None
            self.note("capacity lifted", {"after_seconds": self._patience})
            self.tell(CapacityLifted())
