"""Which tasks to move where when some nodes carry much more than others, as they do when a replacement comes late."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Mapping, Sequence

from holdfast.placement import Node, cost_of
from holdfast.topology import Task, Topology

WORTH = 0.1
"""A move must take at least this part of the mean load off the heavier of the two nodes."""


def moves(topology: Topology, homes: Mapping[Task, str], nodes: Sequence[Node]) -> dict[Task, str]:
    """New nodes for some of the tasks at ``homes``, so that the heaviest node has as little more as can be.

    Each is taken from the node with the most load to the one with the least, the task that evens the two best; a task
    moves once. Every move lessens the sum of squares of the loads, so there is nothing to go back and forth.
    O(tasks log tasks).
    """
    load = {node.name: node.load for node in nodes}
    if len(load) < 2:
        return {}
    least = max(WORTH * sum(load.values()) / len(load), 1e-9)
    here = {name: _by_cost(topology, (t for t, at in homes.items() if at == name)) for name in load}
    heavy = [(-carried, name) for name, carried in load.items()]
    light = [(carried, name) for name, carried in load.items()]
    heapq.heapify(heavy)
    heapq.heapify(light)
    chosen: dict[Task, str] = {}
    while heavy:
        carried, source = heapq.heappop(heavy)
        if -carried != load[source]:
            continue  # from before a move; there is a later one
        while light[0][0] != load[light[0][1]]:
            heapq.heappop(light)
        target = light[0][1]
        found = _best(here[source], load[source] - load[target], least)
        if found is None:
            continue
        cost, _, task = here[source].pop(found)
        chosen[task] = target
        load[source] -= cost
        load[target] += cost
        for name in (source, target):
            heapq.heappush(heavy, (-load[name], name))
            heapq.heappush(light, (load[name], name))
    return chosen


def _by_cost(topology: Topology, tasks: Iterable[Task]) -> list[tuple[float, int, Task]]:
    return sorted((cost_of(topology, task), topology.index[task], task) for task in tasks)


def _best(tasks: Sequence[tuple[float, int, Task]], gap: float, least: float) -> int | None:
    """The task whose cost is next to half of the gap, if moving it takes enough off the heavier node."""
    at = bisect.bisect_left(tasks, (gap / 2, -1))
    near = [number for number in (at - 1, at) if 0 <= number < len(tasks)]
    worth = [number for number in near if min(tasks[number][0], gap - tasks[number][0]) >= least]
    return min(worth, key=lambda number: abs(gap - 2 * tasks[number][0]), default=None)
