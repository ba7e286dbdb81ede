"""operator-centric: the baseline of paper 004: always the cheapest failed task whose upstream is alive."""

from __future__ import annotations

import heapq

from holdfast.placement import affords
from holdfast.recovery.demand import demand, plan_for
from holdfast.recovery.frontier import Frontier
from holdfast.recovery.plan import RecoveryPlan
from holdfast.topology import Task, Topology

NAME = "operator-centric"


def operator_centric(topology: Topology, failed: frozenset[Task], capacity: float, more: bool = False) -> RecoveryPlan:
    """Blind to queries: what a recovery that restarts operators one by one would do. O(tasks log tasks)."""
    frontier = Frontier(topology, (topology.index[task] for task in failed))
    queue = [(float(topology.costs[task]), task) for task in frontier.ready]
    heapq.heapify(queue)
    chosen, spent = [], 0.0
    while queue and affords(capacity, spent + queue[0][0]):
        cost, task = heapq.heappop(queue)
        spent += cost
        chosen.append(task)
        for freed in frontier.recover(task):
            heapq.heappush(queue, (float(topology.costs[freed]), freed))
    return plan_for(topology, demand(topology, failed), capacity, NAME, chosen)
