"""What a recovery algorithm answers: one plan for one capacity, and the schedule over a sequence of arrivals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.errors import Invalid
from holdfast.topology import Task, Topology


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What to recover now. ``recover`` is in topological order, upstream first.

    ``queries``: the output tasks whose query partitions were broken and are complete after this plan; ``priority`` is
    their sum. ``optimal``: proven so, proven by nobody (False, the solver ran out of time), or not a question (None).
    """

    algorithm: str
    capacity: float
    recover: tuple[Task, ...]
    cost: float
    queries: tuple[Task, ...]
    priority: float
    optimal: bool | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One arrival: what came, what there was to spend with the rest of earlier steps, and what it bought."""

    arrived: float
    capacity: float
    recover: tuple[Task, ...]
    cost: float
    queries: tuple[Task, ...]
    priority: float
    fidelity: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """A plan for each arrival. ``average_fidelity``: each arrival opens a period of equal length, so it is the mean."""

    algorithm: str
    steps: tuple[Step, ...]
    priority: float
    average_fidelity: float
    optimal: bool | None
    still_failed: tuple[Task, ...]

    def as_json(self) -> dict[str, Any]:
        """The answer of ``holdfast schedule --format json``."""
        return {
            "algorithm": self.algorithm,
            "steps": [
                {
                    "arrived": step.arrived,
                    "capacity": step.capacity,
                    "cost": step.cost,
                    "recover": [str(task) for task in step.recover],
                    "queries": [str(task) for task in step.queries],
                    "priority": step.priority,
                    "fidelity": step.fidelity,
                }
                for step in self.steps
            ],
            "priority": self.priority,
            "average_fidelity": self.average_fidelity,
            "optimal": self.optimal,
            "still_failed": [str(task) for task in self.still_failed],
        }


class Algorithm(Protocol):
    """The contract of all algorithms: pure and deterministic; failed tasks of the topology, a capacity of 0 or more.

    ``more``: further capacity will arrive, so an algorithm may leave some of this for something better.
    """

    def __call__(
        self, topology: Topology, failed: frozenset[Task], capacity: float, more: bool = False
    ) -> RecoveryPlan: ...


def checked_capacity(value: float, what: str = "capacity") -> float:
    """The capacity as a float, if it is a number that can be spent."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Invalid(f"{what} must be a number, 0 or more, got {value!r}")
    if not math.isfinite(value) or value < 0:
        raise Invalid(f"{what} must be a finite number, 0 or more, got {value}")
    return float(value)


def checked_failed(topology: Topology, failed: Iterable[Task | str] | str) -> frozenset[Task]:
    """The failed tasks, each known and named once; ``"all"`` for every task."""
    if isinstance(failed, str) and failed.strip() == "all":
        return frozenset(topology.tasks)
    if isinstance(failed, Set) and all(task in topology.index for task in failed):
        return frozenset(topology.tasks[topology.index[task]] for task in failed)
    try:
        return frozenset(topology.tasks_of(failed))
    except Invalid as error:
        raise Invalid(f"failed: {error}") from None
