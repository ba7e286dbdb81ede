"""A worker: the process on a node that carries out works. It knows nothing of Spark, nor of the whole.

States live in its memory and in the node's own folder, where another process of the node finds what this one made.
Every failure is an answer (a report), so that a Spark job never dies because a state or a block was not there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from holdfast.errors import HoldfastError, Unrecoverable
from holdfast.operators import Pipeline
from holdfast.runtime.blocks import Block, once, pack, unpack
from holdfast.runtime.events import SHED, Report, Work
from holdfast.runtime.keeping import main_branch
from holdfast.runtime.layout import Feed, Layout, absent_barrier
from holdfast.runtime.outputs import stage
from holdfast.runtime.partition import recut, restored, tallied
from holdfast.runtime.processing import (
    TaskFailed,
    empty_state,
    outgoing,
    process,
    process_source,
    state_schemas,
)
from holdfast.runtime.shape import Shape, reshaped_pipeline
from holdfast.state import LocalState, Missing, Spill, Store, Sync, TaskState, Unusable
from holdfast.state.entries import FileEntry
from holdfast.state.names import folder_task, task_folder
from holdfast.topology import Task

TALLIED = 8
"""In every such epoch tasks count how their rows lie over their keys."""
VERSIONS = 3
"""So many versions of a task's state stay in a process's memory: the one at hand, the last, and one to go back to."""


@dataclass(frozen=True)
class JobContext:
    """What every worker of a job knows. ``local``: the folder under which nodes keep their states.

    ``pipeline`` as declared; an order says in which shape. ``outputs``: operators whose output is kept.
    """

    job: str
    pipeline: Pipeline
    store: str
    token: int
    local: str
    outputs: frozenset[str]
    sync: Sync = field(default_factory=Sync)
    verify: bool = False
    memory_limit: int | None = None


@dataclass(frozen=True)
class Order:
    """A run as workers see it. ``folders``: each node's own folder. ``retain``: older epochs are not needed.

    ``settled``: its shape is in force, so what other shapes left on a node may go.
    """

    run: int
    layout: Layout
    folders: Mapping[str, str]
    retain: int
    forks: frozenset[int] = frozenset()
    shape: Shape = field(default_factory=Shape)
    settled: bool = True


class Worker:
    """One for each process and job."""

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self.store = Store(context.store, context.sync)
        self._versions: dict[tuple[str, str, Task], dict[int, TaskState]] = {}
        self._schemas: dict[tuple[Task, str], pa.Schema] = {}
        self._retained: dict[tuple[str, Task], int] = {}
        self._swept: dict[str, tuple[int, frozenset[int]]] = {}
        self._shapes: dict[str, int] = {}
        self._pipelines: dict[int, Pipeline] = {}

    def pipeline(self, shape: Shape) -> Pipeline:
        """The pipeline in a shape; the last few are remembered."""
        if shape.version not in self._pipelines:
            for old in sorted(self._pipelines)[:-VERSIONS]:
                del self._pipelines[old]
            self._pipelines[shape.version] = reshaped_pipeline(self.context.pipeline, shape)
        return self._pipelines[shape.version]

    # Sources

    def ingest(
        self,
        epoch: int,
        piece: int,
        pieces: int,
        shares: Mapping[str, pa.Table],
        ends: bool,
        shape: Shape,
        shed: int = 0,
    ) -> tuple[list[Block], list[Report], FileEntry | None]:
        """Run the sources over a part of the batch, journal what they send on, and send it.

        ``shed``: rows of this part that were left out before.
        """
        blocks: list[Block] = []
        reports: list[Report] = []
        pipeline = self.pipeline(shape)
        for name, rows in shares.items():
            task = Task(name, piece * pipeline.by_name[name].parallelism // max(pieces, 1))
            try:
                made = process_source(pipeline, task, rows, epoch, ends)
                sent = outgoing(pipeline, task, made, epoch, shape.routings, piece)
            except TaskFailed as error:
                return [], [Report(task, "exact", "", "failed", epoch - 1, message=str(error))], None
            out = made.output.num_rows if made.output is not None else 0
            blocks += sent
            told = {**made.counters, SHED: 0 if reports else shed}
            reports.append(
                Report(task, "exact", "", "committed", epoch, made.rows_in, out, made.seconds, counters=told)
            )
        try:
            entry = self.store.journal_write(epoch, journal_name(piece), pack(blocks), token=self.context.token)
        except Unusable as error:
            task = Task(next(iter(shares)), 0)
            return [], [Report(task, "exact", "", "unusable", epoch - 1, message=str(error))], None
        return blocks, reports, entry

    def journalled(self, epoch: int, piece: int, then: Shape, now: Shape) -> list[Block]:
        """What a part of the batch of an earlier epoch sent, in the shape of that time, as receivers of now need it."""
        data = self.store.journal_read(epoch, journal_name(piece))
        assert isinstance(data, bytes)
        return recut(self.context.pipeline, unpack(data), then, now)

    # Works

    def work(
        self, order: Order, works: Sequence[Work], feeds: Sequence[Feed], arrived: Sequence[Block]
    ) -> tuple[list[Block], list[Report]]:
        """Carry out the works of a slot on the blocks that came; the blocks they send, and how each went."""
        waiting: dict[tuple[Task, int], list[Block]] = {}
        for block in arrived:
            waiting.setdefault((block.receiver, block.epoch), []).append(block)
        sent: list[Block] = []
        reports: list[Report] = []
        for feed in feeds:
            sent += self._kept(order, feed)
        for work in works:
            self._sweep(order, work.node)
            blocks, report = self._one(order, work, waiting)
            sent += blocks
            reports.append(report)
        return sent, reports

    def _one(
        self, order: Order, work: Work, waiting: Mapping[tuple[Task, int], list[Block]]
    ) -> tuple[list[Block], Report]:
        began = time.process_time()
        task, reached = work.task, work.start
        pipeline = self.pipeline(order.shape)
        sent: list[Block] = []
        outputs: dict[int, str] = {}
        counters: dict[str, int] = {}
        rows_in = rows_out = 0
        keys: list[int] = []

        def report(status: str, message: str = "", state: TaskState | None = None) -> Report:
            seconds = time.process_time() - began
            size, rows = (state.nbytes, state.rows) if state is not None else (0, 0)
            return Report(
                task, work.lane, work.node, status, reached, rows_in, rows_out, seconds, size, rows, counters,  # type: ignore[arg-type]
                outputs, message, keys,
            )  # fmt: skip

        try:
            state = self._state(order, work)
            for epoch in work.epochs:
                blocks = once(waiting.get((task, epoch), ()))
                if absent := absent_barrier(pipeline.topology, order.layout, task, epoch, blocks):
                    return [], report("blocked", f"epoch {epoch}: no block from {absent}")
                self._remember_schemas(task, blocks)
                # What another node has or has not seen before must not show in an exact answer.
                known = self._known_schemas(pipeline, task) if work.lane == "tentative" else None
                made = process(pipeline, task, state, blocks, epoch, self.context.verify, known)
                state = self._commit(order, work, made.state, made.changes, epoch)
                if made.output is not None and made.output.num_rows:
                    rows_out += made.output.num_rows
                    if task.operator in self.context.outputs and work.lane in ("exact", "tentative"):
                        kind = "final" if work.lane == "exact" else "tentative"
                        name = f"{self.context.token}-{order.run}"
                        outputs[epoch] = stage(
                            self.store.files, name, kind, epoch, task, made.output, work.fidelity,  # type: ignore[arg-type]
                            self.context.sync.outputs,
                        )  # fmt: skip
                if work.lane != "replica":
                    out = outgoing(pipeline, task, made, epoch, order.shape.routings)
                    sent += out
                    if work.keep:
                        self._keep(order, work, epoch, out)
                rows_in += made.rows_in
                if work.lane == "exact" and epoch % TALLIED == 0:
                    keys = tallied(self.context.pipeline, order.shape, task, blocks)
                for what, count in made.counters.items():
                    counters[what] = counters.get(what, 0) + count
                reached = epoch
        except Missing as error:
            return [], report("missing", str(error))
        except TaskFailed as error:
            return [], report("failed", str(error))
        except Unrecoverable as error:
            return [], report("damaged", str(error))
        except Unusable as error:
            return [], report("unusable", str(error))
        except HoldfastError as error:
            return [], report("failed", f"task {task}, epoch {reached + 1}: {error}")
        return sent, report("committed", state=state)

    # State

    def _state(self, order: Order, work: Work) -> TaskState:
        """The version that a work starts from; Missing if this node does not have it."""
        declared = self.context.pipeline
        step = declared.by_name[work.task.operator]
        schemas = state_schemas(declared, step)
        if not schemas:
            return TaskState(work.start)
        branch = branch_of(work)
        key = (order.folders[work.node], branch, work.task)
        local = LocalState(Path(order.folders[work.node]) / branch)
        if work.origin == "checkpoint":
            if work.start < 0:
                state = empty_state(declared, step, -1)
            else:
                state = restored(self.store, declared, order.shape, work.task, work.start)
            local.forget(str(work.task))
            local.restore(str(work.task), state)
            self._versions[key] = {}
        elif work.origin == "fork":
            main = (order.folders[work.node], main_branch(work.born), work.task)
            state = self._loaded(main, LocalState(Path(main[0]) / main[1]), work.task, work.start)
            self._link(main, branch)
            self._versions[key] = {}
        else:
            state = self._loaded(key, local, work.task, work.start)
        if self.context.memory_limit is not None:
            spill = Spill(Path(order.folders[work.node]) / "spill", self.context.memory_limit)
            state = state.with_spill(spill)
        self._hold(key, state)
        return state

    def _loaded(self, key: tuple[str, str, Task], local: LocalState, task: Task, epoch: int) -> TaskState:
        held = self._versions.get(key, {})
        if epoch in held:
            return held[epoch]
        older = max((version for version in held if version < epoch), default=None)
        return local.load(str(task), epoch, None if older is None else held[older])

    def _hold(self, key: tuple[str, str, Task], state: TaskState) -> None:
        held = self._versions.setdefault(key, {})
        held[state.epoch] = state
        for version in sorted(held)[:-VERSIONS]:
            del held[version]

    def _commit(
        self, order: Order, work: Work, state: TaskState, changes: Mapping[str, object], epoch: int
    ) -> TaskState:
        """Keep the next version, in memory and on the node; the first of a tentative fork may follow an older one."""
        if not state.tables:
            return TaskState(epoch)
        branch = branch_of(work)
        local = LocalState(Path(order.folders[work.node]) / branch)
        before = work.start if epoch == work.first else epoch - 1
        local.save(str(work.task), epoch, changes, before)  # type: ignore[arg-type]
        self._hold((order.folders[work.node], branch, work.task), state)
        kept = (order.folders[work.node], work.task)
        # Checkpoints tidy up behind primaries (keeping.py); nobody else would behind a replica.
        if work.lane == "replica" and self._retained.get(kept, -1) < order.retain:
            self._retained[kept] = order.retain
            local.drop(str(work.task), order.retain, state)
        return state

    def _link(self, main: tuple[str, str, Task], branch: str) -> None:
        """A fork begins with the files of the exact lane: links, not copies."""
        folder, exact, task = main
        origin = Path(folder) / exact / task_folder(str(task))
        target = Path(folder) / branch / task_folder(str(task))
        target.mkdir(parents=True, exist_ok=True)
        for file in list(origin.iterdir()) if origin.is_dir() else ():
            try:
                os.link(file, target / file.name)
            except (FileExistsError, FileNotFoundError):
                continue

    def _sweep(self, order: Order, node: str) -> None:
        """Once the checkpoint has moved on: sides, dead forks and kept outputs that nobody can ask for any more."""
        folder = order.folders[node]
        if order.settled and self._shapes.get(folder, 0) != order.shape.version:
            self._shapes[folder] = order.shape.version
            self._release(Path(folder), order.shape)
        if self._swept.get(folder) == (order.retain, order.forks):
            return
        moved = self._swept.get(folder, (order.retain, order.forks))[0] != order.retain
        self._swept[folder] = (order.retain, order.forks)
        for path in Path(folder).glob("fork-*"):
            # A fork that is younger than this order is none of its business: another run has begun it meanwhile.
            fork = int(path.name.removeprefix("fork-"))
            if fork < order.run and fork not in order.forks:
                shutil.rmtree(path, ignore_errors=True)
        if not moved:
            return
        self._forget_old(Path(folder), order.retain)
        for path in Path(folder).glob("side-*"):
            if int(path.name.split("-", 2)[2]) < order.retain:
                shutil.rmtree(path, ignore_errors=True)
        for path in Path(folder).glob("kept/*/*.blocks"):
            if int(path.stem) <= order.retain:
                path.unlink(missing_ok=True)

    def _forget_old(self, folder: Path, retain: int) -> None:
        """Copies that have stayed behind the checkpoint live here no more: they moved, or were given up."""
        for branch in [folder / "main", *folder.glob("main-*")]:
            local = LocalState(branch)
            for task in local.tasks() if branch.is_dir() else ():
                if max(local.epochs(task), default=retain) < retain:
                    local.forget(task)
                    operator, _, number = task.rpartition("/")
                    self._versions.pop((str(folder), branch.name, Task(operator, int(number))), None)

    def _release(self, folder: Path, shape: Shape) -> None:
        """What a node still has of tasks that were scaled away goes; a shape that is being prepared is left alone."""
        for branch in [folder / "main", *folder.glob("main-*")]:
            born = int(branch.name.partition("-")[2] or 0)
            for path in list(branch.iterdir()) if born <= shape.version and branch.is_dir() else ():
                name, _, number = folder_task(path.name).rpartition("/")
                task = Task(name, int(number))
                routing = shape.routings.get(name)
                gone = routing is not None and task.number not in routing.owners
                if gone or shape.born.get(task, 0) != born:
                    self._versions.pop((str(folder), branch.name, task), None)
                    shutil.rmtree(path, ignore_errors=True)

    # Buffers

    def _keep(self, order: Order, work: Work, epoch: int, blocks: Sequence[Block]) -> None:
        path = _kept_path(order.folders[work.node], work.task, epoch)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.part")
        temporary.write_bytes(pack(blocks))
        temporary.replace(path)

    def _kept(self, order: Order, feed: Feed) -> list[Block]:
        blocks = []
        for epoch in range(feed.first, feed.last + 1):
            try:
                blocks += unpack(_kept_path(order.folders[feed.node], feed.task, epoch).read_bytes())
            except FileNotFoundError:
                continue  # its receivers find the barrier missing and say so
        return blocks

    def _remember_schemas(self, task: Task, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if (task, block.sender.operator) not in self._schemas:
                schema = block.table().schema
                if len(schema):
                    self._schemas[task, block.sender.operator] = schema

    def _known_schemas(self, pipeline: Pipeline, task: Task) -> dict[str, pa.Schema]:
        names = [stream.source for stream in pipeline.topology.inputs_of(task.operator)]
        return {name: self._schemas[task, name] for name in names if (task, name) in self._schemas}


def branch_of(work: Work) -> str:
    """Where the versions of a lane are: a replica's are in the main branch, so that to promote it is to do nothing."""
    if work.lane == "tentative":
        return f"fork-{work.fork}"
    if work.lane == "side":
        return f"side-{work.born}-{work.fork}"
    return main_branch(work.born)


def journal_name(piece: int) -> str:
    return f"batch/{piece}"


def _kept_path(folder: str, task: Task, epoch: int) -> Path:
    return Path(folder) / "kept" / task_folder(str(task)) / f"{epoch:012d}.blocks"
