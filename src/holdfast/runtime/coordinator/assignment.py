"""Which copy of which task lives where, and how far each has come. No decisions: other parts call its verbs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.recovery import with_costs
from holdfast.runtime.coordinator.facts import (
    CheckpointSaved,
    Committed,
    CopiesLost,
    Copy,
    FellBack,
    Lost,
    Refused,
    Released,
    Reshaped,
    Said,
    Told,
    Unsound,
    record,
)
from holdfast.runtime.coordinator.replay import CatchUp, downward
from holdfast.runtime.messages import Work
from holdfast.topology import Task, Topology

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts


class Assignment:
    """``primaries`` and ``replicas`` of the tasks of ``topology``, the one in force.

    ``measured``: what tasks cost by what they took, in the unit of declared costs. ``lost_at``: the position at which a
    task was last lost. ``cold``: tasks placed anew whose replay has not come to the failure yet.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.primaries: dict[Task, Copy] = {}
        self.replicas: dict[Task, Copy] = {}
        self.lost_at: dict[Task, int] = {}
        self.cold: set[Task] = set()
        self.tasks = placed_tasks(topology)
        self.measured: Mapping[Task, float] = {}

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case Lost(nodes):
                yield self.lose(told)
            case Released(nodes):
                self.drop_replicas(task for task, copy in self.replicas.items() if copy.node in nodes)
            case Committed(run, _, counted) if run.settled:
                for work, _ in counted:
                    self.advance(work, parts.recovering.failed_at)
            case Refused(run) if run.settled:
                yield from self._refused(told)
            case Unsound(copies, why):
                hit = [task for task, node in copies.items() if self._at(task, node) and not self.primaries[task].fresh]
                for task in hit:
                    yield record("missing", task=str(task), lane="exact", node=copies[task], message=why)
                if hit:
                    yield self.drop(hit)
            case CheckpointSaved(epoch):
                self.raise_to(epoch, parts.answering.head, parts.runs.replaying)
            case FellBack(lost, to):
                self.fall_back(lost, to, parts.answering.head)
            case Reshaped():
                self.reshape(told)

    # Verbs

    def place(self, task: Task, node: str, checkpoint: int, head: int) -> None:
        """A task that is down comes up on this node, from the checkpoint; one without state from where it was."""
        position = checkpoint if self.stateful(task) else self.lost_at.get(task, checkpoint)
        self.primaries[task] = Copy(node, position, fresh=True)
        if position < head:
            self.cold.add(task)

    def advance(self, work: Work, failed_at: int) -> None:
        """This work is committed on its node. ``failed_at``: an epoch before the last failure is still too little."""
        if work.lane not in ("exact", "replica"):
            return
        # A replica's work counts for the primary too: it may have been promoted while it ran.
        for copies in (self.replicas, self.primaries):
            copy = copies.get(work.task)
            if copy is not None and (copy.node, copy.position) == (work.node, work.start):
                copies[work.task] = Copy(work.node, work.last, fresh=False)
                if copies is self.primaries and work.last >= failed_at - 1:
                    self.cold.discard(work.task)

    def holds(self, work: Work) -> bool:
        """Whether the primary stands where this work has brought it."""
        return self.primaries.get(work.task) == Copy(work.node, work.last, fresh=False)

    def lose(self, lost: Lost) -> CopiesLost:
        """These nodes are no more."""
        self.drop_replicas(task for task, copy in self.replicas.items() if copy.node in lost.nodes)
        return self.drop([task for task, copy in self.primaries.items() if copy.node in lost.nodes], lost)

    def drop(self, tasks: Sequence[Task], lost: Lost | None = None) -> CopiesLost:
        """The primaries of these tasks are gone; their replicas are promoted where there are any."""
        for task in tasks:
            gone = self.primaries.pop(task)
            self.lost_at[task] = gone.position
            self.cold.discard(task)
            if task in self.replicas:
                self.primaries[task] = self.replicas.pop(task)
                if self.primaries[task].position < gone.position:
                    self.cold.add(task)
        down = tuple(task for task in tasks if task not in self.primaries)
        return CopiesLost(tuple(tasks), down, tuple(task for task in tasks if task in self.primaries), lost)

    def _refused(self, refused: Refused) -> Said:
        """State that is not where it should be is lost."""
        dropped: list[Task] = []
        for report in refused.missing:
            task = report.task
            yield record("missing", task=str(task), lane=report.lane, node=report.node, message=report.message)
            twin = self.replicas.get(task)
            if report.lane == "replica" and twin is not None and twin.node == report.node:
                del self.replicas[task]
            elif report.lane != "side" and not refused.of_fork(report) and self._at(task, report.node):
                dropped.append(task)
        if dropped:
            yield self.drop(list(dict.fromkeys(dropped)))

    def add_replica(self, task: Task, node: str, checkpoint: int) -> None:
        """A second copy on this node, from the checkpoint; one without state, as the primary is."""
        position = checkpoint if self.stateful(task) else self.primaries[task].position
        self.replicas[task] = Copy(node, position, fresh=True)

    def drop_replicas(self, tasks: Iterable[Task]) -> None:
        for task in list(tasks):
            self.replicas.pop(task, None)

    def hand_over(self, task: Task) -> None:
        """The replica is the primary now, and there is no other copy."""
        self.primaries[task] = self.replicas.pop(task)

    def raise_to(self, checkpoint: int, head: int, busy: Collection[tuple[Task, str]]) -> None:
        """Copies that have not come to the checkpoint begin from it; those that a run is busy with, when it ends."""
        for lane, copies in (("exact", self.primaries), ("replica", self.replicas)):
            for task, copy in copies.items():
                if copy.position < checkpoint and (task, lane) not in busy:
                    copies[task] = Copy(copy.node, checkpoint, fresh=True)
                    if lane == "exact" and checkpoint >= head:
                        self.cold.discard(task)

    def fall_back(self, lost: int, to: int, head: int) -> None:
        """A checkpoint is lost: copies whose state was still in it begin from an older one, and are cold again."""
        for copies in (self.primaries, self.replicas):
            for task, copy in copies.items():
                if copy.fresh and copy.position <= lost and self.stateful(task):
                    copies[task] = Copy(copy.node, to, fresh=True)
                    if copies is self.primaries and to < head:
                        self.cold.add(task)

    def reshape(self, told: Reshaped) -> None:
        """Another shape is in force: what is known of tasks with other keys is of others."""
        self.topology, self.tasks = told.topology, placed_tasks(told.topology)
        self.primaries = {t: copy for t, copy in self.primaries.items() if told.untouched(t)} | dict(told.primaries)
        self.replicas = {task: copy for task, copy in self.replicas.items() if told.untouched(task)}
        self.lost_at = {task: epoch for task, epoch in self.lost_at.items() if told.untouched(task)}
        self.cold = {task for task in self.cold if told.untouched(task)}

    # Questions

    def stateful(self, task: Task) -> bool:
        return self.topology.operator[task.operator].stateful

    def _at(self, task: Task, node: str) -> bool:
        return task in self.primaries and self.primaries[task].node == node

    @property
    def all_up(self) -> bool:
        return len(self.primaries) == len(self.tasks)

    @property
    def down(self) -> tuple[Task, ...]:
        return () if self.all_up else tuple(task for task in self.tasks if task not in self.primaries)

    def caught_up(self, head: int) -> bool:
        """Every copy that lives has come to the head."""
        return all(copy.position >= head for copies in (self.primaries, self.replicas) for copy in copies.values())

    def load(self) -> dict[str, float]:
        """What each node carries, in the unit of task costs."""
        load: dict[str, float] = {}
        for copies in (self.primaries, self.replicas):
            for task, copy in copies.items():
                load[copy.node] = load.get(copy.node, 0.0) + self.cost(task)
        return load

    @property
    def costed(self) -> Topology:
        """The topology in force, with measured costs where there are any."""
        known = {task: cost for task, cost in self.measured.items() if task in self.topology.index}
        return with_costs(self.topology, known) if known else self.topology

    def weigh(self, costs: Mapping[Task, float]) -> None:
        """From now on these costs count instead of declared ones."""
        self.measured = dict(costs)

    def cost(self, task: Task) -> float:
        if task in self.measured:
            return self.measured[task]
        return self.topology.operator[task.operator].costs[task.number]

    def exact(self, epoch: int, head: int) -> NDArray[np.bool_]:
        """Which tasks can process this epoch exactly: their state is at the one before, as is everything upstream."""
        able = np.ones(len(self.topology.tasks), np.bool_)
        if self.all_up and epoch == head + 1 and self.caught_up(head):
            return able
        for index, task in enumerate(self.topology.tasks):
            if self.topology.inputs_of(task.operator):
                copy = self.primaries.get(task)
                able[index] = copy is not None and copy.position == epoch - 1
        return ~self._below(~able)

    def broken(self, outputs: Collection[str]) -> set[Task]:
        """The tasks of these operators that are down, or have something upstream of them that is."""
        if self.all_up:
            return set()
        down = np.zeros(len(self.topology.tasks), np.bool_)
        down[[self.topology.index[task] for task in self.down]] = True
        hit = self._below(down)
        return {task for task in self.tasks if task.operator in outputs and hit[self.topology.index[task]]}

    def behind(self, head: int) -> list[CatchUp]:
        """Copies that have not come to the head and can: nothing upstream of them is down."""
        if self.caught_up(head):
            return []
        down = np.zeros(len(self.topology.tasks), np.bool_)
        down[[self.topology.index[task] for task in self.down]] = True
        stuck = self._below(down, itself=False)
        copies = []
        for task in self.tasks:
            if not stuck[self.topology.index[task]]:
                for lane, held in (("exact", self.primaries), ("replica", self.replicas)):
                    copy = held.get(task)
                    if copy is not None and copy.position < head:
                        copies.append(catch_up(task, copy, "exact" if lane == "exact" else "replica"))
        return copies

    def near(self, copies: Sequence[CatchUp], head: int, epochs: int, light: Collection[Task] = ()) -> list[CatchUp]:
        """Those of these copies that at most so many epochs part from the head, as all that is behind upstream of them.

        One whose state is still to be restored is near if that is ``light``: else it takes longer than a few epochs.
        """

        def close(copy: CatchUp) -> bool:
            light_one = copy.lane == "exact" and copy.task in light  # nobody waits for a replica
            here = copy.origin != "checkpoint" or copy.position < 0 or light_one
            return here and head - copy.position <= epochs

        far = np.zeros(len(self.topology.tasks), np.bool_)
        for copy in copies:
            far[self.topology.index[copy.task]] |= copy.lane == "exact" and not close(copy)
        if far.any():
            far = self._below(far)
        return [copy for copy in copies if close(copy) and not far[self.topology.index[copy.task]]]

    def _below(self, marks: NDArray[np.bool_], itself: bool = True) -> NDArray[np.bool_]:
        """Tasks that are marked (``itself``), or have a marked one upstream of them."""
        reached, below = marks.copy(), np.zeros_like(marks)
        for operator in self.topology.operators:
            span = self.topology.span[operator.name]
            for stream in self.topology.inputs_of(operator.name):
                below[span] |= downward(self.topology, stream, reached[self.topology.span[stream.source]])
            reached[span] |= below[span]
        return reached if itself else below

    def check(self, parts: Parts) -> Iterable[str]:
        nodes, checkpoint, head = parts.members.nodes, parts.checkpointing.durable, parts.answering.head
        domain = {name: info.domain or name for name, info in nodes.items()}
        for task, twin in self.replicas.items():
            copy, moves = self.primaries.get(task), task in parts.replicating.moving
            if copy is None:
                yield f"{task} has a replica and no primary"
            elif copy.node == twin.node or (not moves and domain.get(copy.node) == domain.get(twin.node)):
                yield f"{task} and its replica share {copy.node}"
        for what, lane, copies in (("primary", "exact", self.primaries), ("replica", "replica", self.replicas)):
            for task, copy in copies.items():
                if task not in self.topology.index:
                    yield f"there is a {what} of {task}, which is no task"
                if copy.node not in nodes:
                    yield f"the {what} of {task} lives on {copy.node}, which is gone"
                if copy.position > head:
                    yield f"the {what} of {task} is at epoch {copy.position}, beyond the head {head}"
                if copy.position < checkpoint and (task, lane) not in parts.runs.replaying:
                    yield f"the {what} of {task} is at {copy.position}, before the checkpoint {checkpoint}"
        for task in self.cold - self.primaries.keys():
            yield f"{task} is cold and down"


def placed_tasks(topology: Topology) -> tuple[Task, ...]:
    """Every task but the sources': those run wherever Spark reads them, so they cannot be lost."""
    return tuple(task for task in topology.tasks if topology.inputs_of(task.operator))


def catch_up(task: Task, copy: Copy, lane: Literal["exact", "replica"]) -> CatchUp:
    return CatchUp(task, copy.node, lane, "checkpoint" if copy.fresh else "local", copy.position)
