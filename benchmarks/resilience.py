"""How many scenarios the cost models solve a second, and how close the emulator comes to what they promise.

    .venv/bin/python benchmarks/resilience.py [models] [emulator] [--failures N]

``models``: random scenarios (0.3 to 6 nines; window and checkpoint from 0.001 to 1000 days; F = 30 days), solved as
arrays and, beside it, one by one with the plain bisection and quadrature that the tests keep as the reference. Targets:
1,000,000 a second for closed forms, 5,000 a second for the solved ones. What profiling taught: the general power of
(1 - e^-t)^k took most of a solve, so it is done by squaring; the brackets that convexity gives are so narrow that
Newton's method needs four or five steps; and periodic checkpoints of one node need no solver, being a quadratic.

``emulator``: the paper's range, F = 100, 2 to 5 nines, S from 1.4 to 611, W from 0.01 to 100, 2 to 5 copies. Uptime
against its target, and downtime over the downtime allowed, which is what tells five nines from four.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from holdfast.resilience import (
    STRATEGIES,
    Limits,
    Prices,
    Scenario,
    Solution,
    active_periodic,
    active_replay,
    advise_scenario,
    on_demand,
    solve,
)
from holdfast.resilience.emulator import Effort, emulate

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "resilience"))
import naive_costs as naive

DAY = 86400.0
F = 30 * DAY
CLOSED = ("replay", "replay-lossless")


def scenarios(count: int, seed: int = 0) -> Scenario:
    rng = np.random.default_rng(seed)
    return Scenario(
        sla=1.0 - 10.0 ** -rng.uniform(0.3, 6.0, count),
        mtbf=np.full(count, F),
        window=DAY * 10.0 ** rng.uniform(-3, 3, count),
        checkpoint=DAY * 10.0 ** rng.uniform(-3, 3, count),
    )


def best_of(work: Callable[[], object], times: int = 3) -> float:
    """Seconds of the fastest of some runs: the machine is shared."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return min(took)


def one_by_one(name: str, sla: float, w: float, s: float) -> float:
    """The reference's reservation for one scenario: two copies, three on demand (where the SLA alone decides)."""
    budget = (1.0 - sla) * F
    match name:
        case "replay":
            return w / budget
        case "replay-lossless":
            return (w + budget) / budget
        case "periodic":
            best = naive.least(lambda c: naive.periodic_cost(s, c, F, 3, sla), math.sqrt(s * F), 3 * math.sqrt(s * F))
            return 1 / naive.root(lambda u: naive.periodic_downtime(u, s, best, F), budget)
        case "active-replay":
            return 1 / naive.root(lambda u: naive.charged(w * u, F, 1), budget / 2)
        case "active-periodic":
            c = math.sqrt(4 * s * F / 2)
            return 1 / naive.root(lambda u: naive.active_periodic_downtime(u, s, c, F, 1), budget / 2)
        case _:
            return 1 / naive.root(lambda u: naive.charged(naive.on_demand_recovery(u, s), F, 1), budget / 3)


def least_copies(name: str, given: Scenario) -> Solution:
    match name:
        case "active-replay":
            return active_replay.of_copies(given, Prices(), Limits(), 2)
        case "active-periodic":
            return active_periodic.of_copies(given, Prices(), Limits(), 2)
        case "on-demand":
            return on_demand.of_copies(given, Prices(), Limits(), 3)
        case _:
            return solve(given, name)


def speed(name: str) -> str:
    count = 1_000_000 if name in CLOSED else 20_000
    many = scenarios(count)
    fewest = count / best_of(lambda: least_copies(name, many))
    free = count / best_of(lambda: solve(many, name))
    below = count / best_of(lambda: solve(many, name, limits=Limits(max_recovery_factor=3.0)))
    # Durability that binds nobody: the reference looks at the uptime alone.
    some = replace(scenarios(2 if name == "active-periodic" else 10), horizon=1e-6)
    rows = [tuple(map(float, row)) for row in zip(some.sla, some.window, some.checkpoint, strict=True)]
    start = time.perf_counter()
    plain = [one_by_one(name, *row) for row in rows]
    slow = len(rows) / (time.perf_counter() - start)
    np.testing.assert_allclose(least_copies(name, some).recovery_factor, plain, rtol=1e-4)
    target = 1_000_000 if name in CLOSED else 5_000
    return f"{name:<16} {fewest:>13,.0f}/s {free:>13,.0f}/s {below:>10,.0f}/s {slow:>11,.1f}/s {target:>9,}/s"


def models() -> None:
    print(
        f"{'strategy':<16} {'fewest copies':>15} {'best of 2..10':>15} {'ceiling 3':>12} {'plain':>13} {'target':>11}"
    )
    for name in STRATEGIES:
        print(speed(name), flush=True)
    single = Scenario(0.9999, F, DAY, DAY)
    took = best_of(lambda: [advise_scenario(single) for _ in range(100)]) / 100
    print(f"advice for a single scenario, all strategies: {took * 1e3:.2f} ms")


def runs() -> Iterator[tuple[str, Scenario, int, float, float | None]]:
    """Every strategy over the paper's range, with the parameters that its model chooses."""
    for nines in (2, 3, 4, 5):
        sla = 1.0 - 10.0**-nines
        for w in (0.01, 1.0, 100.0):
            given = Scenario(sla, 100.0, window=w)
            for name in CLOSED:
                yield name, given, 1, float(solve(given, name).recovery_factor), None
            for n in (2, 3, 4, 5):
                replay = active_replay.of_copies(given, Prices(), Limits(), n)
                yield "active-replay", given, n, float(replay.recovery_factor), None
        for s in (1.4, 29.0, 611.3):
            given = Scenario(sla, 100.0, checkpoint=s, horizon=3650.0)
            one = solve(given, "periodic")
            yield "periodic", given, 1, float(one.recovery_factor), float(one.period)
            for n in (2, 3, 4, 5):
                stored = active_periodic.of_copies(given, Prices(), Limits(), n)
                yield "active-periodic", given, n, float(stored.recovery_factor), float(stored.period)
            for n in (3, 5, 10):
                sent = on_demand.of_copies(given, Prices(), Limits(), n)
                yield "on-demand", given, n, float(sent.recovery_factor), None


def emulator(failures: int) -> None:
    print(
        f"{'strategy':<16} {'N':>2} {'W or S':>7} {'R':>10} {'target':>8} {'achieved':>10} {'off by':>9} "
        f"{'downtime/allowed':>17} {'/model':>7} {'failures':>9} {'lost':>4} {'s':>5}"
    )
    worst: dict[str, list[float]] = {}
    for name, given, nodes, factor, period in runs():
        start = time.perf_counter()
        found = emulate(given, name, nodes, factor, period, effort=Effort(0.02, failures, seed=1))
        took = time.perf_counter() - start
        moved = float(np.asarray(given.window if "replay" in name else given.checkpoint))
        model = f"{found.model_ratio:.3f}" if found.model_ratio is not None else "-"
        half = (found.ratio_high - found.ratio_low) / 2
        print(
            f"{name:<16} {nodes:>2} {moved:>7g} {factor:>10.4g} {found.target:>8.6g} {found.uptime:>10.7f} "
            f"{found.error:>+8.4%} {found.downtime_ratio:>8.3f} +- {half:<5.3f} {model:>7} "
            f"{found.failures / 1e6:>8.1f}M {found.losses:>4} {took:>5.1f}",
            flush=True,
        )
        worst.setdefault(name, []).append(found.error)
    for name, errors in worst.items():
        short, over = min(errors), max(errors)
        print(f"{name:<16} uptime off its target from {short:+.4%} to {over:+.4%} over {len(errors)} runs")


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("what", nargs="*", choices=["models", "emulator", []], default=["models", "emulator"])
    reader.add_argument("--failures", type=int, default=20_000_000, help="failures of one emulation at most")
    chosen = reader.parse_args()
    if "models" in chosen.what:
        models()
    if "emulator" in chosen.what:
        emulator(chosen.failures)


if __name__ == "__main__":
    main()
