"""Checksums of outputs: one document for all outputs of an epoch that are placed together, put down before they are.

The documents of an epoch are numbered, so that whoever has an output finds its proof by name, without a listing. Before
there were documents each checksum had an empty file, and all that it says is in the name; those are read as ever.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count

from holdfast.state.entries import AnotherStore, Damaged, check_store, document, parse_document
from holdfast.state.files import Durable, Files, exists
from holdfast.state.names import folder_task, task_folder

KIND = "sums"
Key = tuple[int, str]
"""An epoch and a task."""
_DOCUMENT = re.compile(r"(-?\d+)-(\d+)\.json")
_EMPTY = re.compile(r"(-?\d+)-(.+-\d+)-([0-9a-f]{32})")
_TASK = re.compile(r".+/\d+")


def folder(kind: str) -> str:
    return f"output/sums/{kind}"


def put_down(files: Files, kind: str, epoch: int, proofs: Mapping[str, str], sync: Durable) -> None:
    """What the outputs of these tasks in an epoch must be to be whole. The same again is the same document."""
    data = document(files, KIND, {"kind": kind, "epoch": epoch, "sums": dict(proofs)})
    for number in count():
        try:
            files.create(_name(kind, epoch, number), data, sync)
            return
        except FileExistsError:  # of other outputs of this epoch, which were placed apart from these
            continue


class Sums:
    """What was put down, for as long as a piece of work takes: each document is read once.

    ``damaged``: documents that say nothing any more, and why. For any thread: to read a document twice does no harm.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._known: dict[tuple[str, int], dict[str, set[str]]] = {}
        self._unread: dict[tuple[str, int], int | None] = {}
        self.damaged: dict[str, str] = {}

    def prove(self, kind: str, epoch: int, task: str, proof: str) -> bool:
        """Whether this checksum was put down for an output. Asked for by name: a listing may be long, or come late."""
        known = self._known.setdefault((kind, epoch), {})
        while proof not in known.get(task, ()):
            number = self._unread.get((kind, epoch), 0)
            if number is None:
                return exists(self._files, f"{folder(kind)}/{epoch:012d}-{task_folder(task)}-{proof}")
            there = self._learn(kind, epoch, _name(kind, epoch, number))
            self._unread[kind, epoch] = number + 1 if there else None
        return True

    def of(self, kind: str, epoch: int, task: str) -> set[str] | None:
        """All that was put down for an output; None if nothing was. Lists."""
        return self.list(kind, epoch, epoch).get((epoch, task))

    def list(self, kind: str, first: int | None = None, last: int | None = None) -> Mapping[Key, set[str]]:
        """All that was put down for outputs of these epochs."""
        epochs = set()
        for epoch, name in names(self._files, kind, first, last):
            epochs.add(epoch)
            if match := _EMPTY.fullmatch(name):
                self._known.setdefault((kind, epoch), {}).setdefault(folder_task(match[2]), set()).add(match[3])
            else:
                self._learn(kind, epoch, f"{folder(kind)}/{name}")
        told = ((epoch, self._known.get((kind, epoch), {})) for epoch in sorted(epochs))
        return {(epoch, task): proofs for epoch, known in told for task, proofs in known.items()}

    def _learn(self, kind: str, epoch: int, path: str) -> bool:
        """Read a document; False if it is not there."""
        try:
            said = _read(self._files, kind, path)
        except FileNotFoundError:
            return False
        except Damaged as error:
            self.damaged[path] = str(error)
            return True
        known = self._known.setdefault((kind, epoch), {})
        for task, proof in said.items():
            known.setdefault(task, set()).add(proof)
        return True


def names(files: Files, kind: str, first: int | None = None, last: int | None = None) -> list[tuple[int, str]]:
    """The files with checksums of these epochs, each with its epoch."""
    found = []
    for name in files.list(folder(kind)):
        if match := _DOCUMENT.fullmatch(name) or _EMPTY.fullmatch(name):
            epoch = int(match[1])
            if (first is None or epoch >= first) and (last is None or epoch <= last):
                found.append((epoch, name))
    return found


def problem(files: Files, kind: str, name: str) -> str | None:
    """What is wrong with a file of the folder of checksums; None if nothing is."""
    path = f"{folder(kind)}/{name}"
    if _DOCUMENT.fullmatch(name) is None:
        return f"{name} should be empty" if files.size(path) else None
    try:
        _read(files, kind, path)
    except (AnotherStore, Damaged) as error:
        return str(error)
    return None


def _read(files: Files, kind: str, path: str) -> Mapping[str, str]:
    """What a document says: of each task the checksum of its output. Damaged if it is not whole, or is another's."""
    body = parse_document(files.url, KIND, path, bytes(files.read(path)))
    check_store(files, path, body.get("store"))
    if body["kind"] != kind or not path.startswith(f"{folder(kind)}/{body['epoch']:012d}-"):
        raise Damaged(f"{path} is of {body['kind']} outputs of epoch {body['epoch']}: files were swapped")
    if odd := [task for task in body["sums"] if not _TASK.fullmatch(task)]:
        raise Damaged(f"{path} has a checksum of what is no task: {odd[0]!r:.60}")
    said: Mapping[str, str] = body["sums"]
    return said


def _name(kind: str, epoch: int, number: int) -> str:
    return f"{folder(kind)}/{epoch:012d}-{number}.json"
