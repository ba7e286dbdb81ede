"""dynamic: the optimum by growing the budget and keeping every plan it can pay for (paper 004, appendix B).

Exponential in the failed query partitions, so it refuses beyond a stated number; `exact` is the one that scales.
"""

from __future__ import annotations

import heapq

import numpy as np

from holdfast.errors import Infeasible
from holdfast.placement import affords
from holdfast.recovery.demand import Demand, demand, plan_for, tasks_for, with_idle
from holdfast.recovery.density import extend
from holdfast.recovery.plan import RecoveryPlan
from holdfast.topology import Task, Topology

NAME = "dynamic"
LIMIT = 18


def dynamic(topology: Topology, failed: frozenset[Task], capacity: float, more: bool = False) -> RecoveryPlan:
    """The optimum for at most ``LIMIT`` goals (query partitions that need different failed tasks)."""
    wanted = demand(topology, failed)
    count = len(wanted.outputs)
    if affords(capacity, float(wanted.costs.sum())):
        goals = list(range(count))
    elif count > LIMIT:
        raise Infeasible(f"dynamic: {count} failed query partitions to choose from, at most {LIMIT}; use exact")
    else:
        goals = _best(wanted, capacity)
    chosen = with_idle(topology, wanted, capacity, tasks_for(wanted, goals))
    return plan_for(topology, wanted, capacity, NAME, chosen, optimal=True)


def _best(wanted: Demand, capacity: float) -> list[int]:
    """Plans leave the queue by rising cost, as the paper's budget grows; each is expanded by every goal it can pay."""
    needs = [sum(1 << int(part) for part in wanted.parts_of[goal]) for goal in range(len(wanted.outputs))]
    costs = [float(cost) for cost in wanted.costs]
    price: dict[int, float] = {0: 0.0}
    queue = [(0.0, 0)]
    best, best_value = 0, 0.0
    while queue:
        spent, parts = heapq.heappop(queue)
        value = sum(float(p) for p, need in zip(wanted.priorities, needs, strict=True) if need & ~parts == 0)
        if value > best_value:
            best, best_value = parts, value
        for need in needs:
            grown = parts | need
            if grown not in price:
                cost = spent + _cost(need & ~parts, costs)
                price[grown] = cost
                if affords(capacity, cost):
                    heapq.heappush(queue, (cost, grown))
    chosen = tuple(goal for goal, need in enumerate(needs) if need & ~best == 0)
    # What the priorities do not ask for may still fit: goals of priority 0.
    taken, _ = extend(wanted, capacity, [chosen])
    return [int(goal) for goal in np.flatnonzero(taken[0])]


def _cost(parts: int, costs: list[float]) -> float:
    total = 0.0
    while parts:
        lowest = parts & -parts
        total += costs[lowest.bit_length() - 1]
        parts ^= lowest
    return total
