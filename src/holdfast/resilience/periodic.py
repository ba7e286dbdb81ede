"""Periodic checkpoints of a single node (paper 003, section 4.2).

The condition on U = 1/R is a quadratic once multiplied by 1 - U: s U^2 + B U - b = 0 with s = S/F, b = 1 - SLA and
B = S/C + S/F + C/(2F) + b. So the reservation is a closed form of the period C, convex in it, and so is the cost:
the best period is where its derivative changes sign.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from holdfast.resilience.scenario import Floats, Limits, Prices, Scenario
from holdfast.resilience.solution import Parameters, Solution, infeasible, priced

HALVINGS = 48


def periodic(scenario: Scenario, prices: Prices, limits: Limits) -> Solution:
    """One node stops for a checkpoint every period and, after a failure, goes on from the last one."""
    if scenario.caching and scenario.caching.local:
        return infeasible(scenario)
    moved, interval, budget = scenario.moved, scenario.failure_interval, scenario.budget
    known = np.isfinite(moved)
    moved = np.where(known, moved, interval)
    lowest = recovery_factor(moved, interval, budget, np.sqrt(2.0 * moved * interval))
    if limits.period is None:
        low, high = _periods_within(moved, interval, budget, limits.max_recovery_factor)
        feasible = known & (lowest <= limits.max_recovery_factor)
        period = np.minimum(np.maximum(_best_period(scenario, prices, moved), low), high)
        factor = recovery_factor(moved, interval, budget, period)
    else:
        period = np.asarray(limits.period)
        lowest = factor = recovery_factor(moved, interval, budget, period)
        feasible = known & (factor <= limits.max_recovery_factor)
    moved_cpu = np.where(known, scenario.moved_cpu, interval)
    same = scenario.checkpoint_cpu is None
    cpu_factor = factor if same else recovery_factor(moved_cpu, interval, budget, period)
    needed = np.where(known, lowest, np.inf)
    found = Parameters(1, period, factor, cpu_factor, feasible, needed)

    copies, mtbf = np.asarray(scenario.storage_copies, np.float64), np.asarray(scenario.mtbf, np.float64)
    restored = (moved + period / 2.0) / mtbf
    written = copies * moved / period
    return priced(
        scenario,
        prices,
        found,
        network=(copies + 2.0 + factor + restored + written) / (copies + 3.0),
        storage=1.0 + (restored + written) / copies,
        cpu=cpu_factor,
    )


def recovery_factor(moved: Floats, interval: Floats, budget: Floats, period: Floats) -> Floats:
    """R for this period: the positive root of the quadratic, written so that nothing cancels."""
    linear, root = _quadratic(moved, interval, budget, period)
    return np.asarray((linear + root) / (2.0 * budget))


def _quadratic(moved: Floats, interval: Floats, budget: Floats, period: Floats) -> tuple[Floats, Floats]:
    linear = moved / period + moved / interval + period / (2.0 * interval) + budget
    return linear, np.sqrt(linear * linear + 4.0 * moved / interval * budget)


def _best_period(scenario: Scenario, prices: Prices, moved: Floats) -> Floats:
    """Where the derivative of the total cost by C changes sign, by halving on a log scale.

    Each part of the cost has its least at a known period; the sum's lies between the smallest and largest of these.
    """
    copies, mtbf = np.asarray(scenario.storage_copies, np.float64), np.asarray(scenario.mtbf, np.float64)
    interval, budget = scenario.failure_interval, scenario.budget
    network = 1.0 / (copies + 3.0)
    longer = (network + prices.storage / copies) / (2.0 * mtbf)
    written = (network * copies + prices.storage) * moved
    # (weight, time to move) of each part that follows a reservation; one where network and CPU are alike
    parts = [(network + prices.cpu, moved)]
    ends = [np.sqrt(2.0 * moved * interval), np.sqrt(2.0 * copies * moved * mtbf)]
    if scenario.checkpoint_cpu is not None and prices.cpu:
        moved_cpu = scenario.moved_cpu
        parts = [(network, moved), (np.asarray(prices.cpu), moved_cpu)]
        ends.append(np.sqrt(2.0 * moved_cpu * interval))
    low, high = np.log(reduce(np.minimum, ends)), np.log(reduce(np.maximum, ends))
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        period = np.exp(middle)
        slope = longer - written / period**2
        for weight, time in parts:
            linear, root = _quadratic(time, interval, budget, period)
            by_linear = (1.0 + linear / root) / (2.0 * budget)
            slope = slope + weight * by_linear * (0.5 / interval - time / period**2)
        rising = slope > 0
        low, high = np.where(rising, low, middle), np.where(rising, middle, high)
    return np.asarray(np.exp((low + high) / 2.0))


def _periods_within(moved: Floats, interval: Floats, budget: Floats, ceiling: float) -> tuple[Floats, Floats]:
    """The shortest and longest period whose reservation stays below the ceiling: C/(2F) + S/C at most what is left.

    Where none does, both are the period of the least reservation.
    """
    if np.isinf(ceiling):
        return np.zeros_like(moved), np.full_like(moved, np.inf)
    left = budget * ceiling - moved / (interval * ceiling) - moved / interval - budget
    inside = left * left - 2.0 * moved / interval
    some = (left > 0) & (inside >= 0)
    least = np.sqrt(2.0 * moved * interval)
    longest = np.where(some, interval * (left + np.sqrt(np.where(some, inside, 0.0))), least)
    # The product of the two ends is 2 S F.
    return np.asarray(least * least / longest), longest
