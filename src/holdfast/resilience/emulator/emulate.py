"""Emulating a strategy until its uptime is known well enough; the confidence interval is over independent lanes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from holdfast.errors import Infeasible, Invalid
from holdfast.resilience.advisor import FEWEST, LOSES_OUTPUT, REPLAYS, Option
from holdfast.resilience.downtime import expected_downtime
from holdfast.resilience.emulator.copies import ActivePeriodic, ActiveReplay, OnDemand
from holdfast.resilience.emulator.one_node import Emulated, Periodic, Replay, ReplayLossless
from holdfast.resilience.emulator.query import Trace, run_query
from holdfast.resilience.scenario import Floats, Scenario

LANES = 4096
STEPS = 64
"""Failures of each lane between two looks at the confidence interval."""
CONFIDENCE = 1.959963984540054
"""Standard deviations to either side for 95 %."""
FAR_BELOW = 0.05
"""Downtime below this share of what is allowed need not be known any better than that share is."""
NONE_SEEN = 2.995732273553991
"""With no event seen in a time, its rate is below this over that time with a confidence of 95 %."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Failures are emulated until the interval is within ``precision`` of the downtime, but no more than so many.

    That is, of the downtime seen or the downtime allowed, whichever is less.
    """

    precision: float = 0.01
    max_failures: int = 50_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.precision < 1:
            raise Invalid(f"precision must be between 0 and 1, got {self.precision:g}")
        if self.max_failures < LANES * STEPS:
            raise Invalid(f"max_failures must be at least {LANES * STEPS}, got {self.max_failures}")
        if self.seed < 0:
            raise Invalid(f"seed must be at least 0, got {self.seed}")


@dataclass(frozen=True, slots=True)
class Emulation:
    """What came out. ``low`` and ``high`` bound the uptime with 95 % confidence.

    ``downtime_ratio`` is downtime over what the SLA allows: an uptime of 0.9999 is within 1 % of 0.99999 and yet ten
    times too much downtime. ``model_ratio`` is downtime over what the model predicts for these parameters, which is
    less than allowed where something other than the SLA decided (no reservation below the input rate, durability);
    ``None`` where too little downtime was seen to tell it within a tenth.
    """

    strategy: str
    nodes: int
    recovery_factor: float
    period_s: float | None
    target: float
    uptime: float
    low: float
    high: float
    downtime_ratio: float
    ratio_low: float
    ratio_high: float
    predicted: float
    model_ratio: float | None
    failures: int
    losses: int
    checkpoints: int
    checkpoint_bytes: float | None

    @property
    def error(self) -> float:
        """Uptime off its target, as a share of the target; negative if it falls short."""
        return self.uptime / self.target - 1.0


def emulate(
    scenario: Scenario,
    strategy: str,
    nodes: int,
    recovery_factor: float,
    period: float | None = None,
    *,
    effort: Effort | None = None,
) -> Emulation:
    """Run one strategy with these parameters through random failures; the same answer for the same seed.

    Sharded scenarios are emulated as the model sees them: one unit that fails as often as any shard.
    """
    if scenario.shape not in ((), (1,)):
        raise Invalid(f"one scenario is emulated at a time, got an array of shape {scenario.shape}")
    effort = effort or Effort()
    rng = np.random.default_rng(effort.seed)
    check_parameters(scenario, strategy, nodes, recovery_factor)
    predicted = expected_downtime(strategy, scenario, nodes, recovery_factor, period)
    trace = _trace(scenario, strategy, period, effort.seed)
    phase = rng.uniform(0.0, 1.0, LANES)
    world = _world(
        scenario, strategy, nodes, recovery_factor, period=period, moved=trace.moved if trace else None, phase=phase
    )
    between = float(scenario.failure_interval) / nodes
    allowed = float(scenario.budget)
    lost, time, failures = np.zeros(LANES), np.zeros(LANES), 0
    while True:
        gaps = rng.exponential(between, (STEPS, LANES))
        failing = rng.integers(nodes, size=(STEPS, LANES))
        for gap, copy in zip(gaps, failing, strict=True):
            lost += world.step(gap, copy)
        time += gaps.sum(axis=0)
        failures += STEPS * LANES
        share, low, high = interval(lost, time, world.longest)
        enough = (high - low) / 2.0 <= effort.precision * min(max(share, FAR_BELOW * allowed), allowed)
        if enough or failures + STEPS * LANES > effort.max_failures:
            break
    return Emulation(
        strategy=strategy,
        nodes=nodes,
        recovery_factor=recovery_factor,
        period_s=period,
        target=1.0 - allowed,
        uptime=1.0 - share,
        low=1.0 - high,
        high=1.0 - low,
        downtime_ratio=share / allowed,
        ratio_low=low / allowed,
        ratio_high=high / allowed,
        predicted=1.0 - predicted,
        model_ratio=share / predicted if share > 0 and (high - low) / 2.0 < 0.1 * share else None,
        failures=failures,
        losses=world.losses if isinstance(world, OnDemand) else 0,
        checkpoints=trace.restored if trace else 0,
        checkpoint_bytes=float(trace.bytes.mean()) if trace else None,
    )


def emulate_option(scenario: Scenario, option: Option, effort: Effort | None = None) -> Emulation:
    """Run what the advisor chose."""
    if option.nodes is None or option.recovery_factor is None:
        raise Infeasible(f"{option.strategy} cannot be emulated: it {option.why}")
    return emulate(scenario, option.strategy, option.nodes, option.recovery_factor, option.period_s, effort=effort)


def interval(lost: Floats, time: Floats, longest: float) -> tuple[float, float, float]:
    """The share of time lost over all lanes, and its 95 % interval: a ratio of means of independent lanes."""
    share = float(lost.sum() / time.sum())
    if share == 0:
        return 0.0, 0.0, min(1.0, NONE_SEEN * longest / float(time.sum()))
    deviation = float(np.std(lost - share * time, ddof=1))
    half = CONFIDENCE * deviation / math.sqrt(len(lost)) / float(time.mean())
    return share, max(0.0, share - half), min(1.0, share + half)


def _trace(scenario: Scenario, strategy: str, period: float | None, seed: int) -> Trace | None:
    if strategy not in ("periodic", "active-periodic", "on-demand"):
        return None
    moved = float(scenario.moved)
    if not math.isfinite(moved):
        raise Infeasible(f"{strategy} cannot be emulated: no checkpoint size was given")
    return run_query(moved, period if period else float(scenario.failure_interval), seed)


def check_parameters(scenario: Scenario, strategy: str, nodes: int, factor: float) -> None:
    """Invalid for parameters with which the strategy cannot run at all."""
    if strategy in REPLAYS and not np.isfinite(np.asarray(scenario.window, np.float64)).all():
        raise Infeasible(f"{strategy} cannot be emulated: no window was given")
    if strategy not in LOSES_OUTPUT and not factor > 1:
        raise Invalid(f"{strategy} catches up only with a recovery factor above 1, got {factor:g}")
    if nodes < (fewest := FEWEST.get(strategy, 1)):
        raise Invalid(f"{strategy} needs at least {fewest} copies, got {nodes}")


def _world(
    scenario: Scenario,
    strategy: str,
    nodes: int,
    factor: float,
    *,
    period: float | None,
    moved: Floats | None,
    phase: Floats,
) -> Emulated:
    window, lanes = float(np.asarray(scenario.window)), len(phase)
    match strategy:
        case "replay":
            return Replay(window, factor)
        case "replay-lossless":
            return ReplayLossless(lanes, window, factor)
        case "active-replay":
            return ActiveReplay(lanes, nodes, window, factor)
    assert moved is not None
    if strategy == "on-demand":
        return OnDemand(lanes, nodes, factor, moved)
    assert period is not None
    if strategy == "periodic":
        return Periodic(period, factor, moved, phase)
    return ActivePeriodic(nodes, period, factor, moved, phase)
