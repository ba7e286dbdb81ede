"""Verification: read every file of a store and name each one that is damaged, missing, swapped or of another store.

Documents are few and read first. The files they name, and outputs, are read by several threads at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from holdfast.errors import HoldfastError
from holdfast.state import checkpoint as checkpoints
from holdfast.state import cursor, fence, journal, output, shapes, signature, sums
from holdfast.state.checkpoint import Checkpoint
from holdfast.state.entries import HEADER, SPARK_LOG, AnotherStore, FileEntry, numbered_names, read_document
from holdfast.state.files import Files, exists
from holdfast.state.store import Store


@dataclass(frozen=True, slots=True)
class Finding:
    """A damaged file and what is wrong with it."""

    path: str
    problem: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What was read and what was found. ``checkpoints``: each epoch, and whether all of it is whole."""

    files: int
    bytes: int
    checkpoints: dict[int, bool]
    findings: tuple[Finding, ...]

    @property
    def whole(self) -> bool:
        return not self.findings


def verify(
    store: Store, workers: int | None = None, progress: Callable[[int, int], None] = lambda done, of: None
) -> Verification:
    """Read everything that counts. Cost follows the size of the store.

    ``workers``: files read at once, as many as there are processors when None. ``progress`` is called with how many
    files have been read, and of how many.
    """
    seen = _Seen(store.files)
    seen.document("store", HEADER)
    _fences(seen)
    try:
        newest, found = fence.inherited(store.files)
    except AnotherStore:  # its name is told already
        newest, found = fence.newest_token(store.files), None
    manifests: list[Checkpoint] = []
    for name in checkpoints.manifest_names(store.files, found, newest):
        if (manifest := seen.manifest(name)) is not None:
            manifests.append(manifest)
            for task, chain in manifest.tasks.items():
                for entry in chain:
                    seen.state_file(task, entry)
    _index(seen, newest)
    commits = journal.commit_names(store.files, found, newest)
    for name in commits.values():
        _journal_epoch(seen, name)
    # What the oldest checkpoint covers may have been trimmed; from there on the journal has no gaps.
    oldest = min((one.epoch for one in manifests), default=min(commits, default=0))
    for epoch in range(oldest + 1, max(commits, default=0)):
        if epoch not in commits:
            path = f"{journal.COMMITS}/{epoch:012d}-*.json"
            seen.found(path, f"{path} is missing: replay needs it, and later epochs are there")
    for kind in (shapes.KIND, signature.KIND):
        for name in numbered_names(store.files, kind)[-1:]:
            seen.document(kind, name)
    for name in numbered_names(store.files, cursor.FOLDER):
        body = seen.document("cursor", name)
        if body is not None and f"{body.get('token'):010d}-{body.get('number'):010d}.json" != name.rpartition("/")[2]:
            seen.found(name, f"{name} is of writer {body.get('token')}: files were swapped")
    for kind in cursor.PLAIN:
        for _, name in cursor.of_writers(store.files, kind)[-1:]:
            seen.document(kind, name)
    if exists(store.files, SPARK_LOG):
        seen.document("spark-log", SPARK_LOG)
    for kind in output.KINDS:
        _outputs(seen, kind)
    seen.read(workers, progress)
    epochs = {one.epoch: not seen.touches(one) for one in manifests}
    return Verification(seen.count, seen.bytes, epochs, tuple(seen.findings))


class _Seen:
    """Files read so far: each is read once, however many checkpoints name it."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.count = 0
        self.bytes = 0
        self.findings: list[Finding] = []
        self._entries: set[str] = set()
        self._unread: list[tuple[str, Callable[[], str | None]]] = []
        self._bad: set[str] = set()

    def found(self, path: str, problem: object) -> None:
        self.findings.append(Finding(path, str(problem)))
        self._bad.add(path)

    def touches(self, manifest: Checkpoint) -> bool:
        return any(entry.path in self._bad for chain in manifest.tasks.values() for entry in chain)

    def document(self, kind: str, name: str) -> dict[str, object] | None:
        self.count += 1
        try:
            return read_document(self.files, kind, name)
        except HoldfastError as error:
            self.found(name, error)
            return None

    def manifest(self, name: str) -> Checkpoint | None:
        self.count += 1
        try:
            return checkpoints.read_manifest(self.files, name)
        except HoldfastError as error:
            self.found(name, error)
            return None

    def later(self, path: str, size: int, problem: Callable[[], str | None]) -> None:
        """A file that is yet to be read, by a function that says what is wrong with it."""
        self.count += 1
        self.bytes += size
        self._unread.append((path, problem))

    def read(self, workers: int | None, progress: Callable[[int, int], None]) -> None:
        """Read all files that were put off, several at once; findings are in the order of the files."""

        def told(problem: Callable[[], str | None]) -> str | None:
            try:
                return problem()
            except HoldfastError as error:
                return str(error)

        with ThreadPoolExecutor(workers or os.cpu_count() or 1, "holdfast-verify") as pool:
            results = pool.map(told, [problem for _, problem in self._unread])
            for done, ((path, _), wrong) in enumerate(zip(self._unread, results, strict=True), 1):
                if wrong is not None:
                    self.found(path, wrong)
                progress(done, len(self._unread))

    def state_file(self, task: str, entry: FileEntry) -> None:
        if self._new(entry):
            self.later(entry.path, entry.bytes, partial(checkpoints.check_run, self.files, task, entry))

    def journal_file(self, task: str, entry: FileEntry) -> None:
        def problem() -> None:
            journal.read(self.files, entry, task)

        if self._new(entry):
            self.later(entry.path, entry.bytes, problem)

    def _new(self, entry: FileEntry) -> bool:
        if entry.path in self._entries:
            return False
        self._entries.add(entry.path)
        return True


def _fences(seen: _Seen) -> None:
    names = seen.files.list(fence.FOLDER)
    for name in names:
        kind = "found" if name.endswith(".found.json") else "beat" if name.endswith(".beat") else "claim"
        body = seen.document(kind, f"{fence.FOLDER}/{name}")
        if body is not None and f"{body.get('token'):010d}" != name[:10]:
            seen.found(f"{fence.FOLDER}/{name}", f"{name} is of writer {body.get('token')}: files were swapped")
    # Of older writers the claim alone stays.
    for token in sorted({int(name[:10]) for name in names if name[:10].isdecimal()})[-1:]:
        for ending in ("json", "found.json", "beat"):
            if f"{token:010d}.{ending}" not in names:
                seen.found(f"{fence.FOLDER}/{token:010d}.{ending}", f"{token:010d}.{ending} is missing")


def _index(seen: _Seen, newest: int) -> None:
    seen.count += 1
    try:
        for problem in checkpoints.missing_manifests(seen.files, newest):
            seen.found(problem.partition(" ")[0], problem)
    except AnotherStore as error:
        seen.found(checkpoints.index_name(newest), error)


def _journal_epoch(seen: _Seen, name: str) -> None:
    seen.count += 1
    try:
        entries, _ = journal.read_commit(seen.files, name)
    except HoldfastError as error:
        seen.found(name, error)
        return
    for task, entry in entries.items():
        seen.journal_file(task, entry)


def _outputs(seen: _Seen, kind: output.Kind) -> None:
    for name in seen.files.list(sums.folder(kind)):
        if (wrong := sums.problem(seen.files, kind, name)) is not None:
            seen.found(f"{sums.folder(kind)}/{name}", wrong)
    known = sums.Sums(seen.files)
    said = {output.output_name(kind, *key) for key in known.list(kind)}
    keys = {path: key for key, path in output.written(seen.files, kind).items()}
    present = {f"{output.folder(kind)}/{name}" for name in seen.files.list(output.folder(kind))}
    for path in sorted({*present, *said}):
        if path not in present:
            seen.found(path, f"{path} is missing, though its checksum is there")
            continue
        read = partial(_output_problem, seen.files, path, kind, keys.get(path), known)
        seen.later(path, seen.files.size(path), read)


def _output_problem(files: Files, path: str, kind: output.Kind, key: sums.Key | None, known: sums.Sums) -> str | None:
    """An output without a checksum (another program may have put it there) is as good as it can be read."""
    data = files.read(path)
    wrong = output.unreadable(data) if key is None else output.problem(data, kind, *key, known)
    return None if wrong is None else f"{path} {wrong}"
