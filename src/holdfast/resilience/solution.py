"""What a model answers: a strategy's parameters and what they cost, for every scenario of an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from holdfast.resilience.scenario import Flags, Floats, Ints, Prices, Scenario


@dataclass(frozen=True, slots=True)
class Solution:
    """One strategy's cheapest parameters within the limits; arrays of one shape. Not a number where not feasible.

    ``recovery_factor`` is the bandwidth to reserve for recovery over the input's; ``cpu_recovery_factor`` the same for
    processors. ``network``, ``storage``, ``cpu`` and ``memory`` are costs over those of a query without resiliency,
    ``total`` weighs them by price. ``needed_factor`` is the recovery factor that would do if there were no ceiling.
    """

    nodes: Ints
    period: Floats
    recovery_factor: Floats
    cpu_recovery_factor: Floats
    network: Floats
    storage: Floats
    cpu: Floats
    memory: Floats
    total: Floats
    feasible: Flags
    needed_factor: Floats


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a model found before pricing: copies, checkpoint period (not a number if there is none) and reservations."""

    nodes: int
    period: Floats
    recovery_factor: Floats
    cpu_recovery_factor: Floats
    feasible: Flags
    needed_factor: Floats


def priced(
    scenario: Scenario, prices: Prices, found: Parameters, *, network: Floats, storage: Floats, cpu: Floats
) -> Solution:
    """The solution with the cost of memory and of inactive state added and everything weighed (section 7.1)."""
    copies = np.asarray(scenario.storage_copies, np.float64)
    memory = np.float64(found.nodes)
    if caching := scenario.caching:
        memory = memory * (1.0 - caching.inactive)
        if caching.local:
            state = np.asarray(scenario.checkpoint, np.float64) * caching.inactive
            fetched = np.where(np.isfinite(state), found.nodes * state / np.asarray(scenario.mtbf, np.float64), 0.0)
            network = network + 2.0 * fetched / (copies + 3.0)
            storage = storage + (found.nodes * (caching.out + caching.back) + fetched) / copies
        else:
            network = network + ((copies + 1.0) * caching.out + 2.0 * caching.back) / (copies + 3.0)
            storage = storage + caching.out + caching.back / copies
    weight = 1.0 + prices.storage + prices.cpu + prices.memory
    total = (network + prices.storage * storage + prices.cpu * cpu + prices.memory * memory) / weight
    feasible = np.broadcast_to(found.feasible & np.isfinite(total), scenario.shape)

    def shown(values: Floats) -> Floats:
        return np.where(feasible, values, np.nan)

    return Solution(
        nodes=np.where(feasible, found.nodes, 0),
        period=shown(found.period),
        recovery_factor=shown(found.recovery_factor),
        cpu_recovery_factor=shown(found.cpu_recovery_factor),
        network=shown(network),
        storage=shown(storage),
        cpu=shown(cpu),
        memory=shown(np.asarray(memory)),
        total=shown(total),
        feasible=feasible,
        needed_factor=np.broadcast_to(found.needed_factor, scenario.shape),
    )


def cheapest(candidates: Sequence[Solution]) -> Solution:
    """Of several solutions, for each scenario the feasible one that costs least; the earlier one if they tie."""
    totals = np.stack([np.where(one.feasible, one.total, np.inf) for one in candidates])
    chosen = np.argmin(totals, axis=0)[np.newaxis]
    picked = {
        part.name: np.take_along_axis(np.stack([getattr(one, part.name) for one in candidates]), chosen, axis=0)[0]
        for part in fields(Solution)
    }
    picked["needed_factor"] = np.min(np.stack([one.needed_factor for one in candidates]), axis=0)
    return Solution(**picked)


def infeasible(scenario: Scenario) -> Solution:
    """No parameters at all."""
    missing = np.full(scenario.shape, np.nan)
    return Solution(
        nodes=np.zeros(scenario.shape, np.int64),
        period=missing,
        recovery_factor=missing,
        cpu_recovery_factor=missing,
        network=missing,
        storage=missing,
        cpu=missing,
        memory=missing,
        total=missing,
        feasible=np.zeros(scenario.shape, np.bool_),
        needed_factor=np.full(scenario.shape, np.inf),
    )
