"""What each model predicts: the share of time lost, given a strategy's parameters. The left sides of its equations."""

from __future__ import annotations

import numpy as np

from holdfast.errors import Invalid
from holdfast.resilience.scenario import Scenario
from holdfast.resilience.survival import mean_time_all_failed, time_all_failed


def expected_downtime(
    strategy: str, scenario: Scenario, nodes: int, recovery_factor: float, period: float | None = None
) -> float:
    """The share of time that this strategy loses, by its model, for one scenario and any parameters."""
    interval, spare = float(scenario.failure_interval), 1.0 / recovery_factor
    window, moved = float(np.asarray(scenario.window)), float(scenario.moved)
    if strategy in ("periodic", "active-periodic") and period is None:
        raise Invalid(f"{strategy}: a checkpoint period is needed, got none")
    match strategy:
        case "replay":
            return window * spare / interval
        case "replay-lossless":
            return window * spare / (1.0 - spare) / interval
        case "periodic":
            assert period is not None
            stopped = moved * spare / (1.0 - spare)
            recovery = spare * (moved + (2.0 * spare * moved + period / 2.0) / (1.0 - spare))
            return stopped / period + recovery / interval
        case "active-periodic":
            assert period is not None
            fixed = moved * spare * (1.0 + 2.0 * spare / (1.0 - spare)) / interval
            spread = spare / (1.0 - spare) * period / interval
            return nodes * float(mean_time_all_failed(np.array(fixed), np.array(spread), nodes - 1)[0])
        case "active-replay":
            return nodes * float(time_all_failed(np.array(window * spare / interval), nodes - 1))
        case "on-demand":
            recovery = moved * spare / (1.0 - spare) / interval
            return nodes * float(time_all_failed(np.array(recovery), nodes - 2))
    raise Invalid(f"no model of {strategy!r}")
