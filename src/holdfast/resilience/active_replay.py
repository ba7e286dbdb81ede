"""Replay with N running copies (paper 003, section 4.5): the query is down only while all copies recover at once."""

from __future__ import annotations

import numpy as np

from holdfast.resilience.scenario import Limits, Prices, Scenario
from holdfast.resilience.solution import Parameters, Solution, cheapest, infeasible, priced
from holdfast.resilience.survival import recovery_allowed

FEWEST = 2


def active_replay(scenario: Scenario, prices: Prices, limits: Limits) -> Solution:
    """The cheapest number of copies; output may be lost while all are down."""
    if limits.lossless or limits.max_nodes < FEWEST:
        return infeasible(scenario)
    return cheapest([of_copies(scenario, prices, limits, n) for n in range(FEWEST, limits.max_nodes + 1)])


def of_copies(scenario: Scenario, prices: Prices, limits: Limits, nodes: int) -> Solution:
    """This many copies, and the longest recovery that leaves the downtime within the budget; never below input rate."""
    window, interval = np.asarray(scenario.window, np.float64), scenario.failure_interval
    known = np.isfinite(window)
    window = np.where(known, window, interval)
    allowed = recovery_allowed(scenario.budget / nodes, nodes - 1) * interval
    factor = np.maximum(window / allowed, 1.0)
    feasible = known & (factor <= limits.max_recovery_factor)
    found = Parameters(nodes, np.asarray(np.nan), factor, factor, feasible, np.where(known, factor, np.inf))

    copies, mtbf = np.asarray(scenario.storage_copies, np.float64), np.asarray(scenario.mtbf, np.float64)
    again = nodes * (window - window / factor) / mtbf
    return priced(
        scenario,
        prices,
        found,
        network=(copies + 1.0 + 2.0 * nodes + 2.0 * again) / (copies + 3.0),
        storage=1.0 + again / copies,
        cpu=nodes + again,
    )
