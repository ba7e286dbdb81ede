"""Checkpoints: the files of every task's state at one epoch, named by a manifest that is put in place last.

Here are the values and how they are read; what is written, and in which order, is in store.py and writer.py.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.state import pages
from holdfast.state.change import Change
from holdfast.state.entries import (
    AnotherStore,
    Damaged,
    FileEntry,
    Span,
    check_store,
    checksum,
    parse_document,
    read_bytes,
    read_checked,
    read_document,
)
from holdfast.state.files import Files, exists
from holdfast.state.ipc import Unreadable, decode_run, encode_note, encode_run, same_hashes
from holdfast.state.names import table_label, task_folder
from holdfast.state.ranges import KeyRange, Routing
from holdfast.state.run import SortedRun
from holdfast.state.schema import StateSchema
from holdfast.state.task import TaskState

FOLDER = "checkpoints"
STATE = "state"
_MANIFEST = re.compile(r"(-?\d+)-(\d{10})-(\d{4})\.json")
_FILE = re.compile(r"(-?\d+)-(full|-?\d+)-(\d{10})-[0-9a-f]{32}\.(.*)\.arrow")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of every task at ``epoch``: for each the chain of files, oldest first, that give it."""

    epoch: int
    token: int
    revision: int
    tasks: Mapping[str, tuple[FileEntry, ...]]
    routing: Mapping[str, Routing] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{FOLDER}/{self.epoch:012d}-{self.token:010d}-{self.revision:04d}.json"

    @property
    def nbytes(self) -> int:
        return sum(entry.bytes for chain in self.tasks.values() for entry in chain)

    def chain(self, task: str) -> tuple[FileEntry, ...]:
        try:
            return self.tasks[task]
        except KeyError:
            have = ", ".join(self.tasks) or "none"
            raise Invalid(f"checkpoint {self.epoch}: no task {task!r}, tasks are {have}") from None

    def to_json(self) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "token": self.token,
            "revision": self.revision,
            "tasks": {task: [entry.to_json() for entry in chain] for task, chain in self.tasks.items()},
            "routing": {operator: table.to_json() for operator, table in self.routing.items()},
            "extra": dict(self.extra),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Checkpoint:
        tasks = {task: tuple(FileEntry.from_json(e) for e in chain) for task, chain in body["tasks"].items()}
        routing = {operator: Routing.from_json(table) for operator, table in body["routing"].items()}
        return cls(body["epoch"], body["token"], body["revision"], tasks, routing, body["extra"])


def manifest_names(files: Files, found: Mapping[str, Any] | None, newest: int) -> list[str]:
    """Names of the manifests that count, oldest first, the latest revision of each epoch alone."""
    best: dict[int, tuple[int, int, str]] = {}
    listed = set(files.list(FOLDER))
    with contextlib.suppress(Damaged, AnotherStore):  # what is wrong with it, ``missing_manifests`` says
        # A listing may come late: what the newest writer keeps is asked for by name.
        kept = (
            {str(name) for name in read_document(files, "index", index_name(newest))["manifests"]} if newest else set()
        )
        listed |= {name for name in kept - listed if exists(files, f"{FOLDER}/{name}")}
    for name in listed:
        if (match := _MANIFEST.fullmatch(name)) is None:
            continue
        epoch, token, revision = map(int, match.groups())
        if token < newest and found is not None and name not in found["checkpoints"]:
            continue
        best[epoch] = max(best.get(epoch, (-1, -1, "")), (token, revision, name))
    return [f"{FOLDER}/{best[epoch][2]}" for epoch in sorted(best)]


def index_name(token: int) -> str:
    """Where a writer lists the manifests it keeps, so that a missing one is missed."""
    return f"{FOLDER}/index-{token:010d}.json"


def missing_manifests(files: Files, newest: int) -> list[str]:
    """What is wrong with the newest writer's index, or with what it lists."""
    if not newest:
        return []
    try:
        names = read_document(files, "index", index_name(newest))["manifests"]
    except Damaged as error:
        return [str(error)]
    present = set(files.list(FOLDER))
    gone = [name for name in names if name not in present and not exists(files, f"{FOLDER}/{name}")]
    return [f"{FOLDER}/{name} is missing" for name in gone]


def manifest_facts(name: str) -> tuple[int, int] | None:
    """Epoch and token in a manifest's name; None for a file that is none."""
    match = _MANIFEST.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def read_manifest(files: Files, name: str) -> Checkpoint:
    """The checkpoint of a manifest, or Damaged. One that was read before, with the same bytes, is not parsed again."""
    checkpoint, store = _manifest(files.url, name, read_bytes(files, name))
    check_store(files, name, store)
    return checkpoint


@lru_cache(maxsize=16)
def _manifest(url: str, name: str, data: bytes) -> tuple[Checkpoint, str | None]:
    """The checkpoint of a manifest, and of which store it says it is."""
    try:
        body = parse_document(url, "checkpoint", name, data)
        checkpoint = Checkpoint.from_json(body)
    except Invalid as error:
        raise Damaged(f"{name}: {error}") from error
    if checkpoint.name != name:
        raise Damaged(f"{name} holds the manifest of {checkpoint.name}: files were swapped")
    return checkpoint, body.get("store")


def write_runs(
    files: Files,
    task: str,
    epoch: int,
    since: int | None,
    runs: Mapping[str, tuple[StateSchema, SortedRun]],
    *,
    token: int,
    sync: bool,
) -> list[FileEntry]:
    """One file a table, named by task, epochs, token and content: nobody's file ever takes another's place."""
    entries = []
    for table in sorted(runs) or [""]:
        about = {"kind": "checkpoint", "task": str(task), "table": table, "epoch": epoch, "since": since}
        data, directory = _encoded(runs.get(table), about)
        proof = checksum(data)
        span = "full" if since is None else str(since)
        label = f"{epoch:012d}-{span}-{token:010d}-{proof}.{table_label(table)}.arrow"
        path = f"{STATE}/{task_folder(task)}/{label}"
        files.put(path, data, sync)
        rows = len(runs[table][1]) if runs else 0
        entries.append(FileEntry(path, data.size, proof, rows, table, epoch, since, directory))
    return entries


def _encoded(table: tuple[StateSchema, SortedRun] | None, about: Mapping[str, Any]) -> tuple[pa.Buffer, Span | None]:
    """The bytes of a file, and where the directory of its pages is, if it is large."""
    if table is None:
        return encode_note(about), None
    if len(table[1]) and table[1].nbytes >= pages.LARGE and (paged := pages.encode(*table, about)) is not None:
        return paged
    return encode_run(*table, about), None


def file_facts(name: str) -> tuple[int, int] | None:
    """Epoch and token of a state file, from its name."""
    match = _FILE.fullmatch(name)
    return (int(match[1]), int(match[3])) if match else None


def read_run(files: Files, task: str, entry: FileEntry) -> tuple[StateSchema, SortedRun] | None:
    """The run of a file, checked; None for one that says that there are no tables. Damaged if anything is wrong."""
    return _decoded(task, entry, read_checked(files, entry))


def check_run(files: Files, task: str, entry: FileEntry) -> str | None:
    """What is wrong with a file in which all checksums of the manifest are right; Damaged if they are not."""
    data = read_checked(files, entry)
    if (read := _decoded(task, entry, data)) is None:
        return None
    if entry.pages is not None:
        pages.PagedFile(pages.AtHand(data), task, entry, lambda: read[1]).check()
    return None if same_hashes(read[1]) else f"{entry.path}: the stored hashes are not those of the keys"


def _decoded(task: str, entry: FileEntry, data: pa.Buffer) -> tuple[StateSchema, SortedRun] | None:
    if not entry.table:
        return None
    try:
        schema, run, note = decode_run(data)
    except Unreadable as error:
        raise Damaged(f"{entry.path}: {error}") from error
    if (note.get("task"), note.get("table"), note.get("epoch")) != (str(task), entry.table, entry.epoch):
        raise Damaged(f"{entry.path} is of {note.get('task')} at epoch {note.get('epoch')}: files were swapped")
    return schema, run


def open_run(files: Files, task: str, entry: FileEntry) -> tuple[StateSchema, SortedRun] | None:
    """Like ``read_run``, but pages of a file that has some are read as keys are looked up: Damaged may come then."""
    if entry.pages is None or not entry.table:
        return read_run(files, task, entry)

    def whole() -> SortedRun:
        read = read_run(files, task, entry)
        assert read is not None
        return read[1]

    file = pages.PagedFile(files, task, entry, whole)
    return file.schema, pages.PagedRun(file)


def read_chain(
    files: Files,
    task: str,
    chain: Iterable[FileEntry],
    epoch: int,
    parts: Mapping[str, KeyRange] | None = None,
    touched: bool = False,
) -> TaskState:
    """A task's state from its chain of files. Cost follows the bytes in them.

    ``parts``: tables of which only the keys in a range are wanted; the others are not even put together.
    ``touched``: what of large files is looked up is read when it is.
    """
    state: TaskState | None = None
    steps: dict[tuple[int, int | None], dict[str, Change]] = {}
    for entry in chain:
        step = steps.setdefault((entry.epoch, entry.since), {})
        if (read := (open_run if touched else read_run)(files, task, entry)) is not None:
            schema, run = read
            part = (parts or {}).get(entry.table)
            step[entry.table] = Change.of_run(schema, run if part is None else run.slice(part))
    for (at, since), changes in steps.items():
        if since is None:
            state = TaskState(at)
        if state is None:
            raise Damaged(f"task {task}: its files begin with changes since epoch {since}, without a whole state")
        state = state.apply_stored(changes, at)
    if state is None:
        raise Damaged(f"task {task}: the manifest names no files for it")
    return state if state.epoch == epoch else state.apply({}, epoch)
