"""Forks of which only the touched part is read: the same answers as forks of the whole state, in a few bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from holdfast import operators as op
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.messages import Report, Work
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.auditing import audited
from holdfast.runtime.simulation.disk import ONLOOKER
from holdfast.runtime.simulation.fuzzing import Case
from holdfast.runtime.simulation.operators import cut_batches
from holdfast.runtime.simulation.pipelines import PIPELINES, drawn_batches
from holdfast.runtime.simulation.schedule import FaultSchedule, Timing
from holdfast.runtime.simulation.simulation import STORE, Simulation
from holdfast.runtime.worker.blocks import Block
from holdfast.runtime.worker.plan import RunPlan, Slot
from holdfast.runtime.worker.processing import outgoing, process_source
from holdfast.runtime.worker.worker import JobContext, Worker
from holdfast.state import Store, output, pages
from holdfast.state.files import LocalFiles
from holdfast.topology import Task

SOURCE, COUNTS = Task("rows", 0), Task("counts", 0)
KEYS = 400_000
SECOND = 1_000_000


class Paged:
    """What was read of files in pages, and how often all of one was."""

    def __init__(self) -> None:
        self.bytes = 0
        self.wholes = 0


@pytest.fixture(autouse=True)
def not_so_large() -> Iterator[None]:
    """What is large is so with fewer rows."""
    with mock.patch.object(pages, "LARGE", 8 << 20):
        yield


@pytest.fixture
def reads() -> Iterator[Paged]:
    seen, read, whole = Paged(), LocalFiles.read_parts, pages.PagedFile.whole

    def read_parts(files: LocalFiles, name: str, spans: Sequence[tuple[int, int]]) -> Any:
        seen.bytes += sum(size for _, size in spans)
        return read(files, name, spans)

    def read_whole(file: pages.PagedFile) -> Any:
        seen.wholes += not file.at_hand
        return whole(file)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(LocalFiles, "read_parts", read_parts))
        patches.enter_context(mock.patch.object(pages.PagedFile, "whole", read_whole))
        yield seen


def counting(**options: Any) -> op.Pipeline:
    return op.Pipeline(
        op.source("rows", event_time="time"),
        op.step("counts", op.aggregate(by={"k": "int64"}, n=op.count(), total=op.sum("v"), **options), "rows"),
    )


class Node:
    """A worker on a node of its own, with a store that has a checkpoint of epoch 0 of all keys."""

    def __init__(self, folder: Path, pipeline: op.Pipeline) -> None:
        self.pipeline, self.folder = pipeline, folder
        self.store = Store(folder / "store")
        with self.store.writer("test") as writer:
            first = process_source(pipeline, SOURCE, batch(np.arange(KEYS), 0), 0)
            self.worker = self.process(writer.token)
            plan, slot = self.plan(0, Work(COUNTS, "node-0", "exact", "checkpoint", -1, 0, 0))
            _, reports = self.worker.work(plan, slot, outgoing(pipeline, SOURCE, first, 0, {}))
            assert [report.status for report in reports] == ["committed"], reports[0].message
            self.exact = reports[0]
            state = self.worker.versions(str(folder / "node-0")).load("main", COUNTS, 0)
            writer.commit_checkpoint(0, {"counts/0": self.store.write_task("counts/0", 0, state, token=writer.token)})

    def process(self, token: int = 1) -> Worker:
        """Another process of the node."""
        outputs, store = frozenset(["counts"]), str(self.folder / "store")
        return Worker(JobContext("job", self.pipeline, store, "", token, str(self.folder), outputs))

    def plan(self, run: int, work: Work) -> tuple[RunPlan, Slot]:
        slot, folders = Slot("", (work,)), {work.node: str(self.folder / work.node)}
        pieces = dict.fromkeys(work.epochs, 1)
        return RunPlan(run, ((slot,),), {}, {}, pieces, folders, -1, forks=frozenset([7])), slot

    def forked(self, worker: Worker, epoch: int, keys: Sequence[int], start: int, lane: str = "tentative") -> Report:
        """An epoch of a fork that begins with the checkpoint, or goes on."""
        origin = "checkpoint" if start == 0 else "local"
        work = Work(COUNTS, "node-1", lane, origin, start, epoch, epoch, fork=7)  # type: ignore[arg-type]
        plan, slot = self.plan(epoch, work)
        made = process_source(self.pipeline, SOURCE, batch(np.array(keys), epoch), epoch)
        blocks: list[Block] = outgoing(self.pipeline, SOURCE, made, epoch, {})
        _, (report,) = worker.work(plan, slot, blocks)
        return report

    def said(self, report: Report) -> list[dict[str, Any]]:
        (staged,) = report.outputs.values()
        assert output.place(self.store.files, [staged], sync=False)
        rows = output.read(self.store.files, staged.kind, staged.epoch, staged.task)
        assert rows is not None
        return sorted(rows.select(["k", "n", "total"]).to_pylist(), key=repr)


def batch(keys: Any, epoch: int) -> pa.Table:
    times = pa.array(np.full(len(keys), epoch * SECOND), pa.timestamp("us", "UTC"))
    return pa.table({"k": keys, "v": np.asarray(keys) + epoch, "time": times})


def test_a_fork_of_a_large_state_reads_what_its_epochs_touch(tmp_path: Path, reads: Paged) -> None:
    node = Node(tmp_path, counting())
    (size,) = (sum(entry.bytes for entry in chain if entry.pages) for chain in node.store.checkpoint(0).tasks.values())
    assert size > pages.LARGE
    worker = node.process()
    asked = [5, 77, 5, 399_999, 10**9]
    expected = Counter(asked)
    report = node.forked(worker, 5, asked, 0)
    assert report.status == "committed" and node.said(report) == sorted(
        ({"k": k, "n": n + (k < KEYS), "total": n * (k + 5) + (k < KEYS) * k} for k, n in expected.items()), key=repr
    )
    assert 0 < reads.bytes < size / 20 and not reads.wholes
    assert report.restored == 0.0, "what it took says nothing about a whole state"
    first = reads.bytes
    assert node.forked(worker, 6, asked, 5).status == "committed"
    assert reads.bytes == first, "the next epoch of the same keys has them at hand"
    # Another process of the node finds where the fork began, and what it changed since.
    again = node.forked(node.process(), 7, [5], 6)
    assert node.said(again) == [{"k": 5, "n": 6, "total": 5 + 2 * 10 + 2 * 11 + 12}]
    assert not reads.wholes and sum(file.stat().st_size for file in (tmp_path / "node-1").rglob("*.arrow")) < 50_000
    assert node.forked(worker, 5, asked, 0, "exact").status == "committed"
    assert reads.bytes < size / 10, "an exact state is read whole, as ever"


def test_the_report_of_an_exact_epoch_says_what_a_fork_would_read(tmp_path: Path) -> None:
    node = Node(tmp_path, counting())
    assert node.exact.touched == node.exact.state_bytes, "of an epoch with all keys everything"
    few = node.forked(node.worker, 5, [1, 2, 3], 0, "exact")
    assert few.touched is not None and few.touched < 5 * pages.PAGE < few.state_bytes


def test_an_operator_that_looks_through_its_state_has_all_of_it(tmp_path: Path, reads: Paged) -> None:
    node = Node(tmp_path, counting(ttl="1 h", time="time"))
    report = node.forked(node.process(), 5, [5, 77], 0)
    assert report.status == "committed" and reads.wholes == 1
    assert [row["n"] for row in node.said(report)] == [2, 2]
    assert report.touched == report.state_bytes


@pytest.mark.parametrize("hidden", [False, True], ids=["", "hidden"])
def test_damage_that_a_look_up_finds_is_no_answer(
    tmp_path: Path, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is damaged if the fork was to begin with it; a fork that goes on is missing."""
    node = Node(tmp_path, counting())
    operator = node.pipeline.by_name["counts"].operator
    real = operator.process_inputs

    def hiding(inputs: Any, state: Any) -> pa.Table | None:
        try:
            return real(inputs, state)
        except Exception:
            return pa.table({"k": [1], "n": [1], "total": [1]})

    if hidden:
        monkeypatch.setattr(operator, "process_inputs", hiding)
    worker = node.process()
    assert node.forked(worker, 5, [5], 0).status == "committed"
    (entry,) = [entry for entry in node.store.checkpoint(0).chain("counts/0") if entry.pages is not None]
    path = tmp_path / "store" / entry.path
    data = np.frombuffer(path.read_bytes(), np.uint8).copy()
    data[: entry.pages.at] ^= 1  # type: ignore[union-attr]
    path.write_bytes(data.tobytes())
    report = node.forked(worker, 6, [6], 5)
    assert report.status == "missing" and "altered" in report.message and not report.outputs
    report = node.forked(node.process(), 6, [6], 0)
    assert (report.status, report.reached) == ("damaged", 0) and "altered" in report.message and not report.outputs
    path.unlink()
    assert node.forked(node.process(), 6, [6], 5).status == "missing"


# Whole jobs


SCRIPTS = {
    "most nodes": "kill node-0,node-1,node-2 at epoch 7; join node-0,node-1,node-2 after 4s",
    "all but another": "kill node-1,node-2,node-3 at epoch 7; join node-1,node-2,node-3 after 4s",
    "again while recovering": "kill node-0,node-1,node-2 at epoch 7; kill node-3 at epoch 9; join node-0,node-1 at 3s",
    "the driver": "kill node-0,node-1,node-2 at epoch 7; restart at epoch 9; join node-0,node-1,node-2 at 9s",
}
DAMAGED = "damage checkpoint at epoch 7; kill node-0,node-1,node-2 at epoch 7; join node-0,node-1 after 2s"


def answers(name: str, script: str) -> dict[tuple[int, str], list[str]]:
    """The tentative answers of a job that goes through this, whose final ones are audited."""
    pipeline = PIPELINES[name]()
    settings = Settings(nodes=4, checkpoint_every=3)
    schedule = FaultSchedule(
        pipeline.coordinated, settings, nodes=4, epochs=14, faults=parse_faults(script), timing=Timing(interval=0.25)
    )
    case = Case(schedule, pipeline, cut_batches(drawn_batches(pipeline, 14, 5)))
    simulation = Simulation(case.schedule, case.pipeline, list(case.batches))
    audited(simulation, case.expected())
    files = simulation.disk.files(ONLOOKER, STORE)
    said = {}
    for epoch, task in output.written(files, "tentative"):
        said[epoch, task] = sorted(map(repr, output.read(files, "tentative", epoch, task).to_pylist()))
    return said


@pytest.fixture
def tiny() -> Iterator[list[int]]:
    """Files of any size are in pages of a row or two, and are never read whole for look-ups; which pages were read."""
    read, seen = pages.PagedFile._read, list[int]()

    def counted(file: pages.PagedFile, some: Any) -> Any:
        seen.extend(some.tolist())
        return read(file, some)

    with ExitStack() as patches:
        for what, value in (("LARGE", 1), ("PAGE", 64), ("MOST", 100.0)):
            patches.enter_context(mock.patch.object(pages, what, value))
        patches.enter_context(mock.patch.object(pages.PagedFile, "_read", counted))
        yield seen


@pytest.mark.parametrize("name", PIPELINES)
def test_jobs_say_the_same_whether_forks_read_all_of_their_state_or_not(name: str, tiny: list[int]) -> None:
    said = 0
    for script in SCRIPTS.values():
        touched, read = answers(name, script), len(tiny)
        with mock.patch.object(pages, "LARGE", 1 << 30):
            assert answers(name, script) == touched
        assert len(tiny) == read
        said += len(touched)
    assert said
    assert tiny or name == "windows", "look-ups read pages; what closes windows looks at all of them"


@pytest.mark.parametrize("name", PIPELINES)
def test_a_job_whose_newest_checkpoint_is_damaged_comes_out_right(name: str, tiny: list[int]) -> None:
    """A fork may answer from it where it touches what is whole: what is final is made from an older one."""
    assert answers(name, DAMAGED)
