"""Second copies: replicas that stand by, and those of tasks that move, which take over as soon as they are at the head.

Tasks move to nodes that carry less, and away from nodes that are to be given back. Until a copy takes over nothing has
changed; a node that dies meanwhile is an ordinary loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from holdfast.errors import Invalid
from holdfast.recovery import moves, place
from holdfast.runtime.coordinator.facts import NobodyLeaves, Reshaped, Said, Told, record
from holdfast.runtime.messages import ReplicasPlanned
from holdfast.runtime.settings import AMPLE, HANDOVER
from holdfast.runtime.shape import Shape, parents, routing_of
from holdfast.topology import Task, Topology

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts


class Replicating:
    """``wanted``: tasks that shall have a replica, on the node in ``homes`` if it is there.

    ``moving``: tasks whose replica is to take over.
    ``balanced_at``: the checkpoint behind which loads were last compared.
    """

    def __init__(self, wanted: tuple[Task, ...], declared: Topology, topology: Topology, shape: Shape, at: int) -> None:
        check_replicas(wanted, declared)
        self.wanted = inherited(wanted, declared, Shape(), shape, topology)
        self.homes: dict[Task, str] = {}
        self.moving: set[Task] = set()
        self.balanced_at = at

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case ReplicasPlanned(tasks, why, nodes):
                self.wanted = check_replicas(tasks, parts.assignment.topology)
                self.homes = dict(nodes)
                self._stay(parts)
                held = parts.assignment.replicas
                gone = [t for t, copy in held.items() if t not in tasks or nodes.get(t, copy.node) != copy.node]
                parts.assignment.drop_replicas(gone)
                yield record("replicas planned", tasks=[str(task) for task in tasks], why=why)
            case NobodyLeaves():
                self._stay(parts)
            case Reshaped(before, shape, topology):
                self.wanted = inherited(self.wanted, parts.declared, before, shape, topology)
        self.moving &= parts.assignment.replicas.keys()

    def _stay(self, parts: Parts) -> None:
        """Nothing moves after all."""
        parts.assignment.drop_replicas(self.moving)
        self.moving.clear()

    # What to do now

    def copy(self, parts: Parts) -> Said:
        """Make the replicas that are wanted, just behind a checkpoint, when they have next to nothing to replay."""
        assignment, answering, checkpoint = parts.assignment, parts.answering, parts.checkpointing.durable
        if not assignment.all_up or answering.head - checkpoint > HANDOVER or parts.checkpointing.taking is not None:
            return
        if answering.owed != "nothing" and answering.pending is not None:
            return
        missing = [task for task in self.wanted if task not in assignment.replicas]
        if not missing or len(parts.members.nodes) < 2:
            return
        given_up = self._given_up(parts)
        missing = [task for task in missing if task not in given_up]
        shun = {task: [parts.members.domain(assignment.primaries[task].node)] for task in missing}
        nodes = parts.members.loads(parts.recovering.capacity(parts), parts)
        standing = {node.name: node for node in nodes}
        planned = {
            task: self.homes[task]
            for task in missing
            if self.homes.get(task) in standing and standing[self.homes[task]].domain not in shun[task]
        }
        others = [task for task in missing if task not in planned]
        placed = {**planned, **place(assignment.costed, others, nodes, ceiling=1.0, avoid=shun).nodes}
        for task, node in placed.items():
            assignment.add_replica(task, node, checkpoint)
        if placed:
            yield record("replicas", placed={str(task): node for task, node in placed.items()})

    def move(self, parts: Parts) -> Said:
        """Begin what is to move, and hand over what has arrived."""
        if parts.assignment.all_up and not parts.assignment.cold and parts.checkpointing.taking is None:
            yield from self._empty_leaving(parts)
            yield from self._balance(parts)
        yield from self._hand_over(parts)

    def _given_up(self, parts: Parts) -> set[Task]:
        """A copy that was given up while a run works on it is made again when that run is over: both use one folder."""
        return parts.runs.tasks("replica")

    def _empty_leaving(self, parts: Parts) -> Said:
        """Every task on a node that is leaving moves: to its replica, if it has one that stays, else to a new copy."""
        assignment, leaving = parts.assignment, parts.members.leaving
        if not leaving:
            return
        leave = [task for task, copy in assignment.primaries.items() if copy.node in leaving]
        lost = [t for t in leave if t in assignment.replicas and assignment.replicas[t].node in leaving]
        self.moving.difference_update(lost)
        assignment.drop_replicas(lost)
        self.moving.update(task for task in leave if task in assignment.replicas)
        given_up = self._given_up(parts)
        missing = [task for task in leave if task not in assignment.replicas and task not in given_up]
        nodes = parts.members.loads(AMPLE, parts)
        placed = place(assignment.costed, missing, nodes, ceiling=1.0).nodes
        yield from self._begin(placed, "nodes are leaving", parts)

    def _balance(self, parts: Parts) -> Said:
        """Nodes that carry much less than others take tasks over.

        Begun just behind a checkpoint, when a new copy has next to nothing to replay, one set of moves at a time.
        """
        checkpoint, rescaling = parts.checkpointing.durable, parts.rescaling
        if not parts.settings.rebalance or self.balanced_at >= checkpoint or self.moving:
            return
        self.balanced_at = checkpoint
        busy = rescaling.shadow is not None or rescaling.queue or parts.recovering.keeping or parts.members.leaving
        if busy or parts.answering.head - checkpoint > HANDOVER:
            return
        assignment = parts.assignment
        alone = {task: copy.node for task, copy in assignment.primaries.items() if task not in assignment.replicas}
        by_load = sorted(parts.members.loads(AMPLE, parts), key=lambda node: -node.load)
        chosen = moves(assignment.costed, alone, by_load[: len(by_load) - parts.settings.standby])
        given_up = self._given_up(parts)
        begun = {task: node for task, node in chosen.items() if task not in given_up}
        yield from self._begin(begun, "some nodes carry much more than others", parts)

    def _begin(self, chosen: Mapping[Task, str], why: str, parts: Parts) -> Said:
        if chosen:
            told = {str(task): [parts.assignment.primaries[task].node, node] for task, node in chosen.items()}
            for task, node in chosen.items():
                parts.assignment.add_replica(task, node, parts.checkpointing.durable)
            self.moving.update(chosen)
            yield record("moving", tasks=told, why=why)

    def _hand_over(self, parts: Parts) -> Said:
        """Where both copies are at the head, and no run brings the old one further, the new one is the task now."""
        if not self.moving:
            return
        primaries, replicas, head = parts.assignment.primaries, parts.assignment.replicas, parts.answering.head
        waiting = sorted(self.moving - parts.runs.tasks())
        arrived = [task for task in waiting if primaries[task].position == replicas[task].position == head]
        moved = {str(task): [primaries[task].node, replicas[task].node] for task in arrived}
        for task in arrived:
            parts.assignment.hand_over(task)
        self.moving.difference_update(arrived)
        if moved:
            yield record("moved", tasks=moved, epoch=head)

    def check(self, parts: Parts) -> Iterable[str]:
        for task in self.moving - parts.assignment.replicas.keys():
            yield f"{task} moves and has no replica"
        for task in set(self.wanted) - parts.assignment.topology.index.keys():
            yield f"{task} is to have a replica and is no task"


def check_replicas(tasks: tuple[Task, ...], topology: Topology) -> tuple[Task, ...]:
    for task in tasks:
        if task not in topology.index or not topology.inputs_of(task.operator):
            raise Invalid(f"replica {task}: only tasks with inputs are replicated; Spark reads sources anywhere")
    return tasks


def inherited(
    wanted: tuple[Task, ...], declared: Topology, before: Shape, now: Shape, topology: Topology
) -> tuple[Task, ...]:
    """Who is to have a replica in another shape: a changed task, if one that had some of its keys was."""
    had = set(wanted)
    olds = {name: routing_of(declared, before, name) for name in now.routings}

    def inherits(task: Task) -> bool:
        routing, old = now.routings.get(task.operator), olds.get(task.operator)
        if routing is None or old is None or routing == old:
            return task in had
        mine = routing.ranges[routing.owners.index(task.number)]
        return any(Task(task.operator, number) in had for number in parents(old, mine))

    return tuple(task for task in topology.tasks if topology.inputs_of(task.operator) and inherits(task))
