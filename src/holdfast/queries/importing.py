"""``holdfast.import_state``: a query of Structured Streaming moves over, with its state, and goes on where it stopped.

The state is read by Spark's own reader and given to the operator as if it had been sent, so that what is stored is what
the operator would have stored. The store is built beside its place and given its name when it is whole.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.operators.contract import DEFAULT_TABLE
from holdfast.operators.grouped import ROWS as SENT
from holdfast.queries import delivery
from holdfast.queries.buffers import Layout
from holdfast.queries.pipelines import checked_mode, pipeline_of
from holdfast.queries.spark_checkpoint import Position, SparkCheckpoint
from holdfast.queries.split import Split
from holdfast.runtime.shape import Shape
from holdfast.runtime.spark.exchange import Exchange
from holdfast.runtime.spark.shipping import arrow_schema
from holdfast.runtime.spark.starting import default_nodes
from holdfast.runtime.worker.blocks import Block, encode
from holdfast.runtime.worker.processing import process, route
from holdfast.state import Spill, Store, TaskState
from holdfast.state.files import sync_folder
from holdfast.state.journal import ROWS
from holdfast.state.places import check_readable, check_writable, on_disk
from holdfast.topology import Task

PIECE = 500_000
"""So many groups, about, are taken at once."""
SCRATCH = "scratch"
HELD = 1 << 30
"""So many bytes of all tasks' states are held in memory; the rest waits on the disk."""
Told = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Imported:
    """What was imported: so many ``groups``, as of batch ``epoch``, for so many ``tasks``. ``watermark``: in
    microseconds, if groups close by one. ``planned``: the next batch was planned by Spark and is the first to run.
    """

    store: str
    epoch: int
    groups: int
    tasks: int
    watermark: int | None
    planned: bool


def import_state(
    frame: DataFrame,
    checkpoint: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    mode: str = "update",
    nodes: int | None = None,
    parallelism: int | None = None,
    told: Told | None = None,
) -> Imported:
    """A store from which ``holdfast.writeStream(frame)`` goes on where a query of Structured Streaming stopped.

    ``checkpoint``: the old query's ``checkpointLocation``, which stays as it is. ``store``: a folder that is not there
    yet, or is empty. ``mode``: the output mode that the old query had; update and append have the same state.
    ``told``: called now and then with the number of groups so far. Whatever does not fit is refused by name, and then
    nothing is left behind. Memory follows the state of one task and one partition.
    """
    for name, value in (("nodes", nodes), ("parallelism", parallelism)):
        if value is not None and value < 1:
            raise Invalid(f"{name} must be at least 1, got {value}")
    split, emit = Split(frame), checked_mode(mode, "mode")
    count = nodes or default_nodes(frame.sparkSession)
    pipeline = pipeline_of(split, emit, parallelism or max(2, count), max(2, count))
    place = _vacant(store)
    old = SparkCheckpoint(frame.sparkSession, os.fspath(checkpoint))
    layout = Layout(frame, split)
    place.parent.mkdir(parents=True, exist_ok=True)
    building = place.with_name(f".{place.name}.importing-{uuid.uuid4().hex[:8]}")
    building.mkdir()
    try:
        position = old.copy_log(building / "spark")
        old.check_stopped(building / "spark")
        if position.sources is not None and position.sources not in layout.sources:
            raise Invalid(
                f"checkpoint {old.place}: it belongs to another query: sources of that one: {position.sources}, "
                f"of this one: {max(layout.sources)}"
            )
        state = old.state(position.batch)
        layout.check(state, old.place)
        moving = Moving(layout, pipeline, position, old.place)
        groups = moving.write(layout.flat(state), Store(building), building / SCRATCH, told or (lambda _: None))
        shutil.rmtree(building / SCRATCH, ignore_errors=True)
        old.check_stopped(building / "spark")
        building.replace(place)
        sync_folder(place.parent)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    watermark = position.watermark if moving.timed else None
    return Imported(str(place), position.batch, groups, len(moving.tasks), watermark, position.planned)


class Moving:
    """The state of one operator, on its way into a store."""

    def __init__(self, layout: Layout, pipeline: Pipeline, position: Position, origin: str) -> None:
        self._layout, self._pipeline, self._position, self._origin = layout, pipeline, position, origin
        (self._step,) = [step for step in pipeline.steps if pipeline.state_schemas(step.name)]
        self.timed = self._step.name in pipeline.timed
        self.tasks = [Task(self._step.name, number) for number in range(self._step.parallelism)]
        self._sender = Task(self._step.inputs[0].source, 0)
        self._stream = pipeline.input(self._step.name, self._sender.operator)
        self._counted = {name: 0 for each in layout.groups.functions if each.name == "Count" for name in each.kept}

    def write(self, state: DataFrame, store: Store, scratch: Path, told: Told) -> int:
        """All groups of a state as a checkpoint of its batch; how many there are."""
        batch, schemas = self._position.batch, self._pipeline.state_schemas(self._step.name)
        spill = Spill(scratch, HELD // len(self.tasks))
        held = {task: TaskState.empty(schemas, -1, spill) for task in self.tasks}
        groups = 0
        with store.writer("holdfast import-state") as writer:
            for rows in _pieces(state):
                parts = self._parts(rows)
                for number, share in route(self._pipeline, self._stream, self._sender, parts, None):
                    task = Task(self._step.name, number)
                    held[task] = self._after(task, held[task], share)
                groups += rows.num_rows
                writer.beat()
                told(groups)
            if (kept := sum(len(each[DEFAULT_TABLE]) for each in held.values())) != groups:
                raise Invalid(f"checkpoint {self._origin}: {groups} groups have only {kept} different keys")
            entries = {}
            for task in self.tasks:
                whole = self._closed(task, held.pop(task))
                entries[str(task)] = store.write_task(str(task), batch, whole, token=writer.token)
                writer.beat()
            # Of the rows before nobody knows more than what was counted.
            rows_before = max(groups, *self._counted.values(), 0)
            extra = {"signature": self._pipeline.signature, "shape": Shape().to_json(), ROWS: rows_before}
            writer.commit_checkpoint(batch, entries, {}, extra)
            # Batches up to this one were delivered by the old query.
            delivery.put_given(store.files, batch, writer.token)
        return groups

    def _parts(self, rows: pa.Table) -> pa.Table:
        """Groups as a source would send them."""
        parts = self._layout.parts(rows)
        for name in self._counted:
            self._counted[name] += pc.sum(parts.column(name)).as_py() or 0
        return parts.append_column(SENT, pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))

    def _after(self, task: Task, held: TaskState, sent: pa.Table, stamp: int | None = None) -> TaskState:
        """A task's state when this has come to it."""
        batch = self._position.batch
        block = Block(batch, self._sender, 0, task, stamp, sent.num_rows, encode(sent))
        return process(self._pipeline, task, held, [block], batch).state

    def _closed(self, task: Task, held: TaskState) -> TaskState:
        """With the watermark that the old query had; what is closed by it that query has forgotten."""
        if not self.timed:
            return held
        after = self._after(task, held, pa.table({}), self._position.watermark)
        if len(after[DEFAULT_TABLE]) < len(held[DEFAULT_TABLE]):
            raise Invalid(
                f"checkpoint {self._origin}: it has groups that the watermark has passed, so the old query ran in mode "
                "complete; import it in that mode"
            )
        return after


def _pieces(state: DataFrame) -> Iterator[pa.Table]:
    """The rows of a state, one partition after the other, so many at a time."""
    spark = state.sparkSession
    schema = pa.ipc.read_schema(pa.py_buffer(arrow_schema(spark, state)))
    messages, _ = Exchange(spark.sparkContext).batch(state)
    some: list[pa.RecordBatch] = []
    for message in messages.toLocalIterator():
        some.append(pa.ipc.read_record_batch(pa.py_buffer(message), schema))
        if sum(batch.num_rows for batch in some) >= PIECE:
            yield pa.Table.from_batches(some, schema)
            some = []
    if some:
        yield pa.Table.from_batches(some, schema)


def _vacant(store: str | os.PathLike[str]) -> Path:
    text = os.fspath(store)
    if (path := on_disk(text)) is None:
        raise Invalid(
            f"store {text}: state is imported into a local folder, which appears as a whole; copy that to its place"
        )
    place = path.absolute()
    check_readable(f"store {text}", place)
    if place.is_dir() and (found := sorted(each.name for each in place.iterdir())):
        raise Invalid(f"store {text}: it must be empty or not there yet; found {', '.join(found[:5])}")
    check_writable(f"store {text}", place)
    return place
