"""A run as one Spark job, a checkpoint as another: what is read where, and which stage runs at which place."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from pyspark.core.rdd import RDD
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import HoldfastError
from holdfast.runtime.driver.ports import Asked, CodeFailed, Failed, RunResult
from holdfast.runtime.failures import may_pass
from holdfast.runtime.raised import line_of, plain
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
from holdfast.runtime.worker.plan import RunPlan, one_part
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
LITTLE, MOST, LAST = 0.1, 0.25, 3
"""While each of the last batches took fewer seconds to read than the first, all its parts one after the other, or less
than all else about its run did and than the second, one task may read all of it: another stage costs more than a second
core saves."""


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
        self._little: deque[bool] = deque(maxlen=LAST)
        """Whether there was little to read in each of the last batches."""
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
            except (HoldfastError, CodeFailed) as error:
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
        if plan.ingest is not None:
            assert isinstance(batch, Batch)
            notes = self._ingested(plan, batch)
        else:
            places = plan.places[: max(1, sum(len(epoch.pieces) for epoch in plan.journal))]
            level = self._exchange.located([location(place) for place in places])
            cut = Cut(plan, self._topology(plan.shape))
            stage = stages.ReadJournal(self._context.job, self._broadcast, cut.journal(len(places)))
            notes = self._through(level, stage, plan, cut, len(places))
        return stages.result_of(notes, self._topology(plan.shape).task)

    def _ingested(self, plan: RunPlan, batch: Batch) -> list[stages.Note]:
        """What everybody noted in a run that reads a batch."""
        # Not by nodes that have only just come: their first Python task takes long.
        at = [each for place in dict.fromkeys(plan.places) if (each := location(place)) is not None]
        if plan.kind not in self._told:
            self._told.add(plan.kind)
            self._schema = self._schema or arrow_schema(self._spark, batch.frame)
            self._exchange.settings_of(batch.frame)
            self._combining = self._combining or Combining(batch.combines)
        assert self._combining is not None
        combined = self._combining.plan(batch.frame) if plan.allowed is None else None
        try:
            return self._read(plan, batch, combined, at)
        except Exception as error:
            if combined is not None:
                self._combining.failed()  # nodes that were lost, most likely; and the next try does without
            elif not isinstance(error, HoldfastError) and not may_pass(error):
                raise CodeFailed(line_of(error)) from plain(error)
            raise

    def _read(
        self, plan: RunPlan, batch: Batch, combined: tuple[DataFrame, Any] | None, at: Sequence[str]
    ) -> list[stages.Note]:
        """What everybody noted; ``combined``: the frame and plan of a batch that Spark groups first, if it does."""
        assert self._combining is not None
        frame, how = combined or (batch.frame, batch.plan)
        level, partitions = self._exchange.batch(frame, how, at)
        row = self._in_a_row(plan, level, partitions)
        pieces = 1 if row is not None else partitions
        plan = plan.ingesting(pieces)
        schema = arrow_schema(batch.frame.sparkSession, combined[0]) if combined else self._schema
        cut = Cut(plan, self._topology(plan.shape))
        parts = cut.ingest() if row is None else cut.level(0)
        told = batch.sources, batch.ends, batch.watermark, combined is None
        stage = stages.Ingest(self._context.job, self._broadcast, parts, schema, *told)
        since = time.monotonic()
        if row is None:
            notes = self._through(level, stage, plan, cut, partitions)
        else:
            notes = self._collected(row, stages.Alone(stage))
        read, sent, reading = (sum(note.get(what, 0) for note in notes) for what in ("read", "sent", "reading"))
        self._combining.learn(read, sent, pieces)
        if plan.kind == "epoch":
            self._little.append(reading < max(LITTLE, min(MOST, time.monotonic() - since - reading)))
        return notes

    def _in_a_row(self, plan: RunPlan, level: RDD[bytes], partitions: int) -> RDD[bytes] | None:
        """The batch for one task that does all of a run: where one slot has all works, which is in any process here,
        and there was little to read lately. None where the batch is to be read by several, and sent on."""
        alone = plan.kind == "epoch" and plan.widths == (1,) and location(plan.levels[0][0].place) is None
        if not alone or len(self._little) < LAST or not all(self._little):
            return None
        if partitions == 1:
            return level
        return self._exchange.in_a_row(level) if one_part(self._topology(plan.shape)) else None

    def _through(self, level: RDD[bytes], stage: Stage, plan: RunPlan, cut: Cut, partitions: int) -> list[stages.Note]:
        """What everybody noted when this first stage and all levels of a plan are through."""
        stage = self._affine(stage, plan, 0, partitions, -sum(plan.widths) % partitions)
        for number, slots in enumerate(plan.levels):
            level = self._exchange.shuffle(level, stage, partitions, [location(slot.place) for slot in slots])
            partitions = len(slots)
            each = stages.Level(self._context.job, self._broadcast, cut.level(number), number)
            stage = self._affine(each, plan, number + 1, partitions)
        return self._collected(level, stage)

    def _collected(self, level: RDD[bytes], stage: Stage) -> list[stages.Note]:
        return [note for part in self._exchange.collect(level, stage) for note in json.loads(part)]

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
