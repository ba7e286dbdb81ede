"""A node's own copies of task states: snapshots and changelogs as Arrow files in a folder of the node.

Any worker process of the node gets a version by mapping files, or by applying the changes it lacks to an older version
it holds. A file's checksum is in its name; one that does not match is taken for missing, never for state. So is the
number of the run that made it: where several runs made the same step, the last of them counts.
"""

from __future__ import annotations

import contextlib
import os
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.state.change import Change
from holdfast.state.files import Files, LocalFiles, Unusable, link_between
from holdfast.state.ipc import Unreadable, decode_batch, decode_run, encode_note, encode_run
from holdfast.state.names import folder_task, table_label, task_folder
from holdfast.state.run import SortedRun, overlay_all
from holdfast.state.schema import StateSchema
from holdfast.state.table import StateTable
from holdfast.state.task import TaskState

STORED = "stored"
_NAME = re.compile(r"(-?\d+)\.(full|stored|-?\d+)\.(\d+)of(\d+)\.(\d+)\.([0-9a-f]{8})\.(.*)\.arrow")
_FOLD_RATIO = 2
FOLD_STEPS = 8
"""Changelogs with fewer steps than this are left alone: folding every epoch would write everything twice."""
OUTWEIGHS = 2
"""A changelog of so many times the bytes of its snapshot becomes one with it."""
MORE = 1.25
"""A version of at most so many times the bytes of its changes is kept whole."""
MANY_STEPS = 64
"""Up to so many steps, a changelog that is a quarter of its snapshot is left alone: it will soon be one with it."""


class VersionMissing(HoldfastError):
    """This node does not have that version of that task (whole); restore it from elsewhere."""


@dataclass(frozen=True, slots=True)
class _Part:
    """One file: a table's rows at ``epoch`` (``since`` None), or its changes in (since, epoch]."""

    path: str
    epoch: int
    since: int | None
    number: int
    count: int
    run: int
    checksum: int
    table: str
    stored: bool = False
    """Only a note: the version is that of the checkpoint of this epoch."""


@dataclass(frozen=True, slots=True)
class _Step:
    """All files of one version or change, as a run made it."""

    epoch: int
    since: int | None
    run: int
    parts: tuple[_Part, ...]


class LocalState:
    """Task states of one node. Several processes may use one folder at once."""

    def __init__(self, files: Files | str | os.PathLike[str]) -> None:
        self.files: Files = LocalFiles(Path(files)) if isinstance(files, str | os.PathLike) else files

    def save(
        self,
        task: str,
        epoch: int,
        changes: Mapping[str, Change],
        since: int | None = None,
        run: int = 0,
        state: TaskState | None = None,
    ) -> int:
        """Keep the changes that lead from version ``since`` (epoch - 1 by default) to ``epoch``; bytes written.

        Tables that did not change get no file. ``run``: who made it; of several the highest counts. ``state``: the
        version itself; where it takes hardly more bytes than the changes it is kept instead, and needs none of them.
        """
        base = epoch - 1 if since is None else since
        runs = {name: _run_of(change) for name, change in changes.items()}
        if state is not None and _is_little_more(state, [each for _, each in runs.values()]):
            return self.restore(task, state, run)
        return self._write(task, epoch, base, run, {name: each for name, each in runs.items() if len(each[1])})

    def restore(self, task: str, state: TaskState, run: int = 0) -> int:
        """Keep a whole version: the first one of a task, or one from the durable store or a peer; bytes written."""
        tables = {name: (table.schema, table.flat()) for name, table in state.tables.items()}
        return self._write(task, state.epoch, None, run, tables)

    def refer(self, task: str, epoch: int, run: int = 0, where: Mapping[str, Any] | None = None) -> None:
        """A version that is not kept here: whoever loads it, or one after it, gives it from the durable store.

        ``where`` it is, in JSON, for whoever gives it.
        """
        about = {"kind": "local", "task": str(task), "table": "", "epoch": epoch, "since": None, "where": where}
        self._put(task, f"{epoch}.{STORED}.0of1.{run}", "", encode_note(about))

    def link(self, task: str, other: LocalState) -> None:
        """Give another branch of the node all there is of a task, without copying it: how a fork begins."""
        folder = task_folder(task)
        linked: set[str] = set()
        # Another process may fold the files under our hands: as long as there is something new to see, look again.
        while new := [name for name in self.files.list(folder) if name not in linked]:
            for name in new:
                with contextlib.suppress(FileNotFoundError):
                    link_between(self.files, f"{folder}/{name}", other.files, f"{folder}/{name}")
            linked.update(new)

    def load(
        self,
        task: str,
        epoch: int,
        cached: TaskState | None = None,
        stored: Callable[[int, Mapping[str, Any] | None], TaskState] | None = None,
    ) -> TaskState:
        """Version ``epoch``, from files alone or from ``cached``, an older version, and the changes it lacks.

        ``stored``: gives a version from the durable store, for one that is only referred to here, by what is known of
        where it is.
        """
        if cached is None and stored is not None:
            referred = [part for part in self._parts(task) if part.stored and part.epoch <= epoch]
            if referred:
                newest = max(referred, key=lambda part: (part.epoch, part.run))
                cached = stored(newest.epoch, self._where(newest))
        if cached is not None and cached.epoch == epoch:
            return cached
        before: list[_Step] = []
        # Another process may fold the files under our hands: as long as there is something new to see, look again.
        while (steps := self._steps(task)) != before:
            before = steps
            if cached is not None and (state := self._climb(steps, cached, epoch)) is not None:
                return state
            for base in sorted((s for s in steps if s.since is None and s.epoch <= epoch), key=lambda s: -s.epoch):
                state = self._snapshot(base)
                if state is not None and (state := self._climb(steps, state, epoch)) is not None:
                    return state
        have = ", ".join(str(e) for e in sorted({step.epoch for step in steps})[-5:])
        raise VersionMissing(
            f"task {task}: version {epoch} is not whole in {self.files.url}; epochs there: {have or 'none'}"
        )

    def changes(self, task: str, since: int, epoch: int) -> dict[str, Change]:
        """What changed in (since, epoch], one change a table: what an incremental checkpoint writes.

        Folded changelogs may begin before ``since``; then some rows are there that have not changed after it, with
        the values they have. VersionMissing if they are not all there whole: see ``kept_whole``.
        """
        steps = [step for step in self._steps(task) if step.since is not None and step.epoch > since]
        found: list[dict[str, tuple[StateSchema, SortedRun]]] = []
        at = epoch
        while at > since:
            for step in sorted((s for s in steps if s.epoch == at), key=lambda s: (-s.run, -(s.since or 0))):
                if (read := self._read(step)) is not None:
                    found.append(read)
                    at = min(at - 1, step.since if step.since is not None else at)
                    break
            else:
                where = self.files.url
                raise VersionMissing(f"task {task}: the changes of ({since}, {epoch}] are not all whole in {where}")
        total = _overlaid(found[::-1])
        return {name: Change.of_run(schema, run) for name, (schema, run) in total.items()}

    def kept_whole(self, task: str, since: int, epoch: int) -> bool:
        """Whether a version in (since, epoch] was kept whole, so that not all changes are there. By names alone."""
        steps = self._steps(task)
        at = epoch
        while at > since:
            before = [step.since for step in steps if step.epoch == at and step.since is not None]
            if not before:
                return any(step.since is None and since < step.epoch <= epoch for step in steps)
            at = min(before)
        return False

    def drop(self, task: str, before: int, newest: TaskState | None = None, run: int = 0) -> None:
        """Let go of what only versions older than ``before`` need, and fold long changelogs.

        Changes up to ``before`` become one with the snapshot once they are twice its size; small ones are folded into
        like-sized neighbours before that. So files stay few, and bytes written are at most a few times what changed.
        Whoever has the ``newest`` version at hand gives it, and the ``run`` that made it: writing that is less work
        than putting version ``before`` together from files, and the next call finds it. A run that was called off may
        wake up when a later one has made the same version again: what it gives does not count.
        """
        parts = [part for part in self._parts(task) if not part.stored]
        steps = _complete(parts)
        whole = [s for s in steps if s.since is None and s.epoch <= before]
        if not whole:
            return
        base = max(whole, key=lambda s: s.epoch)
        self._remove([part for part in parts if part.epoch <= base.epoch and part not in base.parts])
        tail = sorted((s for s in steps if s.since is not None and base.epoch < s.epoch <= before), key=_age)
        if len(tail) < FOLD_STEPS:
            return
        changed, held = sum(self._size(step) for step in tail), self._size(base)
        if changed > OUTWEIGHS * held:
            if newest is None:
                self._renew(task, base, tail, before)
            elif not any(step.since is None and step.epoch > before for step in steps):
                self.restore(task, newest, run)
        elif 4 * changed < held or len(tail) > MANY_STEPS:
            self._fold(task, tail)

    def forget(self, task: str, before: int | None = None) -> None:
        """Everything of one task; or what runs before this one made of it."""
        if before is None:
            self.files.delete_folder(task_folder(task))
        else:
            self._remove([part for part in self._parts(task) if part.run < before])

    def tasks(self) -> list[str]:
        return [folder_task(name) for name in self.files.list("")]

    def epochs(self, task: str) -> list[int]:
        """Epochs that files are there for, whole or not."""
        return sorted({step.epoch for step in self._steps(task)})

    def made(self, task: str) -> dict[int, int]:
        """The last run that made each version, or began to."""
        runs: dict[int, int] = {}
        for part in self._parts(task):
            runs[part.epoch] = max(part.run, runs.get(part.epoch, part.run))
        return runs

    def _size(self, step: _Step) -> int:
        total = 0
        for part in step.parts:
            with contextlib.suppress(FileNotFoundError):
                total += self.files.size(part.path)
        return total

    def _renew(self, task: str, base: _Step, tail: list[_Step], epoch: int) -> None:
        """Snapshot and changelog as a new snapshot of ``epoch``, unless something is missing."""
        chain = [base]
        while chain[-1].epoch < epoch:
            at = chain[-1].epoch
            fitting = [s for s in tail if s.since is not None and s.since <= at < s.epoch]
            if not fitting:
                return
            chain.append(max(fitting, key=lambda s: (s.epoch, s.run)))
        read = [self._read(step) for step in chain]
        found = [each for each in read if each is not None]
        if len(found) < len(read):
            return
        total = _overlaid(found)
        tables = {name: (schema, each.without_tombstones()) for name, (schema, each) in total.items()}
        self._write(task, epoch, None, max(step.run for step in chain), tables)
        self._remove_steps(task, (base, *tail))

    def _fold(self, task: str, tail: list[_Step]) -> None:
        """Fold neighbours of like size, newest first, as runs are folded in memory."""
        while len(tail) > 1:
            older, newer = tail[-2], tail[-1]
            if self._size(older) > _FOLD_RATIO * self._size(newer) or older.epoch != newer.since:
                return
            first, second = self._read(older), self._read(newer)
            if first is None or second is None:
                return
            self._write(task, newer.epoch, older.since, max(older.run, newer.run), _overlaid([first, second]))
            self._remove_steps(task, (older, newer))
            tail = tail[:-2] + [s for s in self._steps(task) if s.epoch == newer.epoch and s.since == older.since][:1]

    def _remove_steps(self, task: str, steps: Sequence[_Step]) -> None:
        """These steps, whoever made them."""
        gone = {(step.epoch, step.since) for step in steps}
        self._remove([part for part in self._parts(task) if (part.epoch, part.since) in gone])

    def _remove(self, parts: Sequence[_Part]) -> None:
        # What earlier runs made goes first: left alone, it would count.
        for part in sorted(parts, key=lambda part: part.run):
            self.files.delete(part.path)

    def _write(
        self, task: str, epoch: int, since: int | None, run: int, runs: Mapping[str, tuple[StateSchema, SortedRun]]
    ) -> int:
        total = 0
        # A version without tables is still a version: one file without columns says so.
        named = sorted(runs) or [""]
        for number, name in enumerate(named):
            about = {"kind": "local", "task": str(task), "table": name, "epoch": epoch, "since": since}
            data = encode_run(*runs[name], about) if runs else encode_note(about)
            span = "full" if since is None else str(since)
            self._put(task, f"{epoch}.{span}.{number}of{len(named)}.{run}", name, data)
            total += data.size
        return total

    def _put(self, task: str, about: str, table: str, data: pa.Buffer) -> None:
        name = f"{about}.{zlib.crc32(data):08x}.{table_label(table)}.arrow"
        self.files.put(f"{task_folder(task)}/{name}", data, False)

    def _parts(self, task: str) -> list[_Part]:
        """What there is of a task, by name alone."""
        folder, parts = task_folder(task), []
        for name in self.files.list(folder):
            if (match := _NAME.fullmatch(name)) is not None:
                epoch, span, number, count, run, checksum, table = match.groups()
                since = None if span in ("full", STORED) else int(span)
                numbers = int(number), int(count), int(run), int(checksum, 16)
                parts.append(_Part(f"{folder}/{name}", int(epoch), since, *numbers, unquote(table), span == STORED))
        return parts

    def _steps(self, task: str) -> list[_Step]:
        return _complete([part for part in self._parts(task) if not part.stored])

    def _climb(self, steps: list[_Step], state: TaskState, epoch: int) -> TaskState | None:
        """From one version up to ``epoch`` through changes; a change may begin before the version, never after it.

        Many are put together first: one after the other, each would be looked up in all of the state to count rows.
        """
        found: list[dict[str, tuple[StateSchema, SortedRun]]] = []
        at = state.epoch
        while at < epoch:
            for step in sorted((s for s in steps if s.since is not None), key=lambda s: (-s.epoch, -s.run)):
                fits = step.since is not None and step.since <= at < step.epoch <= epoch
                if fits and (read := self._read(step)) is not None:
                    found.append(read)
                    at = step.epoch
                    break
            else:
                return None
        return _advanced(state, _overlaid(found), epoch) if at == epoch else None

    def _where(self, part: _Part) -> Mapping[str, Any] | None:
        """What was put down with a reference; None if that is nothing, or not whole."""
        with contextlib.suppress(OSError, Unusable, Unreadable):
            data = self.files.map(part.path)
            if zlib.crc32(data) == part.checksum:
                where: Mapping[str, Any] | None = decode_batch(data)[1].get("where")
                return where
        return None

    def _snapshot(self, step: _Step) -> TaskState | None:
        read = self._read(step)
        if read is None:
            return None
        return TaskState(
            step.epoch,
            {name: StateTable(s, step.epoch, (run,) if len(run) else (), len(run)) for name, (s, run) in read.items()},
        )

    def _read(self, step: _Step) -> dict[str, tuple[StateSchema, SortedRun]] | None:
        """The runs of a step, mapped; None if any file is torn, altered, swapped or gone."""
        runs = {}
        for part in step.parts:
            try:
                data = self.files.map(part.path)
                if zlib.crc32(data) != part.checksum:
                    return None
                if part.table:
                    schema, run, note = decode_run(data)
                    if (note["epoch"], note["since"], note["table"]) != (part.epoch, part.since, part.table):
                        return None
                    runs[part.table] = schema, run
            except (OSError, Unusable, Unreadable, pa.ArrowException, KeyError):
                return None
        return runs


def _complete(parts: Sequence[_Part]) -> list[_Step]:
    """Of each version and change the complete set of files of the highest run.

    Of a version that is kept whole and changes that lead to it, those of a later run count.
    """
    sets: dict[tuple[int, int | None], dict[tuple[int, int], dict[int, _Part]]] = {}
    for part in parts:
        made = sets.setdefault((part.epoch, part.since), {})
        made.setdefault((part.run, part.count), {})[part.number] = part
    steps = []
    for (epoch, since), made in sets.items():
        if whole := [key for key, numbered in made.items() if len(numbered) == key[1]]:
            run, count = max(whole)
            steps.append(_Step(epoch, since, run, tuple(made[run, count][number] for number in range(count))))
    newest: dict[tuple[int, bool], int] = {}
    for step in steps:
        kind = step.epoch, step.since is None
        newest[kind] = max(step.run, newest.get(kind, step.run))
    return [step for step in steps if newest.get((step.epoch, step.since is not None), step.run) <= step.run]


def _is_little_more(state: TaskState, changed: Sequence[SortedRun]) -> bool:
    """Whether to write a whole version is hardly more than to write what changed, as where an epoch has every key."""
    whole = all(len(table.runs) <= 1 for table in state.tables.values())
    return whole and 0 < state.nbytes <= MORE * sum(run.nbytes for run in changed)


def _run_of(change: Change) -> tuple[StateSchema, SortedRun]:
    schema = change.schema
    return schema, change.run(schema)


def _advanced(state: TaskState, runs: Mapping[str, tuple[StateSchema, SortedRun]], epoch: int) -> TaskState:
    return state.apply_stored({name: Change.of_run(schema, run) for name, (schema, run) in runs.items()}, epoch)


def _overlaid(steps: Sequence[Mapping[str, tuple[StateSchema, SortedRun]]]) -> dict[str, tuple[StateSchema, SortedRun]]:
    """The runs of successive steps, oldest first, as one of each table, under the schema it has last."""
    merged: dict[str, tuple[StateSchema, SortedRun]] = {}
    for name in dict.fromkeys(name for step in steps for name in step):
        runs = [step[name] for step in steps if name in step]
        schema = runs[-1][0]
        merged[name] = schema, overlay_all([run.evolved(schema.arrow) for _, run in runs])
    return merged


def _age(step: _Step) -> tuple[int, int]:
    return step.epoch, step.since or 0
