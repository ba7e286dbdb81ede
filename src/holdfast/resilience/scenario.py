"""What a resiliency strategy is judged by: the scenario, the prices of resources and the limits on an answer.

Times are in seconds. Every number of a `Scenario` may be an array; they broadcast against one another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.errors import Invalid

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

YEAR = 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Caching:
    """Inactive state kept out of memory (paper 003, section 7.4).

    ``inactive``: share of the state that leaves memory, and with it the checkpoints. ``out``, ``back``: traffic of
    inactive state to and from storage, as factors of the input rate. ``local``: kept on disks of the copies
    themselves, and not in a replicated store; then a replacement fetches it from another copy.
    """

    inactive: float
    out: float = 0.0
    back: float = 0.0
    local: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.inactive < 1:
            raise Invalid(f"inactive share of the state must be at least 0 and below 1, got {self.inactive:g}")
        for name in ("out", "back"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise Invalid(f"traffic of inactive state ({name}) must be at least 0, got {value:g}")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A query and the machines it runs on (paper 003, section 3.3).

    ``window``: input that replay needs, infinite where it is not known. ``checkpoint``: time to move a checkpoint at
    the input rate, infinite where it cannot be taken. ``mtbf``: of one node. ``shards``: nodes that the input is split
    over, each of which stalls the query. ``checkpoint_cpu``: the same as ``checkpoint`` for processors. ``durability``
    over ``horizon``: what a strategy without stored checkpoints must promise about keeping the state at all.
    """

    sla: ArrayLike
    mtbf: ArrayLike
    window: ArrayLike = math.inf
    checkpoint: ArrayLike = math.inf
    storage_copies: ArrayLike = 3.0
    shards: ArrayLike = 1.0
    checkpoint_cpu: ArrayLike | None = None
    durability: float = 0.99999
    horizon: float = 10 * YEAR
    caching: Caching | None = None

    def __post_init__(self) -> None:
        _within(self.sla, "sla", "between 0 and 1 (0.999 for three nines)", 0.0, 1.0)
        _within(self.mtbf, "mtbf", "more than 0 and finite", 0.0, math.inf)
        for name in ("window", "checkpoint", "checkpoint_cpu"):
            value = getattr(self, name)
            if value is not None and not np.all(np.asarray(value, np.float64) > 0):
                raise Invalid(f"{name} must be more than 0, got {_worst(value):g}")
        for name in ("storage_copies", "shards"):
            value = np.asarray(getattr(self, name), np.float64)
            if not np.all((value >= 1) & (value < math.inf)):
                raise Invalid(f"{name} must be at least 1, got {_worst(value):g}")
        _within(self.durability, "durability", "between 0 and 1", 0.0, 1.0)
        _within(self.horizon, "horizon", "more than 0 and finite", 0.0, math.inf)

    @property
    def budget(self) -> Floats:
        """The share of time that may be lost to failures."""
        return 1.0 - np.asarray(self.sla, np.float64)

    @property
    def failure_interval(self) -> Floats:
        """Mean time between failures that stall the query: any shard does (section 7.3)."""
        return np.asarray(self.mtbf, np.float64) / np.asarray(self.shards, np.float64)

    @property
    def moved(self) -> Floats:
        """Time to move a checkpoint of what is held in memory."""
        return np.asarray(self.checkpoint, np.float64) * (1.0 - (self.caching.inactive if self.caching else 0.0))

    @property
    def moved_cpu(self) -> Floats:
        if self.checkpoint_cpu is None:
            return self.moved
        return np.asarray(self.checkpoint_cpu, np.float64) * (1.0 - (self.caching.inactive if self.caching else 0.0))

    @property
    def shape(self) -> tuple[int, ...]:
        parts = [self.sla, self.mtbf, self.window, self.checkpoint, self.storage_copies, self.shards]
        if self.checkpoint_cpu is not None:
            parts.append(self.checkpoint_cpu)
        return np.broadcast_shapes(*(np.shape(part) for part in parts))

    def with_budget(self, budget: ArrayLike) -> Scenario:
        """The same scenario with another share of time that may be lost."""
        return replace(self, sla=1.0 - np.asarray(budget, np.float64))


@dataclass(frozen=True, slots=True)
class Prices:
    """What the other resources cost beside the network, for one node that processes the input (section 7.1).

    ``storage``: writing the input to one storage device, ``cpu``: processing the input, ``memory``: holding the
    state, each in units of what receiving the input over the network costs. All 0: the network alone counts.
    """

    storage: float = 0.0
    cpu: float = 0.0
    memory: float = 0.0

    def __post_init__(self) -> None:
        for name in ("storage", "cpu", "memory"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise Invalid(f"price of {name} must be at least 0 and finite, got {value:g}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What an answer may use: copies, recovery bandwidth, a fixed checkpoint period, no strategy that loses output."""

    max_nodes: int = 10
    max_recovery_factor: float = math.inf
    period: float | None = None
    lossless: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.max_nodes <= 100:
            raise Invalid(f"max_nodes must be from 1 to 100, got {self.max_nodes}")
        if not self.max_recovery_factor > 0:
            raise Invalid(f"max_recovery_factor must be more than 0, got {self.max_recovery_factor:g}")
        if self.period is not None and not 0 < self.period < math.inf:
            raise Invalid(f"period must be more than 0 and finite, got {self.period:g}")


def _within(value: ArrayLike, name: str, expected: str, low: float, high: float) -> None:
    numbers = np.asarray(value, np.float64)
    good = (numbers > low) & (numbers < high)
    if not good.all():
        raise Invalid(f"{name} must be {expected}, got {float(numbers[~good].flat[0]):g}")


def _worst(value: ArrayLike) -> float:
    return float(np.min(np.asarray(value, np.float64)))
