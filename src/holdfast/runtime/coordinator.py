"""The coordinator: events in, instructions out. No clock, thread, file or Spark; two shells carry its word out.

It decides what runs next: the epoch at hand (exactly where nothing upstream is missing, tentatively elsewhere), the
replay of what was lost, checkpoints, replicas. At most one epoch run, one replay and one checkpoint are under way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.fidelity import losses, output_fidelity
from holdfast.recovery import place, recover, room
from holdfast.runtime.events import (
    CapacityLifted,
    Checkpoint,
    CheckpointBroken,
    CheckpointDurable,
    CheckpointWanted,
    EpochArrived,
    EpochDone,
    Event,
    Halt,
    Instruction,
    Lane,
    NodesJoined,
    NodesLost,
    Origin,
    Publish,
    Record,
    Report,
    Run,
    RunBroken,
    RunDone,
    Trim,
    Work,
)
from holdfast.runtime.replay import replay
from holdfast.runtime.standing import Home, Standing
from holdfast.topology import Task, Topology

Recovery = Literal["incremental", "blocking", "source-replay", "upstream-backup"]
RECOVERIES: tuple[Recovery, ...] = ("incremental", "blocking", "source-replay", "upstream-backup")
HANDOVER = 3
"""Copies at most this many epochs behind are brought up before the next epoch begins, so that they join it."""
PATIENCE = 5
"""A run whose barriers do not come is repeated this often before the job gives up."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the coordinator decides. ``capacity`` of a node in the unit of task costs; None: twice its fair share."""

    nodes: int = 1
    checkpoint_every: int = 10
    replicas: tuple[Task, ...] = ()
    scheduler: str = "incremental"
    recovery: Recovery = "incremental"
    capacity: float | None = None
    replay_chunk: int = 8

    def __post_init__(self) -> None:
        for what in ("nodes", "checkpoint_every", "replay_chunk"):
            if getattr(self, what) < 1:
                raise Invalid(f"{what} must be at least 1, got {getattr(self, what)}")
        if self.recovery not in RECOVERIES:
            raise Invalid(f"recovery must be one of {', '.join(RECOVERIES)}, got {self.recovery!r}")


class Coordinator:
    """See the module. ``checkpoint`` and ``head``: the newest durable checkpoint and journalled epoch (-1: none)."""

    def __init__(self, topology: Topology, settings: Settings, checkpoint: int = -1, head: int = -1) -> None:
        self.topology = topology
        self.settings = settings
        self.standing = Standing(topology, checkpoint, head)
        self.pending: int | None = None
        self.runs: dict[int, Run] = {}
        self.halted = False
        self.buffering = settings.recovery == "upstream-backup"
        wanted = {query.sink for query in topology.queries} | {sink.name for sink in topology.sinks}
        self.output_tasks = frozenset(task for task in topology.tasks if task.operator in wanted)
        self._published: dict[Task, int] = {}
        self._rates = topology.rates.copy()
        self._measured = topology
        self._live: int | None = None
        self._replaying: int | None = None
        self._checkpointing: int | None = None
        self._checkpoint_wanted = False
        self._answer_first = False
        self._lifted = False
        self._failed_at = head + 1
        self._planned: tuple[Any, ...] = ()
        self._blocked = 0
        self._next_run = 0
        self._out: list[Instruction] = []
        for task in settings.replicas:
            if task not in self.standing.tasks:
                raise Invalid(f"replica {task}: only tasks with inputs are replicated; Spark reads sources anywhere")

    def handle(self, event: Event) -> list[Instruction]:
        """What to do, now that this has happened."""
        if self.halted:
            return []
        self._out = []
        match event:
            case NodesJoined():
                self.standing.nodes.update({name: event.domains.get(name, name) for name in event.nodes})
                self._record("nodes joined", nodes=list(event.nodes), alive=len(self.standing.nodes))
            case NodesLost():
                self._lost(event)
            case EpochArrived(epoch):
                self.pending = epoch
            case RunDone():
                self._done(event)
            case RunBroken(number, reason):
                self._forget(number)
                self._record("run broken", run=number, reason=reason)
            case CheckpointDurable():
                self._durable(event)
            case CheckpointBroken(epoch, reason):
                self._checkpointing = None
                self._record("checkpoint broken", epoch=epoch, reason=reason)
            case CheckpointWanted():
                self._checkpoint_wanted = self.standing.head > self.standing.checkpoint
            case CapacityLifted():
                self._lifted = True
        if self._can_act():
            self._recover()
            self._make_replicas()
            self._run_epoch()
            self._run_replay()
            self._run_checkpoint()
        return self._out

    def _can_act(self) -> bool:
        return bool(self.standing.nodes) and not self.halted

    @property
    def idle(self) -> bool:
        """Nothing is under way, and nothing is left that could be."""
        busy = (self._live, self._replaying, self._checkpointing, self.pending)
        return all(each is None for each in busy) and not self.standing.behind() and not self.standing.down

    def checkpoint_needed(self) -> bool:
        return self.standing.head > self.standing.checkpoint

    # What happened

    def _lost(self, event: NodesLost) -> None:
        gone = {name for name in event.nodes if name in self.standing.nodes}
        if not gone:
            return
        lost, promoted = self.standing.lose(gone)
        self._failed_at = self.pending if self.pending is not None else self.standing.head + 1
        self._measured = self.standing.measured(self._rates)
        self._answer_first = True
        if self.settings.recovery in ("incremental", "upstream-backup"):
            self.buffering = True
        self._record(
            "nodes lost",
            nodes=sorted(gone),
            cause=event.cause,
            epoch=self._failed_at,
            down=[str(task) for task in lost],
            alive=len(self.standing.nodes),
        )
        if promoted:
            self._record("promoted", tasks=[str(task) for task in promoted], epoch=self._failed_at)

    def _forget(self, number: int) -> None:
        self.runs.pop(number, None)
        if number == self._live:
            self._live = None
        if number == self._replaying:
            self._replaying = None

    def _done(self, event: RunDone) -> None:
        run = self.runs.get(event.run)
        if run is None:
            return
        self._forget(event.run)
        if self._uncommitted([report for report in event.reports if report.status != "committed"]):
            return
        if run.live is not None:
            self.standing.head = max(self.standing.head, run.live)
        works = {(work.task, work.lane): work for work in run.works}
        for report in event.reports:
            if (report.task, report.lane) in works:
                self._committed(works[report.task, report.lane], report)
            elif report.lane == "exact" and run.live is not None:
                self._rates[self.topology.index[report.task]] = report.rows_out
        self._publish(run, event.reports)
        if run.live is not None:
            self._answered(run, event.reports)

    def _uncommitted(self, reports: list[Report]) -> bool:
        """A function that fails ends the job; state that is not where it should be is lost, and the run is repeated."""
        failed = next((report for report in reports if report.status == "failed"), None)
        missing = [report for report in reports if report.status == "missing"]
        self._blocked = self._blocked + 1 if reports and not missing else 0
        if failed is None and self._blocked > PATIENCE:
            failed = reports[0]
        if failed is not None:
            self.halted = True
            self._record("failed", task=str(failed.task), message=failed.message)
            self._out.append(Halt(failed.message))
        for report in missing:
            self._record("missing", task=str(report.task), lane=report.lane, node=report.node, message=report.message)
            self._drop_copy(report)
        return bool(reports)

    def _drop_copy(self, report: Report) -> None:
        standing, task = self.standing, report.task
        if report.lane == "replica":
            standing.replicas.pop(task, None)
        elif report.lane == "side":
            standing.side.pop(task, None)
        elif task in standing.homes and standing.homes[task].node == report.node:
            standing.drop_home(task)
            self._failed_at = self.pending if self.pending is not None else standing.head + 1

    def _committed(self, work: Work, report: Report) -> None:
        standing, task = self.standing, work.task
        if work.lane == "tentative":
            if task in standing.homes and standing.homes[task].node == work.node:
                standing.forks[task] = (work.last, work.fork)
            return
        if work.lane == "side":
            standing.side[task] = (work.node, work.last)
            return
        homes = standing.homes if work.lane == "exact" else standing.replicas
        home = homes.get(task)
        if home is None or home.node != work.node or home.position != work.start:
            return
        homes[task] = Home(work.node, work.last, fresh=False)
        if work.lane == "replica":
            return
        if work.last >= self._failed_at - 1:
            standing.cold.discard(task)
        if work.last >= standing.head:
            standing.forks.pop(task, None)
        if work.keep:
            held = standing.buffers.get(task)
            grows = held is not None and held[0] == work.node and held[2] == work.first - 1
            standing.buffers[task] = (work.node, held[1] if held and grows else work.first, work.last)
        if not standing.down:
            self._rates[self.topology.index[task]] = report.rows_out / (work.last - work.first + 1)

    def _publish(self, run: Run, reports: tuple[Report, ...]) -> None:
        final, tentative = [], []
        for report in reports:
            for epoch in sorted(report.outputs):
                if report.lane == "exact" and epoch > self._published.get(report.task, -1):
                    final.append((epoch, report.task))
                elif report.lane == "tentative":
                    tentative.append((epoch, report.task))
        for epoch, task in final:
            self._published[task] = max(epoch, self._published.get(task, -1))
        if final:
            self._out.append(Publish(run.number, tuple(sorted(final)), "final"))
        if tentative:
            self._out.append(Publish(run.number, tuple(sorted(tentative)), "tentative"))

    def _answered(self, run: Run, reports: tuple[Report, ...]) -> None:
        lanes = [work.lane for work in run.works]
        active = {work.task for work in run.works if work.lane in ("exact", "tentative")}
        absent = [task for task in self.standing.tasks if task not in active]
        answer = output_fidelity(self._measured, absent) if absent or "tentative" in lanes else None
        self._record(
            "epoch",
            epoch=run.live,
            exact=lanes.count("exact"),
            tentative=lanes.count("tentative"),
            replicas=lanes.count("replica"),
            absent=len(absent),
            fidelity=answer.fidelity if answer else 1.0,
            queries=answer.queries if answer else {},
            rows_in=sum(report.rows_in for report in reports if not self.topology.inputs_of(report.task.operator)),
            state_bytes=sum(report.state_bytes for report in reports if report.lane == "exact"),
            state_rows=sum(report.state_rows for report in reports if report.lane == "exact"),
        )
        self._answer_first = False
        self._epoch_done(run.live)

    def _epoch_done(self, epoch: int | None) -> None:
        if epoch is not None and epoch == self.pending:
            self.pending = None
            self._out.append(EpochDone(epoch))

    def _durable(self, event: CheckpointDurable) -> None:
        standing = self.standing
        self._checkpointing = None
        standing.checkpoint = event.epoch
        standing.side.clear()
        if not standing.down and not standing.cold:
            self.buffering = self.settings.recovery == "upstream-backup"
        standing.buffers = {
            task: (node, max(first, event.epoch + 1), last)
            for task, (node, first, last) in standing.buffers.items()
            if self.buffering and last > event.epoch
        }
        self._record("checkpoint", epoch=event.epoch, bytes=event.bytes)
        self._out.append(Trim(event.epoch))

    # What to do now

    def _recover(self) -> None:
        """Place what is down, as far as there is room, in the scheduler's order."""
        standing = self.standing
        down = frozenset(standing.down)
        question = (down, tuple(standing.nodes), self._lifted, len(standing.replicas))
        if not down or question == self._planned:
            return
        self._planned = question
        nodes = standing.loads(self._capacity())
        capacity = room(nodes, ceiling=1.0)
        plan = recover(self._measured, down, capacity, self.settings.scheduler)
        if self.settings.recovery == "blocking" and len(plan.recover) < len(down):
            self._record("waiting", down=len(down), capacity=capacity, why="blocking recovery waits for room for all")
            return
        shun = {task: [standing.nodes[twin.node]] for task, twin in standing.replicas.items()}
        placement = place(self.topology, plan.recover, nodes, ceiling=1.0, avoid=shun)
        for task, node in placement.nodes.items():
            standing.place(task, node)
        still = [task for task in down if task not in standing.homes]
        self._record(
            "recovery plan",
            scheduler=plan.algorithm,
            capacity=capacity,
            recover={str(task): node for task, node in placement.nodes.items()},
            queries=[str(task) for task in plan.queries],
            still_down=sorted(str(task) for task in still),
            why=f"{len(placement.nodes)} of {len(down)} tasks that are down fit into a capacity of {capacity:g}; "
            f"{plan.algorithm} completes {len(plan.queries)} query partitions with them",
            epoch=self._failed_at,
        )

    def _capacity(self) -> float:
        if self._lifted:
            return 1e12
        if self.settings.capacity is not None:
            return self.settings.capacity
        copies = [*self.standing.tasks, *self.settings.replicas]
        total = sum(self.topology.operator[task.operator].costs[task.number] for task in copies)
        return 2.0 * total / self.settings.nodes

    def _make_replicas(self) -> None:
        standing = self.standing
        if standing.down or standing.head - standing.checkpoint > HANDOVER or self._checkpointing is not None:
            return
        missing = [task for task in self.settings.replicas if task not in standing.replicas]
        if not missing or len(standing.nodes) < 2:
            return
        shun = {task: [standing.nodes[standing.homes[task].node]] for task in missing}
        placement = place(self.topology, missing, standing.loads(self._capacity()), ceiling=1.0, avoid=shun)
        for task, node in placement.nodes.items():
            stateful = self.topology.operator[task.operator].stateful
            position = standing.checkpoint if stateful else standing.homes[task].position
            standing.replicas[task] = Home(node, position, fresh=True)
        if placement.nodes:
            self._record("replicas", placed={str(task): node for task, node in placement.nodes.items()})

    def _run_epoch(self) -> None:
        """The epoch at hand: exact where it can be, tentative where not, unless waiting a moment gives more."""
        standing, epoch = self.standing, self.pending
        if epoch is None or self._live is not None:
            return
        if epoch <= standing.head:
            self._epoch_done(epoch)
            return
        behind = standing.behind()
        if behind and not standing.down and epoch - 1 - min(copy.position for copy in behind) <= HANDOVER:
            return
        if self.settings.recovery == "blocking" and (standing.down or standing.cold):
            return
        exact = standing.exact(epoch)
        works = [*self._exact_works(exact, epoch), *self._tentative_works(exact, epoch)]
        if not any(work.task in self.output_tasks for work in works):
            return
        self._live = self._start(Run(self._next_run, "epoch", tuple(works), live=epoch))

    def _exact_works(self, exact: NDArray[np.bool_], epoch: int) -> list[Work]:
        standing, works = self.standing, []
        for task in standing.tasks:
            if not exact[self.topology.index[task]]:
                continue
            keep = self.buffering and bool(self.topology.outputs_of(task.operator))
            for lane, home in (("exact", standing.homes[task]), ("replica", standing.replicas.get(task))):
                if home is not None and home.position == epoch - 1:
                    origin: Origin = "checkpoint" if home.fresh else "local"
                    copy: Lane = "exact" if lane == "exact" else "replica"
                    works.append(Work(task, home.node, copy, origin, epoch - 1, epoch, epoch, keep and lane == "exact"))
        return works

    def _tentative_works(self, exact: NDArray[np.bool_], epoch: int) -> list[Work]:
        """Live tasks with incomplete input go on upon a fork, with what is left, if anything of the sources is."""
        standing = self.standing
        able = [
            task
            for task in standing.tasks
            if not exact[self.topology.index[task]] and task in standing.homes and task not in standing.cold
        ]
        if not able:
            return []
        absent = set(standing.tasks) - set(able)
        mask = self.topology.mask(task for task in absent if not exact[self.topology.index[task]])
        kept = 1.0 - losses(self._measured, mask)[0]
        works = []
        for task in able:
            fidelity = float(kept[self.topology.index[task]])
            if fidelity <= 0:
                continue
            home = standing.homes[task]
            start, fork = standing.forks.get(task, (home.position, self._next_run))
            origin: Origin = "local" if task in standing.forks else "checkpoint" if home.fresh else "fork"
            works.append(Work(task, home.node, "tentative", origin, start, epoch, epoch, fidelity=fidelity, fork=fork))
        return works

    def _run_replay(self) -> None:
        """Bring what is behind forward, a few epochs at a time; first of all comes an answer after a failure."""
        standing = self.standing
        if self._replaying is not None or (self._answer_first and self._live is not None):
            return
        behind = standing.behind()
        if not behind:
            return
        last = min(standing.head, min(copy.position for copy in behind) + self.settings.replay_chunk)
        buffers = {} if self.settings.recovery == "source-replay" else standing.buffers
        works, read = replay(
            self.topology, behind, standing.ahead(), standing.checkpoint, standing.side, buffers, last, self.buffering
        )
        self._replaying = self._start(Run(self._next_run, "replay", works, buffers=read))
        self._record(
            "replay",
            run=self._replaying,
            first=min(work.first for work in works),
            last=last,
            tasks=[str(work.task) for work in works if work.lane == "exact"],
            on_the_side=[str(work.task) for work in works if work.lane == "side"],
            from_buffers=[str(task) for task in read],
        )

    def _start(self, run: Run) -> int:
        self._next_run += 1
        self.runs[run.number] = run
        self._out.append(run)
        return run.number

    def _run_checkpoint(self) -> None:
        standing = self.standing
        if self._checkpointing is not None or self._live is not None or standing.head <= standing.checkpoint:
            return
        age = standing.head - standing.checkpoint
        recovered = self.buffering and self.settings.recovery != "upstream-backup"
        if not (age >= self.settings.checkpoint_every or self._checkpoint_wanted or recovered):
            return
        if standing.down or any(home.position < standing.head for home in standing.homes.values()):
            return
        self._checkpoint_wanted = False
        self._checkpointing = standing.head
        nodes = {task: home.node for task, home in standing.homes.items()}
        self._out.append(Checkpoint(standing.head, standing.checkpoint, nodes))

    def _record(self, what: str, **fields: Any) -> None:
        self._out.append(Record(what, fields))

    def check(self) -> None:
        """Assert what must always hold; the message tells what does not."""
        wrong = list(self.standing.check())
        if not self.buffering and self.standing.buffers:
            wrong.append(f"buffers are kept although nothing is down: {sorted(map(str, self.standing.buffers))[:3]}")
        if wrong:
            raise AssertionError("; ".join(wrong))
