"""Recovery: where lost tasks come up, how copies that are behind catch up, and what is kept for them meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from holdfast.recovery import essential, place, recover, room
from holdfast.runtime.coordinator.facts import (
    CheckpointSaved,
    Committed,
    CopiesLost,
    FellBack,
    Joined,
    Lost,
    Refused,
    Released,
    Reshaped,
    Said,
    Told,
    record,
)
from holdfast.runtime.coordinator.replay import CatchUp, Keep, replay
from holdfast.runtime.messages import CapacityLifted, Work
from holdfast.runtime.settings import AMPLE, Settings
from holdfast.topology import Task

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts

SHORT, MOST = 1.0, 16
"""What takes no more than so many seconds of one core is replayed in one run, up to so many epochs, and waited for."""

Situation = tuple[frozenset[tuple[str, str]], frozenset[Task], bool]
"""What a plan is for: the nodes with their incarnations, the tasks that are down, whether capacity was lifted."""


class Recovering:
    """``planned_for``: the situation of the last plan. ``failed_at``: the epoch at hand when something was last lost.

    ``lifted``: nodes carry whatever there is. ``keeping``: outputs are kept on their nodes for those who miss them.
    ``side``: pasts computed again, by task, with the node and how far; ``kept``: outputs that are on a node, from and
    to which epoch. ``gained_at``: the head when nobody was behind, or a replay made progress.
    """

    def __init__(self, settings: Settings, checkpoint: int, head: int) -> None:
        self.backup = settings.recovery == "upstream-backup"
        self.planned_for: Situation | None = None
        self.failed_at = head + 1
        self.lifted = False
        self.keeping = self.backup or (settings.recovery == "incremental" and head > checkpoint)
        self.side: dict[Task, tuple[str, int]] = {}
        self.kept: dict[Task, tuple[str, int, int]] = {}
        self.gained_at = head

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case Lost(nodes) | Released(nodes):
                self.side = {task: held for task, held in self.side.items() if held[0] not in nodes}
                self.kept = {task: held for task, held in self.kept.items() if held[0] not in nodes}
            case Joined():
                self.lifted = False
            case CapacityLifted():
                self.lifted = True
            case CopiesLost():
                yield from self._copies_lost(told, parts)
            case Committed():
                self._committed(told, parts)
            case Refused(run):
                for report in told.missing:
                    if report.lane == "side":
                        self.side.pop(report.task, None)
                if run.settled and told.only_blocked:
                    # Kept outputs that are not there any more are the one thing that a receiver waits for in vain.
                    self.kept = {task: held for task, held in self.kept.items() if task not in run.buffers}
            case CheckpointSaved(epoch):
                self._saved(epoch, parts)
            case FellBack():
                self.side.clear()
            case Reshaped(topology=topology, operators=operators):
                recut = {*operators, *(s.source for name in operators for s in topology.inputs_of(name))}
                self.side = {task: held for task, held in self.side.items() if told.untouched(task)}
                self.kept = {
                    task: held
                    for task, held in self.kept.items()
                    if told.untouched(task) and task.operator not in recut
                }

    def _copies_lost(self, told: CopiesLost, parts: Parts) -> Said:
        self.failed_at = parts.answering.head + 1
        self.kept = {task: held for task, held in self.kept.items() if task not in told.tasks}
        self._keep_if_down(parts)
        if told.lost is not None:
            self.gained_at = parts.answering.head
            yield record(
                "nodes lost",
                nodes=sorted(told.lost.nodes),
                cause=told.lost.cause,
                epoch=self.failed_at,
                down=[str(task) for task in told.down],
                alive=len(parts.members.nodes),
                rates=parts.measurements.rates(),
                promised=None if told.lost.promised is None else round(told.lost.promised, 6),
            )
        if told.promoted:
            yield record("promoted", tasks=[str(task) for task in told.promoted], epoch=self.failed_at)

    def _keep_if_down(self, parts: Parts) -> None:
        """Adaptive buffering begins when something is down; a checkpoint after recovery ends it."""
        self.keeping |= not parts.assignment.all_up and parts.settings.recovery == "incremental"

    def _committed(self, told: Committed, parts: Parts) -> None:
        for work, _ in told.counted:
            if work.lane == "side" and told.current:
                self.side[work.task] = (work.node, work.last)
            elif work.keep and self.keeping and told.run.settled and parts.assignment.holds(work):
                self._keep(work)
        if told.run.kind == "replay":
            self.gained_at = parts.answering.head

    def _keep(self, work: Work) -> None:
        held = self.kept.get(work.task)
        grows = held is not None and held[0] == work.node and held[2] == work.first - 1
        self.kept[work.task] = (work.node, held[1] if held is not None and grows else work.first, work.last)

    def _saved(self, epoch: int, parts: Parts) -> None:
        self.side.clear()
        if parts.assignment.all_up and not parts.assignment.cold:
            self.keeping = self.backup
        self.kept = {
            task: (node, max(first, epoch + 1), last)
            for task, (node, first, last) in self.kept.items()
            if self.keeping and last > epoch
        }

    # What to do now

    def due(self, parts: Parts) -> bool:
        """Whether something is down that was not planned for as things are now."""
        return not parts.assignment.all_up and self.planned_for != self._situation(parts)

    def _situation(self, parts: Parts) -> Situation:
        nodes = frozenset((name, info.incarnation) for name, info in parts.members.nodes.items())
        return nodes, frozenset(parts.assignment.down), self.lifted

    def place(self, parts: Parts) -> Said:
        """Place what is down, as far as there is room, in the scheduler's order."""
        if not self.due(parts) or parts.rescaling.to_split(parts):
            return
        self.planned_for = self._situation(parts)
        assignment, settings, down = parts.assignment, parts.settings, frozenset(parts.assignment.down)
        nodes = parts.members.loads(self.capacity(parts), parts)
        capacity, more = room(nodes, settings.ceiling), len(nodes) < settings.nodes
        needed = essential(parts.measurements.before, down) if settings.recovery != "blocking" else ()
        left = max(0.0, capacity - sum(map(assignment.cost, needed)))
        plan = recover(parts.measurements.before, down.difference(needed), left, settings.scheduler, more)
        if settings.recovery == "blocking" and len(plan.recover) < len(down):
            yield record("waiting", down=len(down), capacity=capacity, why="blocking recovery waits for room for all")
            return
        broken = assignment.broken(parts.answering.outputs)
        soft = settings.capacity is None
        chosen = (*needed, *plan.recover)
        placed = place(assignment.costed, chosen, nodes, settings.ceiling, soft=soft).nodes
        if any(task not in placed for task in needed):
            placed = place(assignment.costed, chosen, nodes, settings.ceiling, first=needed, soft=soft).nodes
        for task, node in placed.items():
            assignment.place(task, node, parts.checkpointing.durable, parts.answering.head)
        self.planned_for = self._situation(parts)
        self._keep_if_down(parts)
        completed = sorted(
            broken - assignment.broken(parts.answering.outputs), key=assignment.topology.index.__getitem__
        )
        yield record(
            "recovery plan",
            scheduler=plan.algorithm,
            capacity=capacity,
            recover={str(task): node for task, node in placed.items()},
            queries=[str(task) for task in completed],
            still_down=sorted(str(task) for task in assignment.down),
            why=f"{len(placed)} of {len(down)} tasks that are down fit into a capacity of {capacity:g}; "
            f"{plan.algorithm} completes {len(completed)} query partitions with them{self._unasked(placed, parts)}",
            epoch=self.failed_at,
        )

    def _unasked(self, placed: Iterable[Task], parts: Parts) -> str:
        """Whom the next answers do without, although it has a place."""
        within, measured = parts.settings.restore_within, parts.measurements
        dear = sorted(measured.dear(within).intersection(placed), key=parts.assignment.topology.index.__getitem__)
        if not dear or parts.checkpointing.durable < 0:
            return ""
        named = ", ".join(map(str, dear[:5])) + (f" and {len(dear) - 5} more" if len(dear) > 5 else "")
        longest = max(map(measured.forking, dear))
        return f"; answers do without {named}: a restore would take {longest:.1f} s, and they wait {within:g} s"

    def capacity(self, parts: Parts) -> float:
        """What a node may carry."""
        if self.lifted:
            return AMPLE
        if parts.settings.capacity is not None:
            return parts.settings.capacity
        copies = [*parts.assignment.tasks, *parts.replicating.wanted]
        return 2.0 * sum(map(parts.assignment.cost, copies)) / parts.settings.nodes

    def gain(self, parts: Parts) -> Said:
        """Nobody is behind: nobody can be overtaken."""
        if not self._lags(parts):
            self.gained_at = parts.answering.head
        return ()

    def overtaken(self, parts: Parts) -> bool:
        """A source with a backlog would keep ahead of those who catch up for ever: let them gain on it."""
        ahead = parts.answering.head - self.gained_at
        return ahead >= parts.settings.replay_chunk // 2 and self._lags(parts)

    def _lags(self, parts: Parts) -> bool:
        """Whether a primary, or a task of the next shape, has to catch up."""
        head, shadow = parts.answering.head, parts.rescaling.shadow
        if shadow is not None and not shadow.at(head):
            return True
        return any(copy.lane == "exact" for copy in parts.assignment.behind(head))

    def _near(self, behind: Sequence[CatchUp], parts: Parts) -> list[CatchUp]:
        """Those of them that a short replay brings up: of a few epochs, or of more if those take next to nothing."""
        epochs = max(parts.settings.handover, min(MOST, parts.measurements.replayed_in(SHORT)))
        return parts.assignment.near(behind, parts.answering.head, epochs, parts.measurements.light)

    def joins(self, behind: Sequence[CatchUp], parts: Parts) -> bool:
        """Whether to hold the epoch for some of those behind: a short replay brings them up, and it can begin."""
        near = self._near(behind, parts)
        replaying = parts.runs.replaying
        free = parts.runs.of("replay") is None
        return bool(near) and (free or any((copy.task, copy.lane) in replaying for copy in near))

    def waits(self, parts: Parts) -> bool:
        """Whether no replay may begin: one is under way, or first of all comes an answer after a failure.

        A replay would have its nodes busy when it is due.
        """
        owed = parts.answering.owed
        soon = owed == "answer soon" and parts.answering.pending is None
        return parts.runs.of("replay") is not None or (
            owed != "nothing" and (soon or parts.runs.of("epoch") is not None)
        )

    @property
    def keep(self) -> Keep:
        return ("all" if self.backup else "wanted") if self.keeping else "none"

    def replay(self, parts: Parts) -> Said:
        """Bring what is behind forward, a few epochs at a time: those who are nearly there before the others."""
        assignment, head, checkpoint = parts.assignment, parts.answering.head, parts.checkpointing.durable
        if self.waits(parts):
            return
        behind = assignment.behind(head)
        behind = self._near(behind, parts) or behind
        epoch = parts.runs.of("epoch")
        at_work = epoch.works if epoch is not None else ()
        taken = {(work.task, work.node) for work in at_work if work.lane in ("exact", "replica")}
        if not behind or any((copy.task, copy.node) in taken for copy in behind):
            return
        chunk = max(parts.settings.replay_chunk, min(MOST, parts.measurements.replayed_in(SHORT)))
        last = min(head, min(copy.position for copy in behind) + chunk)
        kept = {} if parts.settings.recovery == "source-replay" else self.kept
        ahead = {task: (copy.node, copy.position) for task, copy in assignment.primaries.items()}
        works, read = replay(assignment.topology, behind, ahead, checkpoint, self.side, kept, last, self.keep)
        run = parts.runs.start("replay", works, parts, buffers=read)
        yield run
        yield record(
            "replay",
            run=run.number,
            first=run.first,
            last=last,
            tasks=[str(work.task) for work in works if work.lane == "exact"],
            on_the_side=[str(work.task) for work in works if work.lane == "side"],
            from_buffers=[str(task) for task in read],
        )

    def check(self, parts: Parts) -> Iterable[str]:
        if self.kept and not self.keeping:
            yield f"outputs are kept although nothing is down: {sorted(map(str, self.kept))[:3]}"
        for what, held in (("past", self.side), ("kept output", self.kept)):
            for task, (node, *_) in held.items():
                if node not in parts.members.nodes:
                    yield f"the {what} of {task} is on {node}, which is gone"
        if parts.acting and self.due(parts) and not parts.rescaling.to_split(parts):
            yield f"{parts.assignment.down[0]} is down, and nobody planned for it"
