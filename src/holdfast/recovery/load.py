"""Task costs from what was measured: a task's share of its node's load by the tuples it processed (paper 004, 2.3)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from holdfast.errors import Invalid
from holdfast.topology import Task, Topology


def measured_costs(
    usage: Mapping[str, float], tuples: Mapping[Task, float], node_of: Mapping[Task, str]
) -> dict[Task, float]:
    """The cost of each task that ran on a node whose usage is known.

    ``usage``: CPU (or any resource) of each node; ``tuples``: processed by each task in the same period, 0 when not
    said; ``node_of``: where each task ran. On a node whose tasks all processed nothing they share its usage evenly.
    """
    for what, values in (("usage of node", usage), ("tuples of task", tuples)):
        for name, value in values.items():
            if not math.isfinite(value) or value < 0:
                raise Invalid(f"{what} {name} must be a finite number, 0 or more, got {value}")
    for task in tuples:
        if task not in node_of:
            raise Invalid(f"tuples of task {task}: it is on no node; node_of must name one")
    residents: dict[str, list[Task]] = {}
    for task, node in node_of.items():
        residents.setdefault(node, []).append(task)
    costs = {}
    for node, tasks in residents.items():
        if node not in usage:
            continue
        total = sum(tuples.get(task, 0.0) for task in tasks)
        for task in tasks:
            share = tuples.get(task, 0.0) / total if total > 0 else 1.0 / len(tasks)
            costs[task] = usage[node] * share
    return costs


def with_costs(topology: Topology, costs: Mapping[Task, float]) -> Topology:
    """The same topology with these costs; a task without one, such as one not measured yet, keeps its own."""
    for task in costs:
        if task not in topology.index:
            raise Invalid(f"cost of unknown task {task}; operators: {', '.join(list(topology.operator)[:8])}")
    return replace(
        topology,
        operators=tuple(
            replace(
                operator,
                costs=tuple(costs.get(Task(operator.name, i), cost) for i, cost in enumerate(operator.costs)),
            )
            for operator in topology.operators
        ),
    )
