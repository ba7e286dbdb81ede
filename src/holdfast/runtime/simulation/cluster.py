"""Simulated nodes with the real worker on them, and the runner that leads a run over them, slot by slot.

A slot does its works when its time is over, not before. A node that dies takes its disk along; a run that it took part
in hangs or fails; what was given up may go on working for a while, as a machine does that was only cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa

from holdfast.errors import HoldfastError, Unrecoverable
from holdfast.runtime.driver.ports import Asked, Failed, RunResult
from holdfast.runtime.messages import NodeInfo, Report
from holdfast.runtime.shape import reshaped
from holdfast.runtime.simulation.asking import SimulatedAsking
from holdfast.runtime.simulation.disk import Crash, Disk
from holdfast.runtime.simulation.loop import Environment, VirtualTimer
from holdfast.runtime.simulation.schedule import Timing
from holdfast.runtime.worker.blocks import Block
from holdfast.runtime.worker.plan import RunPlan, Slot
from holdfast.runtime.worker.slot_parts import Cut, SlotParts
from holdfast.runtime.worker.versions import Saved, Upload
from holdfast.runtime.worker.worker import JobContext, Worker
from holdfast.state import Store
from holdfast.state.entries import FileEntry
from holdfast.topology import Topology

GIVEN_UP = -1.0
"""Nobody sees such a node any more."""
REJOIN = 5.0
"""Seconds after which one that was given up comes back, if it can."""


@dataclass(slots=True)
class Node:
    """``seen_until``: when its loss is noticed. ``stalled``: until when it answers nobody. ``speed``: 1 is normal."""

    name: str
    incarnation: str
    domain: str
    disk: Disk
    alive: bool = True
    seen_until: float = float("inf")
    stalled: float = 0.0
    speed: float = 1.0
    busy: int = 0
    cores: int = 1
    workers: dict[int, Worker] = field(default_factory=dict)
    """Its processes. Which of them gets a task, nobody can say."""

    @property
    def folder(self) -> str:
        return f"{self.name}.{self.incarnation}"


@dataclass(frozen=True)
class SimulatedBatch:
    """An epoch's rows, by piece and source. ``watermark``: of the stream, in milliseconds, if sources go by that.

    ``seen``: the pieces whose tasks the driver has heard of, in this life of the driver.
    """

    pieces: Sequence[Mapping[str, pa.Table]]
    ends: bool = False
    watermark: int | None = None
    seen: set[int] = field(default_factory=set, compare=False)

    @property
    def watermark_us(self) -> int | None:
        return None if self.watermark is None else self.watermark * 1000


class SimulatedNodes:
    """``replace``: a new node comes so many seconds after one was lost; None: nobody does."""

    def __init__(
        self, world: Environment, timing: Timing, domains: Mapping[str, str], replace: float | None, cores: int = 1
    ) -> None:
        self.world = world
        self.timing = timing
        self.domains = domains
        self.replace = replace
        self.cores = cores
        self.here: dict[str, Node] = {}
        self._lives: dict[str, int] = {}

    def boot(self, names: Iterable[str]) -> None:
        """These nodes come up, empty."""
        for name in names:
            if name not in self.here or not self.here[name].alive:
                life = self._lives[name] = self._lives.get(name, -1) + 1
                disk = Disk(lambda: self.world.now)
                self.here[name] = Node(name, str(life), self.domains.get(name, name), disk, cores=self.cores)

    def look(self) -> Mapping[str, NodeInfo]:
        now = self.world.now
        return {
            name: NodeInfo(node.incarnation, node.domain, name, node.folder, name, node.cores)
            for name, node in sorted(self.here.items())
            if (node.alive or now < node.seen_until) and not now > node.seen_until
        }

    def refused(self) -> Sequence[str]:
        return ()

    def kill(self, names: Iterable[str]) -> None:
        gone = [name for name in names if name in self.here and self.here[name].alive]
        for name in gone:
            node = self.here[name]
            node.alive = False
            node.seen_until = min(node.seen_until, self.world.now + self.timing.detect)
            node.disk, node.workers = Disk(lambda: self.world.now), {}
        if gone and self.replace is not None:
            self.world.after(self.replace, lambda: self.boot(gone))

    def crash(self, name: str) -> None:
        """A node's process dies by itself; another takes its place sooner or later."""
        self.kill([name])
        self.world.after(self.timing.provision, lambda: self.boot([name]))

    def stall(self, names: Iterable[str], seconds: float) -> None:
        """These nodes answer nobody for a while, then are back with all they had; short stalls go unnoticed."""
        for name in names:
            node = self.here.get(name)
            if node is None or not node.alive:
                continue
            node.stalled = max(node.stalled, self.world.now + seconds)
            if seconds > self.timing.detect:
                node.seen_until = self.world.now + self.timing.detect
                self.world.after(seconds, partial(self._back, node))

    def _back(self, node: Node) -> None:
        if node.alive and node.stalled <= self.world.now and node.seen_until >= 0:
            node.seen_until = float("inf")

    def slow(self, names: Iterable[str], seconds: float, factor: float) -> None:
        for name in names:
            if node := self.here.get(name):
                node.speed = 1.0 / factor
                self.world.after(seconds, partial(setattr, node, "speed", 1.0))

    def release(self, names: Iterable[str]) -> None:
        for name in names:
            node = self.here[name]
            node.alive, node.seen_until = False, GIVEN_UP

    def give_up(self, nodes: Iterable[tuple[str, str]]) -> None:
        """What such a node has begun it may end, and nobody counts on it; it comes back with nothing."""
        for name, incarnation in nodes:
            node = self.here[name]
            if node.incarnation == incarnation and node.alive:
                node.seen_until = GIVEN_UP
                self.world.after(max(REJOIN, node.stalled - self.world.now), partial(self._again, node))

    def _again(self, node: Node) -> None:
        if self.here[node.name] is node and node.alive:
            node.alive = False
            self.boot([node.name])

    def grow(self, count: int) -> bool:
        number = len(self._lives)
        names = [f"node-{number + each}" for each in range(count)]
        self.world.after(self.timing.provision, lambda: self.boot(names))
        return True

    def restart(self) -> None:
        """The driver is gone, and with it what ran for it: whoever is alive comes back with nothing."""
        alive = [name for name, node in self.here.items() if node.alive]
        for name in alive:
            self.here[name].alive, self.here[name].disk, self.here[name].workers = False, Disk(), {}
        self.boot(alive)

    def close(self) -> None: ...


@dataclass(slots=True)
class _Run:
    plan: RunPlan
    batch: object
    done: Callable[[RunResult | Failed], None]
    nodes: Mapping[str, Node]
    """By place."""
    level: int = -1
    waiting: list[str] = field(default_factory=list)
    """The places whose works of this level are not done."""
    blocks: list[Block] = field(default_factory=list)
    pieces: dict[int, FileEntry] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    timers: list[VirtualTimer] = field(default_factory=list)
    over: bool = False


class SimulatedRunner:
    """Runs of one life of a driver. ``store``: the disk that everybody sees. ``declared``: costs of tasks."""

    def __init__(
        self,
        context: JobContext,
        nodes: SimulatedNodes,
        store: Callable[[str], Store],
        declared: Topology,
        random: Random,
    ) -> None:
        self.context = context
        self.flakes = 0
        """So many runs to come fail, by one node that is there."""
        self._broken_by: dict[int, str] = {}
        self._nodes = nodes
        self._asking = SimulatedAsking(nodes.here, nodes.world)
        self._store = store
        self._declared = declared
        self._random = random
        self._runs: dict[int, _Run] = {}
        self._saves: dict[int, tuple[VirtualTimer, Callable[[Saved | Failed], None]]] = {}
        self._topologies: dict[int, Topology] = {}

    # Runs

    def start(self, plan: RunPlan, batch: object, done: Callable[[RunResult | Failed], None]) -> None:
        folders = {folder: name for name, folder in plan.folders.items()}
        nodes = {node.name: node for node in self._nodes.here.values() if node.folder in folders}
        run = self._runs[plan.run] = _Run(plan, batch, done, nodes)
        for node in nodes.values():
            node.busy += 1
        timing = self._nodes.timing
        if self.flakes > 0:
            self.flakes -= 1
            self._broken_by[plan.run] = min(nodes, default="")
            self._later(run, timing.run, lambda: self._fail(run, "no reason"))
            return
        self._later(run, timing.run, lambda: self._first(run))

    def _first(self, run: _Run) -> None:
        """The parts of the batch, or of the journal, dealt over the nodes."""
        places = [place for place in run.plan.places if place in run.nodes]
        if not places:
            return  # everybody is gone; it hangs until somebody notices
        if run.plan.ingest is not None:
            assert isinstance(run.batch, SimulatedBatch)
            run.plan = run.plan.ingesting(len(run.batch.pieces))
            works = [
                (places[number % len(places)], partial(self._ingest, run, number))
                for number in range(len(run.batch.pieces))
            ]
        else:
            parts = [(epoch, piece) for epoch in run.plan.journal for piece in range(len(epoch.pieces))]
            works = [
                (place, partial(self._read, run, parts[number :: len(places)])) for number, place in enumerate(places)
            ]
        self._stage(run, [(place, self._nodes.timing.level * self._jitter(), work) for place, work in works])

    def _ingest(self, run: _Run, piece: int, worker: Worker) -> None:
        assert isinstance(run.batch, SimulatedBatch)
        batch = run.batch
        made = worker.ingest(run.plan, piece, batch.pieces[piece], batch.ends, watermark=batch.watermark_us)
        if not run.over:
            batch.seen.add(piece)
        run.blocks += made.blocks
        run.reports += made.reports
        if made.entry is not None:
            run.pieces[piece] = made.entry

    def _read(self, run: _Run, parts: Sequence[Any], worker: Worker) -> None:
        for epoch, piece in parts:
            run.blocks += worker.journalled(epoch, piece, run.plan.shape)

    def _next_level(self, run: _Run) -> None:
        run.level += 1
        if run.level == len(run.plan.levels):
            self._finish(run, RunResult(tuple(run.reports), tuple(run.pieces[n] for n in sorted(run.pieces))))
            return
        slots = run.plan.levels[run.level]
        shares = run.plan.spread(run.blocks, run.level)
        parts = Cut(run.plan, self._topology(run.plan)).level(run.level)
        stage = [
            (slot.place, self._duration(run, slot), partial(self._work, run, parts, index, share))
            for index, (slot, share) in enumerate(zip(slots, shares, strict=True))
        ]
        self._stage(run, stage)

    def _work(self, run: _Run, parts: SlotParts, index: int, share: Sequence[Block], worker: Worker) -> None:
        part = parts.of(index)
        mine = {work.task for work in part.slot.works}
        sent, reports = worker.work(part.plan, part.slot, [block for block in share if block.receiver in mine])
        run.blocks += sent
        costs, timing = self._topology(run.plan).operator, self._nodes.timing
        for report in reports:
            spent = costs[report.task.operator].costs[report.task.number] * timing.unit
            restored = timing.restore if report.restored else 0.0
            run.reports.append(replace(report, seconds=spent, restored=restored, took=spent))

    def _stage(self, run: _Run, works: Sequence[tuple[str, float, Callable[[Worker], None]]]) -> None:
        run.waiting = [place for place, _, _ in works]
        if not works:
            self._next_level(run)
        for place, delay, work in works:
            self._later(run, delay, partial(self._do, run, place, work))

    def _do(self, run: _Run, place: str, work: Callable[[Worker], None]) -> None:
        node = run.nodes.get(place)
        if node is None or not node.alive:
            # It hangs until somebody notices; or Spark has lost a connection and ends the job before.
            if not run.over and self._random.random() < 0.3:
                self._fail(run, "connection lost")
            return
        if node.stalled > self._nodes.world.now:
            self._later(run, node.stalled - self._nodes.world.now, lambda: self._do(run, place, work))
            return
        try:
            work(self._worker(node))
        except Crash:
            self._nodes.crash(node.name)
            return
        except Unrecoverable as error:
            self._finish(run, Failed(error))
            return
        run.waiting.remove(place)
        if not run.waiting and not run.over:
            self._next_level(run)

    def _worker(self, node: Node) -> Worker:
        process = self._random.randrange(node.cores) if node.cores > 1 else 0
        if process not in node.workers:
            disk = node.disk
            folders = lambda folder: disk.files(node.name, folder)  # noqa: E731
            node.workers[process] = Worker(self.context, self._store(node.name), folders)
        return node.workers[process]

    def silent(self, run: int, places: Sequence[str]) -> Asked:
        silent, pace = self._asking.unanswering(places)
        if not silent:
            late = set(self._runs[run].waiting) if run in self._runs else set()
            silent = dict.fromkeys(late if not late.issuperset(places) else (), "late")
        return Asked(silent, pace)

    def failing(self, run: int, places: Sequence[str]) -> frozenset[str]:
        return frozenset({self._broken_by.pop(run, "")}) & frozenset(places)

    def cancel(self, run: int) -> None:
        if run in self._runs:
            self._fail(self._runs[run], "cancelled")

    def _fail(self, run: _Run, why: str) -> None:
        """It is over; what nodes have begun of it they may end all the same, and nobody hears of it.

        Nor does anybody hear of all that a node did which has died.
        """
        if isinstance(run.batch, SimulatedBatch):
            places = [place for place in run.plan.places if place in run.nodes]
            unheard = {number for number in run.batch.seen if not run.nodes[places[number % len(places)]].alive}
            run.batch.seen.difference_update(unheard)
        for timer in run.timers:
            if self._random.random() < 0.5:
                timer.cancel()
        self._finish(run, Failed(ConnectionError(why)))

    def _finish(self, run: _Run, result: RunResult | Failed) -> None:
        if run.over:
            return
        run.over = True
        self._runs.pop(run.plan.run, None)
        for node in run.nodes.values():
            node.busy -= 1
        self._nodes.world.after(self._nodes.timing.report * self._jitter(), lambda: run.done(result))

    def _later(self, run: _Run, delay: float, action: Callable[[], None]) -> None:
        run.timers.append(self._nodes.world.after(delay, action))

    def _jitter(self) -> float:
        return 0.5 + self._random.random()

    def _topology(self, plan: RunPlan) -> Topology:
        if plan.shape.version not in self._topologies:
            self._topologies[plan.shape.version] = reshaped(self._declared, plan.shape)
        return self._topologies[plan.shape.version]

    def _duration(self, run: _Run, slot: Slot) -> float:
        timing, node = self._nodes.timing, run.nodes.get(slot.place)
        if node is None:
            return timing.level  # another has come under its name before anybody noticed
        costs = self._topology(run.plan).operator
        units = sum(len(work.epochs) * costs[work.task.operator].costs[work.task.number] for work in slot.works)
        restores = sum(work.origin == "checkpoint" and work.start >= 0 for work in slot.works)
        work = (units * timing.unit + restores * timing.restore) * max(node.busy, 1) / node.speed
        return timing.level * self._jitter() + work

    # Checkpoints

    def save(self, epoch: int, uploads: Mapping[str, Sequence[Upload]], done: Callable[[Saved | Failed], None]) -> None:
        delay = self._nodes.timing.checkpoint * self._jitter()
        # Where another has come under the name before anybody noticed, nobody answers.
        nodes = {
            place: node for place in uploads if (node := self._nodes.here[place]).folder == uploads[place][0].folder
        }
        timer = self._nodes.world.after(delay, lambda: self._save(epoch, uploads, nodes))
        self._saves[epoch] = (timer, done)

    def _save(self, epoch: int, uploads: Mapping[str, Sequence[Upload]], nodes: Mapping[str, Node]) -> None:
        if epoch not in self._saves:
            return
        saved: list[Saved] = []
        for place, wanted in uploads.items():
            node = nodes.get(place)
            if node is None or not node.alive or node.stalled > self._nodes.world.now:
                return  # it hangs until somebody notices
            try:
                saved.append(self._worker(node).save(wanted))
            except Crash:
                self._nodes.crash(node.name)
                return
            except HoldfastError as error:
                self._saves.pop(epoch)[1](Failed(error))
                return
        self._saves.pop(epoch)[1](Saved.of(saved))

    def cancel_save(self, epoch: int) -> None:
        if epoch in self._saves:
            timer, done = self._saves.pop(epoch)
            timer.cancel()
            done(Failed(ConnectionError("cancelled")))

    def close(self) -> None: ...
