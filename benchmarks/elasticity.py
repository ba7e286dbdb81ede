"""The scaling policy in a closed loop, in virtual time: the shape of paper 002's figures 6 to 10, without its cluster.

    .venv/bin/python benchmarks/elasticity.py rise                  # tasks and nodes follow the input rate (figure 6)
    .venv/bin/python benchmarks/elasticity.py latency               # its percentiles over time (figure 7)
    .venv/bin/python benchmarks/elasticity.py open                  # too small at first, rows are dropped (figure 8)
    .venv/bin/python benchmarks/elasticity.py sweep                 # thresholds from 10 to 90 % (figure 9)
    .venv/bin/python benchmarks/elasticity.py manual                # a fixed number of nodes, by hand (figure 10)
    .venv/bin/python benchmarks/elasticity.py pool                  # standby nodes: fixed numbers against the adaptive
    .venv/bin/python benchmarks/elasticity.py steady                # no oscillation under steady load
    .venv/bin/python benchmarks/elasticity.py rise --profile FILE   # the busiest day of counts a minute (period,count)

Every command takes ``--plot FILE`` (.html, .png, .svg). Rates rise from 15 to 1,700 rows/s an expressway. What a row
costs is set so that 350 expressways need 28 cores, which is the paper's 50 small nodes at 56 %; the numbers of nodes
are therefore comparable in kind, not measured on anything. What a change costs: restore 1.8 ms/MB (1,000,000 keys,
32 MB from 16 files in 57.5 ms) and cut 4.0 ms/MB (the first, whole checkpoint of them in 127.7 ms), as
benchmarks/state.py measured; starting a task (1 s), the switch (1 s) and a node (90 s) are assumed. All are options.

What profiling taught: of a run of 2,000 s, which takes 1 to 2 s, a third is the flow of rows through tasks, a third the
sampled rows that are followed for their latency, and taking in reports and deciding about an eighth.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np

from holdfast.elasticity import CannotScale, Policy, PoolPolicy, ScaleIn, ScaleOut
from holdfast.elasticity.fluid import Costs, Setting, Stage, Trace, run
from holdfast.errors import Invalid
from holdfast.report.chart import Chart, Series, check_plot_path, write_charts

FIRST, LAST = 15.0, 1700.0
ROAD = (
    # name, microseconds a row, rows for each row of the stage before, MB of state at 350 expressways
    ("forwarder", 10.0, 1.0, 0.0),
    ("toll calculator", 28.0, 1.0, 140.0),
    ("toll assessment", 6.0, 0.9, 280.0),
    ("balance account", 20.0, 0.05, 280.0),
    ("collector", 2.0, 1.0, 0.0),
)


def keyed(count: int, skew: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2**32, count).astype(np.uint32), 1.0 / np.arange(1, count + 1) ** skew


def road(options: argparse.Namespace) -> list[Stage]:
    stages = []
    for number, (name, cpu, fan, state) in enumerate(ROAD):
        hashes, weights = keyed(options.keys, options.skew, options.seed + number)
        cost = options.cost.get(name, cpu) * 1e-6
        stages.append(Stage(name, cost, fan, state * 1e6 * options.expressways / 350, hashes, weights))
    return stages


def rising(options: argparse.Namespace) -> Callable[[float], float]:
    return lambda at: options.expressways * (FIRST + (LAST - FIRST) * min(1.0, at / options.seconds))


def read_profile(path: Path, peak: float) -> tuple[Callable[[float], float], float, str]:
    """The busiest day of a file of counts a minute, scaled to this peak: its rate, its seconds, its date."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            rows = [(datetime.fromisoformat(row["period"]), float(row["count"])) for row in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise Invalid(f"--profile {path}: needs columns period and count, a line a minute; {error!r:.100}") from None
    if not rows:
        raise Invalid(f"--profile {path}: needs a line a minute, found none")
    days: dict[str, float] = {}
    for at, count in rows:
        days[str(at.date())] = days.get(str(at.date()), 0.0) + count
    busiest = max(days, key=days.__getitem__)
    chosen = [(at.hour * 3600 + at.minute * 60, count) for at, count in rows if str(at.date()) == busiest]
    times, counts = (np.array(column, float) for column in zip(*chosen, strict=True))
    rates = counts * peak / counts.max()
    return (lambda at: float(np.interp(at, times, rates))), float(times[-1]) + 60.0, busiest


def setting_of(options: argparse.Namespace) -> Setting:
    rate, seconds, tick = rising(options), options.seconds + options.hold, 0.25
    if options.profile:
        peak = options.peak or LAST * options.expressways
        rate, seconds, day = read_profile(options.profile, peak)
        tick = 1.0
        print(f"profile: {day}, scaled to a peak of {peak:,.0f} rows/s")
    most = max(options.standby, options.most_standby)
    return Setting(
        road(options),
        rate,
        seconds,
        Policy(threshold=options.threshold),
        PoolPolicy(options.provisioning, options.standby, most),
        options.provisioning,
        Costs(options.start, options.cut, options.restore, options.switch),
        burst=options.burst,
        tick=tick,
        seed=options.seed,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    cells = [list(head), *[[f"{c:.3g}" if isinstance(c, float) else f"{c}" for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def shown(*seconds: float) -> list[str]:
    return [f"{one:.3f}" for one in seconds]


def spans(trace: Trace, count: int = 12) -> list[tuple[float, float]]:
    edges = np.linspace(0, trace.time[-1], count + 1)
    return list(pairwise(edges))


def totals(trace: Trace) -> str:
    kinds = [type(made.decision) for made in trace.decisions]
    p50, p95, p99, worst = trace.percentile(50, 95, 99, 100)
    waits = [granted for _, granted, _ in trace.changes]
    return (
        f"latency p50 {p50:.3f} s, p95 {p95:.3f} s, p99 {p99:.3f} s, most {worst:.1f} s; "
        f"{kinds.count(ScaleOut)} tasks split, {kinds.count(ScaleIn)} pairs merged in {len(trace.changes)} changes, "
        f"{kinds.count(CannotScale)} given up; {sum(1 for w in waits if w > 0)} changes waited for nodes, "
        f"at most {max(waits, default=0):.0f} s; {trace.nodes.min()} to {trace.nodes.max()} nodes in use"
    )


def rise(options: argparse.Namespace) -> list[Chart]:
    setting = setting_of(options)
    trace = run(setting)
    rows = []
    for since, until in spans(trace):
        last = int(np.searchsorted(trace.time, until)) - 1
        inside = (trace.time > since) & (trace.time <= until)
        ideal = trace.rate[inside].mean() * sum(work(setting.stages))
        rows.append(
            (
                f"{until:.0f}",
                f"{trace.rate[inside].mean():,.0f}",
                f"{trace.done[inside].mean():,.0f}",
                " ".join(map(str, trace.tasks[last])),
                int(trace.nodes[last]),
                int(trace.standby[last]),
                f"{ideal:.1f}",
            )
        )
    table(("until s", "rows/s in", "rows/s done", "tasks of each", "nodes", "standby", "cores of work"), rows)
    print("stages: " + ", ".join(stage.name for stage in setting.stages))
    print(totals(trace))
    if options.hold and not options.profile:
        rest = options.seconds + options.hold / 3
        print(f"steady at the peak: {trace.actions(rest)} actions in the last {trace.time[-1] - rest:.0f} s")
    x = list(trace.time[::10])
    thousands = [float(r) / 1000 for r in trace.rate[::10]]
    done = [float(r) / 1000 for r in trace.done[::10]]
    counts = [Series(stage.name, x, list(map(float, trace.tasks[::10, i]))) for i, stage in enumerate(setting.stages)]
    nodes = Series("nodes in use", x, list(map(float, trace.nodes[::10])))
    standby = Series("standing by or on their way", x, list(map(float, trace.standby[::10])), dashed=True)
    return [
        Chart("Input rate and throughput", "s", "1,000 rows/s", [Series("in", x, thousands), Series("done", x, done)]),
        Chart("Nodes", "s", "nodes", [nodes, standby]),
        Chart("Tasks of each operator", "s", "tasks", counts),
    ]


def work(stages: Sequence[Stage]) -> list[float]:
    """CPU seconds at each stage for each row of input."""
    fans = np.cumprod([stage.fan for stage in stages])
    return [float(stage.cpu * fan) for stage, fan in zip(stages, fans, strict=True)]


def latency(options: argparse.Namespace) -> list[Chart]:
    trace = run(setting_of(options))
    steps = spans(trace, 100)
    curves = np.array([trace.percentile(50, 95, 99, since=a, until=b) for a, b in steps])
    rows = []
    for since, until in spans(trace):
        values = trace.percentile(50, 95, 99, 100, since=since, until=until)
        changes = sum(1 for at, _, took in trace.changes if since < at + took <= until)
        rows.append((f"{until:.0f}", *(f"{value:.3f}" for value in values), changes))
    table(("until s", "p50 s", "p95 s", "p99 s", "most s", "changes"), rows)
    print(totals(trace))
    x = [b for _, b in steps]
    names = ("median", "95th percentile", "99th percentile")
    series = [Series(name, x, list(curves[:, i])) for i, name in enumerate(names)]
    return [Chart("Latency of answers", "s", "s", series, log_y=True)]


def open_loop(options: argparse.Namespace) -> list[Chart]:
    hashes, weights = keyed(options.keys, options.skew, options.seed)
    stages = [Stage("map", 10e-6, 1.0, 0.0), Stage("reduce", 12e-6, 1.0, 50e6, hashes, weights)]
    setting = replace(setting_of(options), stages=stages, rate=lambda _: 550_000.0, seconds=600.0, buffer=2.0)
    trace = run(setting)
    rows = []
    for since, until in spans(trace):
        inside = (trace.time > since) & (trace.time <= until)
        lost = trace.dropped[inside].sum() / trace.rate[inside].sum()
        last = int(np.flatnonzero(inside)[-1])
        counts = " ".join(map(str, trace.tasks[last]))
        rows.append(
            (f"{until:.0f}", f"{trace.done[inside].mean():,.0f}", f"{lost:.1%}", counts, int(trace.nodes[last]))
        )
    table(("until s", "rows/s done", "dropped", "map, reduce", "nodes"), rows)
    print(f"550,000 rows/s from the start on one task each, queues of at most 2 s; {totals(trace)}")
    x = list(trace.time)
    return [
        Chart("Throughput, too small at the start", "s", "1,000 rows/s", [Series("done", x, list(trace.done / 1000))]),
        Chart("Nodes", "s", "nodes", [Series("nodes in use", x, list(map(float, trace.nodes)))]),
    ]


def sweep(options: argparse.Namespace) -> list[Chart]:
    rows, points = [], []
    for percent in range(10, 100, 10):
        options.threshold = percent / 100
        setting = setting_of(options)
        trace = run(setting)
        high = trace.percentile(50, 95, 99, 99.9)
        hours = trace.nodes.sum() / 3600
        points.append((percent, float(trace.nodes[-1]), *high))
        rows.append(
            (f"{percent} %", int(trace.nodes[-1]), f"{hours:.1f}", *shown(*high), len(trace.changes)),
        )
    table(("threshold", "nodes at the end", "node hours", "p50 s", "p95 s", "p99 s", "p99.9 s", "changes"), rows)
    x = [float(point[0]) for point in points]
    names = ("median", "95th percentile", "99th percentile", "99.9th percentile")
    return [
        Chart("Nodes at the end", "threshold, %", "nodes", [Series("nodes", x, [p[1] for p in points])]),
        Chart(
            "Latency over the whole run",
            "threshold, %",
            "s",
            [Series(name, x, [p[2 + i] for p in points]) for i, name in enumerate(names)],
            log_y=True,
        ),
    ]


def by_hand(stages: Sequence[Stage], nodes: int) -> list[int]:
    """What an expert who knows all costs makes of so many nodes: the busiest stage gets the next one."""
    counts = [1] * len(stages)
    each = work(stages)
    for _ in range(nodes - len(stages)):
        counts[max(range(len(stages)), key=lambda i: each[i] / counts[i])] += 1
    return counts


def manual(options: argparse.Namespace) -> list[Chart]:
    setting = setting_of(options)
    dynamic = run(setting)
    cores = LAST * options.expressways * sum(work(setting.stages))
    least = max(len(setting.stages), int(cores))
    rows, points = [], []
    for nodes in range(least, max(least + 2, int(dynamic.nodes[-1]) + 3)):
        counts = by_hand(setting.stages, nodes)
        trace = run(replace(setting, policy=None, parallelism=counts))
        p50, p95 = trace.percentile(50, 95)
        points.append((nodes, p50, p95))
        rows.append((nodes, " ".join(map(str, counts)), f"{p50:.3f}", f"{p95:.3f}"))
    table(("nodes by hand", "tasks of each", "p50 s", "p95 s"), rows)
    p50, p95 = dynamic.percentile(50, 95)
    mean, final = dynamic.nodes.mean(), int(dynamic.nodes[-1])
    good = min((nodes for nodes, _, high in points if high <= 1.1 * min(p[2] for p in points)), default=0)
    print(f"the fewest nodes by hand within 10 % of the best p95: {good}, all the time")
    more = f"{final / good - 1:+.0%}"
    print(f"dynamic: {final} at the end ({more}), {mean:.1f} on average, p50 {p50:.3f} s, p95 {p95:.3f} s")
    x = [float(point[0]) for point in points]
    flat = [
        Series(f"dynamic, {word}", x, [value] * len(x), dashed=True) for word, value in (("p50", p50), ("p95", p95))
    ]
    lines = [Series(f"by hand, {word}", x, [p[i] for p in points]) for i, word in ((1, "p50"), (2, "p95"))]
    return [Chart("By hand and dynamic", "nodes", "s", [*lines, *flat], marks=[(final, "dynamic")], log_y=True)]


def pool(options: argparse.Namespace) -> list[Chart]:
    setting = setting_of(options)
    rows, points = [], []
    kinds = [(f"fixed, {n}", PoolPolicy(options.provisioning, n, n)) for n in (0, 1, 2, 4, 8, 16)]
    kinds.append((f"adaptive, {options.standby} to {options.most_standby}", setting.pool))
    for name, policy in kinds:
        trace = run(replace(setting, pool=policy))
        waits = [granted for _, granted, _ in trace.changes]
        p50, p95, p99 = trace.percentile(50, 95, 99, until=trace.time[-1] if options.profile else options.seconds)
        idle = trace.standby.sum() / 3600
        points.append((name, idle, p99))
        waited = (sum(1 for w in waits if w > 0), f"{np.mean(waits):.0f}", f"{max(waits):.0f}")
        rows.append((name, len(waits), *waited, *shown(p50, p95, p99), f"{idle:.2f}", f"{trace.standby[-1]}"))
    waited_head = ("changes", "that waited", "mean wait s", "most s")
    table(("standby", *waited_head, "p50 s", "p95 s", "p99 s", "standby hours", "standby at the end"), rows)
    print(
        f"standby hours include nodes on their way; a node takes {options.provisioning:.0f} s; latency is of the rise"
    )
    fixed = Series("fixed", [p[1] for p in points[:-1]], [p[2] for p in points[:-1]])
    return [
        Chart(
            "Latency against what standing by costs",
            "node hours standing by or on their way",
            "99th percentile, s",
            [fixed, Series("adaptive", [points[-1][1]], [points[-1][2]])],
        )
    ]


def steady(options: argparse.Namespace) -> list[Chart]:
    """Steady loads of many sizes and skews, from too few tasks and from too many: is anything ever undone?"""
    rows = []
    rng = np.random.default_rng(options.seed)
    for burst in (0.0, options.burst):
        for skew in (0.0, 1.2):
            for parallelism in (1, 12):
                counts = {ScaleOut: 0, ScaleIn: 0, CannotScale: 0}
                late, undone, last = 0, 0, 0.0
                for _ in range(options.runs):
                    hashes, weights = keyed(500, skew, int(rng.integers(2**31)))
                    stage = Stage("O", 10e-6, 1.0, 1e7, hashes, weights)
                    level = float(rng.uniform(0.05, 6.0)) / stage.cpu
                    policy, seed = Policy(threshold=options.threshold), int(rng.integers(2**31))
                    # Short queues: what waits would be load of its own, and the load is to be steady.
                    trace = run(
                        Setting(
                            [stage],
                            lambda _, level=level: level,
                            1800.0,
                            policy,
                            parallelism=[parallelism],
                            burst=burst,
                            buffer=1.0,
                            seed=seed,
                        )
                    )
                    for made in trace.decisions:
                        counts[type(made.decision)] += 1
                    late += trace.actions(900.0)
                    undone += trace.undone()
                    last = max([last, *(m.at for m in trace.decisions if not isinstance(m.decision, CannotScale))])
                rows.append((f"{burst:.0%}", skew, parallelism, *counts.values(), undone, f"{last:.0f}", late))
    head = ("off by", "skew", "tasks at first", "split", "merged", "given up", "undone")
    table((*head, "last action s", "in the second half"), rows)
    print(f"{options.runs} runs of 1,800 s a line, 0.05 to 6 cores of work, queues of at most 1 s")
    return []


COMMANDS: dict[str, tuple[Callable[[argparse.Namespace], list[Chart]], float, float]] = {
    # command, expressways, seconds at the peak
    "rise": (rise, 350, 600),
    "latency": (latency, 350, 0),
    "open": (open_loop, 350, 0),
    "sweep": (sweep, 64, 300),
    "manual": (manual, 115, 300),
    "pool": (pool, 350, 5400),
    "steady": (steady, 1, 0),
}


def costs_of(text: str) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        name, _, micros = part.partition("=")
        if name not in [stage[0] for stage in ROAD] or not micros.replace(".", "", 1).isdigit() or float(micros) <= 0:
            raise argparse.ArgumentTypeError(f"NAME=MICROSECONDS of {', '.join(s[0] for s in ROAD)}; got {part!r}")
        found[name] = float(micros)
    return found


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--plot", type=Path, help="write the picture there: .html, .png or .svg")
    parser.add_argument(
        "--expressways", type=float, help="350 for rise, latency and pool, 64 for sweep, 115 for manual"
    )
    parser.add_argument("--seconds", type=float, default=2000.0, help="how long the rise takes")
    parser.add_argument(
        "--hold", type=float, help="seconds at the peak after it (rise 600, sweep and manual 300, pool 5400)"
    )
    parser.add_argument("--profile", type=Path, help="counts a minute (CSV, may be .gz): its busiest day is played")
    parser.add_argument("--peak", type=float, help="rows/s at the peak of the profile")
    parser.add_argument("--threshold", type=float, default=0.7)
    parser.add_argument(
        "--cost", type=costs_of, default={}, help='microseconds a row: "toll calculator=40,forwarder=8"'
    )
    parser.add_argument("--keys", type=int, default=20_000, help="keys of each operator")
    parser.add_argument("--skew", type=float, default=0.0, help="exponent of their Zipf distribution")
    parser.add_argument("--burst", type=float, default=0.15, help="spread of the rate around its profile")
    parser.add_argument("--start", type=float, default=1.0, help="seconds to start a task on a node that is there")
    parser.add_argument(
        "--cut", type=float, default=0.0040, help="seconds a MB to cut a checkpoint and store the parts"
    )
    parser.add_argument("--restore", type=float, default=0.0018, help="seconds a MB to restore")
    parser.add_argument("--switch", type=float, default=1.0, help="seconds that rows wait at the switch")
    parser.add_argument("--provisioning", type=float, default=90.0, help="seconds that a new node takes")
    parser.add_argument("--standby", type=int, default=2, help="least nodes that stand by")
    parser.add_argument("--most-standby", type=int, default=16)
    parser.add_argument("--runs", type=int, default=30, help="of steady, for each line")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    _, expressways, hold = COMMANDS[options.command]
    options.expressways = expressways if options.expressways is None else options.expressways
    options.hold = hold if options.hold is None else options.hold
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    try:
        if options.plot:
            check_plot_path(options.plot)
        began = time.perf_counter()
        charts = COMMANDS[options.command][0](options)
        if options.plot and charts:
            write_charts(charts, options.plot)
        print(f"took {time.perf_counter() - began:.1f} s")
    except Invalid as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
