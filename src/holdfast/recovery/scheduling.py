"""The front door: one plan for one capacity, or a schedule over a sequence of arrivals, by any registered algorithm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from holdfast.errors import Invalid
from holdfast.fidelity import objectives, priorities
from holdfast.recovery.density import best_density
from holdfast.recovery.dynamic import dynamic
from holdfast.recovery.exact import exact
from holdfast.recovery.incremental import incremental
from holdfast.recovery.operator_centric import operator_centric
from holdfast.recovery.plan import Algorithm, RecoveryPlan, Schedule, Step, checked_capacity, checked_failed
from holdfast.recovery.topological import topological
from holdfast.topology import Task, Topology

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "best-density": best_density,
        "dynamic": dynamic,
        "exact": exact,
        "operator-centric": operator_centric,
        "incremental": incremental,
        "topological": topological,
    }
)
"""Query-centric: the first three, with operator-centric as their baseline. Fidelity-centric: the last two."""

DEFAULT = "best-density"


def recover(
    topology: Topology,
    failed: Iterable[Task | str] | str,
    capacity: float,
    algorithm: str = DEFAULT,
    more: bool = False,
) -> RecoveryPlan:
    """What to recover first with this capacity. Pure and deterministic; the capacity is never exceeded.

    ``more`` says that further capacity will arrive: incremental then saves for a candidate that gains more for its cost
    than any it can pay now.
    """
    return _algorithm(algorithm)(topology, checked_failed(topology, failed), checked_capacity(capacity), more)


def schedule(
    topology: Topology,
    failed: Iterable[Task | str] | str,
    capacity: float | None = None,
    arrivals: Sequence[float] | None = None,
    algorithm: str = DEFAULT,
) -> Schedule:
    """A plan for one ``capacity``, or for each of several ``arrivals``.

    At each arrival what is still failed is planned anew, with what arrived and what earlier steps left over.
    """
    if (capacity is None) == (arrivals is None):
        found = "both" if capacity is not None else "neither"
        raise Invalid(f"either capacity or arrivals is needed, got {found}")
    amounts = [checked_capacity(capacity)] if capacity is not None else _checked_arrivals(arrivals or ())
    solve = _algorithm(algorithm)
    remaining = checked_failed(topology, failed)
    plans, masks, left = [], [], 0.0
    for number, amount in enumerate(amounts, 1):
        plan = solve(topology, remaining, left + amount, number < len(amounts))
        left = max(0.0, plan.capacity - plan.cost)
        remaining -= frozenset(plan.recover)
        plans.append(plan)
        masks.append(topology.mask(remaining))
    fidelities = objectives(topology, np.stack(masks)) / priorities(topology).sum()
    steps = tuple(
        Step(amount, plan.capacity, plan.recover, plan.cost, plan.queries, plan.priority, float(fidelity))
        for amount, plan, fidelity in zip(amounts, plans, fidelities, strict=True)
    )
    proofs = [plan.optimal for plan in plans]
    return Schedule(
        algorithm=algorithm,
        steps=steps,
        priority=float(sum(step.priority for step in steps)),
        average_fidelity=float(fidelities.mean()),
        optimal=None if None in proofs else all(proofs),
        still_failed=tuple(sorted(remaining, key=topology.index.__getitem__)),
    )


def _algorithm(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        raise Invalid(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {name!r}")
    return ALGORITHMS[name]


def _checked_arrivals(arrivals: Sequence[float]) -> list[float]:
    if not arrivals:
        raise Invalid("arrivals: at least one capacity is needed, such as 2,2,2, got none")
    return [checked_capacity(amount, f"arrival {number}") for number, amount in enumerate(arrivals, 1)]
