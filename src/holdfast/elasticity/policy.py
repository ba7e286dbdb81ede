"""The scaling policy's numbers, checked together. What they mean for each other is in docs/elasticity.md."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from holdfast.errors import Invalid


@dataclass(frozen=True, slots=True)
class Policy:
    """When to scale; the first three are the paper's (002, 5.1).

    A task above ``threshold`` in ``reports`` consecutive reports is a bottleneck and is split ``into`` as many. Two
    neighbours that together stay below ``low`` x ``threshold`` for ``low_reports`` are merged. Reports of the first
    ``settle`` seconds after a change are not looked at: the new tasks are still catching up. A split did not help when
    the lighter parts got less than ``gain`` of the load; after ``attempts`` such in a row the task is left alone.
    """

    every: float = 5.0
    threshold: float = 0.7
    reports: int = 2
    into: int = 2
    low: float = 0.5
    low_reports: int = 6
    settle: float = 5.0
    gain: float = 0.1
    attempts: int = 3
    retry: float = 10.0
    """Seconds before a change that was abandoned is tried again; doubled for each one in a row."""
    max_nodes: int | None = None
    tasks_per_node: int = 1
    max_parallelism: int | None = None
    min_parallelism: int = 1
    per_operator: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Least and most tasks of the operators named, in place of ``min_parallelism`` and ``max_parallelism``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "per_operator", MappingProxyType(dict(self.per_operator)))
        for name in ("every", "retry"):
            _check(name, getattr(self, name), getattr(self, name) > 0, "more than 0 seconds")
        _check("settle", self.settle, self.settle >= 0, "0 seconds or more")
        _check("threshold", self.threshold, 0 < self.threshold <= 1, "above 0 and at most 1, a share of one core")
        _check("low", self.low, 0 < self.low < 1, "above 0 and below 1, or merged tasks would be split again")
        _check("gain", self.gain, 0 < self.gain <= 0.5, "above 0 and at most 0.5, a share of the load")
        for name in ("reports", "attempts", "tasks_per_node", "min_parallelism"):
            _check(name, getattr(self, name), getattr(self, name) >= 1, "1 or more")
        _check("low_reports", self.low_reports, self.low_reports >= self.reports, f"at least reports = {self.reports}")
        most = math.floor(2 / self.low)
        _check("into", self.into, 2 <= self.into <= most, f"2 to {most} (2 / low), or the parts would be merged again")
        if self.max_nodes is not None:
            _check("max_nodes", self.max_nodes, self.max_nodes >= 1, "1 or more")
        _check_bounds("max_parallelism", self.min_parallelism, self.max_parallelism)
        for name, (least, largest) in self.per_operator.items():
            _check_bounds(f"per_operator {name}", least, largest)

    def bounds(self, operator: str) -> tuple[int, int | None]:
        """Least and most tasks of this operator."""
        return self.per_operator.get(operator, (self.min_parallelism, self.max_parallelism))

    def nodes(self, tasks: int) -> int:
        """Nodes that so many tasks need."""
        return -(-tasks // self.tasks_per_node)

    @property
    def merge_below(self) -> float:
        """What two neighbours together must stay below to be merged."""
        return self.low * self.threshold

    @property
    def steady(self) -> float:
        """Reports may be off by this share either way and a steady load still never makes the policy oscillate."""
        return (1 - self.low) / (1 + self.low)


def _check(name: str, value: float, right: bool, needed: str) -> None:
    if not (math.isfinite(value) and right):
        raise Invalid(f"scaling policy: {name} must be {needed}, got {value:g}")


def _check_bounds(name: str, least: int, most: int | None) -> None:
    if least < 1 or (most is not None and most < least):
        raise Invalid(f"scaling policy: {name} must allow 1 task or more, got {least} to {most}")
