"""The advisor: every strategy for one scenario, with its best parameters and its cost, or why it will not do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.errors import Invalid
from holdfast.resilience import active_periodic, active_replay, on_demand
from holdfast.resilience.quantities import say_duration
from holdfast.resilience.scenario import Limits, Prices, Scenario
from holdfast.resilience.solution import Solution
from holdfast.resilience.strategies import STRATEGIES

FEWEST = {
    "active-replay": active_replay.FEWEST,
    "active-periodic": active_periodic.FEWEST,
    "on-demand": on_demand.FEWEST,
}
"""Copies that a strategy needs at least; 1 for those not named."""
LOSES_OUTPUT = ("replay", "active-replay")
REPLAYS = ("replay", "replay-lossless", "active-replay")


@dataclass(frozen=True, slots=True)
class Option:
    """One strategy: its parameters and cost factors, all ``None`` where it is not feasible, and a sentence on why."""

    strategy: str
    nodes: int | None
    period_s: float | None
    recovery_factor: float | None
    cost_factor: float | None
    feasible: bool
    why: str
    cpu_recovery_factor: float | None = None
    storage_factor: float | None = None
    cpu_factor: float | None = None
    memory_factor: float | None = None
    total_factor: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    """Options from the cheapest on, those that will not do last, and what the numbers were derived from or assumed."""

    options: tuple[Option, ...]
    best: str | None
    derived: dict[str, str] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, strategy: str) -> Option:
        for option in self.options:
            if option.strategy == strategy:
                return option
        raise Invalid(f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}")

    def __str__(self) -> str:
        rows = [f"{'strategy':<16} {'copies':>6} {'period':>8} {'recovery':>10} {'cost':>8}  why"]
        for one in self.options:
            period = say_duration(one.period_s) if one.period_s else "-"
            numbers = (
                f"{one.nodes:>6} {period:>8} {one.recovery_factor:>9.4g}x {one.total_factor:>7.4g}x"
                if one.feasible
                else f"{'-':>6} {'-':>8} {'-':>10} {'-':>8}"
            )
            rows.append(f"{one.strategy:<16} {numbers}  {one.why}")
        rows += [f"derived  {name}: {text}" for name, text in self.derived.items()]
        rows += [f"assumed  {name}: {text}" for name, text in self.assumed.items()]
        return "\n".join(rows)


def advise_scenario(scenario: Scenario, prices: Prices | None = None, limits: Limits | None = None) -> Advice:
    """Advice for one scenario (not an array): the cheapest by total cost first. Pure."""
    if scenario.shape not in ((), (1,)):
        raise Invalid(f"advice is for one scenario, got an array of shape {scenario.shape}; use solve for arrays")
    prices, limits = prices or Prices(), limits or Limits()
    found = {name: strategy(scenario, prices, limits) for name, strategy in STRATEGIES.items()}
    order = sorted(found, key=lambda name: _total(found[name]))
    best = order[0] if _total(found[order[0]]) < math.inf else None
    options = []
    for name in order:
        if math.isinf(_total(found[name])):
            why = _why_not(name, found[name], scenario, limits)
        else:
            assert best is not None
            why = _why(name, best, found)
        options.append(_option(name, found[name], why))
    return Advice(tuple(options), best)


def _total(found: Solution) -> float:
    return float(found.total.item()) if found.feasible.item() else math.inf


def _option(name: str, found: Solution, why: str) -> Option:
    if not found.feasible.item():
        return Option(name, None, None, None, None, False, why)

    def number(values: Any) -> float | None:
        value = float(np.asarray(values).item())
        return value if math.isfinite(value) else None

    return Option(
        strategy=name,
        nodes=int(found.nodes.item()),
        period_s=number(found.period),
        recovery_factor=number(found.recovery_factor),
        cost_factor=number(found.network),
        feasible=True,
        why=why,
        cpu_recovery_factor=number(found.cpu_recovery_factor),
        storage_factor=number(found.storage),
        cpu_factor=number(found.cpu),
        memory_factor=number(found.memory),
        total_factor=number(found.total),
    )


def _why(name: str, best: str, found: dict[str, Solution]) -> str:
    loses = "; may lose output while it is down" if name in LOSES_OUTPUT else ""
    if name == best:
        return f"the cheapest{loses}"
    ratio = _total(found[name]) / _total(found[best])
    if ratio == 1:
        return f"costs the same as {best}{loses}"
    more = f"{(ratio - 1) * 100:.2g} % more than" if ratio < 2 else f"{ratio:.3g} times as much as"
    return f"costs {more} {best}{loses}"


def _why_not(name: str, found: Solution, scenario: Scenario, limits: Limits) -> str:
    ceiling = limits.max_recovery_factor
    if name in LOSES_OUTPUT and limits.lossless:
        return "may lose output while it is down, which is ruled out"
    if limits.max_nodes < FEWEST.get(name, 1):
        return f"needs at least {FEWEST[name]} copies, at most {limits.max_nodes} allowed"
    if name in REPLAYS and not np.isfinite(np.asarray(scenario.window, np.float64)).all():
        return "needs a window of input to replay, and none was given"
    if name not in REPLAYS and not np.isfinite(scenario.moved).all():
        return "needs a state that can be checkpointed, and no size was given"
    if name == "periodic" and scenario.caching and scenario.caching.local:
        return "inactive state on the disk of the only node is lost with it"
    needed = float(found.needed_factor.item())
    if name == "active-periodic" and limits.period and 1 + float(scenario.moved.item()) / limits.period > ceiling:
        takes = float(scenario.moved.item()) / ceiling
        return (
            f"a checkpoint takes {say_duration(takes)} at {ceiling:.4g} times the input rate, too long to keep up "
            f"with one every {say_duration(limits.period)}"
        )
    copies = f", even with {limits.max_nodes} copies" if name in FEWEST else ""
    return f"needs at least {needed:.4g} times the input rate to recover, above the ceiling of {ceiling:.4g}{copies}"


def none_feasible(options: Sequence[Option]) -> str:
    """One line for the case that nothing will do."""
    return f"no strategy is feasible: {'; '.join(f'{one.strategy} {one.why}' for one in options)}"
