"""The durable store: checkpoints, journal and outputs under one path or URL. Any process reads it, and writes files.

What makes a checkpoint or an epoch exist is committed by the one ``Writer`` (writer.py), who holds the fence.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import Invalid, Unrecoverable
from holdfast.state import checkpoint as checkpoints
from holdfast.state import fence, journal, shapes
from holdfast.state.change import Change
from holdfast.state.checkpoint import Checkpoint
from holdfast.state.entries import HEADER, Damaged, FileEntry, read_document
from holdfast.state.fence import Identity
from holdfast.state.files import Files, open_files
from holdfast.state.ranges import KeyRange
from holdfast.state.task import TaskState

if TYPE_CHECKING:
    from holdfast.state.writer import Writer


@dataclass(frozen=True, slots=True)
class Sync:
    """What is forced to the platter before it counts. Without, it survives a process's crash but not a machine's."""

    checkpoints: bool = True
    journal: bool = True
    outputs: bool = True


KEPT = 3
"""Checkpoints retained: should the newest be damaged, an older one does."""


class Store:
    """A store at a local path, any fsspec URL, or in files that are given. Cheap to make; holds no open files.

    ``identity``: who claims it when a writer is asked for; this process if not given. ``options``: for the client of a
    URL, such as credentials; what the environment says if not given.
    """

    def __init__(
        self,
        files: Files | str | os.PathLike[str],
        sync: Sync | None = None,
        clock: Callable[[], float] = time.time,
        identity: Identity | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.files: Files = open_files(files, options) if isinstance(files, str | os.PathLike) else files
        self.url = self.files.url
        self.sync = sync or Sync()
        self.clock = clock
        self.identity = identity

    def writer(
        self, owner: str, *, lease: float = fence.LEASE, force: bool = False, keep: int = KEPT, fold_at: int = 16
    ) -> Writer:
        """Take the fence: Held if another writer is alive, unless ``force``. ``keep``: checkpoints retained.

        ``fold_at``: with a chain of more steps than this a writer ``needs_folding``; 0 for never.
        """
        from holdfast.state.writer import Writer

        return Writer(self, owner, lease=lease, force=force, keep=keep, fold_at=fold_at)

    def exists(self) -> bool:
        """Whether there is a store here at all."""
        try:
            return self.files.size(HEADER) >= 0  # asked for by name: a listing may come late
        except FileNotFoundError:
            return bool(self.files.list(checkpoints.FOLDER))

    def require(self) -> None:
        if not self.exists():
            raise Invalid(f"{self.url}: no Holdfast store here ({HEADER} is missing)")
        # The layout version is in every other document too; the next writer makes a header that is damaged anew.
        with contextlib.suppress(Damaged):
            read_document(self.files, "store", HEADER)

    def marker(self) -> str:
        """The store's id: the same wherever the same store is seen. Damaged if its header is not whole."""
        return str(read_document(self.files, "store", HEADER)["id"])

    def check_marker(self, expected: str) -> None:
        """Invalid if this process does not see the store that has this id: another folder, or another machine's."""
        try:
            seen = self.marker()
        except Damaged as error:
            found = str(error)
        else:
            if seen == expected:
                return
            found = f"the store there has id {seen}"
        raise Invalid(
            f"store {self.url}: host {socket.gethostname()} does not see the store of this job ({expected}): {found}; "
            "give a path or URL under which every node finds the same store"
        )

    def write_task(
        self,
        task: str,
        epoch: int,
        state: TaskState | Mapping[str, Change],
        *,
        token: int,
        since: int | None = None,
    ) -> list[FileEntry]:
        """A task's files for a checkpoint: its whole state, or its changes in (since, epoch]. For any process.

        Nothing exists until the writer commits a checkpoint with the entries. Bytes written follow what is given.
        """
        if isinstance(state, TaskState):
            if since is not None or state.epoch != epoch:
                raise Invalid(f"task {task}: a whole state of epoch {state.epoch} given for ({since}, {epoch}]")
            runs = {name: (table.schema, table.flat()) for name, table in state.tables.items()}
        else:
            if since is None or since >= epoch:
                raise Invalid(f"task {task}: changes need the epoch they follow, before {epoch}; got since={since}")
            runs = {name: (change.schema, change.run(change.schema)) for name, change in state.items()}
        return checkpoints.write_runs(self.files, task, epoch, since, runs, token=token, sync=self.sync.checkpoints)

    def checkpoints(self) -> list[Checkpoint]:
        """Checkpoints whose manifests are whole, oldest first; their files are checked when they are read."""
        return self._checkpoints()[0]

    def checkpoint(self, epoch: int) -> Checkpoint:
        """The checkpoint of an epoch."""
        newest, inherited = fence.inherited(self.files)
        for name in checkpoints.manifest_names(self.files, inherited, newest):
            facts = checkpoints.manifest_facts(name.rpartition("/")[2])
            if facts is not None and facts[0] == epoch:
                with contextlib.suppress(Damaged):  # told below, with what else is there
                    return checkpoints.read_manifest(self.files, name)
        whole, damaged = self._checkpoints()
        have = ", ".join(str(one.epoch) for one in whole) or "none"
        tail = f"; damaged: {'; '.join(damaged)}" if damaged else ""
        raise Unrecoverable(f"store {self.url}: no checkpoint of epoch {epoch}, there is {have}{tail}")

    def latest(self, usable: Callable[[int], bool] | None = None, *, read: bool = True) -> Checkpoint | None:
        """The newest checkpoint of which every file is whole; None if none was ever committed.

        ``usable``: whether one of this epoch would be of use, such as ``Journal.reaches``. ``read``: all of its files
        are read; else whoever needs a state finds out whether it is whole, and this costs no more than manifests.
        Unrecoverable, with what was tried, if there are some and none will do.
        """
        whole, tried = self._checkpoints()
        for found in reversed(whole):
            if usable is not None and not usable(found.epoch):
                tried.append(f"checkpoint {found.epoch}: what came after it cannot be replayed")
                continue
            problems = self.problems(found) if read else []
            if not problems:
                return found
            tried.append(f"checkpoint {found.epoch}: {'; '.join(problems)}")
        if tried:
            raise Unrecoverable(f"store {self.url}: no whole checkpoint is left; tried {'; '.join(tried)}")
        return None

    def problems(self, found: Checkpoint) -> list[str]:
        """What is wrong with the files of a checkpoint, by name."""
        wrong = []
        for task, chain in found.tasks.items():
            for entry in chain:
                try:
                    checkpoints.read_run(self.files, task, entry)
                except Damaged as error:
                    wrong.append(str(error))
        return wrong

    def restore(
        self,
        task: str,
        epoch: int | None = None,
        parts: Mapping[str, KeyRange] | None = None,
        *,
        touched: bool = False,
        chain: Sequence[FileEntry] | None = None,
    ) -> tuple[TaskState, int]:
        """A task's state and its epoch: of that checkpoint, or of the newest one that is whole for this task.

        ``parts``: tables of which only the keys in a range are wanted. ``touched``: of large files only what is looked
        up is read, when it is; so damage may show as late. ``chain``: its files in the checkpoint of this epoch, for
        who knows them: then no manifest is read.
        Damaged if the one asked for is; Unrecoverable, with what was tried, if none is left.
        """
        if epoch is not None:
            chain = self.checkpoint(epoch).chain(str(task)) if chain is None else chain
            return checkpoints.read_chain(self.files, task, chain, epoch, parts, touched), epoch
        whole, tried = self._checkpoints()
        for found in reversed(whole):
            if str(task) not in found.tasks:
                tried.append(f"checkpoint {found.epoch}: has no task {task}")
                continue
            try:
                state = checkpoints.read_chain(self.files, task, found.chain(str(task)), found.epoch, parts, touched)
            except Damaged as error:
                tried.append(f"checkpoint {found.epoch}: {error}")
            else:
                return state, found.epoch
        story = "; ".join(tried) or "there is no checkpoint"
        raise Unrecoverable(f"store {self.url}: task {task} cannot be restored: {story}")

    def shape(self) -> dict[str, Any] | None:
        """Who owns which keys, as the newest writer put it down; None if nobody ever did."""
        return shapes.read(self.files)

    def journal_write(self, epoch: int, label: str, data: bytes, *, token: int) -> FileEntry:
        """A piece of an epoch; counts once the writer commits the epoch. For any process."""
        return journal.write(self.files, epoch, label, data, token=token, sync=self.sync.journal)

    def journal_epochs(self) -> list[int]:
        """Committed epochs, in order."""
        newest, found = fence.inherited(self.files)
        return list(journal.commit_names(self.files, found, newest))

    def _checkpoints(self) -> tuple[list[Checkpoint], list[str]]:
        newest, found = fence.inherited(self.files)
        whole, damaged = [], checkpoints.missing_manifests(self.files, newest) if found is not None else []
        for name in checkpoints.manifest_names(self.files, found, newest):
            try:
                whole.append(checkpoints.read_manifest(self.files, name))
            except Damaged as error:
                damaged.append(str(error))
        return whole, damaged
