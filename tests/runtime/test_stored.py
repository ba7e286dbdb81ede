"""Who restores a state reads the files of its own task, and no manifest: the driver says which they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from driving import chain, task
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.messages import NodeInfo, Report, Run, Work
from holdfast.runtime.settings import Settings
from holdfast.runtime.shape import Shape, grown, resized, routing_of, scalable
from holdfast.runtime.simulation.auditing import audited
from holdfast.runtime.simulation.disk import DiskFiles
from holdfast.runtime.simulation.fuzzing import Case
from holdfast.runtime.simulation.operators import cut_batches
from holdfast.runtime.simulation.pipelines import PIPELINES, drawn_batches
from holdfast.runtime.simulation.schedule import FaultSchedule, Timing
from holdfast.runtime.simulation.simulation import Simulation
from holdfast.runtime.worker.plan import RunPlan, Slot, lay_out
from holdfast.runtime.worker.processing import outgoing, process_source
from holdfast.runtime.worker.repartition import restored
from holdfast.runtime.worker.slot_parts import Cut
from holdfast.runtime.worker.stored import StoredState, stored_states
from holdfast.runtime.worker.worker import JobContext, Worker
from holdfast.state import Change, Checkpoint, KeyRange, Routing, StateTable, Store, TaskState, Writer, hash_keys, pages
from holdfast.state.entries import FileEntry
from holdfast.state.files import LocalFiles
from holdfast.state.journal import JournalSpan
from holdfast.topology import Task

SOURCE, COUNTS = Task("rows", 0), Task("counts", 0)
NAME = "counts"


def counting(tasks: int = 1) -> op.Pipeline:
    return op.Pipeline(
        op.source("rows"),
        op.step(NAME, op.aggregate({"key": pa.int64()}, n=op.count()), op.stream("rows", key="key"), parallelism=tasks),
    )


def state_of(pipeline: op.Pipeline, epoch: int, routing: Routing, number: int, keys: int = 200) -> TaskState:
    """What a task has that has seen each of its keys so often as the epoch's number says."""
    ((name, schema),) = pipeline.state_schemas(NAME).items()
    rows = pa.table(
        {each.name: pa.array(np.arange(keys) if each.name == "key" else np.full(keys, epoch), each.type)
         for each in schema.arrow}
    )  # fmt: skip
    mine = rows.filter(pa.array(routing.route(hash_keys(rows, ("key",))) == number))
    return TaskState(epoch, {name: StateTable.from_table(schema, mine, epoch)})


def saved(writer: Writer, pipeline: op.Pipeline, epoch: int, shape: Shape | None = None) -> Checkpoint:
    shape = shape or Shape()
    routing = routing_of(pipeline.topology, shape, NAME)
    entries = {
        f"{NAME}/{n}": writer.store.write_task(
            f"{NAME}/{n}", epoch, state_of(pipeline, epoch, routing, n), token=writer.token
        )
        for n in routing.owners
    }
    return writer.commit_checkpoint(epoch, entries, shape.routings)


@pytest.fixture
def manifests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is read or listed where manifests are, from now on."""
    seen: list[str] = []
    for what in ("read", "list"):
        real = getattr(LocalFiles, what)

        def watched(files: LocalFiles, name: str, real: Any = real) -> Any:
            seen.extend([name] if name.startswith("checkpoints") else [])
            return real(files, name)

        monkeypatch.setattr(LocalFiles, what, watched)
    yield seen


class Node:
    """A worker's node, beside a store with a checkpoint of epoch 4 whose writer is still there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pipeline, self.store = folder, counting(), Store(folder / "store")
        self.writer = self.store.writer("test")
        self.checkpoint = saved(self.writer, self.pipeline, 4)

    def process(self) -> Worker:
        """Another process of the node."""
        at = str(self.folder)
        return Worker(JobContext("job", self.pipeline, f"{at}/store", "", self.writer.token, at, frozenset()))

    @property
    def known(self) -> dict[tuple[Task, int], StoredState]:
        """As the driver tells it."""
        states = stored_states(self.pipeline.topology, Shape(), self.checkpoint, [COUNTS])
        return {(task, 4): state for task, state in states.items()}

    def work(self, known: dict[tuple[Task, int], StoredState], worker: Worker | None = None, **changed: Any) -> Report:
        """An epoch with one row that begins with the checkpoint."""
        work = replace(Work(COUNTS, "node-0", "exact", "checkpoint", 4, 5, 5), **changed)
        slot, folders = Slot("", (work,)), {"node-0": str(self.folder / "node-0")}
        epoch = work.first
        plan = RunPlan(epoch, ((slot,),), {}, {}, {epoch: 1}, folders, -1, forks=frozenset([7]), stored=known)
        rows = process_source(self.pipeline, SOURCE, pa.table({"key": [1]}), epoch)
        _, (report,) = (worker or self.process()).work(plan, slot, outgoing(self.pipeline, SOURCE, rows, epoch, {}))
        return report


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    with made.writer:
        yield made


@pytest.mark.parametrize("lane", ["exact", "replica", "tentative", "side"])
def test_a_worker_that_is_told_the_files_reads_no_manifest(node: Node, manifests: list[str], lane: str) -> None:
    known = node.known
    manifests.clear()
    report = node.work(known, lane=lane, fork=7)
    assert (report.status, report.state_rows) == ("committed", 200), report.message
    assert not manifests


def test_a_fork_that_goes_on_in_another_process_knows_its_files_by_what_the_first_put_down(
    node: Node, manifests: list[str]
) -> None:
    """Of a large state only what it touches is on the node."""
    with mock.patch.multiple(pages, LARGE=1, PAGE=64, MOST=100.0):
        node.checkpoint = saved(node.writer, node.pipeline, 4)
        known = node.known
        manifests.clear()
        assert node.work(known, lane="tentative", fork=7).status == "committed"
        on = {"lane": "tentative", "fork": 7, "origin": "local"}
        report = node.work({}, **on, start=5, first=6, last=6)
        assert report.status == "committed" and not manifests, report.message
        (note,) = (node.folder / "node-0").rglob("*.stored.*")
        note.write_bytes(note.read_bytes()[:-1])
        assert node.work({}, **on, start=6, first=7, last=7).status == "committed" and manifests
        (entry,) = node.checkpoint.chain("counts/0")
        (node.folder / "store" / entry.path).unlink()
        assert node.work({}, **on, start=7, first=8, last=8).status == "missing", "another begins with the newest"


def test_what_a_task_is_told_can_be_put_down(node: Node) -> None:
    scaled = grown(node.pipeline.topology, Shape(), NAME, resized(Routing.even(1), 3), 1, {})
    for shape in (Shape(), scaled):
        (state,) = stored_states(node.pipeline.topology, shape, node.checkpoint, [COUNTS]).values()
        assert StoredState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_a_worker_that_is_not_told_finds_them_in_the_manifest(node: Node, manifests: list[str]) -> None:
    assert node.work({}).status == "committed" and any(name.endswith(".json") for name in manifests)


def test_files_that_were_folded_into_others_meanwhile_are_looked_up_anew(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with node.writer, mock.patch.object(node.writer, "_keep", 1):
        ((name, schema),) = node.pipeline.state_schemas(NAME).items()
        for epoch in (5, 6):
            rows = state_of(node.pipeline, epoch, Routing.even(1), 0, 10)[name].to_table()
            change = {name: Change(rows, schema.key.empty_table())}
            files = node.store.write_task("counts/0", epoch, change, since=epoch - 1, token=node.writer.token)
            node.checkpoint = node.writer.commit_checkpoint(epoch, {"counts/0": files})
        known = {(COUNTS, 6): node.known[COUNTS, 4]}
        assert node.writer.compact() and node.store.problems(node.checkpoint), "what the driver told is gone"
        report = node.work(known, start=6, first=7, last=7)
        assert (report.status, report.state_rows) == ("committed", 200), report.message


@pytest.mark.parametrize("how", ["altered", "missing", "retired"])
def test_what_is_damaged_is_told_as_if_the_manifest_had_been_read(node: Node, how: str) -> None:
    known = node.known
    if how == "retired":
        for epoch in (6, 8, 10):
            node.checkpoint = saved(node.writer, node.pipeline, epoch)
        assert node.writer.at_hand(4) is None and node.writer.at_hand(10) == node.checkpoint
    else:
        (entry,) = node.checkpoint.chain("counts/0")
        path = node.folder / "store" / entry.path
        path.write_bytes(path.read_bytes()[::-1])
        if how == "missing":
            path.unlink()
    told, read = node.work(known), node.work({})
    assert (told.status, told.reached) == ("damaged", 4)
    assert told.message == read.message and ("no checkpoint of epoch 4" if how == "retired" else how) in told.message
    gone = node.work(known, lane="tentative", fork=7)
    assert gone.status == "damaged", "a fork that was to begin with it says so too"


# Which files


shapes = st.lists(st.integers(1, 6), min_size=1, max_size=2)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(declared=st.integers(1, 4), before=shapes, after=shapes)
def test_told_or_read_states_are_the_same_in_whatever_shape(
    tmp_path_factory: pytest.TempPathFactory, declared: int, before: list[int], after: list[int]
) -> None:
    """And each task is told no files but those of tasks that had some of its keys."""
    pipeline, shape = counting(declared), Shape()
    shapes = []
    for version, to in enumerate([*before, *after], 1):
        shapes.append(shape)
        routing = resized(routing_of(pipeline.topology, shape, NAME), to)
        shape = grown(pipeline.topology, shape, NAME, routing, version, {})
    for then in shapes:
        store = Store(tmp_path_factory.mktemp("store"))
        with store.writer("test") as writer:
            checkpoint = saved(writer, pipeline, 4, then)
        routing, old = routing_of(pipeline.topology, shape, NAME), routing_of(pipeline.topology, then, NAME)
        tasks = [Task(NAME, number) for number in routing.owners]
        known = stored_states(pipeline.topology, shape, checkpoint, tasks)
        for each in tasks:
            wanted = state_of(pipeline, 4, routing, each.number)
            mine = routing.owned(each.number)[0]
            shared = [n for n, r in zip(old.owners, old.ranges, strict=True) if r.lo < mine.hi and mine.lo < r.hi]
            assert [part.task.number for part in known[each].parts] == shared
            with mock.patch.object(Store, "checkpoint", None):
                told = restored(store, pipeline, shape, each, 4, known=known[each])
            assert told == restored(store, pipeline, shape, each, 4) == wanted.evolve(pipeline.state_schemas(NAME))


def test_a_task_that_a_checkpoint_lacks_is_named() -> None:
    with pytest.raises(Invalid, match="checkpoint 4: no task 'counts/0', tasks are none"):
        stored_states(counting().topology, Shape(), Checkpoint(4, 1, 0, {}), [COUNTS])


def test_who_owns_keys_that_lie_in_a_range() -> None:
    routing = Routing.even(4)
    (a, b, c, d) = routing.ranges
    assert routing.overlapping(a) == ((0, a),) and routing.overlapping(d) == ((3, d),)
    assert routing.overlapping(KeyRange(b.hi - 1, c.lo + 1)) == ((1, b), (2, c))
    assert [owner for owner, _ in routing.overlapping(KeyRange.whole())] == [0, 1, 2, 3]


# On their way


def test_a_slot_is_told_of_its_own_tasks_and_of_those_that_restore_alone() -> None:
    topology, nodes = chain(1, 4), {f"node-{n}": NodeInfo("0", place=f"p{n}", folder=f"f{n}") for n in range(2)}
    works = (
        Work(task("A/0"), "node-0", "exact", "checkpoint", 4, 5, 5),
        Work(task("A/1"), "node-0", "exact", "local", 4, 5, 5),
        Work(task("A/2"), "node-1", "side", "checkpoint", 2, 5, 5),
        Work(task("A/3"), "node-1", "tentative", "fork", 4, 5, 5),
    )
    files = {(task(f"A/{n}"), epoch): _stored(f"A/{n}", epoch) for n in range(4) for epoch in (2, 4)}
    plan = replace(lay_out(topology, Run(0, "replay", works), nodes, JournalSpan(())), stored=files)
    cut = Cut(plan, topology)
    parts = cut.level(0)
    assert [parts.of(index).plan.stored for index in range(2)] == [
        {(task("A/0"), 4): files[task("A/0"), 4]},
        {(task("A/2"), 2): files[task("A/2"), 2]},
    ]
    assert not cut.journal(1).of(0).plan.stored and not cut.ingest().of(0).plan.stored


def _stored(name: str, epoch: int) -> StoredState:
    checkpoint = Checkpoint(epoch, 1, 0, {name: (FileEntry(f"state/{name}-{epoch}", 1, "", 0),)})
    return stored_states(chain(1, 4), Shape(), checkpoint, [task(name)])[task(name)]


SCRIPTS = {
    "most nodes": "kill node-0,node-1,node-2 at epoch 7; join node-0,node-1,node-2 after 4s",
    "again while recovering": "kill node-0,node-1,node-2 at epoch 7; kill node-3 at epoch 9; join node-0,node-1 at 3s",
    "the driver": "restart at epoch 7; kill node-2,node-3 at epoch 9; join node-2,node-3 after 3s",
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("name", PIPELINES)
def test_nodes_of_a_whole_job_read_no_manifest(name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However they come by a state: recovery, forks, scaling, another driver."""
    read, told, seen = DiskFiles.read, Worker._state, dict[str, list[str]](manifests=[], restored=[])

    def watched(files: DiskFiles, name: str) -> Any:
        if name.startswith("checkpoints/") and files._actor.startswith("node-"):
            seen["manifests"].append(f"{files._actor} {name}")
        return read(files, name)

    def restoring(worker: Worker, plan: RunPlan, work: Work) -> TaskState:
        seen["restored"] += [str(work.task)] if work.origin == "checkpoint" and work.start >= 0 else []
        return told(worker, plan, work)

    monkeypatch.setattr(DiskFiles, "read", watched)
    monkeypatch.setattr(Worker, "_state", restoring)
    pipeline = PIPELINES[name]()
    scaled = next(iter(sorted(scalable(pipeline))), None)
    schedule = FaultSchedule(
        pipeline.coordinated, Settings(nodes=4, checkpoint_every=3), nodes=4, epochs=16,
        faults=parse_faults(SCRIPTS[script]), timing=Timing(interval=0.25),
        scalings=() if scaled is None else ((0.8, scaled, 3), (3.2, scaled, 1)), cores=2,
    )  # fmt: skip
    case = Case(schedule, pipeline, cut_batches(drawn_batches(pipeline, 16, 5)))
    simulation = Simulation(case.schedule, case.pipeline, list(case.batches))
    with mock.patch.multiple(pages, LARGE=1, PAGE=64, MOST=100.0):
        audited(simulation, case.expected())
    assert scaled is None or "scaled" in {event["kind"] for event in simulation.history}
    assert seen["restored"] and not seen["manifests"]
