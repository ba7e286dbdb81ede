"""Where copies of tasks go: worst fit under a load ceiling (paper 004, section 5), out of domains they must avoid."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.errors import Invalid
from holdfast.topology import Task, Topology

CEILING = 0.8
SLIVER = 1e-9


@dataclass(frozen=True, slots=True)
class Node:
    """A live node: what it can carry, what it carries now, and the failure domain (rack, zone) it stands in."""

    name: str
    capacity: float
    load: float = 0.0
    domain: str = ""

    def __post_init__(self) -> None:
        for what in ("capacity", "load"):
            value = getattr(self, what)
            if not math.isfinite(value) or value < 0:
                raise Invalid(f"node {self.name}: {what} must be a finite number, 0 or more, got {value}")


@dataclass(frozen=True, slots=True)
class Placement:
    """``nodes``: the node of each task that found room; ``unplaced``: the others; ``load``: of every node, after."""

    nodes: Mapping[Task, str]
    unplaced: tuple[Task, ...]
    load: Mapping[str, float]


def place(
    topology: Topology,
    tasks: Iterable[Task],
    nodes: Sequence[Node],
    ceiling: float = CEILING,
    avoid: Mapping[Task, Collection[str]] | None = None,
    first: Collection[Task] = (),
    soft: bool = False,
) -> Placement:
    """Each task, the dearest first, to the node with the most room below ``ceiling`` x capacity.

    ``avoid`` names for a task the failure domains it must stay out of, such as that of its live replica. Nodes with
    equal room: the one whose domain holds fewest tasks of the same operator so far, then by the order given, so that
    one more dead rack takes as little of an operator as possible. O(tasks log nodes) without ``avoid``.
    ``first``: these come before all others, and are placed whether there is room or not. ``soft``: a node with any room
    left takes one task more, so that what fits in all is not left out for being in pieces.
    """
    if not 0 < ceiling <= 1:
        raise Invalid(f"ceiling must be above 0 and at most 1, got {ceiling}")
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        raise Invalid(f"node {next(name for i, name in enumerate(names) if name in names[:i])}: named twice")
    shunned = avoid or {}
    load = {node.name: node.load for node in nodes}
    rooms = [(-(node.capacity * ceiling - node.load), number) for number, node in enumerate(nodes)]
    heapq.heapify(rooms)
    together: dict[tuple[str, str], int] = {}
    placed: dict[Task, str] = {}
    unplaced = []
    order = {task: (task not in first, -cost_of(topology, task), topology.index[task]) for task in tasks}
    for task in sorted(order, key=order.__getitem__):
        cost = cost_of(topology, task)
        chosen = _roomiest(rooms, nodes, task, shunned.get(task, ()), together)
        if chosen is None or not (task in first or affords(-chosen[0], cost) or (soft and -chosen[0] > SLIVER)):
            unplaced.append(task)
            if chosen is not None:
                heapq.heappush(rooms, chosen)
            continue
        node = nodes[chosen[1]]
        heapq.heappush(rooms, (chosen[0] + cost, chosen[1]))
        placed[task] = node.name
        load[node.name] += cost
        together[node.domain, task.operator] = together.get((node.domain, task.operator), 0) + 1
    return Placement(placed, tuple(unplaced), load)


def standing(nodes: Sequence[Node | str], capacity: float = 0.0) -> tuple[Node, ...]:
    """The nodes, each once, in the domain that it fails with: its own, where none is said.

    A node given by its name alone has this capacity.
    """
    known = [Node(node, capacity) if isinstance(node, str) else node for node in nodes]
    names = [node.name for node in known]
    if len(set(names)) < len(names):
        raise Invalid(f"node {next(name for i, name in enumerate(names) if name in names[:i])}: named twice")
    return tuple(replace(node, domain=node.domain or node.name) for node in known)


def room(nodes: Iterable[Node], ceiling: float = CEILING) -> float:
    """What these nodes can take on below the ceiling: the capacity to plan a recovery with."""
    return sum(max(0.0, node.capacity * ceiling - node.load) for node in nodes)


def _roomiest(
    rooms: list[tuple[float, int]],
    nodes: Sequence[Node],
    task: Task,
    shunned: Collection[str],
    together: Mapping[tuple[str, str], int],
) -> tuple[float, int] | None:
    """Take the allowed node with the most room out of the heap; those passed over go back."""
    passed: list[tuple[float, int]] = []
    best: tuple[float, int] | None = None
    fewest = 0
    while rooms and (best is None or rooms[0][0] <= best[0]):
        entry = heapq.heappop(rooms)
        domain = nodes[entry[1]].domain
        same = together.get((domain, task.operator), 0)
        if domain not in shunned and (best is None or same < fewest):
            if best is not None:
                passed.append(best)
            best, fewest = entry, same
        else:
            passed.append(entry)
        if best is not None and fewest == 0:
            break
    for entry in passed:
        heapq.heappush(rooms, entry)
    return best


def cost_of(topology: Topology, task: Task) -> float:
    """What a task costs a node."""
    if task not in topology.index:
        raise Invalid(f"unknown task {task}; operators: {', '.join(list(topology.operator)[:8])}")
    return topology.operator[task.operator].costs[task.number]


def affords(capacity: float, cost: float) -> bool:
    """Is this cost within the capacity? Forgives the rounding of sums: ten costs of 0.1 fit into 1."""
    return cost <= capacity + slack(capacity)


def slack(capacity: float) -> float:
    return 1e-9 * max(1.0, capacity)
