"""A run as one Spark job, a checkpoint as another: what is read where, and which stage runs at which place."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import HoldfastError
from holdfast.runtime.driver.ports import Asked, Failed, RunResult
from holdfast.runtime.shape import Shape, reshaped_pipeline
from holdfast.runtime.spark import stages
from holdfast.runtime.spark.affinity import SlotAffinity
from holdfast.runtime.spark.asking import Asking
from holdfast.runtime.spark.checkpoint_process import CheckpointProcess
from holdfast.runtime.spark.combining import Combining
from holdfast.runtime.spark.exchange import Exchange, Stage
from holdfast.runtime.spark.nodes import location
from holdfast.runtime.spark.pools import join_pool
from holdfast.runtime.spark.shipping import SparkFailed, arrow_schema, as_bytes, first_cause
from holdfast.runtime.spark.source import Batch
from holdfast.runtime.worker.plan import RunPlan
from holdfast.runtime.worker.slot_parts import Cut
from holdfast.runtime.worker.versions import Saved, Upload
from holdfast.runtime.worker.worker import JobContext
from holdfast.state import Writer
from holdfast.state.entries import FileEntry
from holdfast.state.writer import Chains
from holdfast.topology import Topology

Job = Callable[[], None]
GRACE = 0.3
"""Seconds that tasks of a run that was called off have to end by themselves: then their Python processes go on to the
next run, with the states they hold."""


class SparkRunner:
    """One thread each for epochs, replays, stopgaps, checkpoints and what is folded: job groups belong to threads.

    ``local``: all nodes are in this process's machine, where checkpoints have a process of their own.
    """

    def __init__(self, spark: SparkSession, context: JobContext, writer: Writer, local: bool) -> None:
        self._spark = spark
        self._context = context
        self._exchange = Exchange(spark.sparkContext)
        self._asking = Asking(spark.sparkContext)
        self._broadcast = spark.sparkContext.broadcast(as_bytes(context))
        self._topologies: dict[int, Topology] = {}
        self._threads: dict[str, queue.SimpleQueue[Job | None]] = {}
        self._process: CheckpointProcess | None = None
        self._schema = b""
        """Of every batch, in Arrow, known with the first; and which threads were told its session's settings."""
        self._told: set[str] = set()
        self._pooled: set[str] = set()
        self._combining: Combining | None = None
        self._cores = spark.sparkContext.defaultParallelism if local else 0
        if local:
            self._process = CheckpointProcess(context.store, context.token, context.sync, context.options)
            self._process.begin()
            writer.folded = self._process.fold
        else:
            writer.folded = self.fold
        self._closing, self._closed = threading.Lock(), False
        for name in ("epoch", "replay", "stopgap", "checkpoint", "fold"):
            waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
            self._threads[name] = waiting
            threading.Thread(target=_serve, args=(waiting,), name=f"holdfast-{name}", daemon=True).start()

    def start(self, plan: RunPlan, batch: object, done: Callable[[RunResult | Failed], None]) -> None:
        group = self._group(plan.run)
        what = f"holdfast {plan.kind} {plan.ingest}" if plan.ingest is not None else f"holdfast run {plan.run}"
        self._submit(plan.kind, group, what, lambda: self._run(plan, batch), done)

    def save(self, epoch: int, uploads: Mapping[str, Sequence[Upload]], done: Callable[[Saved | Failed], None]) -> None:
        what = f"holdfast checkpoint {epoch}"
        self._submit("checkpoint", self._saving(epoch), what, lambda: self._save(uploads), done)

    def fold(self, chains: Chains) -> Chains:
        """Shorter chains of files for the same states, made by executors: the driver reads no state. Blocks.

        As many at a time as there are cores, so that an epoch waits for one of them at the most.
        """
        cores, folded = max(1, self._spark.sparkContext.defaultParallelism), {}
        asked = [json.dumps([task, [entry.to_json() for entry in chain]]).encode() for task, chain in chains.items()]
        for some in (asked[first : first + cores] for first in range(0, len(asked), cores)):
            for part in self._fold(some):
                task, files = json.loads(part)
                folded[task] = tuple(FileEntry.from_json(entry) for entry in files)
        return folded

    def _fold(self, asked: Sequence[bytes]) -> Sequence[bytes]:
        made: Future[Any] = Future()
        stage = stages.Fold(self._context.job, self._broadcast)
        with self._closing:
            if self._closed:
                raise HoldfastError("the job has ended")
            self._submit(
                "fold",
                self._folding,
                "holdfast folding",
                lambda: self._exchange.collect(self._exchange.dealt(asked), stage),
                made.set_result,
            )
        result = made.result()
        if isinstance(result, Failed):
            raise result.error
        parts: Sequence[bytes] = result
        return parts

    def cancel(self, run: int) -> None:
        """A run that is about to be submitted is meant too: it would wait long for nodes that are gone."""
        context: Any = self._spark.sparkContext._jsc.sc()
        context.cancelJobGroupAndFutureJobs(self._group(run))
        if self._process is None:
            ending = threading.Timer(GRACE, self._end, (self._group(run),))
            ending.daemon = True
            ending.start()

    def _end(self, group: str) -> None:
        with contextlib.suppress(Exception):  # a context that is gone runs nothing
            self._asking.end(group)

    def cancel_save(self, epoch: int) -> None:
        """It is tried again under the same name, so only what is under way is called off."""
        if self._process is not None:
            self._process.cancel()
        else:
            self._spark.sparkContext.cancelJobGroup(self._saving(epoch))

    def silent(self, run: int, places: Sequence[str]) -> Asked:
        """Nodes that share one process are slow or well together."""
        return self._asking.silent(self._group(run), places)

    def failing(self, run: int, places: Sequence[str]) -> frozenset[str]:
        return self._asking.failing(self._group(run), places)

    def warm(self, at: str, cores: int = 1) -> str:
        """Let an executor run tasks of each kind, so that it has its Python processes and all they load at first.

        What is wrong with it in one line, if it does not see the store; else nothing.
        """
        stage = stages.Warm(self._context.job, self._broadcast, at)
        level = self._exchange.shuffle(self._exchange.located([at] * cores), stage, cores, [at] * cores)
        return next((part.decode() for part in self._exchange.collect(level, stage) if part), "")

    def clean(self, places: Sequence[str]) -> None:
        """What the job left on these executors' machines goes."""
        stage = stages.Clean(self._context.job, self._broadcast)
        self._exchange.collect(self._exchange.located(list(places)), stage)

    def close(self) -> None:
        with self._closing:
            self._closed = True
        with contextlib.suppress(Exception):  # a context that is gone folds nothing
            scala: Any = self._spark.sparkContext._jsc.sc()
            scala.cancelJobGroupAndFutureJobs(self._folding)
        for waiting in self._threads.values():
            waiting.put(None)
        if self._process is not None:
            self._process.close()
        with contextlib.suppress(Exception):  # a context that is gone has nothing to destroy
            self._broadcast.destroy()

    def _group(self, run: int) -> str:
        return f"holdfast-{self._context.job}-{run}"

    @property
    def _folding(self) -> str:
        return f"holdfast-{self._context.job}-folding"

    def _saving(self, epoch: int) -> str:
        return f"holdfast-{self._context.job}-checkpoint-{epoch}"

    def _submit(self, thread: str, group: str, what: str, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def job() -> None:
            try:
                if thread not in self._pooled:
                    join_pool(self._spark.sparkContext, thread)
                    self._pooled.add(thread)
                self._spark.sparkContext.setJobGroup(group, what, interruptOnCancel=False)
                result = work()
            except HoldfastError as error:
                result = Failed(error)
            except BaseException as error:  # py4j wraps whatever Spark throws
                result = Failed(SparkFailed(first_cause(error)))
            done(result)

        self._threads[thread].put(job)

    def _topology(self, shape: Shape) -> Topology:
        if shape.version not in self._topologies:
            self._topologies[shape.version] = reshaped_pipeline(self._context.pipeline, shape).topology
        return self._topologies[shape.version]

    def _run(self, plan: RunPlan, batch: object) -> RunResult:
        job, context = self._context.job, self._broadcast
        stage: Any
        combined = None
        if plan.ingest is not None:
            assert isinstance(batch, Batch)
            at = [each for place in dict.fromkeys(plan.places) if (each := location(place)) is not None]
            # Not by nodes that have only just come: their first Python task takes long.
            if plan.kind not in self._told:
                self._told.add(plan.kind)
                self._schema = self._schema or arrow_schema(self._spark, batch.frame)
                self._exchange.settings_of(batch.frame)
                self._combining = self._combining or Combining(batch.combines)
            assert self._combining is not None
            if plan.allowed is None:
                combined = self._combining.plan(batch.frame)
            level, partitions = self._exchange.batch(*(combined or (batch.frame, batch.plan)), at)
            plan = plan.ingesting(partitions)
            schema = arrow_schema(batch.frame.sparkSession, combined[0]) if combined else self._schema
            whole = combined is None
            cut = Cut(plan, self._topology(plan.shape))
            stage = stages.Ingest(job, context, cut.ingest(), schema, batch.sources, batch.ends, batch.watermark, whole)
        else:
            places = plan.places[: max(1, sum(len(epoch.pieces) for epoch in plan.journal))]
            level = self._exchange.located([location(place) for place in places])
            partitions = len(places)
            cut = Cut(plan, self._topology(plan.shape))
            stage = stages.ReadJournal(job, context, cut.journal(partitions))
        after = sum(plan.widths)
        stage = self._affine(stage, plan, 0, partitions, -after % partitions)
        for number, slots in enumerate(plan.levels):
            level = self._exchange.shuffle(level, stage, partitions, [location(slot.place) for slot in slots])
            partitions = len(slots)
            stage = self._affine(stages.Level(job, context, cut.level(number), number), plan, number + 1, partitions)
        try:
            notes = [note for part in self._exchange.collect(level, stage) for note in json.loads(part)]
        except BaseException:
            if combined is not None and self._combining is not None:
                self._combining.failed()  # nodes that were lost, most likely
            raise
        result = stages.result_of(notes, self._topology(plan.shape).task)
        if plan.ingest is not None and self._combining is not None:
            read, sent = (sum(note.get(what, 0) for note in notes) for what in ("read", "sent"))
            self._combining.learn(read, sent, plan.pieces[plan.ingest])
        return result

    def _affine(self, stage: Stage, plan: RunPlan, level: int, partitions: int, first: int = 0) -> Stage:
        """Epochs keep each slot to one process where all share a machine, unless some would have to wait for a core."""
        here = self._process is not None and plan.kind == "epoch" and partitions <= self._cores
        return SlotAffinity(stage, self._context.local, plan.run, level, partitions, first) if here else stage

    def _save(self, uploads: Mapping[str, Sequence[Upload]]) -> Saved:
        order = sorted(uploads)
        if not order:
            return Saved({}, {})
        if self._process is not None:
            return self._process.save([upload for place in order for upload in uploads[place]])
        stage = stages.Save(self._context.job, self._broadcast, [uploads[place] for place in order], order)
        located = self._exchange.located([location(place) for place in order])
        return Saved.of([Saved.from_json(json.loads(part)) for part in self._exchange.collect(located, stage)])


def _serve(waiting: queue.SimpleQueue[Job | None]) -> None:
    while (job := waiting.get()) is not None:
        job()
