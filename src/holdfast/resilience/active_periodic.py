"""Periodic checkpoints of N running copies (paper 003, section 4.3, with k = N - 1 others as in figure 21).

A failed copy recovers in X = U S + U (2 U S + p) / (1 - U), p uniform on [0, C]; downtime is what is left of X once
all others have failed too. With V = U / (1 - U), X = A + q D, where A = S U (1 + 2 V), D = V C, q uniform on [0, 1].
"""

from __future__ import annotations

import numpy as np

from holdfast.resilience.scenario import Floats, Limits, Prices, Scenario
from holdfast.resilience.solution import Parameters, Solution, cheapest, infeasible, priced
from holdfast.resilience.survival import (
    MOST_STEPS,
    TOLERANCE,
    mean_time_all_failed,
    recovery_allowed,
)

FEWEST = 2


def active_periodic(scenario: Scenario, prices: Prices, limits: Limits) -> Solution:
    """The cheapest number of copies with its cheapest period."""
    if limits.max_nodes < FEWEST:
        return infeasible(scenario)
    if np.isinf(limits.max_recovery_factor) and limits.period is None:
        # Without a ceiling the reservation is not part of the cost, which then grows with every copy.
        return of_copies(scenario, prices, limits, FEWEST)
    return cheapest([of_copies(scenario, prices, limits, n) for n in range(FEWEST, limits.max_nodes + 1)])


def of_copies(scenario: Scenario, prices: Prices, limits: Limits, nodes: int) -> Solution:
    """This many copies, the period that costs least, and the reservation that meets the budget.

    The cost is A C + D / C whatever the reservation. A ceiling on that shortens the period as far as it must.
    """
    interval, ceiling = scenario.failure_interval, limits.max_recovery_factor
    moved = scenario.moved
    known = np.isfinite(moved)
    moved = np.where(known, moved, interval)
    moved_cpu = np.where(known, scenario.moved_cpu, interval)
    lost = scenario.budget / nodes
    allowed = recovery_allowed(lost, nodes - 1)

    def needed_factor(time: Floats, period: Floats) -> Floats:
        return _recovery_factor(time / interval, period / interval, lost, allowed, nodes - 1)

    if limits.period is None:
        period = _cheapest_period(scenario, prices, moved, moved_cpu, nodes)
        factor = needed_factor(moved, period)
        feasible = known & (factor <= ceiling)
        # What would do for ever shorter periods: X = A alone must be what is allowed.
        needed = np.where(feasible, factor, 1.0 + 1.0 / _meeting(moved / interval, np.zeros_like(moved), allowed))
        shorter = known & ~feasible & (needed < ceiling)
        if shorter.any():
            period = np.array(np.broadcast_to(period, shorter.shape))
            everywhere = np.broadcast_arrays(moved / interval, lost, allowed, interval, shorter)
            size, down, time, unit = (part[shorter] for part in everywhere[:4])
            period[shorter] = unit * _longest_period(size, down, time, ceiling, nodes - 1)
            factor = np.where(shorter, ceiling, factor)
            feasible = feasible | shorter
    else:
        period = np.asarray(limits.period)
        # The checkpointing copy must keep up with its input: U S + U C <= C.
        factor = needed = np.maximum(needed_factor(moved, period + 0.0 * moved), 1.0 + moved / period)
        feasible = known & (factor <= ceiling)
    cpu_factor = factor if scenario.checkpoint_cpu is None else needed_factor(moved_cpu, period + 0.0 * moved)
    found = Parameters(nodes, period, factor, cpu_factor, feasible, np.where(known, needed, np.inf))

    copies, mtbf = np.asarray(scenario.storage_copies, np.float64), np.asarray(scenario.mtbf, np.float64)
    restored = nodes * (moved + period / 2.0) / mtbf
    restored_cpu = nodes * (moved_cpu + period / 2.0) / mtbf
    return priced(
        scenario,
        prices,
        found,
        network=(copies + 1.0 + 2.0 * nodes + 2.0 * restored + (copies + 1.0) * moved / period) / (copies + 3.0),
        storage=1.0 + restored / copies + moved / period,
        cpu=nodes + restored_cpu + moved_cpu / period,
    )


def _cheapest_period(scenario: Scenario, prices: Prices, moved: Floats, moved_cpu: Floats, nodes: int) -> Floats:
    """sqrt(D / A) for the cost A C + D / C, of network, storage and CPU by price."""
    copies, mtbf = np.asarray(scenario.storage_copies, np.float64), np.asarray(scenario.mtbf, np.float64)
    network = 1.0 / (copies + 3.0)
    longer = nodes / mtbf * (network + prices.storage / (2.0 * copies) + prices.cpu / 2.0)
    written = network * (copies + 1.0) * moved + prices.storage * moved + prices.cpu * moved_cpu
    return np.asarray(np.sqrt(written / longer))


def _recovery_factor(moved: Floats, period: Floats, lost: Floats, allowed: Floats, k: int) -> Floats:
    """R at which the expected downtime of a failure is ``lost``: Newton's method on log V within a bracket.

    Were X always its longest, ``allowed`` would be met by a smaller V; were it always its mean, by a larger one, as
    the downtime is convex in X. Both ends are roots of a quadratic and no more than a factor of 2 apart.
    """
    low, high = _meeting(moved, period, allowed), _meeting(moved, period / 2.0, allowed)
    ratio = _meeting(moved, period * (k + 2.0) ** (-1.0 / (k + 1)), allowed)
    for _ in range(MOST_STEPS):
        spare = ratio / (1.0 + ratio)
        value, by_fixed, by_spread = mean_time_all_failed(moved * spare * (1.0 + 2.0 * ratio), ratio * period, k)
        above = value > lost
        low, high = np.where(above, low, ratio), np.where(above, ratio, high)
        grows = moved * ((1.0 + 2.0 * ratio) / (1.0 + ratio) ** 2 + 2.0 * spare)
        slope = (by_fixed * grows + by_spread * period) * ratio / value
        step = np.log(lost / value) / slope
        further = ratio * np.exp(step)
        inside = (further >= low) & (further <= high)
        ratio = np.where(inside, further, np.sqrt(low * high))
        if np.all((np.abs(step) < TOLERANCE * 10) | (high - low < TOLERANCE * low)):
            break
    return np.asarray(1.0 + 1.0 / ratio)


def _meeting(moved: Floats, late: Floats, allowed: Floats) -> Floats:
    """V for which S U (1 + 2 V) + V late = allowed: the root of a quadratic, written so that nothing cancels."""
    square, linear = 2.0 * moved + late, moved + late - allowed
    root = np.sqrt(linear * linear + 4.0 * square * allowed)
    return np.where(linear > 0, 2.0 * allowed / (np.abs(linear) + root), (np.abs(linear) + root) / (2.0 * square))


def _longest_period(moved: Floats, lost: Floats, allowed: Floats, ceiling: float, k: int) -> Floats:
    """The period at which the reservation reaches the ceiling; the shortest ones must stay below it.

    The spread D of the recovery time lies between T - A and 2 (T - A), by the same reasoning as for the reservation.
    """
    spare, ratio = 1.0 / ceiling, 1.0 / (ceiling - 1.0)
    fixed = moved * spare * (1.0 + 2.0 * ratio)
    low = np.maximum(allowed - fixed, np.finfo(np.float64).tiny)
    high, spread = 2.0 * low, 1.5 * low
    for _ in range(MOST_STEPS):
        value, _, by_spread = mean_time_all_failed(fixed, spread, k)
        above = value > lost
        low, high = np.where(above, low, spread), np.where(above, spread, high)
        further = spread - (value - lost) / by_spread
        step = (further - spread) / spread
        spread = np.where((further >= low) & (further <= high), further, (low + high) / 2.0)
        if np.all((np.abs(step) < TOLERANCE * 10) | (high - low < TOLERANCE * low)):
            break
    return np.asarray(spread / ratio)
