"""The order of a recovery beside what every scheduler would have done with the same failure. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.fidelity import output_fidelity
from holdfast.recovery import ALGORITHMS, schedule
from holdfast.topology import Topology

STEPS = 12
"""Capacity is let in over so many steps at most: one task a step where fewer are down."""
EXACT_UP_TO = 12
"""The exact solver is asked only about failures of so many tasks; it may take long for more."""


def compare(
    topology: Topology, down: Sequence[str], rates: Mapping[str, Sequence[float]] | None = None
) -> dict[str, Any] | None:
    """Each scheduler's order and fidelity, if the capacity for these tasks came back in equal steps; None for one task.

    ``rates``: as measured before the failure, by operator; the topology's own where there are none. Costs are declared.
    """
    topology = _measured(topology, rates or {})
    tasks = [task for task in topology.tasks_of(list(down)) if topology.inputs_of(task.operator)]
    if len(tasks) < 2:
        return None
    cost = float(topology.costs[[topology.index[task] for task in tasks]].sum())
    if cost <= 0:
        return None
    steps = min(len(tasks), STEPS)
    told = []
    for name in ALGORITHMS:
        if name == "exact" and len(tasks) > EXACT_UP_TO:
            continue
        try:
            made = schedule(topology, tasks, arrivals=[cost / steps] * steps, algorithm=name)
        except HoldfastError:
            continue
        told.append(
            {
                "scheduler": name,
                "average_fidelity": made.average_fidelity,
                "steps": [
                    {"recover": [str(task) for task in step.recover], "fidelity": step.fidelity} for step in made.steps
                ],
            }
        )
    return {"before": output_fidelity(topology, tasks).fidelity, "steps": steps, "schedules": told}


def _measured(topology: Topology, rates: Mapping[str, Sequence[float]]) -> Topology:
    """The topology with these rates in place of its own, where they are of as many tasks."""
    return replace(
        topology,
        operators=tuple(
            replace(operator, rates=tuple(map(float, told)))
            if len(told := rates.get(operator.name, ())) == operator.parallelism
            else operator
            for operator in topology.operators
        ),
    )
