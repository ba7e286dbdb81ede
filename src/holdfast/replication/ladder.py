"""A ladder of plans, one rung for every level of cost: the best plan found at that cost, whatever it was reached by.

Nothing here depends on the budget, so the best plan of the rungs within a budget cannot get worse as the budget grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from holdfast.replication.problem import Bools, Floats, Problem

GAIN = 1e-12
"""Differences below this share of the objective are rounding."""


@dataclass(frozen=True, slots=True)
class Rung:
    value: float
    cost: float
    plan: Bools


class Ladder:
    """Rungs at equal distances of cost. With equal costs and few tasks there is one for every number of tasks."""

    def __init__(self, problem: Problem, rungs: int) -> None:
        self._costs = problem.topology.costs
        self.total = float(self._costs[problem.at_risk].sum())
        self.width = self.total / rungs if self.total > 0 else 1.0
        self._rungs: dict[int, Rung] = {}
        self._noise = GAIN * max(float(problem.flow.output.sum()), 1e-300)

    def ascending(self) -> Iterator[int]:
        """Levels from the cheapest up, those that are added above on the way included."""
        level = min(self._rungs)
        while True:
            yield level
            above = [other for other in self._rungs if other > level]
            if not above:
                return
            level = min(above)

    def descending(self) -> Iterator[int]:
        """Levels from the costliest down, those that are added below on the way included."""
        level = max(self._rungs)
        while True:
            yield level
            below = [other for other in self._rungs if other < level]
            if not below:
                return
            level = max(below)

    def at(self, level: int) -> Rung:
        return self._rungs[level]

    def offer(self, plans: Bools, values: Floats) -> None:
        """Keep those plans (columns) that beat the one on their rung: more value, or as much for less cost."""
        costs = self._costs @ plans
        for column, (value, cost) in enumerate(zip(values.tolist(), costs.tolist(), strict=True)):
            level = self._level(cost)
            held = self._rungs.get(level)
            if held is None or value > held.value + self._noise or (value >= held.value and cost < held.cost):
                self._rungs[level] = Rung(value, cost, plans[:, column].copy())

    def _level(self, cost: float) -> int:
        """A rung holds costs above that of the one below, up to its own."""
        return int(np.ceil(cost / self.width - 1e-6))

    def to_the_next(self, rung: Rung) -> float:
        """The most that can be added without passing over the next rung."""
        return (self._level(rung.cost) + 1) * self.width - rung.cost

    def to_the_one_below(self, rung: Rung) -> float:
        """The least that must go to come down to the rung below."""
        return rung.cost - (self._level(rung.cost) - 1) * self.width

    def within(self, limit: float) -> list[Rung]:
        """Rungs that cost no more than this, cheapest first."""
        return [self._rungs[level] for level in sorted(self._rungs) if self._rungs[level].cost <= limit]
