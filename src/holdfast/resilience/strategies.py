"""The strategies by name, in one signature: scenario, prices and limits in, the cheapest parameters out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from holdfast.errors import Invalid
from holdfast.resilience.active_periodic import active_periodic
from holdfast.resilience.active_replay import active_replay
from holdfast.resilience.on_demand import on_demand
from holdfast.resilience.periodic import periodic
from holdfast.resilience.replay import replay, replay_lossless
from holdfast.resilience.scenario import Limits, Prices, Scenario
from holdfast.resilience.solution import Solution


class Strategy(Protocol):
    def __call__(self, scenario: Scenario, prices: Prices, limits: Limits) -> Solution: ...


STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "replay": replay,
        "replay-lossless": replay_lossless,
        "periodic": periodic,
        "active-replay": active_replay,
        "active-periodic": active_periodic,
        "on-demand": on_demand,
    }
)


def solve(scenario: Scenario, strategy: str, prices: Prices | None = None, limits: Limits | None = None) -> Solution:
    """The cheapest parameters of one strategy, for every scenario of the arrays. Pure."""
    if strategy not in STRATEGIES:
        raise Invalid(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")
    return STRATEGIES[strategy](scenario, prices or Prices(), limits or Limits())
