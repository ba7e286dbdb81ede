"""The coordinator: events in, instructions out. No clock, thread, file or Spark; two shells carry its word out.

It decides what runs next: the epoch at hand (exactly where nothing upstream is missing, tentatively elsewhere), the
replay of what was lost, checkpoints, replicas. At most one epoch run, one replay and one checkpoint are under way.
One class in four files, each upon the one before: ``rescaling``, ``moving``, ``outcomes``, and this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from holdfast.errors import Invalid
from holdfast.recovery import Node, place, recover, room
from holdfast.runtime.coordinator.assignment import Home, Standing
from holdfast.runtime.coordinator.lanes import exact_works, tentative_works
from holdfast.runtime.coordinator.measurements import Measurements
from holdfast.runtime.coordinator.outcomes import Outcomes
from holdfast.runtime.coordinator.replay import Copy, Keep, replay
from holdfast.runtime.coordinator.rescaling import HANDOVER
from holdfast.runtime.coordinator.scaling import Scaling
from holdfast.runtime.coordinator.snapshot import Snapshot
from holdfast.runtime.messages import (
    AnswerOverdue,
    CancelCheckpoint,
    CancelRun,
    CapacityLifted,
    CheckpointBroken,
    CheckpointDurable,
    CheckpointLost,
    CheckpointWanted,
    EpochArrived,
    EpochJournalled,
    Event,
    Instruction,
    NodesSeen,
    NodesUnneeded,
    Published,
    ReplicasPlanned,
    Run,
    RunBroken,
    RunDone,
    ScaleWanted,
    ShapeCommitted,
    TakeCheckpoint,
    TrimJournal,
)
from holdfast.runtime.settings import Settings
from holdfast.runtime.shape import Shape, reshaped, why_not
from holdfast.topology import Task, Topology

RATES_TOLD = 500
"""The history has measured rates for jobs of up to so many tasks."""


class Coordinator(Outcomes):
    """See the module. ``checkpoint`` and ``head``: the newest durable checkpoint and journalled epoch (-1: none).

    ``topology`` as declared; ``shape``: the one in force, ``saved``: the one that the checkpoint was written in.
    ``published``: up to which epoch each task's output was found. ``scalable``: operators whose state can be cut; those
    whose streams allow it when None.
    """

    def __init__(
        self,
        topology: Topology,
        settings: Settings,
        checkpoint: int = -1,
        head: int = -1,
        *,
        shape: Shape | None = None,
        saved: Shape | None = None,
        published: Mapping[Task, int] | None = None,
        scalable: Collection[str] | None = None,
    ) -> None:
        self.declared = topology
        self.shape = shape or Shape()
        self.topology = topology = reshaped(topology, self.shape)
        self.settings = settings
        self.standing = Standing(topology, checkpoint, head)
        self.journalled = head
        self.pending: int | None = None
        self.runs: dict[int, Run] = {}
        self.halted = False
        self.backup = settings.recovery == "upstream-backup"
        self.buffering = self.backup or (settings.recovery == "incremental" and head > checkpoint)
        self.outputs = frozenset({query.sink for query in topology.queries} | {sink.name for sink in topology.sinks})
        self.output_tasks = frozenset(task for task in topology.tasks if task.operator in self.outputs)
        self._published: dict[Task, int] = dict(self.shape.done)
        self._found = dict(published or {})
        names = [each.name for each in topology.operators if why_not(self.declared, each.name) is None]
        able = frozenset(names if scalable is None else set(names) & set(scalable))
        self.scaling = Scaling(self.declared, able, self.shape.version + 1)
        self._saved = saved or Shape()
        self._measurements = Measurements(topology)
        self._measured = topology
        self._live: int | None = None
        self._replaying: int | None = None
        self._checkpointing: int | None = None
        self._checkpointing_since = -1
        self._checkpointing_shape = self.shape
        self._checkpoint_wanted = False
        self._checkpointed_for: ScaleWanted | None = None
        self._answer_first = False
        self._answer_due = False
        self._lifted = False
        self._failed_at = head + 1
        self._plan_due = True
        self._balance_due = False
        self._overtaken = 0
        """Epochs begun since a replay last made progress."""
        self._attempts: Counter[tuple[str, str, str]] = Counter()
        self._publishing: set[tuple[int, str]] = set()
        self._answer: int | None = None
        self._released: dict[str, str] = {}
        self.committing: Shape | None = None
        self._splitting: list[Task] = []
        self._parts: set[Task] = set()
        """Tasks that others were split into and that were not up since: they are not split once more."""
        self._failures = 0
        self._checkpoint_hit = False
        self._checkpointing_homes: dict[Task, str] = {}
        self._next_run = 0
        self._begun: dict[int, tuple[int, set[str]]] = {}
        """Of each run under way: the checkpoint when it began, and the nodes that went since, even if they are back."""
        self._whole_next = False
        self._mute: set[Task] = set()
        self._out: list[Instruction] = []
        self.replicated = self._inherited(self._checked_replicas(settings.replicas, self.declared), Shape())

    def handle(self, event: Event) -> list[Instruction]:
        """What to do, now that this has happened."""
        if self.halted:
            return []
        self._out = []
        match event:
            case NodesSeen():
                self._seen(event)
            case AnswerOverdue():
                self._answer_due = False
            case EpochArrived(epoch):
                self._arrived(epoch)
            case EpochJournalled(epoch):
                if epoch != self.standing.head + 1 or epoch == self.journalled:
                    self._halt(
                        f"epoch {epoch} was journalled, but epochs up to {self.journalled} are, and answered up to "
                        f"{self.standing.head}: only the next one can be"
                    )
                self.journalled = epoch
            case Published(number, kind):
                self._publishing.discard((number, kind))
            case ShapeCommitted(version):
                self._shape_committed(version)
            case RunDone():
                self._done(event)
            case RunBroken(number, reason):
                if number in self.runs:
                    run, (_, went) = self.runs[number], self._begun[number]
                    self._forget(number)
                    self._record("run broken", run=number, reason=reason)
                    if not went and run.settled:
                        self._tried(run, "broken", reason)
            case CheckpointDurable():
                self._durable(event)
            case CheckpointBroken():
                self._checkpoint_broken(event)
            case CheckpointLost():
                self._checkpoint_lost(event)
            case CheckpointWanted():
                self._checkpoint_wanted = self.standing.head > self.standing.checkpoint
            case ReplicasPlanned():
                self._plan_replicas(event)
            case ScaleWanted():
                self._scale_wanted(event)
            case NodesUnneeded():
                self._unneeded(event)
            case CapacityLifted():
                self._lifted = self._plan_due = True
        if self.pending is not None and self.pending <= self.standing.head and not self.halted:
            self._epoch_done()
        decisions = (
            self._raise,
            self._recover,
            self._make_replicas,
            self._move,
            self._scale,
            self._run_epoch,
            self._run_replay,
            self._run_checkpoint,
        )
        for decide in decisions:
            if self._can_act():
                decide()
        return self._out

    def _checked_replicas(self, tasks: tuple[Task, ...], topology: Topology) -> tuple[Task, ...]:
        for task in tasks:
            if task not in topology.index or not topology.inputs_of(task.operator):
                raise Invalid(f"replica {task}: only tasks with inputs are replicated; Spark reads sources anywhere")
        return tasks

    def _plan_replicas(self, event: ReplicasPlanned) -> None:
        self.replicated = self._checked_replicas(event.tasks, self.topology)
        wanted = set(event.tasks)
        self.standing.stay(self.standing.moving)
        self.standing.replicas = {t: home for t, home in self.standing.replicas.items() if t in wanted}
        self._record("replicas planned", tasks=[str(task) for task in event.tasks], why=event.why)

    def replicas_within(self, budget: float) -> ReplicasPlanned:
        """What the planner would replicate within this budget, by the rates and costs measured so far."""
        return self._measurements.replicas_within(budget)

    @property
    def forks(self) -> frozenset[int]:
        """The tentative forks that may still be asked for, those that runs under way begin included."""
        begun = {work.fork for run in self.runs.values() for work in run.works if work.lane == "tentative"}
        return frozenset(fork.number for fork in self.standing.forks.values()) | begun

    @property
    def _keep(self) -> Keep:
        return ("all" if self.backup else "wanted") if self.buffering else "none"

    @property
    def retain(self) -> int:
        """Nodes keep what is younger than this epoch: the checkpoint, or the one that a run under way began with."""
        return min([self.standing.checkpoint, *(checkpoint for checkpoint, _ in self._begun.values())])

    @property
    def _busy(self) -> set[tuple[Task, str]]:
        """Copies that a replay under way is bringing forward."""
        run = self.runs.get(self._replaying) if self._replaying is not None else None
        return {(work.task, work.lane) for work in run.works} if run is not None else set()

    def _can_act(self) -> bool:
        return bool(self.standing.nodes) and not self.halted and self.committing is None

    @property
    def idle(self) -> bool:
        """Nothing is under way, and nothing is left that could be."""
        quiet = not self.busy and self.pending is None and self.committing is None
        return quiet and not self.standing.behind() and not self.standing.down

    def checkpoint_needed(self) -> bool:
        return self.standing.head > self.standing.checkpoint

    # What happened

    def _raise(self) -> None:
        self.standing.raise_to_checkpoint(self._busy)

    def _seen(self, event: NodesSeen) -> None:
        self._released = {
            name: held
            for name, held in self._released.items()
            if name in event.nodes and event.nodes[name].incarnation == held
        }
        seen = {name: info for name, info in event.nodes.items() if name not in self._released}
        known = self.standing.nodes
        gone = {n for n, info in known.items() if n not in seen or seen[n].incarnation != info.incarnation}
        if gone:
            self._lost(event, gone)
        joined = [name for name in seen if name not in known]
        if joined:
            known.update({name: seen[name] for name in joined})
            self._lifted, self._plan_due = False, True
            self._record("nodes joined", nodes=joined, alive=len(known))

    def _arrived(self, epoch: int) -> None:
        head = self.standing.head
        if epoch == self.pending:
            return
        if epoch < head:
            self._halt(
                f"epoch {epoch} came again, but the store has epochs up to {head}: the stream's own log "
                f"(the folder spark/ of the store) is gone or belongs to another stream"
            )
        elif epoch > head + 1:
            has = f"epochs up to {head} only" if head >= 0 else "none"
            self._halt(
                f"epoch {epoch} came, but the store has {has}: epochs {head + 1} to {epoch - 1} would be lost; the "
                f"store is older than the stream's own log (the folder spark/ of the store): put both back from the "
                f"same day, or start with a new store"
            )
        else:
            self.pending, self._answer = epoch, None

    def _checkpoint_broken(self, event: CheckpointBroken) -> None:
        standing, epoch, reason = self.standing, event.epoch, event.reason
        if self._checkpointing is None:
            return
        self._checkpointing = None
        self._checkpoint_wanted = True
        self._record("checkpoint broken", epoch=epoch, reason=reason)
        for task in event.missing:
            home = standing.homes.get(task)
            if home is not None and home.node == self._checkpointing_homes.get(task) and not home.fresh:
                self._record("missing", task=str(task), lane="exact", node=home.node, message=reason)
                self._lose_copy(task)
        if not self._checkpoint_hit:
            self._failures += 1
        if self._failures > self.settings.checkpoint_tries:
            self._halt(f"checkpoint {epoch} failed {self._failures} times in a row; the last time: {reason}")

    def _lost(self, event: NodesSeen, gone: set[str]) -> None:
        for number, (_, went) in self._begun.items():
            went.update(gone)
            self._out.append(CancelRun(number))
        if self._checkpointing is not None:
            self._checkpoint_hit = True
            self._out.append(CancelCheckpoint(self._checkpointing))
        lost, promoted = self.standing.lose(gone)
        self._stay("nodes were lost")
        self._failed_at = self.pending if self.pending is not None else self.standing.head + 1
        self._measured = self._measurements.topology()
        self._answer_first = self._plan_due = True
        self._answer_due = event.answer_due
        self._overtaken = 0
        self._buffer_if_down()
        self._record(
            "nodes lost",
            nodes=sorted(gone),
            cause=event.cause,
            epoch=self._failed_at,
            down=[str(task) for task in lost],
            alive=len(self.standing.nodes),
            rates=self._rates(),
        )
        if promoted:
            self._record("promoted", tasks=[str(task) for task in promoted], epoch=self._failed_at)
        shadow = self.scaling.shadow
        if shadow is not None and self.committing is not None:
            # It may be in force already: what of it is lost is recovered as of that shape.
            shadow.homes = {task: home for task, home in shadow.homes.items() if home.node not in gone}
        elif shadow is not None:
            hit = sorted(gone & {home.node for home in shadow.homes.values()})
            if hit:
                self._abort_scaling(f"{', '.join(hit)} was lost with new tasks on it")
            elif lost:
                self._abort_scaling(f"{', '.join(sorted(gone))} was lost, and {len(lost)} tasks are down")

    def _rates(self) -> dict[str, list[float]]:
        """What was measured before a failure, for the history; not of jobs so large that it would swell."""
        if len(self._measured.tasks) > RATES_TOLD:
            return {}
        return {each.name: [round(rate, 3) for rate in each.rates] for each in self._measured.operators}

    def _checkpoint_lost(self, event: CheckpointLost) -> None:
        """Go on from an older checkpoint: what is to be restored is replayed from there, what lives is untouched."""
        if event.epoch != self.standing.checkpoint or event.fallback == event.epoch:
            return
        self.standing.fall_back(event.fallback)
        if self.scaling.shadow is not None and self.committing is None:
            self._abort_scaling(f"checkpoint {event.epoch}, which the new tasks came from, is damaged")
        self._whole_next = self._checkpoint_wanted = True
        self._record("checkpoint lost", epoch=event.epoch, fallback=event.fallback)

    def _durable(self, event: CheckpointDurable) -> None:
        standing = self.standing
        if event.epoch != self._checkpointing:
            return
        self._checkpointing = None
        self._failures = 0
        saved, self._checkpointing_shape = self._checkpointing_shape, self.shape
        if self._checkpointing_since not in (-1, standing.checkpoint):
            # It holds what changed since a checkpoint that turned out damaged meanwhile.
            self._record("checkpoint broken", epoch=event.epoch, reason="built upon a damaged one")
            return
        standing.checkpoint = event.epoch
        self._saved = saved
        standing.side.clear()
        standing.raise_to_checkpoint(self._busy)
        self._whole_next = False
        if not standing.down and not standing.cold:
            self.buffering = self.backup
        standing.buffers = {
            task: (node, max(first, event.epoch + 1), last)
            for task, (node, first, last) in standing.buffers.items()
            if self.buffering and last > event.epoch
        }
        self._balance_due = self.settings.rebalance
        self._record("checkpoint", epoch=event.epoch, bytes=event.bytes)
        self._out.append(TrimJournal(event.epoch))

    # What to do now

    def _recover(self) -> None:
        """Place what is down, as far as there is room, in the scheduler's order."""
        standing = self.standing
        down = frozenset(standing.down)
        if not down or not self._plan_due:
            return
        if self._split_lost(down):
            return
        standing, down = self.standing, frozenset(self.standing.down)
        self._plan_due = False
        nodes = standing.loads(self._capacity())
        capacity = room(nodes, ceiling=1.0)
        plan = recover(self._measured, down, capacity, self.settings.scheduler)
        if self.settings.recovery == "blocking" and len(plan.recover) < len(down):
            self._record("waiting", down=len(down), capacity=capacity, why="blocking recovery waits for room for all")
            return
        placement = place(self.topology, plan.recover, nodes, ceiling=1.0)
        for task, node in placement.nodes.items():
            standing.place(task, node)
        still = [task for task in down if task not in standing.homes]
        self._buffer_if_down()
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
        copies = [*self.standing.tasks, *self.replicated]
        total = sum(self.topology.operator[task.operator].costs[task.number] for task in copies)
        return 2.0 * total / self.settings.nodes

    def _make_replicas(self) -> None:
        standing = self.standing
        if standing.down or standing.head - standing.checkpoint > HANDOVER or self._checkpointing is not None:
            return
        if self._answer_first and self.pending is not None:
            return
        missing = [task for task in self.replicated if task not in standing.replicas and task not in self._given_up]
        if not missing or len(standing.nodes) < 2:
            return
        shun = {task: [standing.domain(standing.homes[task].node)] for task in missing}
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
            return
        behind = standing.behind()
        shadow = self.scaling.shadow
        if not self._answer_first and (self._join_now(behind) or self._switch_next(behind)):
            return
        if not any(copy.lane == "exact" for copy in behind) and (shadow is None or shadow.at(standing.head)):
            self._overtaken = 0
        elif self._overtaken >= self.settings.replay_chunk // 2:
            # A source with a backlog would keep ahead of those who catch up for ever: let them gain on it.
            return
        if self.settings.recovery == "blocking" and (standing.down or standing.cold):
            return
        exact = standing.exact(epoch)
        works = [
            *exact_works(standing, exact, epoch, self._keep),
            *tentative_works(standing, exact, epoch, self._next_run, self._measured, self._mute, self.output_tasks),
        ]
        if not works:
            return
        # What cannot give an answer goes on all the same, but need not come before the recovery.
        self._answer_first &= any(work.task in self.output_tasks for work in works)
        self._answer_due &= self._answer_first
        ingest = None if self.journalled == epoch else epoch
        self._live = self._start(Run(self._next_run, "epoch", tuple(works), ingest, epoch=epoch))
        self._overtaken += 1

    def _join_now(self, behind: list[Copy]) -> bool:
        """Whether to hold the epoch for some of those behind: a short replay brings them up, and it can begin."""
        near = self._near(behind)
        busy = self._busy
        return bool(near) and (self._replaying is None or any((copy.task, copy.lane) in busy for copy in near))

    def _near(self, behind: list[Copy]) -> list[Copy]:
        return self.standing.near(behind, self._handover)

    def _run_replay(self) -> None:
        """Bring what is behind forward, a few epochs at a time: those who are nearly there before the others.

        First of all comes an answer after a failure: a replay would have its nodes busy when it is due.
        """
        standing = self.standing
        due = self._live is not None or (self._answer_due and self.pending is None)
        if self._replaying is not None or (self._answer_first and due):
            return
        behind = standing.behind()
        if not behind:
            self._run_shadow()
            return
        behind = self._near(behind) or behind
        live = self.runs.get(self._live) if self._live is not None else None
        taken = {(work.task, work.node) for work in live.works if work.lane in ("exact", "replica")} if live else set()
        if any((copy.task, copy.node) in taken for copy in behind):
            return
        last = min(standing.head, min(copy.position for copy in behind) + self.settings.replay_chunk)
        buffers = {} if self.settings.recovery == "source-replay" else standing.buffers
        works, read = replay(
            self.topology, behind, standing.ahead(), standing.checkpoint, standing.side, buffers, last, self._keep
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

    def _run_checkpoint(self) -> None:
        standing = self.standing
        if self._checkpointing is not None or self._live is not None or standing.head <= standing.checkpoint:
            return
        age = standing.head - standing.checkpoint
        recovered = self.buffering and not self.backup
        if not (age >= self.settings.checkpoint_every or self._checkpoint_wanted or recovered):
            return
        if standing.down or any(home.position < standing.head for home in standing.homes.values()):
            return
        if any(kind == "final" for _, kind in self._publishing):
            return
        shadow = self.scaling.shadow
        if shadow is not None and (
            shadow.near(standing.head, self._handover) or age < 2 * self.settings.checkpoint_every
        ):
            return  # the switch is at hand, or may be soon, and all new tasks would begin anew from the checkpoint
        self._checkpoint_wanted = False
        self._checkpointing = standing.head
        nodes = {task: home.node for task, home in standing.homes.items()}
        self._checkpointing_since = -1 if self._whole_next else standing.checkpoint
        self._checkpointing_shape = self.shape
        born, saved = self.shape.born, self._saved.born
        whole = frozenset(task for task in nodes if born.get(task, 0) != saved.get(task, 0))
        self._checkpoint_hit, self._checkpointing_homes = False, nodes
        since = self._checkpointing_since
        self._out.append(TakeCheckpoint(standing.head, since, nodes, self.shape, whole, self._failures))

    def snapshot(self) -> Snapshot:
        """Everything that others may know, as it is now."""
        standing, shadow = self.standing, self.scaling.shadow
        return Snapshot(
            head=standing.head,
            journalled=self.journalled,
            checkpoint=standing.checkpoint,
            pending=self.pending,
            nodes=tuple(sorted(standing.nodes)),
            leaving=tuple(sorted(standing.leaving)),
            down=standing.down,
            behind=sum(copy.lane == "exact" for copy in standing.behind()),
            caught_up=standing.caught_up,
            idle=self.idle,
            checkpoint_needed=self.checkpoint_needed(),
            tasks={operator.name: operator.parallelism for operator in self.topology.operators},
            scaling=(shadow.operator, shadow.tries) if shadow is not None else None,
            queued_scalings=len(self.scaling.queue),
            homes={task: home.node for task, home in standing.homes.items()},
            positions={task: home.position for task, home in standing.homes.items()},
            replicas={task: (home.node, standing.head - home.position) for task, home in standing.replicas.items()},
            retain=self.retain,
            forks=self.forks,
            shape=self.shape,
            topology=self.topology,
            halted=self.halted,
        )

    def loads(self, capacity: float) -> list[Node]:
        """The live nodes with what they carry, but for those that are leaving."""
        return self.standing.loads(capacity)

    @property
    def scalable(self) -> frozenset[str]:
        return self.scaling.scalable

    def check(self) -> None:
        """Assert what must always hold; the message tells what does not."""
        wrong = list(self.standing.check(self._busy))
        if not self.buffering and self.standing.buffers:
            wrong.append(f"buffers are kept although nothing is down: {sorted(map(str, self.standing.buffers))[:3]}")
        if wrong:
            raise AssertionError("; ".join(wrong))
