"""Large files of checkpoints in pages, so that keys can be looked up in one without reading all of it.

A page is a record batch of some rows, which are sorted by hash; rows with one hash are in one page. A directory before
the file's footer says of each page where it is, its first hash and its checksum, and the manifest has the directory's
checksum: whatever is read is proven. Who needs more than look-ups reads the whole file, proven by its own checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import HoldfastError, Invalid
from holdfast.state.entries import Damaged, FileEntry, Span, checksum
from holdfast.state.ipc import (
    ALIVE,
    METADATA,
    PLAIN,
    Unreadable,
    decode_batch,
    encode_batch,
    note_bytes,
    room_for,
    run_batch,
    run_of,
    schema_of,
)
from holdfast.state.keys import Hashes
from holdfast.state.ranges import RING, KeyRange
from holdfast.state.run import Keys, Positions, SortedRun
from holdfast.state.schema import StateSchema

LARGE = 32 << 20
"""Runs of so many bytes are written in pages, for half as much CPU again; less is read whole in a tenth of a second."""
PAGE = 32 << 10
"""Bytes of a page, about. One is read for each key that is far from others, and each has 300 bytes of its own."""
MOST = 0.5
"""Once so much of a file would have been read, requests counted by the bytes that come meanwhile, all of it is."""
WIDER, HEAD = 2, 1 << 10
"""Pages may take so many times the room of a file that is one, not counting so many bytes for the head of each."""
CHECKED = 1024
"""So many pages at once are checked."""
COLUMNS = b"columns"
DIRECTORY = pa.schema(
    [
        pa.field("first", pa.uint64(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("checksum", pa.binary(16), nullable=False),
    ]
)
_UNREADABLE = Unreadable, Invalid, pa.ArrowException, OSError, KeyError, ValueError, TypeError, OverflowError
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


def encode(schema: StateSchema, run: SortedRun, about: Mapping[str, Any]) -> tuple[pa.Buffer, Span] | None:
    """A run as an Arrow IPC file in pages, and where its directory is; None where pages would take much more room.

    As with views of lists: Arrow writes all that they are views of with each page; dictionaries it writes apart.
    """
    batch, cuts = run_batch(schema, run, about), _cuts(run)
    parts = [batch.slice(start, stop - start) for start, stop in pairwise(cuts.tolist())]
    if "dictionary<" in str(batch.schema):
        return None
    room = sum(map(pa.ipc.get_record_batch_size, parts)) - HEAD * len(parts)
    if room > WIDER * pa.ipc.get_record_batch_size(batch):
        return None
    data = room_for(parts)
    written, sink = memoryview(data), pa.FixedSizeBufferWriter(data)
    ends = []
    with pa.ipc.new_file(sink, batch.schema, options=PLAIN) as writer:
        for part in parts:
            writer.write_batch(part)
            ends.append(sink.tell())
        # The schema lies before the first page.
        starts = [ends[0] - pa.ipc.get_record_batch_size(parts[0]), *ends[:-1]]
        sums = [hashlib.sha256(written[start:end]).digest()[:16] for start, end in zip(starts, ends, strict=True)]
        spans = np.subtract(ends, starts)
        note = {"kind": "pages", "key": schema.key.names, "last": int(run.hashes[-1]), **about}
        named = DIRECTORY.with_metadata({METADATA: note_bytes(note), COLUMNS: batch.schema.serialize().to_pybytes()})
        columns = [run.hashes[cuts[:-1]], starts, spans, np.diff(cuts), sums]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, named, strict=True)]
        directory = encode_batch(pa.RecordBatch.from_arrays(arrays, schema=named))
        # Who reads a file from its beginning stops here; others find the pages by the footer.
        sink.write(_END_OF_STREAM)
        span = Span(sink.tell(), directory.size, checksum(directory))
        sink.write(directory)
    return data.slice(0, sink.tell()), span


def to_read(size: int, keys: int | None) -> int:
    """Of a table of so many bytes, those that are read to look up so many keys; None: for more than look-ups."""
    return size if keys is None or size < LARGE or keys * PAGE > MOST * size else keys * PAGE


def _cuts(run: SortedRun) -> Positions:
    """Where pages begin, and the end: of about as many bytes each, none between rows of one hash."""
    step = max(1, PAGE * len(run) // max(run.nbytes, 1))
    places = np.arange(step, len(run), step)
    places = np.unique(np.searchsorted(run.hashes, run.hashes[places]))
    return np.concatenate([[0], places[places > 0], [len(run)]])


class Parted(Protocol):
    """Of ``Files``: what gives parts of one."""

    at_once: int
    far: int

    def read_parts(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[pa.Buffer]: ...


class AtHand:
    """A file that has been read."""

    at_once = 1
    far = 0

    def __init__(self, data: pa.Buffer) -> None:
        self._data = data

    def read_parts(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[pa.Buffer]:
        return [self._data.slice(start, size) for start, size in spans]


class PagedFile:
    """A file in pages: those that were asked for are read, proven and kept. Places are those in the whole run.

    ``whole``: reads and proves all of it.
    """

    def __init__(self, files: Parted, task: str, entry: FileEntry, whole: Callable[[], SortedRun]) -> None:
        self.entry = entry
        self._files = files
        self._read_whole = whole
        self._whole: SortedRun | None = None
        self._spent = 0
        self.trouble: HoldfastError | None = None
        """What came in between, until somebody has been told."""
        try:
            self._open(self._directory(), task)
        except _UNREADABLE as error:
            raise Damaged(f"{entry.path}: its directory of pages cannot be read: {error}") from error
        self._batches: list[SortedRun] = []
        self._batch_of = np.full(len(self._first), -1, np.int64)
        self._place_in = np.zeros(len(self._first), np.int64)

    def _directory(self) -> pa.Buffer:
        entry, span = self.entry, self.entry.pages
        assert span is not None
        if span.at < 0 or span.bytes <= 0 or span.at + span.bytes > entry.bytes:
            raise Unreadable(f"it is said to be at {span.at}, {span.bytes} bytes of {entry.bytes}")
        try:
            data = self._files.read_parts(entry.path, [(span.at, span.bytes)])[0]
        except FileNotFoundError:
            raise Damaged(f"{entry.path} is missing") from None
        if data.size != span.bytes or checksum(data) != span.checksum:
            raise Unreadable("it was altered")
        return data

    def _open(self, data: pa.Buffer, task: str) -> None:
        batch, note = decode_batch(data)
        if not batch.schema.equals(DIRECTORY):
            raise Unreadable(f"its columns are {batch.schema.names}")
        if (note.get("task"), note.get("table"), note.get("epoch")) != (str(task), self.entry.table, self.entry.epoch):
            raise Unreadable(f"it is of {note.get('task')} at epoch {note.get('epoch')}")
        self._columns = pa.ipc.read_schema(pa.py_buffer(batch.schema.metadata[COLUMNS]))
        self.schema = schema_of(self._columns, note.get("key"))
        self.buries = ALIVE in self._columns.names
        self._first: Hashes = batch.column("first").to_numpy()
        self._up_to = np.append(self._first[1:] - np.uint64(1), np.uint64(note["last"]))
        self._at: Positions = batch.column("at").to_numpy()
        self._size: Positions = batch.column("bytes").to_numpy()
        self._rows: Positions = batch.column("rows").to_numpy()
        self._sums = batch.column("checksum").to_pylist()
        self._start: Positions = np.cumsum(self._rows) - self._rows
        ascending = bool((self._first[1:] > self._first[:-1]).all() and (self._at[1:] > self._at[:-1]).all())
        inside = bool((self._at >= 0).all() and (self._size > 0).all() and (self._rows > 0).all())
        inside = inside and bool((self._at + self._size <= self.entry.bytes).all())
        if not (len(batch) and ascending and inside) or int(self._rows.sum()) != self.entry.rows:
            raise Unreadable("its pages are not those of this file")

    @property
    def at_hand(self) -> bool:
        return self._whole is not None

    def within(self, part: KeyRange) -> bool:
        """Whether all its rows are in a key range."""
        above = self._first[0] >= np.uint64(part.lo << 32)
        return bool(above and (part.hi == RING or self._up_to[-1] < np.uint64(part.hi << 32)))

    def whole(self) -> SortedRun:
        return self._load() if self._whole is None else self._whole

    def _load(self) -> SortedRun:
        with self._noted():
            self._whole = self._read_whole()
        self._batches.clear()
        return self._whole

    def find(self, keys: Keys) -> Positions:
        """The row of each key, or -1."""
        page = np.searchsorted(self._first, keys.hashes, "right") - 1
        if self._whole is None:
            self._bring(np.unique(page[page >= 0]))
        if self._whole is not None:
            return self._whole.find(keys)
        answer = np.full(len(page), -1, np.int64)
        batches = np.where(page >= 0, self._batch_of[page], -1)
        for number in np.unique(batches[batches >= 0]).tolist():
            mine = np.flatnonzero(batches == number)
            at = self._batches[number].find(keys.at(mine))
            mine, at = mine[at >= 0], at[at >= 0]
            answer[mine] = at - self._place_in[page[mine]] + self._start[page[mine]]
        return answer

    def parts(self, places: Positions) -> list[tuple[SortedRun, Positions, Positions]]:
        """What is at hand of these places: each run, which of the places are in it, and their places there."""
        if self._whole is not None:
            return [(self._whole, np.arange(len(places)), places)]
        page = np.searchsorted(self._start, places, "right") - 1
        self._bring(np.unique(page))
        if self._whole is not None:
            return [(self._whole, np.arange(len(places)), places)]
        batches, there = self._batch_of[page], places - self._start[page] + self._place_in[page]
        wanted = [(number, np.flatnonzero(batches == number)) for number in np.unique(batches).tolist()]
        return [(self._batches[number], mine, there[mine]) for number, mine in wanted]

    def _bring(self, pages: Positions) -> None:
        """Have these pages at hand; all of the file, if that is hardly more to read by now."""
        pages = pages[self._batch_of[pages] < 0]
        if not len(pages):
            return
        requests = max(len(pages), self._files.at_once)
        self._spent += int(self._size[pages].sum()) + requests * self._files.far
        if self._spent > MOST * self.entry.bytes:
            self.whole()
            return
        try:
            run = self._read(pages)
        except Damaged:
            self._load()  # whose own checksum proves it, unless only the way to a part of it is at fault
            return
        except HoldfastError as error:
            self.trouble = error
            raise
        self._batch_of[pages] = len(self._batches)
        self._place_in[pages] = np.cumsum(self._rows[pages]) - self._rows[pages]
        self._batches.append(run)

    def _read(self, pages: Positions) -> SortedRun:
        path = self.entry.path
        spans = list(zip(self._at[pages].tolist(), self._size[pages].tolist(), strict=True))
        try:
            found = self._files.read_parts(path, spans)
        except FileNotFoundError:
            raise Damaged(f"{path} is missing") from None
        for number, data, (at, size) in zip(pages.tolist(), found, spans, strict=True):
            if data.size != size or hashlib.sha256(data).digest()[:16] != self._sums[number]:
                raise Damaged(f"{path} was altered: the checksum of its page at {at} is not the one in its directory")
        try:
            batches = [pa.ipc.read_record_batch(data, self._columns) for data in found]
            run = run_of(self.schema, pa.concat_batches(batches))
        except (Unreadable, pa.ArrowException, OSError) as error:
            raise Damaged(f"{path}: a page cannot be read: {error}") from error
        rows = np.array([len(batch) for batch in batches])
        ends = np.cumsum(rows)
        same = (rows == self._rows[pages]).all() and (run.hashes[ends - rows] == self._first[pages]).all()
        # What lies before the first hash of the next page is in this one, and nothing else.
        if not same or (run.hashes[ends - 1] > self._up_to[pages]).any():
            raise Damaged(f"{path}: a page has other rows than its directory says")
        return run

    def check(self) -> None:
        """Read every page; Damaged if one is not as the directory says."""
        for start in range(0, len(self._first), CHECKED):
            self._read(np.arange(start, min(start + CHECKED, len(self._first))))

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """An operator's function may hide what went wrong, and would answer as if a key were not there."""
        try:
            yield
        except HoldfastError as error:
            self.trouble = error
            raise


class PagedRun(SortedRun):
    """The run of such a file. Look-ups read pages; whoever looks at its rows, keys or tombstones reads all of it."""

    __slots__ = ("_columns", "_file", "_loaded")

    def __init__(self, file: PagedFile, columns: pa.Schema | None = None) -> None:
        self._file = file
        self._columns = file.schema.arrow if columns is None else columns
        self._loaded: SortedRun | None = None
        self._asked = 0
        self._starts = None
        self.indexes = {}

    def __len__(self) -> int:
        return self._file.entry.rows

    @property
    def afar(self) -> bool:
        return not self._file.at_hand

    @property
    def spilled(self) -> bool:  # type: ignore[override]
        """It takes no memory to speak of, until all of it is at hand."""
        return self.afar

    @property
    def rows(self) -> pa.RecordBatch:
        return self.loaded().rows

    @property
    def keys(self) -> Keys:  # type: ignore[override]
        return self.loaded().keys

    @property
    def alive(self) -> NDArray[np.bool_] | None:  # type: ignore[override]
        return self.loaded().alive

    @property
    def key_count(self) -> int:
        return len(self._file.schema.key)

    @property
    def buries(self) -> bool:
        return self._file.buries

    @property
    def nbytes(self) -> int:
        return self._file.entry.bytes if self.afar else self.loaded().nbytes

    def loaded(self) -> SortedRun:
        if self._loaded is None:
            self._loaded = self._file.whole().evolved(self._columns)
        return self._loaded

    def find(self, keys: Keys) -> Positions:
        return self._file.find(keys)

    def lives(self, places: Positions) -> NDArray[np.bool_]:
        lives = np.ones(len(places), np.bool_)
        for run, mine, there in self._file.parts(places) if self.buries else ():
            lives[mine] = run.lives(there)
        return lives

    def values(self, places: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
        valid = np.flatnonzero(np.asarray(places.is_valid()))
        parts = self._file.parts(np.asarray(places.drop_null(), np.int64))
        if not parts:
            return pa.RecordBatch.from_arrays([pa.nulls(len(places), each.type) for each in schema], schema=schema)
        found = pa.concat_batches([run.evolved(self._columns).values(pa.array(at), schema) for run, _, at in parts])
        order = np.full(len(places), -1, np.int64)
        order[valid[np.concatenate([mine for _, mine, _ in parts])]] = np.arange(len(found))
        return found.take(pa.array(order, mask=order < 0))

    def without_tombstones(self) -> SortedRun:
        return self.loaded().without_tombstones() if self.buries else self

    def slice(self, part: KeyRange) -> SortedRun:
        return self if self._file.within(part) else self.loaded().slice(part)

    def evolved(self, schema: pa.Schema) -> SortedRun:
        return self if self._columns.equals(schema) else PagedRun(self._file, schema)

    def tell(self) -> None:
        trouble, self._file.trouble = self._file.trouble, None
        if trouble is not None:
            raise trouble
