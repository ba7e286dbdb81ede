"""topological: the baseline of paper 000: in topological order, the task whose lone failure costs most fidelity."""

from __future__ import annotations

import heapq

import numpy as np

from holdfast.fidelity import objectives
from holdfast.placement import affords
from holdfast.recovery.demand import Floats, demand, plan_for
from holdfast.recovery.frontier import Frontier
from holdfast.recovery.plan import RecoveryPlan
from holdfast.topology import Task, Topology

NAME = "topological"
CELLS = 4_000_000
"""Failure sets are judged in blocks of about this many (set, task) cells, to keep memory flat."""


def topological(topology: Topology, failed: frozenset[Task], capacity: float, more: bool = False) -> RecoveryPlan:
    """Among failed tasks with no failed upstream neighbour, always the most damaging one that fits."""
    lost = sorted(topology.index[task] for task in failed)
    frontier = Frontier(topology, lost)
    damage = dict(zip(lost, lone_damage(topology, lost), strict=True))
    queue = [(-damage[task], task) for task in frontier.ready]
    heapq.heapify(queue)
    chosen, spent = [], 0.0
    while queue:
        _, task = heapq.heappop(queue)
        # Capacity only shrinks: a task that does not fit now never will, and holds back what is below it.
        if not affords(capacity, spent + float(topology.costs[task])):
            continue
        spent += float(topology.costs[task])
        chosen.append(task)
        for freed in frontier.recover(task):
            heapq.heappush(queue, (-damage[freed], freed))
    return plan_for(topology, demand(topology, failed), capacity, NAME, chosen)


def lone_damage(topology: Topology, tasks: list[int]) -> Floats:
    """Objective lost when each of these tasks fails alone."""
    whole = float(objectives(topology, np.zeros((1, len(topology.tasks)), np.bool_))[0])
    block = max(1, CELLS // len(topology.tasks))
    damage = np.zeros(len(tasks))
    for start in range(0, len(tasks), block):
        places = tasks[start : start + block]
        alone = np.zeros((len(places), len(topology.tasks)), np.bool_)
        alone[np.arange(len(places)), places] = True
        damage[start : start + block] = whole - objectives(topology, alone)
    return damage
