"""Stages that share one downtime budget, split so that the whole costs least (paper 003, sections 7.2 and 7.3).

A stage that stalls stalls the pipeline, so the stages' downtimes add up. A sharded stage counts as one, its combining
node as the next. Costs fall as budgets grow, but with steps where the best strategy changes: so the split is found by
dynamic programming over shares of the budget, refined twice around the best, and never by following a slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from holdfast.errors import Infeasible, Invalid
from holdfast.resilience.advisor import Advice, advise_scenario, none_feasible
from holdfast.resilience.scenario import Floats, Limits, Prices, Scenario
from holdfast.resilience.strategies import STRATEGIES

SHARES = 400
"""No stage gets less than one of so many parts of the budget, else a cost that ignores its share takes it to 0."""
FINER = 20
"""Each refinement looks at so many steps to either side, over one step of the search before."""
EVEN = 1e-9
"""Weight of evenness: where splits cost the same, the most even one is taken."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the pipeline; the scenario's own SLA is not used. ``rate`` weighs its cost: its input, in any unit."""

    name: str
    scenario: Scenario
    rate: float = 1.0

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise Invalid(f"stage {self.name}: rate must be more than 0, got {self.rate:g}")
        if self.scenario.shape not in ((), (1,)):
            raise Invalid(f"stage {self.name}: one scenario is needed, got an array of shape {self.scenario.shape}")


@dataclass(frozen=True, slots=True)
class StageAdvice:
    """What a stage got: its share of the budget, the uptime that it must reach with it, and the advice for that."""

    name: str
    share: float
    sla: float
    advice: Advice


@dataclass(frozen=True, slots=True)
class PipelineAdvice:
    """The stages, and the mean of their total cost factors by rate, also for an even split to compare with."""

    stages: tuple[StageAdvice, ...]
    cost_factor: float
    even_cost_factor: float | None


def split_budget(
    stages: Sequence[Stage], sla: float, prices: Prices | None = None, limits: Limits | None = None
) -> PipelineAdvice:
    """The split of the downtime 1 - sla over the stages that costs least; Infeasible names a stage that has no way."""
    if not stages:
        raise Invalid("a pipeline needs at least one stage, got none")
    if len(stages) > SHARES // 4:
        raise Invalid(f"a pipeline of at most {SHARES // 4} stages can be split, got {len(stages)}")
    budget = float(Scenario(sla=sla, mtbf=1.0).budget)
    prices, limits = prices or Prices(), limits or Limits()

    def costs(stage: Stage, shares: Floats) -> Floats:
        allowed = stage.scenario.with_budget(np.clip(shares, 1.0 / SHARES, 1.0) * budget)
        each = [strategy(allowed, prices, limits) for strategy in STRATEGIES.values()]
        least = np.min([np.where(one.feasible, one.total, np.inf) for one in each], axis=0)
        uneven = EVEN * (shares * len(stages) - 1.0) ** 2
        return np.where(shares < (1.0 - 1e-9) / SHARES, np.inf, stage.rate * (least + uneven))

    step = 1.0 / SHARES
    offsets = np.arange(1, SHARES + 1)
    chosen = _split([costs(stage, np.asarray(offsets * step, np.float64)) for stage in stages], offsets, SHARES)
    if chosen is None:
        raise Infeasible(_nobody(stages, budget, prices, limits))
    shares: Floats = np.asarray(chosen * step, np.float64)
    for _ in range(2):
        step /= FINER
        offsets = np.arange(-FINER, FINER + 1)
        tables = [
            costs(stage, np.asarray(share + offsets * step, np.float64))
            for stage, share in zip(stages, shares, strict=True)
        ]
        moved = _split(tables, offsets, 0)
        if moved is not None:
            shares = shares + moved * step

    weights = np.array([stage.rate for stage in stages])
    advised = []
    for stage, share in zip(stages, shares, strict=True):
        needed = 1.0 - float(share) * budget
        advice = advise_scenario(replace(stage.scenario, sla=needed), prices, limits)
        advised.append(StageAdvice(stage.name, float(share), needed, advice))
    totals = np.array([one.advice.options[0].total_factor for one in advised], np.float64)
    even = np.array([float(costs(stage, np.array([1.0 / len(stages)]))[0]) for stage in stages]) / weights
    mean_even = float(even @ weights / weights.sum())
    return PipelineAdvice(
        tuple(advised), float(totals @ weights / weights.sum()), mean_even if np.isfinite(mean_even) else None
    )


def _split(tables: Sequence[Floats], offsets: np.ndarray[tuple[int], np.dtype[np.int64]], total: int) -> Floats | None:
    """One offset for each table, adding up to ``total``, with the least sum of costs; None if all sums are infinite.

    Dynamic programming over the sum reached so far: O(tables x sums x offsets).
    """
    low, high = min(int(offsets[0]) * len(tables), 0), max(int(offsets[-1]) * len(tables), 0)
    if offsets[0] > 0:
        low, high = 0, total
    size = high - low + 1
    reached = np.full(size, np.inf)
    reached[-low] = 0.0
    choices = []
    for table in tables:
        best, choice = np.full(size, np.inf), np.zeros(size, np.int64)
        for cost, offset in zip(table, offsets, strict=True):
            start, stop = max(0, int(offset)), min(size, size + int(offset))
            if start >= stop or np.isinf(cost):
                continue
            candidate = reached[start - offset : stop - offset] + cost
            better = candidate < best[start:stop]
            best[start:stop][better] = candidate[better]
            choice[start:stop][better] = offset
        reached = best
        choices.append(choice)
    at = total - low
    if np.isinf(reached[at]):
        return None
    picked = []
    for choice in reversed(choices):
        picked.append(float(choice[at]))
        at -= int(choice[at])
    return np.array(picked[::-1])


def _nobody(stages: Sequence[Stage], budget: float, prices: Prices, limits: Limits) -> str:
    """Why there is no split: a stage that cannot do even with all of the budget, or too little of it for them all."""
    for stage in stages:
        advice = advise_scenario(stage.scenario.with_budget(budget), prices, limits)
        if advice.best is None:
            return f"stage {stage.name}: {none_feasible(advice.options)}"
    return f"the downtime budget of {budget:.3g} is too small for {len(stages)} stages within the limits"
