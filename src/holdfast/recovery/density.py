"""best-density: grow many candidate plans by the densest query partition that still fits; keep the best (paper 004, 5).

Beyond the paper: every single goal is a candidate too, without which the guarantee fails (docs/recovery.md has the
counterexample), and many goals are not tried in all pairs once a bound proves the guarantee for the plan in hand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray

from holdfast.placement import affords, slack
from holdfast.recovery.demand import Demand, Floats, Ints, demand, plan_for, tasks_for, with_idle
from holdfast.recovery.plan import RecoveryPlan
from holdfast.topology import Task, Topology

NAME = "best-density"
ALL_PAIRS = 60
"""Up to this many goals every pair is tried, as in the paper; beyond, pairs of the most promising first."""
PROMISING = 2_700
"""Beyond, seeds pair the densest and the dearest goals: this number over the number of goals, of each kind."""
BATCH = 2048


def best_density(topology: Topology, failed: frozenset[Task], capacity: float, more: bool = False) -> RecoveryPlan:
    """At least 1 - e^(-1/d) of the optimum, d = most goals sharing a part; close to the optimum in practice."""
    wanted = demand(topology, failed)
    chosen = tasks_for(wanted, densest_goals(wanted, capacity))
    return plan_for(topology, wanted, capacity, NAME, with_idle(topology, wanted, capacity, chosen))


def densest_goals(wanted: Demand, capacity: float, all_pairs: int = ALL_PAIRS) -> list[int]:
    """The goals of the best candidate plan."""
    count = len(wanted.outputs)
    if affords(capacity, float(wanted.costs.sum())):
        return list(range(count))
    costs = _sums(wanted, wanted.costs)
    weights = _sums(wanted, wanted.costs / wanted.sharing)
    fitting = np.flatnonzero(costs <= capacity + slack(capacity))
    density = _density(wanted.priorities, weights)
    bound = guarantee(wanted) * upper_bound(wanted, capacity)
    best, best_value, best_cost = [], -1.0, math.inf
    for seeds in _batches(fitting, density, wanted.priorities, all_pairs):
        taken, spent = extend(wanted, capacity, seeds)
        values = taken @ wanted.priorities
        place = int(np.lexsort((spent, -values))[0])
        if (-values[place], spent[place]) < (-best_value, best_cost):
            best = [int(goal) for goal in np.flatnonzero(taken[place])]
            best_value, best_cost = float(values[place]), float(spent[place])
        if count > all_pairs and best_value >= bound:
            break
    return best


def guarantee(wanted: Demand) -> float:
    """The share of the optimum that best-density never falls below."""
    shared = wanted.sharing
    return 1.0 - math.exp(-1.0 / float(shared.max())) if len(shared) else 1.0


def upper_bound(wanted: Demand, capacity: float) -> float:
    """No plan recovers more priority than this.

    Charge each goal cost/sharing for each of its parts: the goals of a plan are together charged no more than the
    plan costs. So the fractional knapsack over these charges bounds the optimum from above.
    """
    fits = _sums(wanted, wanted.costs) <= capacity + slack(capacity)
    weights = _sums(wanted, wanted.costs / wanted.sharing)[fits]
    priorities = wanted.priorities[fits]
    order = np.argsort(-_density(priorities, weights), kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    room = np.clip(capacity + slack(capacity) - before, 0.0, None)
    share = np.where(weights[order] > room, room / np.where(weights[order] > 0, weights[order], 1.0), 1.0)
    return float(priorities[order] @ share)


def extend(wanted: Demand, capacity: float, seeds: list[tuple[int, ...]]) -> tuple[NDArray[np.bool_], Floats]:
    """Grow each seed by the densest goal that fits until none does: goals taken, shape [seeds, goals], and costs.

    All seeds advance side by side. Costs and densities of the goals in the context of each seed are kept by
    subtraction: a part leaves the sums of the goals that share it once, when it is bought. A part not yet bought is
    shared by unrecovered goals only, so its f never changes. Seeds that cost too much are left out (all goals False).
    """
    growth = _Growth(wanted, capacity, len(seeds))
    for place in range(max((len(seed) for seed in seeds), default=0)):
        rows = np.array([row for row, seed in enumerate(seeds) if place < len(seed)], np.int64)
        growth.add(rows, np.array([seeds[row][place] for row in rows], np.int64))
    too_much = growth.spent > capacity + slack(capacity)
    growth.taken[too_much] = True
    while True:
        rows, goals = growth.densest()
        if not len(rows):
            break
        growth.add(rows, goals)
    growth.taken[too_much] = False
    return growth.taken, growth.spent


class _Growth:
    """The state of all candidate plans while they grow."""

    def __init__(self, wanted: Demand, capacity: float, count: int) -> None:
        goals = len(wanted.outputs)
        self.wanted, self.limit = wanted, capacity + slack(capacity)
        self.weight_of = wanted.costs / wanted.sharing
        self.bought = np.zeros((count, len(wanted.costs)), np.bool_)
        self.taken = np.zeros((count, goals), np.bool_)
        self.spent = np.zeros(count)
        self.cost = np.tile(_sums(wanted, wanted.costs), (count, 1))
        self.weight = np.tile(_sums(wanted, self.weight_of), (count, 1))
        self.lacking = np.tile(np.diff(wanted.parts_of.starts), (count, 1))

    def densest(self) -> tuple[Ints, Ints]:
        """For each row that can still grow: the row, and the densest goal that fits."""
        fits = ~self.taken & (self.cost <= (self.limit - self.spent)[:, np.newaxis])
        rows = np.flatnonzero(fits.any(axis=1))
        density = _density(self.wanted.priorities, self.weight[rows])
        return rows, np.where(fits[rows], density, -1.0).argmax(axis=1)

    def add(self, rows: Ints, goals: Ints) -> None:
        """Buy what goal ``goals[i]`` still lacks in row ``rows[i]``; rows must differ."""
        parts, origin = self.wanted.parts_of.gather(goals)
        at = rows[origin]
        new = ~self.bought[at, parts]
        parts, at = parts[new], at[new]
        self.bought[at, parts] = True
        self.spent += np.bincount(at, self.wanted.costs[parts], len(self.spent))
        sharers, part = self.wanted.goals_of.gather(parts)
        where = at[part] * self.taken.shape[1] + sharers
        np.subtract.at(self.cost.reshape(-1), where, self.wanted.costs[parts][part])
        np.subtract.at(self.weight.reshape(-1), where, self.weight_of[parts][part])
        np.subtract.at(self.lacking.reshape(-1), where, 1)
        # A goal that lacks nothing more is complete, whoever it was bought for.
        self.taken[rows] |= self.lacking[rows] == 0


def _density(priorities: Floats, weights: Floats) -> Floats:
    """Priority for each unit of charge; goals that cost nothing come first."""
    free = weights <= 1e-12
    return np.where(free, np.inf, priorities / np.where(free, 1.0, weights))


def _sums(wanted: Demand, values: Floats) -> Floats:
    """For each goal the sum of these values over its parts."""
    goal = np.repeat(np.arange(len(wanted.outputs)), np.diff(wanted.parts_of.starts))
    return np.bincount(goal, values[wanted.parts_of.values], len(wanted.outputs)).astype(np.float64)


def _batches(fitting: Ints, density: Floats, priorities: Floats, all_pairs: int) -> Iterator[list[tuple[int, ...]]]:
    """Seeds: every single goal and every pair, the most promising first when there are too many to try them all."""
    dense = [int(goal) for goal in fitting[np.argsort(-density[fitting], kind="stable")]]
    if len(dense) > all_pairs:
        dear = [int(goal) for goal in fitting[np.argsort(-priorities[fitting], kind="stable")]]
        each = max(4, PROMISING // len(dense))
        first = list(dict.fromkeys(dense[:each] + dear[:each]))
        yield [(goal,) for goal in first] + list(combinations(first, 2))
    singles: Iterator[tuple[int, ...]] = ((goal,) for goal in dense)
    while batch := list(islice(singles, BATCH)):
        yield batch
    pairs: Iterator[tuple[int, ...]] = ((dense[i], dense[j]) for j in range(len(dense)) for i in range(j))
    while batch := list(islice(pairs, BATCH)):
        yield batch
