"""What the driver itself has to do, as jobs grow: ``growth.py --driver``.

The real driver, coordinator, journal, store and history on a folder; only executors are simulated: a run's reports come
at once, as JSON, and the files that executors would have written are there already. What executors would do is not
counted; what the driver does for them is: laying runs out, pickling what each level is sent, reading reports, putting
down the journal, placing outputs, telling the history, committing checkpoints.

Seconds differ from turn to turn, since most of an epoch is calls of the file system; so the calls of functions that an
epoch and a restart take are counted beside them, in one more of each.
"""

from __future__ import annotations

import cProfile
import gc
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.cloudpickle import dumps as pickled

from holdfast import operators as op
from holdfast.errors import HoldfastError
from holdfast.operators import Pipeline
from holdfast.runtime.driver.config import JobConfig
from holdfast.runtime.driver.driver import Driver
from holdfast.runtime.driver.launch import launch
from holdfast.runtime.driver.ports import Asked, Failed, Offer, Ports, RunResult
from holdfast.runtime.history.history import NAME, History
from holdfast.runtime.messages import CheckpointWanted, NodeInfo, Report
from holdfast.runtime.options import Storage
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.loop import Environment, VirtualLoop
from holdfast.runtime.spark import stages
from holdfast.runtime.worker.plan import RunPlan
from holdfast.runtime.worker.slot_parts import Cut
from holdfast.runtime.worker.versions import Saved, Upload
from holdfast.runtime.worker.worker import JobContext
from holdfast.state import Store, Writer
from holdfast.state.entries import FileEntry, checksum
from holdfast.state.names import task_folder
from holdfast.state.origin import Origin
from holdfast.state.output import STAGED, StagedOutput, output_name
from measuring import Record, written

PIECES = 8
"""Parts of each batch, and files of each epoch's journal."""
TB = 10**12


def pipeline(tasks: int, levels: int) -> Pipeline:
    """Counts by key, in so many levels of tasks; the last has the rest, and every task of it says something."""
    width = max(1, tasks // levels)
    count = {"key": pa.int64()}
    steps = [op.source("rows", lambda batch: batch, parallelism=min(PIECES, width))]
    before = "rows"
    for number in range(levels):
        here = width if number + 1 < levels else tasks - width * (levels - 1)
        name = f"count{number}"
        steps.append(
            op.step(name, op.aggregate(count, count=op.count()), op.stream(before, key="key"), parallelism=here)
        )
        before = name
    return Pipeline(*steps)


@dataclass
class Watch:
    """Seconds of the driver: all that passed, less what stands for others' work. Or calls, if there is a profile."""

    profile: cProfile.Profile | None = None
    began: float = field(default_factory=time.perf_counter)
    others: float = 0.0

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        began, profile = time.perf_counter(), self.profile
        if profile is not None:
            profile.disable()
        try:
            yield
        finally:
            if profile is not None:
                profile.enable()
            self.others += time.perf_counter() - began

    def calls(self, work: Callable[[], object]) -> int:
        """Of functions, Python's and others, that this takes of the driver."""
        self.profile = profile = cProfile.Profile()
        try:
            profile.runcall(work)
        finally:
            self.profile = None
        return sum(each.callcount for each in profile.getstats())

    def seconds(self) -> float:
        return time.perf_counter() - self.began - self.others


class Executors:
    """So many nodes, always there."""

    def __init__(self, count: int) -> None:
        self.here = {
            f"node-{n}": NodeInfo("0", f"node-{n}", f"host-{n}", f"folder-{n}", f"executor_host-{n}_{n}")
            for n in range(count)
        }

    def look(self) -> Mapping[str, NodeInfo]:
        return self.here

    def refused(self) -> Sequence[str]:
        return ()

    def kill(self, names: Iterable[str]) -> None: ...
    def grow(self, count: int) -> bool:
        return False

    def release(self, names: Iterable[str]) -> None: ...
    def give_up(self, nodes: Iterable[tuple[str, str]]) -> None: ...
    def close(self) -> None: ...


class Answers:
    """A runner whose executors need no time. ``state``: bytes that all states have; their files are empty inside."""

    def __init__(self, context: JobContext, writer: Writer, folder: Path, watch: Watch, state: int) -> None:
        self._context = context
        self._token = writer.token
        self._folder = folder
        self._watch = watch
        self._state = state
        self.closures: list[int] = []
        self.opened: list[int] = []
        """The largest closure of each run, and the most that a slot opens of one."""
        data = pa.BufferOutputStream()
        pq.write_table(pa.table({"epoch": [0], "task": ["count/0"], "key": [1], "count": [1]}), data)
        self._rows = data.getvalue().to_pybytes()
        (folder / STAGED).mkdir(parents=True, exist_ok=True)

    def start(self, plan: RunPlan, batch: object, done: Callable[[RunResult | Failed], None]) -> None:
        if plan.ingest is not None:
            plan = plan.ingesting(PIECES)
        cut = Cut(plan, self._context.pipeline.topology)
        parts = [cut.level(number) for number in range(len(plan.levels))]
        sizes = [len(pickled(stages.Level(self._context.job, _NONE, each, n))) for n, each in enumerate(parts)]
        self.closures.append(max(sizes, default=0))
        with self._watch.elsewhere():
            self.opened.append(max((each.opened(n) for each in parts for n in range(len(each.own))), default=0))
        with self._watch.elsewhere():
            told = json.dumps(self._notes(plan))
        done(stages.result_of(json.loads(told), self._context.pipeline.topology.task))

    def _notes(self, plan: RunPlan) -> list[dict[str, Any]]:
        notes: list[dict[str, Any]] = []
        for slots in plan.levels:
            for slot in slots:
                for work in slot.works:
                    outputs = {}
                    if work.lane == "exact" and work.task.operator in self._context.outputs:
                        outputs = {
                            epoch: self._staged(plan.run, epoch, str(work.task))
                            for epoch in work.epochs
                            if work.says(epoch)
                        }
                    report = Report(
                        work.task, work.lane, work.node, "committed", work.last, 100, 10, 0.001, outputs=outputs
                    )
                    notes.append(stages._noted(report))
        if plan.ingest is not None:
            for piece in range(PIECES):
                name = (
                    f"journal/{plan.ingest:012d}/run-{plan.run}-of-{PIECES}-{piece}-{self._token:010d}-{0:032x}.arrow"
                )
                entry = FileEntry(name, 1, "0" * 32, 100)
                notes.append({"piece": piece, **entry.to_json()})
        return notes

    def _staged(self, run: int, epoch: int, task: str) -> StagedOutput:
        proof = checksum(self._rows)
        name = output_name("final", epoch, task).rpartition("/")[2]
        path = f"{STAGED}/{self._token}-{run}-final-{proof}-{name}"
        (self._folder / STAGED).mkdir(parents=True, exist_ok=True)
        (self._folder / path).write_bytes(self._rows)
        return StagedOutput(epoch, task, "final", path, len(self._rows), proof, 1)

    def save(self, epoch: int, uploads: Mapping[str, Sequence[Upload]], done: Callable[[Saved | Failed], None]) -> None:
        entries: dict[str, tuple[FileEntry, ...]] = {}
        with self._watch.elsewhere():
            wanted = [upload for each in uploads.values() for upload in each]
            size = self._state // max(1, len(wanted))
            for upload in wanted:
                since = upload.since if upload.since >= 0 else None
                span = "full" if since is None else str(since)
                name = f"{epoch:012d}-{span}-{self._token:010d}-{epoch:032x}.groups.arrow"
                path = self._folder / "state" / task_folder(upload.task) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as file:
                    file.truncate(size)
                given = FileEntry(
                    f"state/{task_folder(upload.task)}/{name}", size, f"{epoch:032x}", 1, "groups", epoch, since
                )
                entries[upload.task] = (given,)
        told = json.dumps(Saved(entries, {}).to_json())
        done(Saved.from_json(json.loads(told)))

    def cancel(self, run: int) -> None: ...
    def silent(self, run: int, places: Sequence[str]) -> Asked:
        return Asked({})

    def failing(self, run: int, places: Sequence[str]) -> frozenset[str]:
        return frozenset()

    def cancel_save(self, epoch: int) -> None: ...
    def close(self) -> None: ...


_NONE: Any = None


class Batches:
    """The next epoch as soon as the last was released, as long as more are wanted."""

    def __init__(self, first: int) -> None:
        self.next = self.wanted = first
        self._offer: Offer | None = None

    def open(self, offer: Offer, newest: Origin | None) -> None:
        self._offer = offer

    def origin(self, epoch: int, read: bool) -> Origin:
        return Origin(epoch)
        self.want(self.wanted)

    def want(self, epoch: int) -> None:
        """All up to this one; the last that was wanted is answered."""
        self.wanted = epoch
        if self._offer is not None and self.next <= epoch:
            self._offer(self.next, None, Origin(self.next))

    def release(self, epoch: int) -> None:
        self.next = epoch + 1
        self.want(self.wanted)

    def close(self, error: HoldfastError | None) -> None:
        self._offer = None


class Life:
    """One life of a driver upon a folder, stepped until epochs are answered."""

    def __init__(self, folder: Path, asked: Shape, first: int, watch: Watch | None = None) -> None:
        self.watch = watch or Watch()
        self.world = Environment()
        loop = VirtualLoop(self.world, Random(1), 0.0)
        self.source = Batches(first)
        self.runner: Answers | None = None
        self.error: list[HoldfastError | None] = []
        self._history = History(folder / NAME)

        def made(context: JobContext, writer: Writer) -> Answers:
            self.runner = Answers(context, writer, folder, self.watch, asked.state)
            return self.runner

        settings = Settings(nodes=asked.nodes, checkpoint_every=asked.every)
        config = JobConfig("grown", asked.pipeline, settings, storage=Storage(force=True))
        ports = Ports(
            loop, loop, Executors(asked.nodes), self.source, Store(folder), self._history, made,
            on_end=self.error.append,
        )  # fmt: skip
        self.driver: Driver = launch(config, ports)
        loop.post(self.driver.begin)

    def until(self, epoch: int) -> float:
        """Seconds of the driver until this epoch was answered."""
        before = self.watch.seconds()
        self.source.want(epoch)
        self._step(lambda: self.source.next > epoch)
        return self.watch.seconds() - before

    def checkpoint(self) -> float:
        """Seconds of the driver for a checkpoint of all there is, with what is tidied after it."""
        before = self.watch.seconds()
        self.driver.tell(CheckpointWanted())
        self._step(lambda: self.driver.snapshot.checkpoint == self.driver.snapshot.head)
        self._quiet()
        return self.watch.seconds() - before

    def look(self) -> float:
        """Seconds of the driver for a look at the nodes when nothing has changed; ten come every second."""
        before = self.watch.seconds()
        for _ in range(20):
            self.driver.watching.look()
            self._quiet()
        return (self.watch.seconds() - before) / 20

    def _step(self, so: Callable[[], bool]) -> None:
        while not so():
            if self.error or not self.world.step():
                raise SystemExit(f"the job ended: {self.error}")

    def _quiet(self) -> None:
        """All that is due now."""
        while self.world._heap and self.world._heap[0][0] <= self.world.now:
            self.world.step()

    def leave(self) -> None:
        """As a killed driver does: nothing more happens."""
        self._history.close()


@dataclass(frozen=True)
class Shape:
    nodes: int
    tasks: int
    levels: int = 1
    state: int = 10**6
    every: int = 10**6

    @property
    def pipeline(self) -> Pipeline:
        return pipeline(self.tasks, self.levels)

    def size(self, series: str) -> int:
        return {"tasks": self.tasks, "executors": self.nodes, "levels": self.levels}[series]


def measured(shape: Shape, epochs: int = 5, folder: Path | None = None) -> dict[str, float]:
    """Seconds of driver work: an epoch (the median of some), a checkpoint, a look, a restart until it has answered.

    ``tenth``: the epoch in which the floor is worked out where that takes long, and replicas are planned.

    ``calls``, ``restart_calls``: of an epoch, and of such a restart.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-growth-", dir=folder) as name:
        place = Path(name)
        gc.collect()
        life = Life(place, shape, 0)
        life.until(2)
        each = [life.until(3 + number) for number in range(epochs)]
        saved = life.checkpoint()
        beyond = life.driver.snapshot.head + 3
        life.until(beyond - 1)
        tenth = life.until(beyond)
        assert beyond % 10 == 0, "the floor of a large job is worked out in every tenth epoch"
        looked = life.look()
        assert life.runner is not None
        closure, opened = max(life.runner.closures), max(life.runner.opened)
        life.leave()
        again = Life(place, shape, beyond + 1)
        again.until(beyond + 1)
        restart = again.watch.seconds()
        calls = again.watch.calls(lambda: again.until(beyond + 2))
        again.checkpoint()
        again.until(beyond + 5)  # as many since the checkpoint as before the other restart
        again.leave()
        watch = Watch()

        def counted() -> None:
            last = Life(place, shape, beyond + 6, watch)
            last.until(beyond + 6)
            last.leave()

        return {
            "epoch": statistics.median(each), "tenth": tenth, "checkpoint": saved, "restart": restart,
            "look": looked, "closure": closure, "opened": opened, "calls": calls,
            "restart_calls": watch.calls(counted),
        }  # fmt: skip


def medians(shape: Shape, repeat: int, folder: Path | None) -> dict[str, float]:
    turns = [measured(shape, folder=folder) for _ in range(repeat)]
    return {column: statistics.median(turn[column] for turn in turns) for column in turns[0]}


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """How seconds grow with size over all of these, by least squares of their logarithms: 1 is linear."""
    x, y = [math.log(size) for size in sizes], [math.log(each) for each in seconds]
    return statistics.linear_regression(x, y).slope


SERIES: Mapping[str, Sequence[Shape]] = {
    "tasks": [Shape(100, tasks) for tasks in (10, 100, 1000, 4000)],
    "executors": [Shape(nodes, 1000) for nodes in (2, 20, 200, 1000)],
    "levels": [Shape(100, 1000, levels=levels) for levels in (1, 4, 16)],
}
LARGE = Shape(1000, 10000, state=TB)
PARTS = (*SERIES, "large")
COLUMNS = ("epoch", "tenth", "checkpoint", "restart", "look", "closure", "opened", "calls", "restart_calls")


def main(parts: Sequence[str] = PARTS, folder: Path | None = None, path: Path | None = None, repeat: int = 1) -> None:
    """Tables on standard output, and as JSON in ``path``; ``folder``: where the files of jobs go for a while.

    Two exponents: over a whole series, where small sizes have what every epoch costs, and of its last step alone.
    Medians over ``repeat`` turns; the large job has one.
    """
    record, told = Record("growth.py", sys.argv[1:]), list[dict[str, Any]]()
    record.pause()
    print("seconds of driver work; closures in kB, the largest of a run, and what a slot opens of it; looks in ms;")
    print("thousands of function calls of an epoch and of a restart")
    for series, shapes in ((name, shapes) for name, shapes in SERIES.items() if name in parts):
        print(f"\n{series:>10} " + " ".join(f"{column:>13}" for column in COLUMNS))
        rows = []
        for shape in shapes:
            found = medians(shape, repeat, folder)
            rows.append({"size": shape.size(series), "executors": shape.nodes, "tasks": shape.tasks, **found})
            print(f"{shape.size(series):10} " + _line(found), flush=True)
        grown = {"exponent": _exponents(rows), "last step": _exponents(rows[-2:])}
        for name, exponents in grown.items():
            print(f"{name:>10} " + " ".join(f"{each:13.2f}" for each in exponents.values()))
        told.append({"turns": repeat, "series": series, "rows": rows, "exponents": grown})
        record.pause()
        written(path, record.to_json(told))
    if "large" in parts:
        told_of = f"{LARGE.nodes:,} executors, {LARGE.tasks:,} tasks, {LARGE.state / TB:g} TB of state"
        print(f"\n{told_of} (files without content)")
        found = measured(LARGE, folder=folder)
        print(f"{'':10} " + _line(found))
        shape = {"size": LARGE.tasks, "executors": LARGE.nodes, "tasks": LARGE.tasks}
        told.append({"turns": 1, "series": "large", "rows": [{**shape, **found}], "exponents": {}})
    record.pause()
    written(path, record.to_json(told))


def _exponents(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    sizes = [row["size"] for row in rows]
    return {column: round(exponent(sizes, [row[column] for row in rows]), 2) for column in COLUMNS}


def _line(found: Mapping[str, float]) -> str:
    scale = {"look": 1e3, "closure": 1e-3, "opened": 1e-3, "calls": 1e-3, "restart_calls": 1e-3}
    return " ".join(f"{value * scale.get(name, 1.0):13.3f}" for name, value in found.items())


if __name__ == "__main__":
    main()
