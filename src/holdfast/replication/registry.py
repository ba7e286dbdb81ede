"""The front door: every planner by its name, and a default."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import Invalid
from holdfast.replication.dynamic import dynamic
from holdfast.replication.exact import exact
from holdfast.replication.greedy import greedy
from holdfast.replication.problem import Assume, Planner, ReplicationPlan
from holdfast.replication.structure_aware import structure_aware
from holdfast.topology import Topology

DEFAULT = "structure-aware"
PLANNERS: Mapping[str, Planner] = {
    "structure-aware": structure_aware,
    "greedy": greedy,
    "dynamic": dynamic,
    "exact": exact,
}


def plan(topology: Topology, budget: float, algorithm: str = DEFAULT, assume: Assume = "all") -> ReplicationPlan:
    """Which tasks to replicate within this budget, and what is left of the answer with them when the others fail."""
    if algorithm not in PLANNERS:
        raise Invalid(f"algorithm must be one of {', '.join(PLANNERS)}, got {algorithm!r}")
    return PLANNERS[algorithm](topology, budget, assume)
