"""Verification: read every file of a store and name each one that is torn, truncated, altered, missing or swapped."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import HoldfastError
from holdfast.state import checkpoint as checkpoints
from holdfast.state import cursor, fence, journal, output, shapes
from holdfast.state.checkpoint import Checkpoint
from holdfast.state.entries import HEADER, Damaged, FileEntry, read_document
from holdfast.state.files import Files
from holdfast.state.ipc import same_hashes
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


def verify(store: Store) -> Verification:
    """Read everything that counts. Cost follows the size of the store."""
    seen = _Seen(store.files)
    seen.document("store", HEADER)
    _fences(seen)
    newest, found = fence.inherited(store.files)
    epochs: dict[int, bool] = {}
    for name in checkpoints.manifest_names(store.files, found, newest):
        before = len(seen.findings)
        if (manifest := seen.manifest(name)) is not None:
            for task, chain in manifest.tasks.items():
                for entry in chain:
                    seen.state_file(task, entry)
            epochs[manifest.epoch] = len(seen.findings) == before and not seen.touches(manifest)
    seen.count += 1
    for problem in checkpoints.missing_manifests(store.files, newest):
        seen.found(problem.partition(" ")[0], problem)
    commits = journal.commit_names(store.files, found, newest)
    for name in commits.values():
        _journal_epoch(seen, name)
    # What the oldest checkpoint covers may have been trimmed; from there on the journal has no gaps.
    for epoch in range(min(epochs, default=min(commits, default=0)) + 1, max(commits, default=0)):
        if epoch not in commits:
            path = f"{journal.COMMITS}/{epoch:012d}-*.json"
            seen.found(path, f"{path} is missing: replay needs it, and later epochs are there")
    for name in shapes.names(store.files)[-1:]:
        seen.document("shape", name)
    for name in cursor.names(store.files):
        body = seen.document("cursor", name)
        if body is not None and f"{body.get('token'):010d}-{body.get('number'):010d}.json" != name.rpartition("/")[2]:
            seen.found(name, f"{name} is of writer {body.get('token')}: files were swapped")
    for kind in output.KINDS:
        _outputs(seen, kind)
    return Verification(seen.count, seen.bytes, epochs, tuple(seen.findings))


class _Seen:
    """Files read so far: each is read once, however many checkpoints name it."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.count = 0
        self.bytes = 0
        self.findings: list[Finding] = []
        self._entries: set[str] = set()
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

    def state_file(self, task: str, entry: FileEntry) -> None:
        if not self._new(entry):
            return
        try:
            read = checkpoints.read_run(self.files, task, entry)
            if read is not None and not same_hashes(read[1]):
                self.found(entry.path, f"{entry.path}: the stored hashes are not those of the keys")
        except Damaged as error:
            self.found(entry.path, error)

    def journal_file(self, task: str, entry: FileEntry) -> None:
        if self._new(entry):
            try:
                journal.read(self.files, entry, task)
            except Damaged as error:
                self.found(entry.path, error)

    def _new(self, entry: FileEntry) -> bool:
        if entry.path in self._entries:
            return False
        self._entries.add(entry.path)
        self.count += 1
        self.bytes += entry.bytes
        return True


def _fences(seen: _Seen) -> None:
    names = seen.files.list(fence.FOLDER)
    for name in names:
        kind = "found" if name.endswith(".found.json") else "beat" if name.endswith(".beat") else "claim"
        body = seen.document(kind, f"{fence.FOLDER}/{name}")
        if body is not None and f"{body.get('token'):010d}" != name[:10]:
            seen.found(f"{fence.FOLDER}/{name}", f"{name} is of writer {body.get('token')}: files were swapped")
    # Of older writers the claim alone stays.
    for token in sorted({int(name[:10]) for name in names if name[:10].isdigit()})[-1:]:
        for ending in ("json", "found.json", "beat"):
            if f"{token:010d}.{ending}" not in names:
                seen.found(f"{fence.FOLDER}/{token:010d}.{ending}", f"{token:010d}.{ending} is missing")


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
    for name in seen.files.list(output.sums_folder(kind)):
        if seen.files.size(f"{output.sums_folder(kind)}/{name}"):
            seen.found(f"{output.sums_folder(kind)}/{name}", f"{name} should be empty")
    sums = output.sums(seen.files, kind)
    present = {f"{output.folder(kind)}/{name}" for name in seen.files.list(output.folder(kind))}
    for path in sorted({*present, *sums}):
        if path not in present:
            seen.found(path, f"{path} is missing, though its checksum is there")
            continue
        data = seen.files.read(path)
        seen.count += 1
        seen.bytes += data.size
        # An output without a checksum (another program may have put it there) is as good as it can be read.
        if (wrong := output.problem(data, sums.get(path))) is not None:
            seen.found(path, f"{path} {wrong}")
