"""How good and how fast the recovery algorithms are, in the settings of the papers.

    .venv/bin/python benchmarks/recovery.py [--topologies 100] [--part query|fidelity|scale|bounded]

1. Query-centric (paper 004, figure 16): 18 queries, everything failed, capacity from 10 to 90 % of all cost. Recovered
   priority as a share of the optimum, which `exact` proves; mean and worst over 100 topologies a setting.
   Priorities are random from 1 to 10 unless they rise with the work.
2. Fidelity-centric (paper 000, figure 19): single queries of 5 to 10 operators, everything failed, capacity arriving in
   20 equal parts. Average fidelity; and in how many topologies incremental is not below topological. Each setting
   differs from the first (uniform workload, parallelism 1-10, structured, no joins) in what it names.
3. Scale: one plan at half of the capacity needed, for 1,000 failed query partitions over 10,000 tasks;
   wall time and, in brackets, CPU time.
4. What is lost by not trying every pair beyond 60 goals.

What profiling taught: for 18 queries the version that recomputes everything (kept in the tests) takes 237 ms, sums kept
by subtraction with all candidates growing side by side in arrays 7 ms. For 1,000 partitions about
half is that growth and most of the rest is finding out who needs what. In incremental with few operators, walking trees
and judging failure sets cost most; with 10,000 operators three quarters are the decomposition, which searches the list
of streams for every operator, and the rest are passes over the operators.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from holdfast.recovery import recover, schedule, validate_schedule
from holdfast.recovery.demand import demand
from holdfast.recovery.density import densest_goals, guarantee, upper_bound
from holdfast.topology import Topology
from holdfast.topology.queries import QueryMix, random_queries
from holdfast.topology.random import Knobs, random_topology

Result = TypeVar("Result")
CAPACITIES = (0.1, 0.3, 0.5, 0.7, 0.9)
ARRIVALS = 20

QUERY_SETTINGS = {
    "(a) sharing up to 3": QueryMix(sharing=3),
    "(a) sharing up to 6": QueryMix(sharing=6),
    "(b) Zipf sharing 0.2": QueryMix(sharing=6, skew=0.2),
    "(b) Zipf sharing 0.5": QueryMix(sharing=6, skew=0.5),
    "(c) rising priorities": QueryMix(sharing=3, priorities="rising"),
}

FIDELITY_SETTINGS = {
    "uniform, 1-10, structured": Knobs(costs="workload"),
    "(a) Zipf workload 0.1": Knobs(costs="workload", workload="zipf"),
    "(b) parallelism 1-5": Knobs(costs="workload", parallelism=(1, 5)),
    "(b) parallelism 10-20": Knobs(costs="workload", parallelism=(10, 20)),
    "(c) full": Knobs(costs="workload", full=1.0),
    "(d) 50 % joins": Knobs(costs="workload", joins=0.5),
    "(d) 50 % joins, full": Knobs(costs="workload", joins=0.5, full=1.0),
}


def query_centric(console: Console, count: int) -> None:
    table = Table(
        "setting",
        "capacity",
        "recovered, exact",
        "best-density / exact",
        "worst",
        "guarantee",
        "operator-centric / exact",
    )
    kept = []
    for name, mix in QUERY_SETTINGS.items():
        topologies = [random_queries(mix, seed) for seed in range(count)]
        for share in CAPACITIES:
            rows = [_ratios(topology, share) for topology in topologies]
            optimum, best, baseline, promised = (np.array(column) for column in zip(*rows, strict=True))
            kept.append(best.mean())
            if (best < promised - 1e-9).any():
                raise SystemExit(f"{name}: below the guarantee")
            table.add_row(
                name,
                f"{share:.0%}",
                f"{optimum.mean():.3f}",
                f"{best.mean():.4f}",
                f"{best.min():.3f}",
                f"{promised.min():.3f}",
                f"{baseline.mean():.3f}",
            )
    console.print(table)
    console.print(f"best-density / exact over all settings: mean {np.mean(kept):.4f}, lowest mean {np.min(kept):.4f}\n")


def _ratios(topology: Topology, share: float) -> tuple[float, float, float, float]:
    """Share of all priority that is optimal; of that, what best-density and operator-centric reach; the guarantee."""
    capacity = share * float(topology.costs.sum())
    optimum = recover(topology, "all", capacity, "exact")
    if optimum.optimal is not True:
        raise SystemExit("exact: not proven in time")
    total = sum(query.priority for query in topology.queries)
    ratios = [
        recover(topology, "all", capacity, name).priority / optimum.priority if optimum.priority else 1.0
        for name in ("best-density", "operator-centric")
    ]
    return optimum.priority / total, ratios[0], ratios[1], guarantee(demand(topology, topology.tasks))


def fidelity_centric(console: Console, count: int) -> None:
    table = Table("setting", "incremental", "topological", "ratio", "not below", "best-density", "time a schedule")
    for name, knobs in FIDELITY_SETTINGS.items():
        averages: dict[str, list[float]] = {"incremental": [], "topological": [], "best-density": []}
        spent = 0.0
        for seed in range(count):
            topology = random_topology(seed, knobs)
            arrivals = [float(topology.costs.sum()) / ARRIVALS] * ARRIVALS
            for algorithm, found in averages.items():
                result, took = _timed(
                    lambda a=algorithm, t=topology, r=arrivals: schedule(t, "all", arrivals=r, algorithm=a)
                )
                if faults := validate_schedule(topology, topology.tasks, arrivals, result):
                    raise SystemExit(f"{name}, seed {seed}, {algorithm}: {faults[0]}")
                found.append(result.average_fidelity)
                spent += took if algorithm == "incremental" else 0.0
        ours, theirs = np.array(averages["incremental"]), np.array(averages["topological"])
        table.add_row(
            name,
            f"{ours.mean():.4f}",
            f"{theirs.mean():.4f}",
            f"{ours.mean() / theirs.mean():.2f}",
            f"{(ours >= theirs - 1e-9).sum()} of {count}",
            f"{np.mean(averages['best-density']):.4f}",
            f"{1000 * spent / count:.0f} ms",
        )
    console.print(table)
    console.print()


def scale(console: Console) -> None:
    shapes = {
        "1,000 queries of 1 task": random_queries(QueryMix(queries=1000, size=(10, 27), sharing=3), 1),
        "100 queries x 10 tasks": random_queries(QueryMix(queries=100, size=(10, 27), sharing=3, parallelism=10), 1),
        "100 x 10, sharing up to 30": random_queries(
            QueryMix(queries=100, size=(50, 250), sharing=30, parallelism=10), 1
        ),
        "50 operators x 200 tasks": random_topology(
            1, Knobs(operators=(50, 50), parallelism=(200, 200), joins=0.3, full=0.3)
        ),
    }
    table = Table("shape", "tasks", "partitions", "best-density", "operator-centric", "topological", "incremental")
    for name, topology in shapes.items():
        capacity = 0.5 * float(topology.costs.sum())
        failed = frozenset(topology.tasks)
        times = []
        for algorithm in ("best-density", "operator-centric", "topological", "incremental"):
            before = time.process_time()
            _, took = _timed(lambda a=algorithm, t=topology, f=failed, c=capacity: recover(t, f, c, a))
            times.append(f"{took:.2f} s ({time.process_time() - before:.2f})")
        partitions = sum(topology.operator[query.sink].parallelism for query in topology.queries)
        table.add_row(name, str(len(topology.tasks)), str(partitions), *times)
    console.print(table)
    console.print()


def bounded(console: Console) -> None:
    table = Table("goals", "capacity", "bounded / all pairs", "bounded / upper bound", "bounded", "all pairs")
    for queries in (100, 150):
        for share in (0.2, 0.5, 0.8):
            ratios, bounds, few, many = [], [], 0.0, 0.0
            for seed in range(3):
                topology = random_queries(QueryMix(queries=queries, sharing=4), seed)
                wanted = demand(topology, topology.tasks)
                capacity = share * float(topology.costs.sum())
                goals, took = _timed(lambda w=wanted, c=capacity: densest_goals(w, c))
                every, longer = _timed(lambda w=wanted, c=capacity, q=queries: densest_goals(w, c, all_pairs=q))
                value = float(wanted.priorities[goals].sum())
                ratios.append(value / float(wanted.priorities[every].sum()))
                bounds.append(value / upper_bound(wanted, capacity))
                few, many = few + took / 3, many + longer / 3
            row = f"{np.mean(ratios):.4f}", f"{np.mean(bounds):.3f}", f"{1000 * few:.0f} ms", f"{1000 * many:.0f} ms"
            table.add_row(str(queries), f"{share:.0%}", *row)
    console.print(table)


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="How good and how fast the recovery algorithms are.")
    parser.add_argument("--topologies", type=int, default=100, help="topologies a setting")
    parser.add_argument(
        "--part", choices=["query", "fidelity", "scale", "bounded"], help="one of the four tables alone"
    )
    asked = parser.parse_args()
    console = Console(width=130)
    parts = {
        "query": lambda: query_centric(console, asked.topologies),
        "fidelity": lambda: fidelity_centric(console, asked.topologies),
        "scale": lambda: scale(console),
        "bounded": lambda: bounded(console),
    }
    for part in [asked.part] if asked.part else parts:
        parts[part]()


if __name__ == "__main__":
    main()
