"""The Spark jobs of a run, a checkpoint and a newcomer: what is read where, and which stage runs at which place."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.runtime.messages import Checkpoint, Run
from holdfast.runtime.shape import Shape, reshaped_pipeline
from holdfast.runtime.spark import stages
from holdfast.runtime.spark.affinity import InTurn
from holdfast.runtime.spark.checkpoint_process import Keeper, Saving
from holdfast.runtime.spark.exchange import Exchange, Stage
from holdfast.runtime.spark.nodes import Cluster, LogicalNodes
from holdfast.runtime.spark.shipping import arrow_schema, as_bytes
from holdfast.runtime.worker.plan import lay_out
from holdfast.runtime.worker.worker import JobContext, Order
from holdfast.state import Writer
from holdfast.state.entries import FileEntry
from holdfast.topology import Topology

Journalled = Mapping[int, tuple[int, Shape]]
"""Into how many parts each journalled epoch was cut, and in which shape."""


@dataclass(frozen=True)
class Batch:
    """A micro-batch: its rows, in which column each source finds its own (None: all), and whether it is the last."""

    frame: DataFrame
    sources: Mapping[str, str | None]
    ends: bool = False


@dataclass(frozen=True)
class Situation:
    """What is so when a run is submitted: who is there, and what of older epochs and forks is still needed."""

    places: Mapping[str, str]
    folders: Mapping[str, str]
    retain: int
    forks: frozenset[int]


class Jobs:
    """Builds Spark jobs and waits for them; when one fails, Spark's own error comes out."""

    def __init__(self, spark: SparkSession, context: JobContext, cluster: Cluster, writer: Writer) -> None:
        self._spark = spark
        self._context = context
        self._cluster = cluster
        self._exchange = Exchange(spark.sparkContext)
        self._broadcast = spark.sparkContext.broadcast(as_bytes(context))
        self._topologies: dict[int, Topology] = {}
        self._keeper: Keeper | None = None
        if isinstance(cluster, LogicalNodes):
            self._keeper = Keeper(context.store, context.token, context.sync)
            self._keeper.begin()
            writer.folded = self._keeper.fold

    def topology(self, shape: Shape) -> Topology:
        """The topology of a shape as workers have it."""
        if shape.version not in self._topologies:
            self._topologies[shape.version] = reshaped_pipeline(self._context.pipeline, shape).topology
        return self._topologies[shape.version]

    def run(
        self, run: Run, batch: Batch | None, now: Situation, journalled: Journalled, allowed: int | None
    ) -> list[dict[str, Any]]:
        """What workers noted. ``allowed``: rows that the batch may keep; what is beyond is shed."""
        first, parts, pieces = self._first_level(run, batch, now, journalled)
        layout = lay_out(self.topology(run.shape), run, now.places, pieces)
        order = Order(run.number, layout, now.folders, now.retain, now.forks, run.shape, run.settled)
        job, context = self._context.job, self._broadcast
        stage: Any
        if batch is not None and run.live is not None:
            schema = arrow_schema(self._spark, batch.frame)
            keep = None if allowed is None else -(-allowed // max(1, pieces[run.live]))
            stage = stages.Ingest(
                job, context, order, run.live, pieces[run.live], schema, batch.sources, batch.ends, keep
            )
            partitions = pieces[run.live]
        else:
            shapes = {epoch: journalled[epoch][1] for epoch in pieces}
            stage = stages.Feed(job, context, order, parts, shapes)
            partitions = len(parts)
        level = first
        stage = self._in_turn(stage, run, 0, partitions)
        for number, slots in enumerate(layout.levels):
            locations = [self._cluster.location(slot.place) for slot in slots]
            level = self._exchange.shuffle(level, stage, partitions, locations)
            partitions = len(slots)
            stage = self._in_turn(stages.Level(job, context, order, number), run, number + 1, partitions)
        return [note for part in self._exchange.collect(level, stage) for note in json.loads(part)]

    def _in_turn(self, stage: Stage, run: Run, level: int, partitions: int) -> Stage:
        """Epochs keep each slot to one process where all share a machine, unless some would have to wait for a core."""
        at_once = partitions <= self._spark.sparkContext.defaultParallelism
        here = self._keeper is not None and run.live is not None and at_once
        return InTurn(stage, self._context.local, run.number, level) if here else stage

    def _first_level(
        self, run: Run, batch: Batch | None, now: Situation, journalled: Journalled
    ) -> tuple[Any, Sequence[Sequence[tuple[int, int]]], dict[int, int]]:
        """Where a run begins: at the batch itself, or at the journal, its parts dealt over the places there are."""
        places = sorted(set(now.places.values()))
        locations = [self._cluster.location(place) for place in places]
        if batch is not None and run.live is not None:
            # Not by nodes that have only just come: their first Python task takes long.
            frame, count = self._exchange.batch(batch.frame, [each for each in locations if each is not None])
            return frame, [], {run.live: count}
        needed = [epoch for epoch in range(run.first, run.last + 1) if epoch in journalled]
        parts = [(epoch, piece) for epoch in needed for piece in range(journalled[epoch][0])]
        dealt = [parts[i :: len(places)] for i in range(len(places))]
        return self._exchange.located(locations), dealt, {epoch: journalled[epoch][0] for epoch in needed}

    def save(self, wanted: Checkpoint, retain: int) -> dict[str, list[FileEntry]]:
        """Bring what a checkpoint wants to the store; the files of each task."""
        pipeline = self._context.pipeline
        places = self._cluster.places()
        grouped: dict[str, list[Saving]] = {}
        for task, node in wanted.homes.items():
            if task.operator in pipeline.timed or pipeline.by_name[task.operator].operator.tables:
                born = wanted.shape.born.get(task, 0)
                folder = self._cluster.folder(node)
                saving = Saving(folder, str(task), wanted.since_of(task), wanted.epoch, born, retain)
                grouped.setdefault(places[node], []).append(saving)
        if not grouped:
            return {}
        order = sorted(grouped)
        if self._keeper is not None:
            return self._keeper.save([saving for place in order for saving in grouped[place]])
        stage = stages.Save(self._context.job, self._broadcast, [grouped[place] for place in order])
        located = self._exchange.located([self._cluster.location(place) for place in order])
        saved = [pair for part in self._exchange.collect(located, stage) for pair in json.loads(part)]
        return {task: [FileEntry.from_json(entry) for entry in files] for task, files in saved}

    def warm(self, location: str) -> None:
        """Let an executor run a task of each kind, so that it has its Python process and all it loads at first."""
        stage = stages.Warm(self._context.job, self._broadcast)
        level = self._exchange.shuffle(self._exchange.located([location]), stage, 1, [location])
        self._exchange.collect(level, stage)

    def end_saving(self) -> None:
        """A checkpoint that is under way in a process of its own is broken off."""
        if self._keeper is not None:
            self._keeper.close()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._broadcast.destroy()
