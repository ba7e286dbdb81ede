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
    one more dead rack takes as little of an operator as possible. O(operators (tasks + nodes) log nodes) at the most
    without ``avoid``; with it, as much more for every domain that a task has to stay out of.
    ``first``: these come before all others, and are placed whether there is room or not. ``soft``: a node with any room
    left takes one task more, so that what fits in all is not left out for being in pieces.
    """
    if not 0 < ceiling <= 1:
        raise Invalid(f"ceiling must be above 0 and at most 1, got {ceiling}")
    names = [node.name for node in nodes]
    if len(set(names)) < len(names):
        raise Invalid(f"node {next(name for i, name in enumerate(names) if name in names[:i])}: named twice")
    shunned, urgent = avoid or {}, frozenset(first)
    load = {node.name: node.load for node in nodes}
    rooms = _Rooms(nodes, ceiling)
    placed: dict[Task, str] = {}
    unplaced = []
    order = {task: (task not in urgent, -cost_of(topology, task), topology.index[task]) for task in tasks}
    for task in sorted(order, key=order.__getitem__):
        cost = cost_of(topology, task)
        found = rooms.most(task.operator, shunned.get(task, ()))
        if found is None or not (task in urgent or affords(found.room, cost) or (soft and found.room > SLIVER)):
            unplaced.append(task)
            continue
        rooms.take(found, task.operator, cost)
        placed[task] = found.name
        load[found.name] += cost
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


@dataclass(frozen=True, slots=True)
class _Room:
    name: str
    domain: str
    room: float


class _Rooms:
    """Room on nodes, the most of it first: a heap of nodes for each domain, and one of domains for each operator.

    What is in a heap of domains may be out of date. Room only becomes less and tasks more, so such an entry stands too
    far in front, and is put where it belongs when it is met there.
    """

    def __init__(self, nodes: Sequence[Node], ceiling: float) -> None:
        self._nodes = nodes
        self._within: dict[str, list[tuple[float, int]]] = {}
        for number, node in enumerate(nodes):
            self._within.setdefault(node.domain, []).append((node.load - node.capacity * ceiling, number))
        for heap in self._within.values():
            heapq.heapify(heap)
        self._ranked: dict[str, list[tuple[float, int, int, str]]] = {}
        self._together: dict[tuple[str, str], int] = {}

    def most(self, operator: str, shunned: Collection[str]) -> _Room | None:
        """The node of a domain that is not shunned where the next task of an operator goes."""
        if operator not in self._ranked:
            self._ranked[operator] = sorted(self._entry(domain, operator) for domain in self._within)
        ranked, aside = self._ranked[operator], []
        while ranked:
            entry = ranked[0]
            if entry != (now := self._entry(entry[3], operator)):
                heapq.heapreplace(ranked, now)
            elif entry[3] in shunned:
                aside.append(heapq.heappop(ranked))
            else:
                break
        found = ranked[0] if ranked else None
        for entry in aside:
            heapq.heappush(ranked, entry)
        return None if found is None else _Room(self._nodes[found[2]].name, found[3], -found[0])

    def take(self, found: _Room, operator: str, cost: float) -> None:
        """A task of an operator goes where the most room of a domain is."""
        heap = self._within[found.domain]
        heapq.heapreplace(heap, (heap[0][0] + cost, heap[0][1]))
        self._together[found.domain, operator] = self._together.get((found.domain, operator), 0) + 1

    def _entry(self, domain: str, operator: str) -> tuple[float, int, int, str]:
        taken, number = self._within[domain][0]
        return taken, self._together.get((domain, operator), 0), number, domain


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
