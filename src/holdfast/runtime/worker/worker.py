"""A worker: what carries out works on a node. It knows nothing of Spark, nor of the whole.

Every failure is an answer (a report), so that a Spark job never dies because a state or a block was not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError, Unrecoverable
from holdfast.operators import Pipeline
from holdfast.operators.timers import LAST
from holdfast.runtime.messages import SHED, Report, Work
from holdfast.runtime.shape import Shape, reshaped_pipeline
from holdfast.runtime.worker.blocks import Block, once, pack, unpack
from holdfast.runtime.worker.plan import KeptOutput, RunPlan, Slot, absent_barrier, source_task
from holdfast.runtime.worker.processing import TaskFailed, at_time, outgoing, process, process_source
from holdfast.runtime.worker.repartition import recut, restored, tallied
from holdfast.runtime.worker.stored import StoredState
from holdfast.runtime.worker.versions import WHOLE_FROM, Saved, Upload, Versions, branch_of, main_branch, upload
from holdfast.state import Spill, Store, Sync, TaskState, Unusable, VersionMissing, journal, output
from holdfast.state.compaction import folded_chain
from holdfast.state.entries import FileEntry
from holdfast.state.files import Files, open_files
from holdfast.state.journal import JournalEpoch
from holdfast.state.output import StagedOutput
from holdfast.topology import Task

TALLIED = 8
"""In every such epoch tasks count how their rows lie over their keys."""
PIPELINES = 3
"""So many shapes of the pipeline are remembered."""


@dataclass(frozen=True)
class JobContext:
    """What every worker of a job knows. ``marker``: what the store says of itself, so that all see the same one.
    ``local``: the folder under which nodes keep theirs.

    ``pipeline`` as declared; a plan says in which shape. ``outputs``: operators whose output is kept.
    """

    job: str
    pipeline: Pipeline
    store: str
    marker: str
    token: int
    local: str
    outputs: frozenset[str]
    sync: Sync = field(default_factory=Sync)
    verify: bool = False
    memory_limit: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """For the client of the store, if it is behind a URL."""
    whole_from: int = WHOLE_FROM
    """Bytes of a state from which on nodes keep versions whole that are hardly more than their changes."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What came of one part of a batch: what the sources send on, how it went, and its file in the journal.

    ``took``: seconds by the clock, without the journal.
    """

    blocks: Sequence[Block]
    reports: Sequence[Report]
    entry: FileEntry | None
    took: float = 0.0


def newest_time(pipeline: Pipeline, reports: Sequence[Report]) -> int | None:
    """Up to when every source with event time has come, by what their tasks report; None where one has nothing new.

    A stream's end is no time.
    """
    newest: dict[str, int] = {}
    for report in reports:
        if report.time is not None and report.time < LAST:
            newest[report.task.operator] = max(report.time, newest.get(report.task.operator, report.time))
    timed = [step.name for step in pipeline.sources if step.event_time]
    return min((newest[name] for name in timed), default=None) if all(name in newest for name in timed) else None


class Worker:
    """One for each process and job. ``store`` and ``folders`` open what the context and the plans name."""

    def __init__(
        self, context: JobContext, store: Store | None = None, folders: Callable[[str], Files] = open_files
    ) -> None:
        self.context = context
        self.store = store or Store(context.store, context.sync, options=context.options)
        self._folders = folders
        self._versions: dict[str, Versions] = {}
        self._schemas: dict[tuple[Task, str], pa.Schema] = {}
        self._pipelines: dict[int, Pipeline] = {}

    def pipeline(self, shape: Shape) -> Pipeline:
        """The pipeline in a shape; the last few are remembered."""
        if shape.version not in self._pipelines:
            for old in sorted(self._pipelines)[:-PIPELINES]:
                del self._pipelines[old]
            self._pipelines[shape.version] = reshaped_pipeline(self.context.pipeline, shape)
        return self._pipelines[shape.version]

    def versions(self, folder: str) -> Versions:
        """What a node has. Folders of nodes that are gone are forgotten when a new one is opened."""
        if folder not in self._versions:
            self._versions[folder] = Versions(self._folders(folder), self.context.whole_from)
        return self._versions[folder]

    # Sources

    def ingest(
        self,
        plan: RunPlan,
        piece: int,
        shares: Mapping[str, pa.Table],
        ends: bool,
        shed: int = 0,
        watermark: int | None = None,
        read: int | None = None,
    ) -> Ingested:
        """Run the sources over a part of the batch, journal what they send on if the plan says so, and send it.

        ``shed``: rows of this part that were left out before. ``watermark``: the one of Spark, where that counts.
        ``read``: how many rows these stand for, if they are grouped.
        """
        assert plan.ingest is not None
        epoch, pieces, pipeline = plan.ingest, plan.pieces[plan.ingest], self.pipeline(plan.shape)
        since = time.perf_counter()
        blocks: list[Block] = []
        reports: list[Report] = []
        for name, rows in shares.items():
            task = source_task(pipeline.topology, name, piece, pieces)
            try:
                made = process_source(pipeline, task, rows, epoch, ends, watermark)
                sent = outgoing(pipeline, task, made, epoch, plan.shape.routings, piece)
            except TaskFailed as error:
                failed = Report(task, "exact", "", "failed", epoch - 1, message=str(error), **error.raised())
                return Ingested([], [failed], None)
            out = made.output.num_rows if made.output is not None else 0
            blocks += sent
            told = {**made.counters, SHED: 0 if reports else shed}
            came = made.rows_in if read is None else read
            report = Report(task, "exact", "", "committed", epoch, came, out, made.seconds)
            reports.append(replace(report, counters=told, time=made.stamp))
        took = time.perf_counter() - since
        if not plan.journals:
            return Ingested(blocks, reports, None, took)
        label = f"run-{plan.run}-of-{pieces}/{piece}"
        rows = sum(report.rows_in for report in reports)
        try:
            entry = journal.write(
                self.store.files, epoch, label, pack(blocks), token=self.context.token, sync=self.context.sync.journal,
                rows=rows, time=newest_time(pipeline, reports),
            )  # fmt: skip
        except Unusable as error:
            task = Task(next(iter(shares)), 0)
            return Ingested([], [Report(task, "exact", "", "unusable", epoch - 1, message=str(error))], None)
        return Ingested(blocks, reports, entry, took)

    def journalled(self, epoch: JournalEpoch, piece: int, now: Shape) -> list[Block]:
        """What a part of the batch of an earlier epoch sent, in the shape of that time, as receivers of now need it."""
        data = journal.read(self.store.files, epoch.pieces[piece])
        return recut(self.context.pipeline, unpack(data), Shape(routings=epoch.routings), now)

    # Works

    def work(self, plan: RunPlan, slot: Slot, arrived: Sequence[Block]) -> tuple[list[Block], list[Report]]:
        """Carry out the works of a slot on the blocks that came; the blocks they send, and how each went.

        What one of them sends another is given to it here.
        """
        waiting: dict[tuple[Task, int], list[Block]] = {}
        sent: list[Block] = []
        reports: list[Report] = []
        mine = {work.task for work in slot.works}

        def give(blocks: Sequence[Block]) -> None:
            for block in blocks:
                if block.receiver in mine:
                    waiting.setdefault((block.receiver, block.epoch), []).append(block)
                else:
                    sent.append(block)

        give(arrived)
        self._versions = {folder: held for folder, held in self._versions.items() if folder in plan.folders.values()}
        for kept in slot.kept:
            give(self._kept(plan, kept))
        for work in slot.works:
            self.versions(plan.folders[work.node]).sweep(plan)
            blocks, report = self._one(plan, work, waiting)
            give(blocks)
            reports.append(report)
        return sent, reports

    def _one(
        self, plan: RunPlan, work: Work, waiting: Mapping[tuple[Task, int], list[Block]]
    ) -> tuple[list[Block], Report]:
        began, since = time.process_time(), time.perf_counter()
        task, reached = work.task, work.start
        pipeline, versions = self.pipeline(plan.shape), self.versions(plan.folders[work.node])
        sent: list[Block] = []
        outputs: dict[int, StagedOutput] = {}
        counters: dict[str, int] = {}
        rows_in = rows_out = 0
        keys: list[int] = []
        fetching, touched = 0.0, 0
        tentative = work.lane == "tentative"

        def report(status: str, message: str = "", state: TaskState | None = None, **raised: Any) -> Report:
            seconds = time.process_time() - began
            size, rows = (state.nbytes, state.rows if state.counted else 0) if state is not None else (0, 0)
            return Report(
                task, work.lane, work.node, status, reached, rows_in, rows_out, seconds, size, rows, counters,  # type: ignore[arg-type]
                outputs, message, keys, restored=fetching, took=time.perf_counter() - since,
                touched=touched, **raised,
            )  # fmt: skip

        try:
            asked = time.perf_counter()
            state = self._state(plan, work)
            if work.origin == "checkpoint" and work.start >= 0 and state.tables and not state.afar:
                fetching = time.perf_counter() - asked
            for epoch in work.epochs:
                blocks = once(waiting.get((task, epoch), ()))
                if absent := absent_barrier(pipeline.topology, plan, task, epoch, blocks):
                    return [], report("blocked", f"task {task}, epoch {epoch}: no block from {absent}")
                self._remember_schemas(task, blocks)
                # What another node has or has not seen before must not show in an exact answer.
                known = self._known_schemas(pipeline, task) if tentative else None
                made = process(pipeline, task, state, blocks, epoch, self.context.verify, known, tentative)
                before, state = state.epoch, made.state
                if state.tables:
                    versions.commit(branch_of(work), task, state, made.changes, before, plan.run)
                else:
                    state = TaskState(epoch)
                if made.output is not None and made.output.num_rows:
                    rows_out += made.output.num_rows
                    if task.operator in self.context.outputs and work.says(epoch):
                        outputs[epoch] = self._stage(plan, work, epoch, made.output)
                if work.lane != "replica":
                    out = outgoing(pipeline, task, made, epoch, plan.shape.routings)
                    sent += out
                    if work.keep:
                        versions.keep(task, epoch, out)
                rows_in += made.rows_in
                if work.lane == "exact" and epoch % TALLIED == 0:
                    keys = tallied(self.context.pipeline, plan.shape, task, blocks)
                for what, count in made.counters.items():
                    counters[what] = counters.get(what, 0) + count
                touched = max(touched, made.touched)
                reached = epoch
            if work.lane == "replica" and state.tables:
                versions.trim(branch_of(work), task, plan.retain, state, plan.run)
        except VersionMissing as error:
            return [], report("missing", str(error))
        except TaskFailed as error:
            return [], report("failed", str(error), **error.raised())
        except Unrecoverable as error:
            # A fork that goes on with a checkpoint that is damaged, or retired by now: another begins with the newest.
            return [], report("missing" if tentative and work.origin == "local" else "damaged", str(error))
        except Unusable as error:
            own = self._folders(plan.folders[work.node]).url in str(error)
            return [], report("unfit" if own else "unusable", str(error))
        except HoldfastError as error:
            return [], report("failed", f"task {task}, epoch {reached + 1}: {error}")
        return sent, report("committed", state=state)

    def _stage(self, plan: RunPlan, work: Work, epoch: int, rows: pa.Table) -> StagedOutput:
        label = f"{self.context.token}-{plan.run}"
        kind: output.Kind = "final" if work.lane == "exact" else "tentative"
        return output.stage(
            self.store.files, label, kind, epoch, str(work.task), rows, work.fidelity, self.context.sync.outputs
        )

    def _state(self, plan: RunPlan, work: Work) -> TaskState:
        """The version that a work starts from; VersionMissing if this node does not have it."""
        declared = self.context.pipeline
        schemas = declared.state_schemas(work.task.operator)
        if not schemas:
            return TaskState(work.start)
        branch, versions = branch_of(work), self.versions(plan.folders[work.node])
        # A fork will not last: of a large state it reads what it touches, and leaves the rest where it is.
        touched = work.lane == "tentative"

        def stored(epoch: int, known: StoredState | None) -> TaskState:
            return restored(self.store, declared, plan.shape, work.task, epoch, touched, known)

        if work.origin == "checkpoint":
            known = plan.stored.get((work.task, work.start))
            state = TaskState.empty(schemas, -1) if work.start < 0 else stored(work.start, known)
            versions.begin(branch, work.task, state, plan.run, known)
        elif work.origin == "fork":
            state = versions.fork(branch, main_branch(work.born), work.task, work.start)
        else:
            state = versions.load(branch, work.task, work.start, stored if touched else None)
        if work.past is not None:
            state = at_time(state, work.past)
        if self.context.memory_limit is not None:
            spill = Spill(Path(self._folders(plan.folders[work.node]).url) / "spill", self.context.memory_limit)
            state = state.with_spill(spill)
            versions.hold(branch, work.task, state)
        return state

    def _kept(self, plan: RunPlan, kept: KeptOutput) -> list[Block]:
        versions = self.versions(plan.folders[kept.node])
        return [block for epoch in range(kept.first, kept.last + 1) for block in versions.kept(kept.task, epoch)]

    def save(self, uploads: Sequence[Upload]) -> Saved:
        """Bring states to the store for a checkpoint."""
        return Saved.of([upload(self.store, self.context.token, self._folders(each.folder), each) for each in uploads])

    def fold(self, task: str, chain: Sequence[FileEntry]) -> tuple[FileEntry, ...]:
        """A shorter chain of checkpoint files for the same state of any task."""
        return folded_chain(self.store, task, chain, self.context.token)

    def _remember_schemas(self, task: Task, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if (task, block.sender.operator) not in self._schemas:
                schema = block.table().schema
                if len(schema):
                    self._schemas[task, block.sender.operator] = schema

    def _known_schemas(self, pipeline: Pipeline, task: Task) -> dict[str, pa.Schema]:
        names = [stream.source for stream in pipeline.topology.inputs_of(task.operator)]
        return {name: self._schemas[task, name] for name in names if (task, name) in self._schemas}
