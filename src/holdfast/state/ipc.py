"""Runs as Arrow IPC files and back: the row columns, then ``__hash`` and, where there are tombstones, ``__alive``.

Any Arrow reader opens these files. Their schema metadata says whose state they hold and which epochs they cover.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.state.files import Unusable
from holdfast.state.keys import hash64
from holdfast.state.run import SortedRun
from holdfast.state.schema import StateSchema

HASH = "__hash"
ALIVE = "__alive"
METADATA = b"holdfast"
ROOMY = 1 << 20
"""Batches of so many bytes are encoded in memory that is there from the start: to make room is most of the work."""
PLAIN = pa.ipc.IpcWriteOptions()
"""Made once: what is written is small, and Arrow would look for its defaults in the environment every time."""


class Unreadable(Exception):
    """These bytes are not a run; the message says why. Callers turn it into words about the file."""


def encode_run(schema: StateSchema, run: SortedRun, about: Mapping[str, Any]) -> pa.Buffer:
    """One Arrow IPC file in memory; ``about`` is JSON kept in the schema's metadata."""
    return encode_batch(run_batch(schema, run, about))


def run_batch(schema: StateSchema, run: SortedRun, about: Mapping[str, Any]) -> pa.RecordBatch:
    """The columns of a run's file."""
    fields = [*run.rows.schema, pa.field(HASH, pa.uint64(), nullable=False)]
    columns = [*run.rows.columns, pa.array(run.hashes)]
    if run.alive is not None:
        fields.append(pa.field(ALIVE, pa.bool_(), nullable=False))
        columns.append(pa.array(run.alive))
    note = note_bytes({"key": schema.key.names, **about})
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata={METADATA: note}))


def encode_note(about: Mapping[str, Any]) -> pa.Buffer:
    """An Arrow IPC file without columns: only what it says about itself."""
    return encode_batch(pa.RecordBatch.from_arrays([], schema=pa.schema([], metadata={METADATA: note_bytes(about)})))


def note_bytes(about: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": 1, **about}, sort_keys=True, allow_nan=False).encode()


def encode_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """A record batch as an Arrow IPC file in memory."""
    # Dictionaries inside of other columns are written apart: their room is not known.
    if batch.nbytes >= ROOMY and "dictionary<" not in str(batch.schema):
        room = room_for([batch])
        with pa.FixedSizeBufferWriter(room) as sink:
            with pa.ipc.new_file(sink, batch.schema, options=PLAIN) as writer:
                writer.write_batch(batch)
            return room.slice(0, sink.tell())
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=PLAIN) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def room_for(batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
    """Memory for an Arrow IPC file of these batches and a few words for each: it need not grow."""
    sizes = sum(map(pa.ipc.get_record_batch_size, batches))
    return pa.allocate_buffer(sizes + 256 * len(batches) + 4 * batches[0].schema.serialize().size + (1 << 16))


def decode_batch(data: pa.Buffer | bytes, several: bool = False) -> tuple[pa.RecordBatch, dict[str, Any]]:
    """The batch of an Arrow IPC file (without a copy) and what its metadata says; ``several`` are put together."""
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data) if isinstance(data, bytes) else data)
        count = reader.num_record_batches
        if count != 1 and not (several and count):
            raise Unreadable(f"expected one record batch, found {count}")
        batch = reader.get_batch(0) if count == 1 else pa.concat_batches([reader.get_batch(n) for n in range(count)])
        note = json.loads((batch.schema.metadata or {})[METADATA])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise Unreadable(f"not an Arrow IPC file of Holdfast ({error})") from error
    if not isinstance(note, dict) or note.get("format") != 1:
        raise Unreadable(f"format {note.get('format') if isinstance(note, dict) else note!r}, expected 1")
    return batch, note


def decode_run(data: pa.Buffer | bytes, spilled: bool = False) -> tuple[StateSchema, SortedRun, dict[str, Any]]:
    """What ``encode_run`` wrote, or ``pages.encode``. Columns are views of ``data`` if it is one batch."""
    batch, note = decode_batch(data, several=True)
    schema = schema_of(batch.schema, note.get("key"))
    return schema, run_of(schema, batch, spilled), note


def schema_of(columns: pa.Schema, key: object) -> StateSchema:
    """The state's schema, from the columns of a run's file and the key in its metadata."""
    names = columns.names
    if not isinstance(key, list) or HASH not in names or names[: len(key)] != key:
        raise Unreadable("the key columns are not where the metadata says")
    fields = list(columns)[: names.index(HASH)]
    return StateSchema(pa.schema(fields[: len(key)]), pa.schema(fields[len(key) :]))


def run_of(schema: StateSchema, batch: pa.RecordBatch, spilled: bool = False) -> SortedRun:
    """The run in the columns of its file."""
    rows = pa.RecordBatch.from_arrays(batch.columns[: len(schema.arrow)], schema=schema.arrow)
    hashes = batch.column(HASH).to_numpy(zero_copy_only=True)
    if len(hashes) > 1 and not bool((hashes[1:] >= hashes[:-1]).all()):
        raise Unreadable("rows are not in the order of their hashes")
    alive = batch.column(ALIVE).to_numpy(zero_copy_only=False) if ALIVE in batch.schema.names else None
    return SortedRun(rows, hashes, len(schema.key), alive, spilled)


def spill(schema: StateSchema, run: SortedRun, directory: Path) -> SortedRun:
    """The same run, read from local disk through the page cache instead of held in memory."""
    batch = run_batch(schema, run, {"kind": "spill"})
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, prefix="spill-", suffix=".arrow") as file:
            # Straight to the file: memory is short, and a copy of the run there would double it.
            with pa.OSFile(file.name, "wb") as sink, pa.ipc.new_file(sink, batch.schema, options=PLAIN) as writer:
                writer.write_batch(batch)
            # The mapping keeps the file's blocks until the run is gone; its name goes now, so no crash leaves it.
            data = pa.memory_map(file.name).read_buffer()
    except OSError as error:
        raise Unusable(f"spill to {directory}: {run.nbytes:,} bytes cannot be written: {error.strerror}") from error
    return decode_run(data, spilled=True)[1]


def same_hashes(run: SortedRun) -> bool:
    """Whether the stored hashes are those of the stored keys."""
    return bool(np.array_equal(hash64(run.keys.columns, len(run)), run.hashes))
