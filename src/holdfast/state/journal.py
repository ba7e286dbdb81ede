"""The journal of source epochs: what replay needs. Any worker writes pieces, the writer commits an epoch.

An epoch that is not committed does not exist, and no epoch is passed over: ``Journal`` gives exactly those asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.errors import Invalid, Unrecoverable
from holdfast.state import fence
from holdfast.state.entries import (
    Damaged,
    FileEntry,
    check_store,
    checksum,
    document,
    read_checked,
    read_document,
    store_id,
)
from holdfast.state.files import Files, exists
from holdfast.state.ipc import METADATA, Unreadable, decode_batch, encode_batch, note_bytes
from holdfast.state.names import folder_task, task_folder
from holdfast.state.origin import BatchChanged, Origin
from holdfast.state.ranges import Routing

if TYPE_CHECKING:
    from holdfast.state.store import Store
    from holdfast.state.writer import Writer

FOLDER = "journal"
ROWS = "rows"
"""Under this name pieces have how many rows were read for them, and checkpoints how many all epochs up to them had."""
ORIGIN = "origin"
"""Under this name commits and checkpoints have the batch that their epoch was made of."""
COMMITS = "journal/commits"
_PIECE = re.compile(r"(.+-\d+)-(\d{10})-([0-9a-f]{32})\.arrow")
_RUN = re.compile(r"run-(\d+)-of-(\d+)/(\d+)")
_COMMIT = re.compile(r"(-?\d+)-(\d{10})\.json")
_REMEDY = (
    "put the store back as it was on one day, all of it with its spark/ folder, or start with a new store: going on "
    "would leave out what is missing"
)


class Gap(Unrecoverable):
    """An epoch is not in the journal, though it must be; the message names it and says what to do."""


@dataclass(frozen=True, slots=True)
class JournalEpoch:
    """A committed epoch: its pieces in their order, and who owned which keys when they were cut.

    ``time``: its newest event time in microseconds, if it has any; ``total``: rows of all epochs up to this one.
    ``origin``: the batch it was made of; None for an epoch of a version that kept no origins.
    """

    epoch: int
    pieces: tuple[FileEntry, ...]
    routings: Mapping[str, Routing]
    time: int | None = None
    total: int = 0
    origin: Origin | None = None

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class JournalSpan:
    """Successive epochs, in order; exactly those that were asked for."""

    epochs: tuple[JournalEpoch, ...]


class Journal:
    """The committed epochs that a job knows, back to the oldest checkpoint it may fall back to. For one owner."""

    def __init__(
        self,
        url: str,
        checkpoint: int,
        epochs: Mapping[int, JournalEpoch],
        damaged: Mapping[int, str],
        total: int = 0,
        origin: Origin | None = None,
    ) -> None:
        self._url = url
        self._epochs = dict(epochs)
        self._damaged = dict(damaged)
        self.newest = max(checkpoint, *epochs) if epochs else checkpoint
        """The newest committed epoch, or the checkpoint where there are none beyond it."""
        self.total = epochs[self.newest].total if self.newest in epochs else total
        """Rows of all epochs up to the newest."""
        self.origin = epochs[self.newest].origin if self.newest in epochs else origin
        """The batch that the newest epoch was made of."""

    @classmethod
    def load(cls, store: Store, checkpoint: int) -> Journal:
        """What is committed beyond the oldest retained checkpoint. ``checkpoint``: the newest usable one; -1: none.

        Gap if an epoch between that checkpoint and the newest commit is not there or its commit is damaged.
        """
        files = store.files
        newest, found = fence.inherited(files)
        retained = store.checkpoints()
        oldest = min((one.epoch for one in retained), default=checkpoint)
        extra = next((one.extra for one in retained if one.epoch == checkpoint), {})
        total, origin = int(extra.get(ROWS, 0)), Origin.from_json(extra.get(ORIGIN))
        epochs: dict[int, JournalEpoch] = {}
        damaged: dict[int, str] = {}
        names = commit_names(files, found, newest)
        for name in found["journal"] if found is not None else ():
            epoch = (commit_facts(name) or (-1, 0))[0]
            if epoch > min(oldest, checkpoint) and epoch not in names and exists(files, f"{COMMITS}/{name}"):
                names[epoch] = f"{COMMITS}/{name}"  # a listing may come late
        for epoch, name in names.items():
            if epoch <= min(oldest, checkpoint):
                continue
            try:
                epochs[epoch] = _committed(files, epoch, name)
            except Damaged as error:
                damaged[epoch] = str(error)
        journal = cls(store.url, checkpoint, epochs, damaged, total, origin)
        journal.span(checkpoint + 1, journal.newest)
        return journal

    def span(self, first: int, last: int) -> JournalSpan:
        """Exactly the epochs from ``first`` to ``last``, or Gap with the first one missing: no run passes over any."""
        for epoch in range(first, last + 1):
            if epoch not in self._epochs:
                raise Gap(self._missing(epoch))
        return JournalSpan(tuple(self._epochs[epoch] for epoch in range(first, last + 1)))

    def next(
        self, epoch: int, pieces: tuple[FileEntry, ...], routings: Mapping[str, Routing], time: int | None
    ) -> JournalEpoch:
        """The next epoch as it is to be committed, from its pieces."""
        rows = sum(piece.rows for piece in pieces)
        return JournalEpoch(epoch, pieces, routings, time, self.total + rows)

    def counts(self) -> dict[int, tuple[int, int | None]]:
        """Of each epoch known, rows of all up to it and its newest event time; of the newest one at least."""
        known = {epoch: (held.total, held.time) for epoch, held in self._epochs.items()}
        return known or ({self.newest: (self.total, None)} if self.newest >= 0 else {})

    def rows_upto(self, epoch: int) -> int:
        """Rows of all epochs up to one that is known."""
        return self._epochs[epoch].total if epoch in self._epochs else self.total

    def origin_of(self, epoch: int) -> Origin | None:
        """The batch that an epoch was made of, if that is known."""
        if epoch == self.newest:
            return self.origin
        return self._epochs[epoch].origin if epoch in self._epochs else None

    def check_again(self, epoch: int, again: Origin) -> None:
        """BatchChanged if a batch cannot be this epoch: its number was given to other rows, or does not follow."""
        known = self.origin
        if known is None:
            return
        next_batch = known.batch if again.idle else known.batch + 1
        if epoch == self.newest + 1 and again.batch != next_batch:
            why = f"it comes as epoch {epoch}, but epoch {self.newest} was made of batch {known.batch}"
        elif epoch <= self.newest and again.batch == known.batch and (other := known.differs(again)) is not None:
            why = f"it is planned again, but {other}"
        else:
            return
        raise BatchChanged(
            f"store {self._url}: batch {again.batch} of the source is not the one that the store has: {why}; the "
            f"newest entries of the source's own log (the folder spark/ of the store) were lost or replaced: {_REMEDY}"
        )

    def reaches(self, checkpoint: int) -> bool:
        """Whether everything after a checkpoint can be replayed."""
        return all(epoch in self._epochs for epoch in range(checkpoint + 1, self.newest + 1))

    def append(self, writer: Writer, epoch: JournalEpoch) -> None:
        """Commit the next epoch; it is known once that is durable. May be repeated after a failure."""
        self.commit(writer, epoch)
        self.learn(epoch)

    def commit(self, writer: Writer, epoch: JournalEpoch) -> None:
        """Make the next epoch exist, durably. For any thread: what is known changes by ``learn`` alone."""
        self._check_next(epoch)
        entries = {piece_label(piece): piece for piece in epoch.pieces}
        routings = {operator: routing.to_json() for operator, routing in epoch.routings.items()}
        facts: dict[str, Any] = {"time": epoch.time, "total": epoch.total}
        if epoch.origin is not None:
            facts[ORIGIN] = epoch.origin.to_json()
        writer.journal_commit(epoch.epoch, entries, {"pieces": len(epoch.pieces), "routings": routings, **facts})

    def learn(self, epoch: JournalEpoch) -> None:
        """The next epoch was committed."""
        self._check_next(epoch)
        self._epochs[epoch.epoch] = epoch
        self.newest, self.total, self.origin = epoch.epoch, epoch.total, epoch.origin

    def _check_next(self, epoch: JournalEpoch) -> None:
        if epoch.epoch != self.newest + 1:
            raise Gap(
                f"store {self._url}: epoch {epoch.epoch} cannot follow epoch {self.newest} in the journal, "
                f"{self.newest + 1} must; {_REMEDY}"
            )

    def adopt(
        self, store: Store, token: int, epoch: int, run: int, routings: Mapping[str, Routing]
    ) -> JournalEpoch | None:
        """The next epoch from the pieces that a broken run left, if all are there, one file each, and whole; else None.

        It is not appended yet. Pieces are found by name: ``piece_name(run, piece, of)``, written by ``token``.
        """
        if epoch != self.newest + 1:
            return None
        left: dict[tuple[int, int], list[FileEntry]] = {}
        for name in store.files.list(_epoch_folder(epoch)):
            facts = _PIECE.fullmatch(name)
            label = _RUN.fullmatch(folder_task(facts[1])) if facts is not None else None
            if facts is None or label is None or (int(facts[2]), int(label[1])) != (token, run):
                continue
            path = f"{_epoch_folder(epoch)}/{name}"
            entry = FileEntry(path, store.files.size(path), facts[3], 0, "", epoch)
            left.setdefault((int(label[2]), int(label[3])), []).append(entry)
        counts = {count for count, _ in left}
        pieces = [left.get((count, piece), []) for count in counts for piece in range(count)]
        if len(counts) != 1 or any(len(files) != 1 for files in pieces):
            return None
        try:
            notes = [_piece(store.files, entry, None)[1] for (entry,) in pieces]
        except Damaged:
            return None
        counted = tuple(
            replace(entry, rows=int(note.get(ROWS, 0))) for (entry,), note in zip(pieces, notes, strict=True)
        )
        times = [note["time"] for note in notes if note.get("time") is not None]
        return self.next(epoch, counted, dict(routings), max(times, default=None))

    def forget(self, upto: int) -> None:
        """Epochs up to this one were trimmed."""
        self._epochs = {epoch: held for epoch, held in self._epochs.items() if epoch > upto}
        self._damaged = {epoch: why for epoch, why in self._damaged.items() if epoch > upto}

    def _missing(self, epoch: int) -> str:
        why = f": {self._damaged[epoch]}" if epoch in self._damaged else ""
        there = f"{min(self._epochs)} to {max(self._epochs)}" if self._epochs else "none"
        return f"store {self._url}: epoch {epoch} is not in the journal{why}; epochs there: {there}; {_REMEDY}"


def piece_name(run: int, piece: int, of: int) -> str:
    """The label of a piece of an epoch: which run wrote it, which one it is, and how many there are."""
    return f"run-{run}-of-{of}/{piece}"


def piece_label(entry: FileEntry) -> str:
    """The label under which a piece was written, from its path."""
    match = _PIECE.fullmatch(entry.path.rpartition("/")[2])
    if match is None:
        raise Damaged(f"{entry.path} is no piece of the journal")
    return folder_task(match[1])


def write(
    files: Files,
    epoch: int,
    label: str,
    data: bytes,
    *,
    token: int,
    sync: bool,
    rows: int = 0,
    time: int | None = None,
) -> FileEntry:
    """One piece of an epoch, as an Arrow file with the bytes in its one row; nothing counts until it is committed.

    ``rows``: so many were read for it, the newest of ``time``, in microseconds.
    """
    about = {"kind": "journal", "task": label, "epoch": epoch, ROWS: rows, "time": time, "store": store_id(files)}
    schema = pa.schema([("block", pa.large_binary())], metadata={METADATA: note_bytes(about)})
    ends = pa.array([0, len(data)], pa.int64()).buffers()[1]
    block = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(data)])  # as it lies there
    encoded = encode_batch(pa.RecordBatch.from_arrays([block], schema=schema))
    proof = checksum(encoded)
    path = f"{_epoch_folder(epoch)}/{task_folder(label)}-{token:010d}-{proof}.arrow"
    files.put(path, encoded, sync)
    return FileEntry(path, encoded.size, proof, rows, "", epoch)


def read(files: Files, entry: FileEntry, label: str | None = None) -> bytes:
    """The bytes of a piece, or Damaged. The entry is all that is needed; a ``label`` is compared with the file's."""
    return _piece(files, entry, label)[0]


def _piece(files: Files, entry: FileEntry, label: str | None) -> tuple[bytes, Mapping[str, Any]]:
    """The bytes of a piece and what is noted with them."""
    try:
        batch, note = decode_batch(read_checked(files, entry))
        data = batch.column("block")[0].as_py()
    except (Unreadable, KeyError, IndexError) as error:
        raise Damaged(f"{entry.path}: {error}") from error
    if (note.get("task"), note.get("epoch")) != (label or piece_label(entry), entry.epoch):
        raise Damaged(f"{entry.path} is of {note.get('task')} at epoch {note.get('epoch')}: files were swapped")
    check_store(files, entry.path, note.get("store"))
    return bytes(data), note


def commit(
    files: Files, epoch: int, entries: Mapping[str, FileEntry], *, token: int, sync: bool, extra: Mapping[str, Any]
) -> None:
    pieces = {label: entry.to_json() for label, entry in entries.items()}
    content = {"epoch": epoch, "token": token, "tasks": pieces, "extra": dict(extra)}
    name, data = commit_name(epoch, token), document(files, "journal", content)
    try:
        files.create(name, data, sync)
    except FileExistsError:
        # Nobody else has our token: it is an earlier try of ours, with other pieces, that was taken for refused.
        files.put(name, data, sync)


def commit_name(epoch: int, token: int) -> str:
    return f"{COMMITS}/{epoch:012d}-{token:010d}.json"


def commit_facts(name: str) -> tuple[int, int] | None:
    """Epoch and token in a commit's name; None for a file that is none."""
    match = _COMMIT.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def piece_token(name: str) -> int:
    """The token in a piece's name; 0 for a file that is none."""
    match = _PIECE.fullmatch(name)
    return int(match[2]) if match else 0


def commit_names(files: Files, found: Mapping[str, Any] | None, newest: int) -> dict[int, str]:
    """For each committed epoch the name of its commit that counts."""
    best: dict[int, tuple[int, str]] = {}
    for name in files.list(COMMITS):
        if (match := _COMMIT.fullmatch(name)) is None:
            continue
        epoch, token = int(match[1]), int(match[2])
        if token < newest and found is not None and name not in found["journal"]:
            continue
        best[epoch] = max(best.get(epoch, (-1, "")), (token, name))
    return {epoch: f"{COMMITS}/{best[epoch][1]}" for epoch in sorted(best)}


def late_commits(files: Files, listed: Mapping[int, str], token: int) -> dict[int, str]:
    """Those listed, and those of the writer before ``token`` that a listing does not have yet: asked for by name."""
    found = dict(listed)
    epoch = max(found, default=-1) + 1
    missing = sorted(set(range(min(found, default=0), epoch)) - found.keys())
    for each in missing:
        if exists(files, name := commit_name(each, token - 1)):
            found[each] = name
    while exists(files, name := commit_name(epoch, token - 1)):
        found[epoch] = name
        epoch += 1
    return found


def read_commit(files: Files, name: str) -> tuple[dict[str, FileEntry], dict[str, Any]]:
    """The pieces and the extra of a committed epoch, or Damaged."""
    body = read_document(files, "journal", name)
    if commit_name(body["epoch"], body["token"]) != name:
        raise Damaged(f"{name} is of epoch {body['epoch']}: files were swapped")
    try:
        return {label: FileEntry.from_json(entry) for label, entry in body["tasks"].items()}, body["extra"]
    except Invalid as error:
        raise Damaged(f"{name}: {error}") from error


def _committed(files: Files, epoch: int, name: str) -> JournalEpoch:
    entries, extra = read_commit(files, name)
    if odd := [label for label in entries if not label.rpartition("/")[2].isdecimal()]:
        raise Damaged(f"{name} names what is no piece of an epoch: {odd[0]!r:.60}")
    order = sorted(entries, key=lambda label: int(label.rpartition("/")[2]))
    if len(order) != extra.get("pieces", len(order)):
        raise Damaged(f"{name} names {len(order)} pieces of {extra['pieces']}")
    try:
        routings = {operator: Routing.from_json(each) for operator, each in extra.get("routings", {}).items()}
    except Invalid as error:
        raise Damaged(f"{name}: {error}") from error
    pieces = tuple(entries[label] for label in order)
    total, origin = int(extra.get("total", 0)), Origin.from_json(extra.get(ORIGIN))
    return JournalEpoch(epoch, pieces, routings, extra.get("time"), total, origin)


def _epoch_folder(epoch: int) -> str:
    return f"{FOLDER}/{epoch:012d}"
