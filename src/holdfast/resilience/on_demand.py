"""On-demand checkpoints of N running copies (paper 003, section 4.4): a running copy stops and starts its successor.

Nothing is stored, so two conditions bound the recovery time: the downtime, and the chance of losing the state at all.
"""

from __future__ import annotations

import math

import numpy as np

from holdfast.resilience.scenario import Floats, Limits, Prices, Scenario
from holdfast.resilience.solution import Parameters, Solution, cheapest, infeasible, priced
from holdfast.resilience.survival import recovery_allowed

FEWEST = 3


def on_demand(scenario: Scenario, prices: Prices, limits: Limits) -> Solution:
    """The cheapest number of copies; at least one must run on while two stop."""
    if limits.max_nodes < FEWEST:
        return infeasible(scenario)
    return cheapest([of_copies(scenario, prices, limits, n) for n in range(FEWEST, limits.max_nodes + 1)])


def of_copies(scenario: Scenario, prices: Prices, limits: Limits, nodes: int) -> Solution:
    """This many copies. Recovery takes T = U S / (1 - U), so that R = 1 + S / T for the longest T allowed."""
    interval, others = scenario.failure_interval, nodes - 2
    uptime = recovery_allowed(scenario.budget / nodes, others)
    allowed = np.minimum(uptime, longest_durable(scenario, others)) * interval
    moved = scenario.moved
    known = np.isfinite(moved)
    factor = 1.0 + np.where(known, moved, interval) / allowed
    cpu_factor = 1.0 + np.where(known, scenario.moved_cpu, interval) / allowed
    feasible = known & (factor <= limits.max_recovery_factor)
    found = Parameters(nodes, np.asarray(np.nan), factor, cpu_factor, feasible, np.where(known, factor, np.inf))

    copies = np.asarray(scenario.storage_copies, np.float64)
    return priced(
        scenario,
        prices,
        found,
        network=(copies + 1.0 + nodes + nodes * factor) / (copies + 3.0),
        storage=np.asarray(1.0),
        cpu=nodes * cpu_factor,
    )


def longest_durable(scenario: Scenario, others: int) -> Floats:
    """The longest recovery, in failure intervals, for which the chance of losing all copies stays below the bound.

    With k others there are k H / F failures within the horizon, each fatal with chance G(T): solved for T.
    """
    failures = others * scenario.horizon / scenario.failure_interval
    fatal = -np.expm1(math.log(scenario.durability) / failures)
    with np.errstate(divide="ignore"):  # a horizon so short that anything will do
        return np.asarray(-np.log1p(-(fatal ** (1.0 / others))))
