"""What resiliency costs: six strategies, their best parameters, the advisor, and the emulator that checks them."""

from holdfast.resilience.advisor import Advice, Option, advise_scenario, none_feasible
from holdfast.resilience.pipeline import PipelineAdvice, Stage, StageAdvice, split_budget
from holdfast.resilience.progress import advise
from holdfast.resilience.scenario import Caching, Limits, Prices, Scenario
from holdfast.resilience.solution import Solution
from holdfast.resilience.strategies import STRATEGIES, solve
from holdfast.resilience.sweep import Crossover, Sweep, sweep

__all__ = [
    "STRATEGIES",
    "Advice",
    "Caching",
    "Crossover",
    "Limits",
    "Option",
    "PipelineAdvice",
    "Prices",
    "Scenario",
    "Solution",
    "Stage",
    "StageAdvice",
    "Sweep",
    "advise",
    "advise_scenario",
    "none_feasible",
    "solve",
    "split_budget",
    "sweep",
]
