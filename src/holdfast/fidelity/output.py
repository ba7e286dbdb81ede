"""The front door of the room: fidelity of one failure set, by either metric."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from holdfast.errors import Invalid
from holdfast.fidelity.completeness import query_completeness
from holdfast.fidelity.loss import priorities, query_fidelities
from holdfast.topology import Task, Topology

Metric = Literal["of", "ic"]


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The answer for one failure set: ``objective`` sums priority x fidelity, ``fidelity`` is its share of the most."""

    fidelity: float
    objective: float
    queries: dict[str, float]


def output_fidelity(topology: Topology, failed: Iterable[Task | str] | str = (), metric: Metric = "of") -> Fidelity:
    """Fidelity of every query, and over all of them, when these tasks are lost."""
    mask = topology.mask(topology.tasks_of(failed))[np.newaxis]
    if metric == "ic":
        values = query_completeness(topology, mask)[0]
    elif metric == "of":
        values = query_fidelities(topology, mask)[0]
    else:
        raise Invalid(f"metric must be of or ic, got {metric!r}")
    total = float(values @ priorities(topology))
    names = (query.sink for query in topology.queries)
    weight = float(priorities(topology).sum())
    return Fidelity(total / weight, total, {name: float(value) for name, value in zip(names, values, strict=True)})
