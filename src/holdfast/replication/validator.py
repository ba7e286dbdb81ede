"""Is this plan what it says? Knows the topology and the loss model, and nothing of planners or of their flow graph."""

from __future__ import annotations

import numpy as np

from holdfast.errors import Invalid
from holdfast.fidelity import objectives, priorities
from holdfast.replication.problem import ReplicationPlan
from holdfast.topology import Topology

CLOSE = 1e-9


def validate_plan(topology: Topology, plan: ReplicationPlan) -> None:
    """Invalid names the first claim of the plan that does not hold: tasks, cost, budget, objective, fidelity."""
    for place, task in enumerate(plan.replicas):
        if task not in topology.index:
            raise Invalid(f"plan {plan.algorithm}: unknown task {task}")
        if task in plan.replicas[:place]:
            raise Invalid(f"plan {plan.algorithm}: task {task} is replicated twice")
    replicated = topology.mask(plan.replicas)
    cost = float(topology.costs[replicated].sum())
    if abs(cost - plan.cost) > CLOSE * max(1.0, cost):
        raise Invalid(f"plan {plan.algorithm}: cost is {cost}, the plan says {plan.cost}")
    if cost > plan.budget + CLOSE * max(1.0, plan.budget):
        raise Invalid(f"plan {plan.algorithm}: cost {cost} is above the budget of {plan.budget}")
    if plan.assume == "all":
        failed = ~replicated[np.newaxis]
    else:
        failed = np.stack([topology.mask(tasks) & ~replicated for tasks in topology.domains.values()])
    each = objectives(topology, failed)
    value = float(each.mean() if plan.assume == "average-domain" else each.min())
    total = float(priorities(topology).sum())
    if abs(value - plan.objective) > CLOSE * max(1.0, total):
        raise Invalid(f"plan {plan.algorithm}: objective is {value}, the plan says {plan.objective}")
    if abs(value / total - plan.fidelity) > CLOSE:
        raise Invalid(f"plan {plan.algorithm}: fidelity is {value / total}, the plan says {plan.fidelity}")
