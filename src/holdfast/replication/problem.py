"""What planners share: the plan they return, the failures they plan for, and the value of a set of replicas.

A scenario is a set of tasks at risk: they fail together, except those with a replica. The paper's assumption is one
scenario with every task in it; with failure domains there is one scenario for each domain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.fidelity import Flow, priorities
from holdfast.topology import Task, Topology

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Assume = Literal["all", "worst-domain", "average-domain"]
ASSUMPTIONS: tuple[Assume, ...] = get_args(Assume)

BATCH = 4_000_000
"""Most cells of one evaluation, tasks x scenarios x plans: keeps the arrays of a sweep in tens of megabytes."""


@dataclass(frozen=True, slots=True)
class ReplicationPlan:
    """Tasks to replicate, and what is left of the answer with them when the failures planned for come true.

    ``optimal``: True when proven, False when a proof was tried and not finished, None when none was tried.
    """

    algorithm: str
    budget: float
    cost: float
    replicas: tuple[Task, ...]
    fidelity: float
    objective: float
    optimal: bool | None
    assume: Assume = "all"


class Planner(Protocol):
    """The one signature of all planners. Pure: equal arguments, equal plan."""

    def __call__(self, topology: Topology, budget: float, assume: Assume = "all") -> ReplicationPlan: ...


@dataclass(frozen=True)
class Problem:
    """A topology, a budget and the failures planned for, checked."""

    topology: Topology
    budget: float
    assume: Assume = "all"

    def __post_init__(self) -> None:
        if not math.isfinite(self.budget) or self.budget < 0:
            raise Invalid(f"budget must be a finite number, 0 or more, got {self.budget!r}")
        if self.assume not in ASSUMPTIONS:
            raise Invalid(f"assume must be one of {', '.join(ASSUMPTIONS)}, got {self.assume!r}")
        if self.assume != "all" and not self.topology.domains:
            raise Invalid(f"assume {self.assume}: the topology has no domains; add a domains section to it")

    @cached_property
    def flow(self) -> Flow:
        return Flow(self.topology)

    @cached_property
    def risk(self) -> Bools:
        """Which tasks fail together in each scenario, shape [tasks, scenarios]."""
        if self.assume == "all":
            return np.ones((len(self.topology.tasks), 1), np.bool_)
        return np.stack([self.topology.mask(tasks) for tasks in self.topology.domains.values()], axis=1)

    @cached_property
    def at_risk(self) -> Bools:
        """Tasks that fail in some scenario: only these are worth a replica."""
        return np.asarray(self.risk.any(axis=1))

    @cached_property
    def operators(self) -> NDArray[np.int64]:
        """The operator of each task, as its place among the operators."""
        return np.repeat(np.arange(len(self.topology.operators)), [o.parallelism for o in self.topology.operators])

    @property
    def limit(self) -> float:
        """The budget with room for rounding: three times 0.1 fits into 0.3."""
        return self.budget + 1e-9 * max(1.0, self.budget)

    def values(self, plans: Bools) -> Floats:
        """The value of each plan (a column of ``plans``): the worst or average objective over the scenarios."""
        plans = plans.reshape(len(plans), -1)
        step = max(1, BATCH // self.risk.size)
        found = [self._values(plans[:, start : start + step]) for start in range(0, plans.shape[1], step)]
        return np.concatenate(found) if found else np.empty(0)

    def _values(self, plans: Bools) -> Floats:
        alive = ~self.risk[:, :, np.newaxis] | plans[:, np.newaxis, :]
        each = self.flow.values(alive.reshape(len(plans), -1)).reshape(self.risk.shape[1], -1)
        return np.asarray(each.min(axis=0) if self.assume == "worst-domain" else each.mean(axis=0))

    def worths(self, plan: Bools) -> tuple[float, Floats]:
        """The value of a plan, and by how much each task's replica raises it, or would; exact where `Flow.worths` is.

        Under the worst domain a replica pays only in the worst scenario; scenarios close behind it count too, or no
        single replica would seem to help where two domains are equally bad.
        """
        each, worth = self.flow.worths(~self.risk | plan[:, np.newaxis])
        worth = np.where(self.risk, worth, 0.0)
        if self.assume == "worst-domain":
            scale = float(priorities(self.topology).sum())
            weights = np.exp((each.min() - each) * (SHARPNESS / scale))
            return float(each.min()), np.asarray(worth @ (weights / weights.sum()))
        return float(each.mean()), np.asarray(worth.mean(axis=1))

    def cost(self, plan: Bools) -> float:
        return float(self.topology.costs[plan].sum())

    def plan(self, algorithm: str, chosen: Bools, optimal: bool | None = None) -> ReplicationPlan:
        """The plan that replicates the chosen tasks. Values are rounded to 12 digits: rounding noise is no gain."""
        objective = round(float(self.values(chosen)[0]), 12) + 0.0
        total = float(priorities(self.topology).sum())
        return ReplicationPlan(
            algorithm,
            float(self.budget),
            round(self.cost(chosen), 9),
            tuple(task for task, taken in zip(self.topology.tasks, chosen, strict=True) if taken),
            min(max(round(objective / total, 12), 0.0), 1.0),
            objective,
            optimal,
            self.assume,
        )

    def useful(self, plan: Bools) -> Bools:
        """The plan without replicas that carry nothing to a query."""
        return np.asarray(self.useful_of(plan[:, np.newaxis])[1][:, 0])

    def useful_of(self, plans: Bools) -> tuple[Floats, Bools]:
        """The value of each plan (a column), and the plan without replicas that carry nothing to a query."""
        scenarios = self.risk.shape[1]
        alive = ~self.risk[:, :, np.newaxis] | plans[:, np.newaxis, :]
        each, worth = self.flow.worths(alive.reshape(len(plans), -1))
        each = each.reshape(scenarios, -1)
        carries = (worth.reshape(len(plans), scenarios, -1) > 0) & self.risk[:, :, np.newaxis]
        values = each.min(axis=0) if self.assume == "worst-domain" else each.mean(axis=0)
        return np.asarray(values), plans & carries.any(axis=1)


SHARPNESS = 40.0
"""How fast a scenario's weight falls with its distance from the worst one: at 0.1 of the objective it is e**-4."""
