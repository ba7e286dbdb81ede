"""How good and how fast are the replication planners? Random topologies with the settings of paper 000, figures 16-18.

Run: .venv/bin/python benchmarks/replication.py [quality|time] [--topologies 100] [--time-limit 3]

quality  fidelity of structure-aware, of the algorithm as the paper prints it (structure_aware_printed.py) and of greedy
         as a share of exact's, averaged over random topologies; the budget of topology i, whose seed is i, is 20, 40,
         60 or 80 % of the tasks in turn. Only topologies whose optimum was proven within the time limit and is above 0
         are averaged; the table says how many those are, and in how many the printed algorithm is below greedy.
         Parallelism is kept so small that exact can prove most of them (the paper does not print its ranges).
time     structure-aware and greedy at 50 operators of parallelism 10-20 and at 10,000 tasks, budget 80 % and 50 %;
         wall-clock and CPU seconds, the median of three runs.

What profiling taught: evaluating a plan operator by operator spent its time in small numpy calls, so tasks are compiled
into a few sparse products by depth (holdfast.fidelity.flow), and one sweep back gives the worth of every task where
one evaluation a task was needed before. Above 150 tasks the ladder has 48 rungs, not one for every number of tasks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from holdfast.replication import plan, validate_plan
from holdfast.replication.exact import exact
from holdfast.topology import Knobs, Topology, random_topology
from structure_aware_printed import printed

BUDGETS = (0.2, 0.4, 0.6, 0.8)
MANY = {"operators": (10, 20), "queries": (2, 10), "parallelism": (1, 4)}
SETTINGS: dict[str, Knobs] = {
    "16a workload uniform": Knobs(parallelism=(1, 8)),
    "16a workload Zipf 0.1": Knobs(parallelism=(1, 8), workload="zipf"),
    "16b parallelism 1-5": Knobs(parallelism=(1, 5)),
    "16b parallelism 5-10": Knobs(parallelism=(5, 10)),
    "16c structured": Knobs(parallelism=(1, 6)),
    "16c full": Knobs(parallelism=(1, 6), full=1.0),
    "16d joins 0 %": Knobs(parallelism=(1, 6), full=0.3),
    "16d joins 50 %": Knobs(parallelism=(1, 6), full=0.3, joins=0.5),
    "17 priority rising": Knobs(**MANY, priorities="rising"),
    "17 priority uniform": Knobs(**MANY),
    "17 priority falling": Knobs(**MANY, priorities="falling"),
}
TIMED: dict[str, tuple[Knobs, float]] = {
    "50 operators x 10-20, structured": (Knobs((50, 50), (10, 20)), 0.8),
    "50 operators x 10-20, 30 % full, 50 % joins": (Knobs((50, 50), (10, 20), joins=0.5, full=0.3), 0.8),
    "50 operators x 10-20, full": (Knobs((50, 50), (10, 20), full=1.0), 0.8),
    "10,000 tasks, 300 operators": (Knobs((300, 300), (20, 47), joins=0.3, full=0.2), 0.5),
    "10,000 tasks, 100 operators": (Knobs((100, 100), (100, 100), joins=0.3, full=0.2), 0.5),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    aware: float
    printed: float
    greedy: float
    proven: bool


def outcome(topology: Topology, budget: float, time_limit: float) -> Outcome | None:
    """Shares of exact's objective; None where nothing can be had for this budget."""
    best = exact(topology, budget, time_limit=time_limit)
    if best.objective <= 0:
        return None
    plans = plan(topology, budget), printed(topology, budget), plan(topology, budget, "greedy")
    for each in plans:
        validate_plan(topology, each)
    return Outcome(*(each.objective / best.objective for each in plans), bool(best.optimal))


def quality(console: Console, topologies: int, time_limit: float) -> None:
    table = Table(title=f"Share of exact's fidelity, {topologies} random topologies a setting", title_justify="left")
    shown = ("setting", "structure-aware", "worst", "printed", "worst", "printed < greedy", "greedy")
    for column in (*shown, "proven", "not proven", "optimum 0"):
        table.add_column(column, justify="left" if column == "setting" else "right")
    for name, knobs in SETTINGS.items():
        found = []
        for seed in range(topologies):
            topology = random_topology(seed, knobs)
            budget = max(1.0, round(BUDGETS[seed % len(BUDGETS)] * len(topology.tasks)))
            found.append(outcome(topology, budget, time_limit))
        proven = [one for one in found if one is not None and one.proven]
        row = (
            name,
            f"{statistics.mean(one.aware for one in proven):.4f}",
            f"{min(one.aware for one in proven):.4f}",
            f"{statistics.mean(one.printed for one in proven):.4f}",
            f"{min(one.printed for one in proven):.4f}",
            str(sum(one.printed < one.greedy - 1e-9 for one in proven)),
            f"{statistics.mean(one.greedy for one in proven):.4f}",
            str(len(proven)),
            str(sum(one is not None and not one.proven for one in found)),
            str(found.count(None)),
        )
        table.add_row(*row)
        console.log(*row)
    console.print(table)


def timing(console: Console) -> None:
    table = Table(title="Planning time in seconds, median of three", title_justify="left")
    for column in ("topology", "tasks", "budget", "planner", "wall", "CPU", "fidelity"):
        table.add_column(column, justify="left" if column in ("topology", "planner") else "right")
    for name, (knobs, share) in TIMED.items():
        topology = random_topology(1, knobs)
        budget = round(share * len(topology.tasks))
        for algorithm in ("structure-aware", "greedy"):
            walls, cpus, fidelity = [], [], 0.0
            for _ in range(3):
                wall, cpu = time.perf_counter(), time.process_time()
                fidelity = plan(topology, budget, algorithm).fidelity
                walls.append(time.perf_counter() - wall)
                cpus.append(time.process_time() - cpu)
            times = (f"{statistics.median(walls):.3f}", f"{statistics.median(cpus):.3f}")
            table.add_row(name, str(len(topology.tasks)), str(budget), algorithm, *times, f"{fidelity:.4f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", nargs="?", choices=("quality", "time"), help="both if not given")
    parser.add_argument("--topologies", type=int, default=100)
    parser.add_argument("--time-limit", type=float, default=3.0, help="seconds that exact may take for one topology")
    arguments = parser.parse_args()
    console = Console(width=150)
    if arguments.which != "time":
        quality(console, arguments.topologies, arguments.time_limit)
    if arguments.which != "quality":
        timing(console)


if __name__ == "__main__":
    main()
