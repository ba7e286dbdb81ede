"""Replicas by measurement as well as by fidelity: an assessment says what each operator's own failure costs.

The two answer different questions. Fidelity asks what is left of the answer when all tasks without a replica fail
together; measurement, how wrong the answer was when one operator alone was away. A plan is worth a share of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.fidelity import output_fidelity
from holdfast.replication.problem import Assume, Planner, Problem, ReplicationPlan
from holdfast.topology import Topology

SPLITS = 24
"""So many ways of splitting the budget between fidelity and measurement are tried."""


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """A plan, and the share of the measured impact that its replicas take away: that of operators wholly replicated."""

    plan: ReplicationPlan
    impact_removed: float
    value: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One operator by both measures: what is lost when it alone fails, and the measured impact; and their ranks."""

    operator: str
    fidelity_lost: float
    impact: float
    fidelity_rank: int
    impact_rank: int


def plan_by_measurement(
    topology: Topology,
    budget: float,
    impacts: Mapping[str, float],
    planner: Planner,
    *,
    weight: float = 0.5,
    assume: Assume = "all",
) -> MeasuredPlan:
    """The best of plans that spend a part of the budget by ``planner`` on fidelity and the rest on measured impact.

    Its value is ``weight`` x the share of impact removed + (1 - weight) x fidelity. An operator counts as protected
    when all its tasks are replicated. Not proven optimal.
    """
    if not (math.isfinite(weight) and 0 <= weight <= 1):
        raise Invalid(f"--weight must lie between 0 (fidelity alone) and 1 (measurement alone), got {weight}")
    problem = Problem(topology, budget, assume)
    worth = shares(topology, impacts)
    best: MeasuredPlan | None = None
    shared = {round(budget * part / SPLITS, 9) for part in range(SPLITS + 1)} if weight < 1 else {0.0}
    for spent in sorted(shared, reverse=True):
        chosen = topology.mask(planner(topology, spent, assume).replicas) if spent else topology.mask(())
        filled = _filled(problem, np.asarray(chosen), worth) if weight > 0 else np.asarray(chosen)
        found = problem.plan(f"measured ({planner_name(planner, topology)})", filled)
        removed = impact_removed(topology, filled, worth)
        value = round(weight * removed + (1 - weight) * found.fidelity, 12)
        if best is None or value > best.value or (value == best.value and found.cost < best.plan.cost):
            best = MeasuredPlan(replace(found, optimal=None), removed, value)
    assert best is not None
    return best


def planner_name(planner: Planner, topology: Topology) -> str:
    """What the planner calls itself."""
    return planner(topology, 0.0).algorithm


def shares(topology: Topology, impacts: Mapping[str, float]) -> dict[str, float]:
    """Each operator's share of the impact of all; an operator that was not assessed has none."""
    for name in impacts:
        if name not in topology.operator:
            known = ", ".join(operator.name for operator in topology.operators)
            raise Invalid(f"--assessment: operator {name!r} was assessed, but the topology has: {known}")
    total = sum(max(impacts.get(operator.name, 0.0), 0.0) for operator in topology.operators)
    return {
        operator.name: max(impacts.get(operator.name, 0.0), 0.0) / total if total else 0.0
        for operator in topology.operators
    }


def impact_removed(topology: Topology, chosen: NDArray[np.bool_], worth: Mapping[str, float]) -> float:
    """The share of impact of the operators all of whose tasks are chosen."""
    tasks = zip(topology.tasks, chosen, strict=True)
    exposed = {task.operator for task, taken in tasks if not taken}
    return round(sum(share for name, share in worth.items() if name not in exposed), 12)


def _filled(problem: Problem, chosen: NDArray[np.bool_], worth: Mapping[str, float]) -> NDArray[np.bool_]:
    """The rest of the budget on whole operators, the most impact for their cost first; single ones that pay more win.

    A knapsack over operators: the greedy order, or the one best operator that still fits, whichever removes more.
    """
    topology = problem.topology
    missing = {
        name: [place for place, task in enumerate(topology.tasks) if task.operator == name and not chosen[place]]
        for name, share in worth.items()
        if share > 0
    }
    prices = {name: float(topology.costs[places].sum()) for name, places in missing.items() if places}
    left = problem.limit - problem.cost(chosen)
    greedy: list[str] = []
    spent = 0.0
    for name in sorted(prices, key=lambda name: (-worth[name] / max(prices[name], 1e-12), name)):
        if spent + prices[name] <= left:
            greedy.append(name)
            spent += prices[name]
    alone = max((name for name, price in prices.items() if price <= left), key=worth.__getitem__, default=None)
    if alone is not None and worth[alone] > sum(worth[name] for name in greedy):
        greedy = [alone]
    answer = chosen.copy()
    for name in greedy:
        answer[missing[name]] = True
    return answer


def compared(topology: Topology, impacts: Mapping[str, float]) -> list[Comparison]:
    """Every operator that was assessed by both measures, the largest measured impact first."""
    names = [operator.name for operator in topology.operators if operator.name in impacts]
    lost = {
        name: round(
            1 - output_fidelity(topology, [task for task in topology.tasks if task.operator == name]).fidelity, 12
        )
        for name in names
    }
    return [
        Comparison(name, lost[name], impacts[name], _rank(lost, name), _rank(impacts, name))
        for name in sorted(names, key=lambda name: (-impacts[name], name))
    ]


def _rank(values: Mapping[str, float], name: str) -> int:
    """1 for the largest; equal values share a rank."""
    return 1 + sum(value > values[name] for value in values.values())
