"""The versions of task states on one node, as one process sees them: a few in memory, all of them in the node's files.

Files are the truth, memory is a cache of it: another process of the node finds there what this one made. A version in
memory counts while the files say that no later run has made it again. A *branch* is a timeline: ``main`` of primaries
and replicas, so that to promote a replica is to do nothing; forks; sides.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.messages import Work
from holdfast.runtime.shape import Shape
from holdfast.runtime.worker.blocks import Block, pack, unpack
from holdfast.runtime.worker.plan import RunPlan
from holdfast.runtime.worker.stored import StoredState
from holdfast.state import Change, LocalState, Store, TaskState, VersionMissing
from holdfast.state.entries import FileEntry
from holdfast.state.files import Files
from holdfast.state.names import folder_task, task_folder
from holdfast.topology import Task

WHOLE_FROM = 1 << 16
"""Bytes of a state from which on a version that is hardly more than its changes is kept whole: with less, a checkpoint
puts changes together in no time."""
HELD = 3
"""So many versions of a task's state stay in a process's memory: the one at hand, the last, and one to go back to."""

Stored = Callable[[int, StoredState | None], TaskState]
"""Gives a task's state at a checkpoint, by what is known of where it is."""


def main_branch(born: int) -> str:
    """Where a node keeps the states of primaries: tasks that came with a scaling are apart from those before them."""
    return f"main-{born}" if born else "main"


def branch_of(work: Work) -> str:
    if work.lane == "tentative":
        return f"fork-{work.fork}"
    if work.lane == "side":
        return f"side-{work.born}-{work.fork}"
    return main_branch(work.born)


class Versions:
    """One for each process and node folder."""

    def __init__(self, files: Files, whole_from: int = WHOLE_FROM) -> None:
        self._files = files
        self._whole_from = whole_from
        self._held: dict[tuple[str, Task], dict[int, tuple[TaskState, int]]] = {}
        """Each with the run that made it."""
        self._swept: tuple[int, frozenset[int]] | None = None
        self._shape: int | None = None
        self._dropped: dict[Task, int] = {}

    def load(self, branch: str, task: Task, epoch: int, stored: Stored | None = None) -> TaskState:
        """A version of a branch; VersionMissing if this node does not have it whole.

        ``stored``: gives the version of a checkpoint, for a branch that began with one of which only parts are read.
        """
        held, local = self._held.get((branch, task), {}), self._local(branch)
        made = local.made(str(task))
        valid = [version for version, (_, run) in held.items() if version <= epoch and made.get(version) == run]
        state = local.load(str(task), epoch, held[max(valid)][0] if valid else None, stored and _by_note(stored))
        self.hold(branch, task, state, made.get(epoch))
        return state

    def begin(self, branch: str, task: Task, state: TaskState, run: int, known: StoredState | None = None) -> None:
        """A branch begins, or begins anew, with this version.

        What a later run has made there stays: this one was called off meanwhile, and its process woke up late. Of a
        version that is not all at hand it is only put down which checkpoint has it, and in which files if that is
        ``known``.
        """
        local = self._local(branch)
        local.forget(str(task), run)
        if state.afar:
            local.refer(str(task), state.epoch, run, None if known is None else known.to_json())
        else:
            local.restore(str(task), state, run)
        self._held[branch, task] = {}
        self.hold(branch, task, state, run)

    def fork(self, branch: str, main: str, task: Task, epoch: int) -> TaskState:
        """A branch begins with what another has: links, not copies."""
        state = self.load(main, task, epoch)
        local = self._local(branch)
        self._local(main).link(str(task), local)
        self._held[branch, task] = {}
        self.hold(branch, task, state, local.made(str(task)).get(epoch))
        return state

    def commit(
        self, branch: str, task: Task, state: TaskState, changes: Mapping[str, Change], before: int, run: int
    ) -> None:
        """Keep the next version; the first of a tentative fork may follow an older one than the last."""
        whole = state if state.nbytes >= self._whole_from else None
        self._local(branch).save(str(task), state.epoch, changes, before, run, whole)
        self.hold(branch, task, state, run)

    def trim(self, branch: str, task: Task, retain: int, newest: TaskState, run: int) -> None:
        """Let go of what is older than needed. Uploads do it for primaries; nobody else would for a replica.

        ``run``: it made the newest version.
        """
        if self._dropped.get(task, -1) < retain:
            self._dropped[task] = retain
            self._local(branch).drop(str(task), retain, newest, run)

    def hold(self, branch: str, task: Task, state: TaskState, run: int | None = None) -> None:
        """Keep a version at hand that this run made; without one, another form of what is at hand already."""
        held = self._held.setdefault((branch, task), {})
        if run is None and state.epoch not in held:
            return
        held[state.epoch] = state, held[state.epoch][1] if run is None else run
        for version in sorted(held)[:-HELD]:
            del held[version]

    # Kept outputs

    def keep(self, task: Task, epoch: int, blocks: Sequence[Block]) -> None:
        data = pack(blocks)
        self._files.put(_kept(task, epoch), zlib.crc32(data).to_bytes(4, "little") + data, sync=False)

    def kept(self, task: Task, epoch: int) -> list[Block]:
        """What was kept; nothing if it is not there whole: its receivers find the barrier missing and say so."""
        with contextlib.suppress(FileNotFoundError):
            data = self._files.read(_kept(task, epoch)).to_pybytes()
            if int.from_bytes(data[:4], "little") == zlib.crc32(data[4:]):
                return unpack(data[4:])
        return []

    # What nobody can ask for any more

    def sweep(self, plan: RunPlan) -> None:
        """Before a run: dead forks; once the checkpoint has moved on, old sides, kept outputs and copies that left."""
        if plan.settled and self._shape != plan.shape.version:
            self._shape = plan.shape.version
            self._leave_shapes(plan.shape)
        if self._swept == (plan.retain, plan.forks):
            return
        moved = self._swept is not None and self._swept[0] != plan.retain
        self._swept = (plan.retain, plan.forks)
        folders = self._files.list("")
        for branch in {*folders, *(branch for branch, _ in self._held)}:
            kind, _, rest = branch.partition("-")
            # A fork that is younger than this run is none of its business: another run has begun it meanwhile.
            dead = kind == "fork" and int(rest) < plan.run and int(rest) not in plan.forks
            if dead or (moved and kind == "side" and int(rest.partition("-")[2]) < plan.retain):
                self._drop_branch(branch)
        if moved:
            self._forget_old([name for name in folders if name.partition("-")[0] == "main"], plan.retain)
            for folder in self._files.list("kept"):
                for name in self._files.list(f"kept/{folder}"):
                    if int(name.partition(".")[0]) <= plan.retain:
                        self._files.delete(f"kept/{folder}/{name}")

    def _drop_branch(self, branch: str) -> None:
        self._files.delete_tree(branch)
        for key in [key for key in self._held if key[0] == branch]:
            del self._held[key]

    def _forget_old(self, branches: Sequence[str], retain: int) -> None:
        """Copies that have stayed behind the checkpoint live here no more: they moved, or were given up."""
        for branch in branches:
            local = self._local(branch)
            for name in local.tasks():
                if max(local.epochs(name), default=retain) < retain:
                    local.forget(name)
                    self._held.pop((branch, _task(name)), None)

    def _leave_shapes(self, shape: Shape) -> None:
        """What is left of tasks that were scaled away goes; a shape that is being prepared is left alone."""
        for branch in self._files.list(""):
            kind, _, rest = branch.partition("-")
            born = int(rest or 0) if kind == "main" else None
            for folder in self._files.list(branch) if born is not None and born <= shape.version else ():
                task = _task(folder_task(folder))
                routing = shape.routings.get(task.operator)
                gone = routing is not None and task.number not in routing.owners
                if gone or shape.born.get(task, 0) != born:
                    self._held.pop((branch, task), None)
                    self._files.delete_tree(f"{branch}/{folder}")

    @property
    def nbytes(self) -> int:
        """What this process holds in memory, shared parts counted as often as they are held."""
        return sum(state.nbytes for held in self._held.values() for state, _ in held.values())

    def _local(self, branch: str) -> LocalState:
        return LocalState(self._files.within(branch))


@dataclass(frozen=True, slots=True)
class Upload:
    """What a checkpoint asks of a node: changes of a task in ``(since, epoch]``; everything if ``since`` is negative.

    ``born``: the shape that the task came with. ``retain``: no version before this one will be asked for again.
    """

    folder: str
    task: str
    since: int
    epoch: int
    born: int
    retain: int


@dataclass(frozen=True, slots=True)
class Saved:
    """The files that a checkpoint got, by task; ``missing``: tasks that the node does not have whole, and why.

    ``misplaced``: why nobody looked at some, which were asked for where their node is not; all are to be asked again.
    """

    entries: Mapping[str, tuple[FileEntry, ...]]
    missing: Mapping[str, str]
    misplaced: str = ""

    def to_json(self) -> dict[str, Any]:
        files = {task: [entry.to_json() for entry in entries] for task, entries in self.entries.items()}
        return {"entries": files, "missing": dict(self.missing), "misplaced": self.misplaced}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Saved:
        files = {task: tuple(map(FileEntry.from_json, entries)) for task, entries in body["entries"].items()}
        return cls(files, body["missing"], body["misplaced"])

    @staticmethod
    def of(parts: Sequence[Saved]) -> Saved:
        entries = {task: files for part in parts for task, files in part.entries.items()}
        missing = {task: why for part in parts for task, why in part.missing.items()}
        return Saved(entries, missing, next((part.misplaced for part in parts if part.misplaced), ""))


def upload(store: Store, token: int, files: Files, wanted: Upload) -> Saved:
    """Bring one task to the store. What the node need not keep any more goes, if it can be had easily."""
    local, task, epoch = LocalState(files.within(main_branch(wanted.born))), wanted.task, wanted.epoch
    whole = wanted.since < 0 or local.kept_whole(task, wanted.since, epoch)
    since = None if whole else wanted.since
    state: TaskState | Mapping[str, Change]
    try:
        state = local.load(task, epoch) if since is None else local.changes(task, since, epoch)
        entries = store.write_task(task, epoch, state, token=token, since=since)
    except VersionMissing as error:
        return Saved({}, {task: str(error)})
    with contextlib.suppress(HoldfastError):
        local.drop(wanted.task, wanted.retain)
    return Saved({wanted.task: tuple(entries)}, {})


def _by_note(stored: Stored) -> Callable[[int, Mapping[str, Any] | None], TaskState]:
    """The same for who has it in JSON."""
    return lambda epoch, where: stored(epoch, None if where is None else StoredState.from_json(where))


def _kept(task: Task, epoch: int) -> str:
    return f"kept/{task_folder(str(task))}/{epoch:012d}.blocks"


def _task(written: str) -> Task:
    operator, _, number = written.rpartition("/")
    return Task(operator, int(number))
