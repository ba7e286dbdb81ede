"""What resiliency costs: six strategies, their best parameters, the advisor, and the emulator that checks them."""

from holdfast.resilience.scenario import Caching, Limits, Prices, Scenario
from holdfast.resilience.solution import Solution
from holdfast.resilience.strategies import STRATEGIES, solve

__all__ = ["STRATEGIES", "Caching", "Limits", "Prices", "Scenario", "Solution", "solve"]
