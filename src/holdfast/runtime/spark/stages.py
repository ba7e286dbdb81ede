"""What runs inside Spark's Python workers: the stages of a run. Thin: they find the process's Worker and call it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark import Broadcast
from pyspark.cloudpickle import loads as unpickled

from holdfast.runtime.blocks import ALIGNED, Block, pack, unpack
from holdfast.runtime.events import Report
from holdfast.runtime.keeping import Saving, bring
from holdfast.runtime.layout import Layout, Slot
from holdfast.runtime.shape import Shape
from holdfast.runtime.shedding import sample
from holdfast.runtime.worker import JobContext, Order, Worker
from holdfast.topology import Task

_workers: dict[str, Worker] = {}
"""One worker a job in this process. Spark reuses the process; what is in memory is a cache, never the only copy."""


def worker_of(job: str, context: Broadcast[bytes]) -> Worker:
    if job not in _workers:
        _workers.clear()
        made: JobContext = unpickled(context.value)
        _workers[job] = Worker(made)
    return _workers[job]


@dataclass(frozen=True)
class Ingest:
    """The first level of a live epoch. ``sources``: each source's column of the batch, None when it is all of it."""

    job: str
    context: Broadcast[bytes]
    order: Order
    epoch: int
    pieces: int
    schema: bytes
    sources: Mapping[str, str | None]
    ends: bool
    keep: int | None = None
    """Rows that each part may keep; what is beyond is shed."""

    def __call__(self, index: int, messages: Iterable[bytes]) -> Iterable[bytes]:
        worker = worker_of(self.job, self.context)
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        batches = [pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages]
        came = pa.Table.from_batches(batches, schema)
        rows = came if self.keep is None else sample(came, self.keep)
        shares = {name: rows if column is None else _own(rows, column) for name, column in self.sources.items()}
        blocks, reports, entry = worker.ingest(
            self.epoch, index, self.pieces, shares, self.ends, self.order.shape, came.num_rows - rows.num_rows
        )
        notes = [_noted(report) for report in reports]
        if entry is not None:
            notes.append({"journal": index, **entry.to_json()})
        return bundles(self.order.layout, 0, blocks, notes)


@dataclass(frozen=True)
class Warm:
    """Nothing but what every first task in a process does."""

    job: str
    context: Broadcast[bytes]

    def __call__(self, index: int, _: Iterable[bytes]) -> Iterable[bytes]:
        worker_of(self.job, self.context)
        return [b""]


@dataclass(frozen=True)
class Feed:
    """The first level of a replay: each partition brings some of the journalled parts of some epochs.

    ``shapes``: those in which the epochs were journalled.
    """

    job: str
    context: Broadcast[bytes]
    order: Order
    parts: Sequence[Sequence[tuple[int, int]]]
    shapes: Mapping[int, Shape]

    def __call__(self, index: int, _: Iterable[bytes]) -> Iterable[bytes]:
        worker = worker_of(self.job, self.context)
        blocks = [
            block
            for epoch, piece in self.parts[index]
            for block in worker.journalled(epoch, piece, self.shapes[epoch], self.order.shape)
        ]
        return bundles(self.order.layout, 0, blocks, [])


@dataclass(frozen=True)
class Level:
    """A level of works. The last one sends what everybody noted to the driver."""

    job: str
    context: Broadcast[bytes]
    order: Order
    number: int

    def __call__(self, index: int, arrived: Iterable[bytes]) -> Iterable[bytes]:
        worker = worker_of(self.job, self.context)
        slot: Slot = self.order.layout.levels[self.number][index]
        blocks: list[Block] = []
        notes: list[dict[str, Any]] = []
        for bundle in arrived:
            found, said = opened(bundle)
            blocks += found
            notes += said
        mine = {work.task for work in slot.works}
        sent, reports = worker.work(self.order, slot.works, slot.feeds, [b for b in blocks if b.receiver in mine])
        notes += [_noted(report) for report in reports]
        if self.number + 1 == len(self.order.layout.levels):
            return [json.dumps(notes).encode()]
        passing = [block for block in blocks if block.receiver not in mine]
        return bundles(self.order.layout, self.number + 1, [*passing, *sent], notes)


@dataclass(frozen=True)
class Save:
    """Checkpoint the tasks of each place: what each partition has to bring to the store."""

    job: str
    context: Broadcast[bytes]
    wanted: Sequence[Sequence[Saving]]

    def __call__(self, index: int, _: Iterable[bytes]) -> Iterable[bytes]:
        worker = worker_of(self.job, self.context)
        token = worker.context.token
        saved = [(each.task, [e.to_json() for e in bring(worker.store, token, each)]) for each in self.wanted[index]]
        return [json.dumps(saved).encode()]


def bundles(layout: Layout, level: int, blocks: Iterable[Block], notes: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """One bundle for each slot of a level; the notes travel with the first."""
    said = json.dumps(list(notes)).encode()
    none = b"[]"
    result = []
    for number, share in enumerate(layout.spread(blocks, level)):
        text = said if number == 0 else none
        padded = text + b" " * (-(4 + len(text)) % ALIGNED)
        result.append(struct.pack("<I", len(padded)) + padded + pack(share))
    return result


def opened(bundle: bytes) -> tuple[list[Block], list[dict[str, Any]]]:
    (length,) = struct.unpack_from("<I", bundle)
    view = memoryview(bundle)
    return unpack(view[4 + length :]), json.loads(bytes(view[4 : 4 + length]))


def _noted(report: Report) -> dict[str, Any]:
    return {**asdict(report), "task": str(report.task)}


def report_of(note: Mapping[str, Any], task: Callable[[str], Task]) -> Report:
    by_epoch = {what: {int(epoch): each for epoch, each in note[what].items()} for what in ("outputs", "output_rows")}
    return Report(**{**note, "task": task(note["task"]), **by_epoch})


def _own(rows: pa.Table, column: str) -> pa.Table:
    """The rows of one source in a batch of several: its column is a struct, null in the rows of others."""
    combined = rows.column(column).combine_chunks()
    mine = combined.filter(combined.is_valid())
    return pa.Table.from_arrays(mine.flatten(), names=[field.name for field in mine.type])
