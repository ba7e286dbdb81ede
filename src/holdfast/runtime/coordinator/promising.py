"""What a job promises: how good the next answer will be whichever nodes are lost now, for the copies where they live.

Told beforehand by the same rules by which an answer is stamped afterwards. Owns nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

import numpy as np

from holdfast.fidelity import Stale, objectives, priorities
from holdfast.placement import affords
from holdfast.recovery import Node, room
from holdfast.replication import Floor, Survive, floor, plan_surviving
from holdfast.runtime.coordinator.lanes import Fork
from holdfast.runtime.messages import ReplicasPlanned
from holdfast.topology import Task, Topology

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts

EXPLORED = 300
"""Where there are thousands of sets of nodes so many are searched: everything else waits for it."""
CELLS = 100_000
"""The floor is told with every epoch where sets of nodes x tasks are at most so many; else with every tenth."""


def copies(parts: Parts) -> dict[Task, tuple[str, ...]]:
    """The nodes on which a task could answer exactly in the next epoch; none for one that is down."""
    assignment, head = parts.assignment, parts.answering.head
    return {
        task: tuple(
            copy.node
            for held in (assignment.primaries, assignment.replicas)
            if (copy := held.get(task)) is not None and copy.position >= head
        )
        for task in assignment.tasks
    }


def roomy(parts: Parts, lost: int) -> bool:
    """Whether what is lost has room on the nodes that are left, whichever so many are lost: beside all live copies."""
    left, cost = len(parts.members.nodes) - lost, parts.assignment.cost
    needed = sum(map(cost, parts.assignment.tasks)) + sum(map(cost, parts.assignment.replicas))
    return not _withheld(parts) and affords(left * parts.recovering.capacity(parts) * parts.settings.ceiling, needed)


def _withheld(parts: Parts) -> bool:
    """Nothing is promised of what is lost: it waits for room for all, or a capacity that was given may be short."""
    return parts.settings.recovery == "blocking" or parts.settings.capacity is not None


WAYS = 3
"""A fork that begins is worst where it looks back to the earliest epoch that it can, to the latest, or to its gap."""


def stale(parts: Parts, checkpoint: int | None = None) -> Stale:
    """What each task would still say in the next epoch, were all its copies gone: it begins from the checkpoint.

    ``checkpoint``: as if that one were the newest.
    """
    topology, memory, epoch = parts.assignment.topology, parts.measurements.memory, parts.answering.head + 1
    kept, fresh = np.zeros((2, WAYS, len(topology.tasks)))
    base = parts.checkpointing.durable if checkpoint is None else checkpoint
    begun = Fork(0, base, base)
    for operator in topology.operators:
        span = topology.span[operator.name]
        ways = memory.shares(operator.name, begun, epoch) if operator.stateful else [(0.0, 1.0)]
        for way, (seen, comes) in enumerate(ways + ways[:1] * (WAYS - len(ways))):
            kept[way, span], fresh[way, span] = seen, min(comes, 1.0 - seen)
    silent = topology.mask(parts.measurements.dear(parts.settings.restore_within))
    kept[:, silent] = fresh[:, silent] = 0.0
    return Stale(kept, fresh)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is foretold of a loss, by how things stood when all was well, ``since`` such a head and checkpoint.

    ``homes``: where copies of tasks live; ``nodes``: with what they carry; ``costs``: of tasks.
    """

    topology: Topology
    homes: Mapping[Task, tuple[str, ...]]
    stale: Stale
    nodes: tuple[Node, ...]
    costs: Mapping[Task, float]
    ceiling: float
    since: tuple[int, int]

    def foretold(self, lost: Iterable[str]) -> float | None:
        """The fidelity of the next answer without these nodes; None where it depends on what finds room on the rest."""
        gone = set(lost)
        down = [task for task, homes in self.homes.items() if set(homes) <= gone]
        left = room([node for node in self.nodes if node.name not in gone], self.ceiling)
        if not affords(left, sum(self.costs[task] for task in down)):
            return None
        topology = self.topology
        return float(objectives(topology, topology.mask(down), self.stale)[0] / priorities(topology).sum())


def outlook(parts: Parts) -> Outlook | None:
    """As things stand; None while something is down or catching up, and where nothing is promised of what is lost."""
    if not parts.whole or _withheld(parts):
        return None
    assignment, load, capacity = parts.assignment, parts.assignment.load(), parts.recovering.capacity(parts)
    return Outlook(
        parts.measurements.topology(),
        copies(parts),
        stale(parts),
        tuple(Node(name, capacity, load.get(name, 0.0)) for name in parts.members.nodes),
        {task: assignment.cost(task) for task in assignment.tasks},
        parts.settings.ceiling,
        since(parts),
    )


def since(parts: Parts) -> tuple[int, int]:
    """The head, and the checkpoint from which what is lost begins."""
    return parts.answering.head, parts.checkpointing.durable


def survive_of(parts: Parts) -> Survive:
    """How much is to be survived: as it was asked for, or two nodes; one, where there are only two or three."""
    asked = parts.settings.survive
    return max(1, min(2, parts.settings.nodes // 2)) if asked is None else asked


def promised(parts: Parts) -> Floor | None:
    """The least that the next answer is worth whichever nodes are lost now, as many as are to be survived."""
    nodes, survive = _nodes(parts), survive_of(parts)
    if not parts.whole or len(nodes) < 2:
        return None
    if survive != "domain" and survive >= len(nodes):
        return None
    lacking: Stale | float = stale(parts) if roomy(parts, _most(parts)) else 1.0
    return floor(parts.measurements.topology(), copies(parts), nodes, survive, lacking, explored=EXPLORED)


def _most(parts: Parts) -> int:
    """The most nodes that are to be survived at once."""
    survive, members = survive_of(parts), parts.members
    if survive != "domain":
        return min(survive, len(members.nodes) - 1)
    return max(Counter(members.domain(name) for name in members.nodes).values())


def told_with(parts: Parts, epoch: int) -> bool:
    """Whether an epoch is told with its floor: always, unless that takes long."""
    survive, nodes = survive_of(parts), len(parts.members.nodes)
    sets = nodes if survive == "domain" else comb(nodes, min(survive, nodes))
    return sets * len(parts.assignment.tasks) <= CELLS or epoch % 10 == 0


def replicas_within(parts: Parts, budget: float) -> Callable[[], ReplicasPlanned] | None:
    """Works out what to replicate within this budget and where, for the nodes that are there; None: not now.

    What has no live copy answers from a checkpoint, and counts as it would with one as old as they get: none is spent
    on tasks that lack nothing then, such as those without state. Before any epoch, and where room may be short, it
    counts as if it said nothing. It may take a second or so, and needs nothing of the coordinator any more.
    """
    assignment, nodes, survive = parts.assignment, _nodes(parts), survive_of(parts)
    if not assignment.all_up or len(nodes) < 2 or parts.members.leaving:
        return None
    most: Survive = "domain" if survive == "domain" else _most(parts)
    topology = parts.measurements.with_costs()
    homes = {task: copy.node for task, copy in assignment.primaries.items()}
    keep = {task: copy.node for task, copy in assignment.replicas.items() if task not in parts.replicating.moving}
    basis = "measured" if parts.measurements.costs() else "declared"
    head = parts.answering.head
    lacking: Stale | float = 1.0
    if head >= 0 and roomy(parts, _most(parts)):
        lacking = stale(parts, max(-1, head - parts.settings.oldest(head)))

    def planned() -> ReplicasPlanned:
        plan = plan_surviving(topology, budget, nodes, most, homes, stale=lacking, keep=keep)
        what = "any one domain is" if most == "domain" else f"any {most} of {len(nodes)} nodes are"
        why = (
            f"a budget of {budget:g} on {basis} rates and costs: fidelity at least {plan.floor.bound:.3f} when {what} "
            f"lost with the checkpoint as old as it gets (worst: {', '.join(sorted(plan.floor.worst))})"
        )
        return ReplicasPlanned(tuple(plan.replicas), why, dict(plan.replicas))

    return planned


def _nodes(parts: Parts) -> list[Node]:
    """Live nodes, without what they carry."""
    capacity, members = parts.recovering.capacity(parts), parts.members
    return [Node(name, capacity, 0.0, members.domain(name)) for name in members.nodes]
