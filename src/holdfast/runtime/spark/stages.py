"""What runs inside Spark's Python workers: the stages of a run. Thin: they find the process's Worker and call it."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import Broadcast
from pyspark.cloudpickle import loads as unpickled

from holdfast.errors import HoldfastError, Unrecoverable
from holdfast.runtime.driver.ports import RunResult
from holdfast.runtime.driver.shedding import sample
from holdfast.runtime.messages import Report, Work
from holdfast.runtime.spark.combining import uncombined
from holdfast.runtime.spark.folders import claim, let_go, node_folder, place
from holdfast.runtime.spark.placement import Misplaced, misplaced
from holdfast.runtime.worker.blocks import ALIGNED, Block, pack, unpack
from holdfast.runtime.worker.plan import RunPlan
from holdfast.runtime.worker.slot_parts import SlotParts
from holdfast.runtime.worker.versions import Saved, Upload
from holdfast.runtime.worker.worker import JobContext, Worker
from holdfast.state.entries import FileEntry
from holdfast.state.files import open_files
from holdfast.state.output import StagedOutput
from holdfast.topology import Task

Note = dict[str, Any]
"""What a task has to tell the driver."""
NOTHING = b"[]"
"""No note, as it travels."""

_workers: dict[str, Worker] = {}
"""One worker a job in this process. Spark reuses the process; what is in memory is a cache, never the only copy.

Jobs that run at once share a process by turns. One whose folder is gone has ended.
"""


def worker_of(job: str, context: Broadcast[bytes]) -> Worker:
    if job not in _workers:
        for ended in [name for name, each in _workers.items() if not Path(place(each.context.local)).exists()]:
            let_go(_workers.pop(ended).context.local)
        made: JobContext = unpickled(context.value)
        claim(made.local)
        _workers[job] = Worker(made, folders=lambda folder: open_files(node_folder(folder)))
    return _workers[job]


@dataclass(frozen=True)
class Ingest:
    """The first level of a live epoch. ``sources``: each source's column of the batch, None when it is all of it.

    ``whole``: rows come as they are, else as partial groups, each of which stands for many.
    """

    job: str
    context: Broadcast[bytes]
    parts: SlotParts
    schema: bytes
    sources: Mapping[str, str | None]
    ends: bool
    watermark: int | None
    whole: bool = True

    def __call__(self, index: int, messages: Iterable[bytes]) -> Iterable[bytes]:
        plan = self.parts.of(index).plan
        blocks, notes = self.read(plan, index, messages)
        return bundles(plan, 0, blocks, written(notes))

    def read(self, plan: RunPlan, index: int, messages: Iterable[bytes]) -> tuple[Sequence[Block], list[Note]]:
        """What the sources send on of these rows, once it is in the journal, and what there is to note."""
        worker = worker_of(self.job, self.context)
        assert plan.ingest is not None
        since = time.perf_counter()
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        batches = [pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages]
        came, read = pa.Table.from_batches(batches, schema), None
        if not self.whole:
            came, read = uncombined(came)
        keep = None if plan.allowed is None else -(-plan.allowed // max(1, plan.pieces[plan.ingest]))
        rows = came if keep is None else sample(came, keep)
        shares = {name: rows if column is None else _own(rows, column) for name, column in self.sources.items()}
        took = time.perf_counter() - since
        made = worker.ingest(plan, index, shares, self.ends, came.num_rows - rows.num_rows, self.watermark, read)
        notes = [_noted(report) for report in made.reports]
        counts = {"read": came.num_rows if read is None else read, "sent": sum(each.rows for each in made.blocks)}
        notes.append({**counts, "reading": took + made.took})
        if made.entry is not None:
            notes.append({"piece": index, **made.entry.to_json()})
        return made.blocks, notes


@dataclass(frozen=True)
class Warm:
    """What every first task in a process does, and whether the store is here at all: one line if it is not."""

    job: str
    context: Broadcast[bytes]
    place: str

    def __call__(self, _: int, records: Iterable[bytes]) -> Iterable[bytes]:
        read(records)
        if wrong := misplaced(self.place):
            raise Misplaced(wrong)  # another's answer says nothing of this one
        worker = worker_of(self.job, self.context)
        try:
            worker.store.check_marker(worker.context.marker)
        except HoldfastError as error:
            return [f"{socket.gethostname()}: {error}".encode()]
        return [b""]


@dataclass(frozen=True)
class Clean:
    """The job has ended: what it left on this machine goes."""

    job: str
    context: Broadcast[bytes]

    def __call__(self, _: int, records: Iterable[bytes]) -> Iterable[bytes]:
        read(records)
        worker = worker_of(self.job, self.context)
        shutil.rmtree(place(worker.context.local), ignore_errors=True)
        return []


@dataclass(frozen=True)
class ReadJournal:
    """The first level of a replay: the parts of its epochs, dealt over its partitions."""

    job: str
    context: Broadcast[bytes]
    parts: SlotParts

    def __call__(self, index: int, records: Iterable[bytes]) -> Iterable[bytes]:
        read(records)
        worker, part = worker_of(self.job, self.context), self.parts.of(index)
        blocks: list[Block] = []
        for epoch, piece in part.reads:
            try:
                blocks += worker.journalled(epoch, piece, part.plan.shape)
            except HoldfastError as error:
                why = {"unreadable": f"epoch {epoch.epoch} of the journal: {error}"}
                return bundles(part.plan, 0, [], written([why]))
        return bundles(part.plan, 0, blocks, NOTHING)


@dataclass(frozen=True)
class Level:
    """A level of works. The last one sends what everybody noted to the driver."""

    job: str
    context: Broadcast[bytes]
    parts: SlotParts
    number: int

    def __call__(self, index: int, arrived: Iterable[bytes]) -> Iterable[bytes]:
        worker, part = worker_of(self.job, self.context), self.parts.of(index)
        plan, slot = part.plan, part.slot
        blocks: list[Block] = []
        before: list[bytes] = []
        for bundle in arrived:
            found, said = opened(bundle)
            blocks += found
            before.append(said)
        if wrong := misplaced(slot.place):
            sent, reports = blocks, [_elsewhere(work, wrong) for work in slot.works]
        else:
            sent, reports = worker.work(plan, slot, blocks)
        notes = together([*before, written(map(_noted, reports))])
        if self.number + 1 == len(plan.widths):
            return [notes]
        return bundles(plan, self.number + 1, sent, notes)


@dataclass(frozen=True)
class Alone:
    """A small epoch, all of it in one task: it reads the batch and carries out the one slot of the one level.

    What the sources send never leaves the process. ``ingest`` has the part of the plan that the slot has.
    """

    ingest: Ingest

    def __call__(self, _: int, messages: Iterable[bytes]) -> Iterable[bytes]:
        part = self.ingest.parts.of(0)
        blocks, notes = self.ingest.read(part.plan, 0, messages)
        worker = worker_of(self.ingest.job, self.ingest.context)
        _none, reports = worker.work(part.plan, part.slot, blocks)
        return [written([*notes, *map(_noted, reports)])]


@dataclass(frozen=True)
class Save:
    """Checkpoint the tasks of each place: what each partition has to bring to the store."""

    job: str
    context: Broadcast[bytes]
    wanted: Sequence[Sequence[Upload]]
    places: Sequence[str]

    def __call__(self, index: int, records: Iterable[bytes]) -> Iterable[bytes]:
        read(records)
        if wrong := misplaced(self.places[index]):
            saved = Saved({}, {}, wrong)
        else:
            saved = worker_of(self.job, self.context).save(self.wanted[index])
        return [json.dumps(saved.to_json()).encode()]


@dataclass(frozen=True)
class Fold:
    """Make chains of checkpoint files shorter: each record has one, as JSON. Anywhere: it takes the store alone."""

    job: str
    context: Broadcast[bytes]

    def __call__(self, _: int, records: Iterable[bytes]) -> Iterable[bytes]:
        worker = worker_of(self.job, self.context)
        for record in records:
            task, chain = json.loads(record)
            files = worker.fold(task, [FileEntry.from_json(entry) for entry in chain])
            yield json.dumps([task, [entry.to_json() for entry in files]]).encode()


def read(records: Iterable[bytes]) -> None:
    """Take all that there is, though it is nothing: a Python worker that leaves something unread is not used again.

    The next task on that executor would begin with a new process, without imports and without states in memory.
    """
    for _ in records:
        pass


def written(notes: Iterable[Note]) -> bytes:
    return json.dumps(list(notes)).encode()


def together(texts: Iterable[bytes]) -> bytes:
    """Lists of notes as one. They are not read on the way: a level has those of all levels before it."""
    return b"[" + b",".join(said for text in texts if (said := text.strip()[1:-1])) + b"]"


def bundles(plan: RunPlan, level: int, blocks: Iterable[Block], notes: bytes) -> list[bytes]:
    """One bundle for each slot of a level; the notes, in JSON, travel with the first."""
    result = []
    for number, share in enumerate(plan.spread(blocks, level)):
        text = notes if number == 0 else NOTHING
        padded = text + b" " * (-(4 + len(text)) % ALIGNED)
        result.append(pack(share, struct.pack("<I", len(padded)) + padded))
    return result


def opened(bundle: bytes) -> tuple[list[Block], bytes]:
    (length,) = struct.unpack_from("<I", bundle)
    view = memoryview(bundle)
    return unpack(view[4 + length :]), bytes(view[4 : 4 + length])


def result_of(notes: Sequence[Note], task: Callable[[str], Task]) -> RunResult:
    """What workers noted, as the driver hears it; Unrecoverable if the journal could not be read."""
    if unreadable := next((note["unreadable"] for note in notes if "unreadable" in note), None):
        raise Unrecoverable(unreadable)
    pieces = {note.pop("piece"): FileEntry.from_json(note) for note in notes if "piece" in note}
    reports = tuple(_report(note, task) for note in notes if "status" in note)
    return RunResult(reports, tuple(pieces[number] for number in sorted(pieces)))


def _elsewhere(work: Work, why: str) -> Report:
    """Of a work that was not begun."""
    return Report(work.task, work.lane, work.node, "misplaced", work.start, message=why)


def _noted(report: Report) -> Note:
    """Field by field: ``asdict`` copies all that is in them, which takes as long as a small work."""
    note = {each.name: getattr(report, each.name) for each in fields(report)}
    outputs = {epoch: asdict(staged) for epoch, staged in report.outputs.items()}
    return {**note, "task": str(report.task), "outputs": outputs}


def _report(note: Mapping[str, Any], task: Callable[[str], Task]) -> Report:
    outputs = {int(epoch): StagedOutput.from_json(staged) for epoch, staged in note["outputs"].items()}
    return Report(**{**note, "task": task(note["task"]), "outputs": outputs})


def _own(rows: pa.Table, column: str) -> pa.Table:
    """The rows of one source in a batch of several: its column is a struct, null in the rows of others."""
    combined = rows.column(column).combine_chunks()
    mine = combined.filter(combined.is_valid())
    return pa.Table.from_arrays(mine.flatten(), names=[field.name for field in mine.type])
