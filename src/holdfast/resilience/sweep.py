"""How the answer moves with one parameter: cost and reservation curves, and where the best strategy changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from holdfast.errors import Invalid
from holdfast.resilience import active_periodic, active_replay, on_demand
from holdfast.resilience.scenario import Floats, Limits, Prices, Scenario
from holdfast.resilience.solution import Solution, infeasible
from holdfast.resilience.strategies import STRATEGIES

PARAMETERS = ("sla", "window", "checkpoint", "mtbf", "nodes", "max-recovery-factor")
HALVINGS = 40
OF_COPIES = MappingProxyType(
    {
        "active-replay": (active_replay.FEWEST, active_replay.of_copies),
        "active-periodic": (active_periodic.FEWEST, active_periodic.of_copies),
        "on-demand": (on_demand.FEWEST, on_demand.of_copies),
    }
)
"""What a sweep over ``nodes`` compares: the strategies that run several copies."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """The best strategy changes from one to another at this value; ``None`` for none feasible."""

    at: float
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """Curves over ``values``; not a number where a strategy is not feasible. ``costs`` are totals by price."""

    parameter: str
    values: Floats
    costs: Mapping[str, Floats]
    recovery_factors: Mapping[str, Floats]
    copies: Mapping[str, Floats]
    best: tuple[str | None, ...]
    crossovers: tuple[Crossover, ...]


def sweep(
    scenario: Scenario,
    parameter: str,
    ends: tuple[float, float],
    *,
    points: int = 61,
    prices: Prices | None = None,
    limits: Limits | None = None,
) -> Sweep:
    """Vary one parameter from one end to the other: nines for the SLA, whole numbers for nodes, otherwise a log scale.

    Crossovers are located between neighbouring points to 12 digits of that scale, exactly for nodes.
    """
    if parameter not in PARAMETERS:
        raise Invalid(f"cannot sweep {parameter!r}; there are {', '.join(PARAMETERS)}")
    if points < 2:
        raise Invalid(f"a sweep needs at least 2 points, got {points}")
    values = _scale(parameter, ends, points)
    prices, limits = prices or Prices(), limits or Limits()

    def solved(at: Floats) -> dict[str, Solution]:
        return _solved(scenario, parameter, at, prices, limits)

    found = solved(values)
    best = _best(found)
    crossovers = tuple(
        found_here
        for i in range(len(values) - 1)
        if best[i] != best[i + 1]
        for found_here in _crossovers(parameter, values[i : i + 2], best[i : i + 2], lambda at: _best(solved(at)))
    )
    return Sweep(
        parameter,
        values,
        {name: one.total for name, one in found.items()},
        {name: one.recovery_factor for name, one in found.items()},
        {name: np.where(one.feasible, one.nodes, np.nan) for name, one in found.items()},
        best,
        crossovers,
    )


def _scale(parameter: str, ends: tuple[float, float], points: int) -> Floats:
    low, high = ends
    if not low < high:
        raise Invalid(f"sweep {parameter}: the first end must be below the second, got {low:g}..{high:g}")
    match parameter:
        case "sla":
            if not 0 < low < high < 1:
                raise Invalid(f"sweep sla: both ends must be between 0 and 1, got {low:g}..{high:g}")
            values = 1.0 - np.geomspace(1.0 - low, 1.0 - high, points)
        case "nodes":
            if low != int(low) or high != int(high) or low < 2 or high > 100:
                raise Invalid(f"sweep nodes: both ends must be whole numbers from 2 to 100, got {low:g}..{high:g}")
            return np.arange(low, high + 1)
        case "max-recovery-factor":
            if low < 1:
                raise Invalid(f"sweep {parameter}: the ends must be at least 1, got {low:g}..{high:g}")
            values = np.geomspace(low, high, points)
        case _:
            if not 0 < low < high < math.inf:
                raise Invalid(f"sweep {parameter}: both ends must be more than 0, got {low:g}..{high:g}")
            values = np.geomspace(low, high, points)
    values[0], values[-1] = low, high
    return values


def _solved(scenario: Scenario, parameter: str, at: Floats, prices: Prices, limits: Limits) -> dict[str, Solution]:
    match parameter:
        case "nodes":
            return {
                name: _joined([_of_copies(name, scenario, prices, limits, int(n)) for n in at]) for name in OF_COPIES
            }
        case "max-recovery-factor":
            each = [replace(limits, max_recovery_factor=float(top)) for top in at]
            return {name: _joined([one(scenario, prices, top) for top in each]) for name, one in STRATEGIES.items()}
        case "sla":
            varied = replace(scenario, sla=at)
        case "window":
            varied = replace(scenario, window=at)
        case "checkpoint":
            varied = replace(scenario, checkpoint=at)
        case _:
            varied = replace(scenario, mtbf=at)
    return {name: strategy(varied, prices, limits) for name, strategy in STRATEGIES.items()}


def _of_copies(name: str, scenario: Scenario, prices: Prices, limits: Limits, nodes: int) -> Solution:
    fewest, of_copies = OF_COPIES[name]
    if nodes < fewest or (limits.lossless and name == "active-replay"):
        return infeasible(scenario)
    return of_copies(scenario, prices, limits, nodes)


def _joined(parts: list[Solution]) -> Solution:
    """Solutions of single scenarios as one of an array."""
    names = Solution.__dataclass_fields__
    return Solution(**{name: np.array([getattr(one, name).item() for one in parts]) for name in names})


def _best(found: Mapping[str, Solution]) -> tuple[str | None, ...]:
    names = list(found)
    totals = np.stack([np.where(one.feasible, one.total, np.inf) for one in found.values()])
    chosen = np.argmin(totals, axis=0)
    return tuple(names[i] if np.isfinite(totals[i, at]) else None for at, i in enumerate(chosen))


def _crossovers(
    parameter: str,
    between: Floats,
    changed: tuple[str | None, ...],
    best: Callable[[Floats], tuple[str | None, ...]],
) -> Iterator[Crossover]:
    """Halve until the first change lies between two values that are all but equal, then go on from there."""
    low, end = (float(value) for value in between)
    before, last = changed
    if parameter == "nodes":
        yield Crossover(end, before, last)
        return
    while before != last:
        high, after = end, last
        for _ in range(HALVINGS):
            middle = 1.0 - math.sqrt((1.0 - low) * (1.0 - high)) if parameter == "sla" else math.sqrt(low * high)
            now = best(np.array([middle]))[0]
            if now == before:
                low = middle
            else:
                high, after = middle, now
        yield Crossover(high, before, after)
        low, before = high, after
