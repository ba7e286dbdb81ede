"""Replay on one node: after a failure, a window of input is read again (paper 003, section 4.1). Closed forms."""

from __future__ import annotations

import numpy as np

from holdfast.resilience.scenario import Floats, Limits, Prices, Scenario
from holdfast.resilience.solution import Parameters, Solution, infeasible, priced


def replay(scenario: Scenario, prices: Prices, limits: Limits) -> Solution:
    """Output due while the query was down may be lost: recovery reads one window and goes on from there."""
    if limits.lossless:
        return infeasible(scenario)
    recovery = scenario.failure_interval * scenario.budget
    window = _known(scenario)
    return _costed(scenario, prices, limits, window / recovery, read_again=window - recovery)


def replay_lossless(scenario: Scenario, prices: Prices, limits: Limits) -> Solution:
    """No output is lost: what arrived in the meantime is caught up with as well."""
    recovery = scenario.failure_interval * scenario.budget
    window = _known(scenario)
    return _costed(scenario, prices, limits, (window + recovery) / recovery, read_again=window)


def _known(scenario: Scenario) -> Floats:
    """The window; any length where it is not known, for an answer that will not be used."""
    window = np.asarray(scenario.window, np.float64)
    return np.where(np.isfinite(window), window, scenario.failure_interval)


def _costed(scenario: Scenario, prices: Prices, limits: Limits, factor: Floats, read_again: Floats) -> Solution:
    copies, mtbf = np.asarray(scenario.storage_copies, np.float64), np.asarray(scenario.mtbf, np.float64)
    known = np.isfinite(np.asarray(scenario.window, np.float64))
    feasible = known & (factor <= limits.max_recovery_factor)
    found = Parameters(1, np.asarray(np.nan), factor, factor, feasible, np.where(known, factor, np.inf))
    again = read_again / mtbf
    return priced(
        scenario,
        prices,
        found,
        network=1.0 + 2.0 * again / (copies + 3.0),
        storage=1.0 + again / copies,
        cpu=1.0 + again,
    )
