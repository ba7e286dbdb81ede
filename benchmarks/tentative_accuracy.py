"""How right tentative answers are, against the fidelity that was predicted (paper 000, figures 14 and 15).

    .venv/bin/python benchmarks/tentative_accuracy.py [--workload top-k] [--budget 10 --budget 13] [--plot out.html]
    .venv/bin/python benchmarks/tentative_accuracy.py --seed 7 --seed 8 --seed 9            # means over three inputs

Every line is a real run on Spark (local[2], logical nodes). One run is undisturbed. In the others every task has a node
of its own, replicas too, and all nodes of primaries are killed at once, so that just the tasks with a replica are left:
what a plan assumes. Later the nodes come back, and the final output must be that of the undisturbed run.

Columns: OF and IC are what fidelity and internal completeness predict for the plan, from rates measured over the whole
input; stamped is the fidelity that the runtime wrote beside its tentative rows, from rates of the last epoch before the
failure. Accuracy is the share of the exact answer that the tentative one found, over windows that lie wholly after the
failure: of the pages in the top 50, or of the jams. Second: for top-k, visits counted against all visits of the pages
found (how complete the input was); for traffic incidents, F1 (false jams count against it).

Plans: `structure-aware`, `exact` and `greedy` maximise OF; `ic` has the largest IC there is, by brute force. That is
not the paper's arm, its structure-aware planner with IC as the objective. Plans that turn out the same share a run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.fidelity import output_fidelity, query_completeness
from holdfast.operators import Pipeline
from holdfast.replication import plan
from holdfast.report.chart import Chart, Series, check_plot_path, write_charts
from holdfast.runtime.faults import Fault, When
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.worker.blocks import Block, once
from holdfast.runtime.worker.processing import outgoing, process, process_source
from holdfast.topology import Task, Topology
from holdfast.workloads import Options, Workload, workload
from holdfast.workloads.traffic_incidents import traffic

PLANS = ("structure-aware", "exact", "greedy", "ic")
Answer = tuple[float, float]


@dataclass(frozen=True)
class Trial:
    """A workload with windows short enough for short runs. ``fail``: the epoch of the failure."""

    workload: Workload
    pipeline: Pipeline
    options: Options
    fail: int
    first: int
    budgets: tuple[int, ...]
    compare: Callable[[pa.Table, pa.Table], Answer]
    second: str


def same_pages(tentative: pa.Table, exact: pa.Table) -> Answer:
    """Of every window: the share of its top pages that were found; and visits counted, of those found."""
    told = {(row["end"], row["page"]): row["visits"] for row in tentative.to_pylist()}
    true = {(row["end"], row["page"]): row["visits"] for row in exact.to_pylist()}
    both = told.keys() & true.keys()
    counted = sum(told[each] for each in both) / max(1, sum(true[each] for each in both))
    return len(both) / len(true), counted


def same_jams(tentative: pa.Table, exact: pa.Table) -> Answer:
    """The share of the jams of every window that were found; and F1."""
    told, true = (
        {(row["end"], row["segment"], row["incident"]) for row in table.to_pylist()} for table in (tentative, exact)
    )
    right = len(told & true)
    return right / len(true), 2 * right / (len(told) + len(true))


def trials(rate: int, seed: int) -> dict[str, Trial]:
    pages, busy = workload("top-k"), traffic(interval=0.2)
    return {
        "top-k": Trial(
            pages,
            pages.pipeline(parallelism=12, keep=50, size="3 seconds", every="1 second"),
            Options(rate=rate, epochs=10, seed=seed, partitions=12),
            fail=3, first=6, budgets=(2, 3, 4, 6), compare=same_pages, second="counted",
        ),
        "traffic-incidents": Trial(
            busy,
            busy.pipeline(parallelism=4, window="2 seconds", every="2 seconds"),
            Options(rate=rate, epochs=12, seed=seed, partitions=4),
            fail=4, first=6, budgets=(6, 8, 10, 13, 16), compare=same_jams, second="F1",
        ),
    }  # fmt: skip


def measured(trial: Trial) -> Topology:
    """The pipeline's topology with the mean rates of every task, from the same code that Spark's workers run."""
    pipeline, options = trial.pipeline, trial.options
    topology = pipeline.coordinated
    (source,) = pipeline.sources
    states = {task: pipeline.empty_state(task.operator) for task in topology.tasks}
    rows = dict.fromkeys(topology.tasks, 0)
    for epoch in range(options.epochs):
        waiting: dict[Task, list[Block]] = defaultdict(list)
        batch = trial.workload.batch(options, epoch)
        cuts = [batch.num_rows * piece // options.partitions for piece in range(options.partitions + 1)]
        for piece in range(options.partitions):
            task = Task(source.name, piece * source.parallelism // options.partitions)
            made = process_source(pipeline, task, batch.slice(cuts[piece], cuts[piece + 1] - cuts[piece]), epoch)
            rows[task] += made.output.num_rows if made.output is not None else 0
            for block in outgoing(pipeline, task, made, epoch, {}, piece):
                waiting[block.receiver].append(block)
        for task in topology.tasks:
            if task.operator == source.name:
                continue
            made = process(pipeline, task, states[task], once(waiting[task]), epoch)
            states[task] = made.state
            rows[task] += made.output.num_rows if made.output is not None else 0
            for block in outgoing(pipeline, task, made, epoch, {}):
                waiting[block.receiver].append(block)
    rate = {task: count / options.epochs for task, count in rows.items()}
    operators = (
        replace(each, rates=tuple(rate[Task(each.name, number)] for number in range(each.parallelism)))
        for each in topology.operators
    )
    return replace(topology, operators=tuple(operators))


def at_risk(topology: Topology) -> list[Task]:
    """Every task but the sources': those are read again on any node that is left."""
    return [task for task in topology.tasks if topology.inputs_of(task.operator)]


def chosen(topology: Topology, name: str, budget: int) -> tuple[Task, ...]:
    if name != "ic":
        return tuple(task for task in plan(topology, budget, name).replicas if topology.inputs_of(task.operator))
    tasks = at_risk(topology)
    sets = list(combinations(range(len(tasks)), budget))
    first = topology.index[tasks[0]]
    masks = np.zeros((len(sets), len(topology.tasks)), np.bool_)
    masks[:, first:] = True
    masks[np.arange(len(sets))[:, np.newaxis], first + np.array(sets)] = False
    best = int(np.argmax(query_completeness(topology, masks)[:, 0].round(12)))
    return tuple(tasks[number] for number in sets[best])


def run(spark: Any, trial: Trial, folder: Path, nodes: int, replicas: Iterable[Task], faults: Iterable[Fault],
        rejoin_after: float | None = None) -> pa.Table:  # fmt: skip
    """One run to its end; its final output."""
    from holdfast.runtime.spark import start

    job = start(
        trial.workload.stream(spark, trial.options), trial.pipeline, store=folder, nodes=nodes, capacity=1.0,
        epochs=trial.options.epochs, replicas=list(replicas), faults=tuple(faults), patience=3600.0,
        rejoin_after=rejoin_after, checkpoint_every=4,
    )  # fmt: skip
    if not job.awaitTermination(900):
        sys.exit(f"the run did not end: {job.status}")
    return read_output(folder, "final")


def broken(
    spark: Any, trial: Trial, topology: Topology, replicas: tuple[Task, ...], exact: pa.Table, hopeless: bool
) -> dict[str, float]:
    """Kill every primary; what the tentative answers say, against the exact ones."""
    tasks = at_risk(topology)
    primaries = tuple(f"node-{number}" for number in range(len(tasks)))
    faults = [Fault("kill", When(epoch=trial.fail), primaries)]
    if not hopeless:
        faults.append(Fault("join", When(epoch=trial.options.epochs - 1), primaries))
    with tempfile.TemporaryDirectory(prefix="holdfast-accuracy-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # Where nothing can answer nobody waits for a certain epoch: it may not come while they are down.
        final = run(spark, trial, folder, len(tasks) + len(replicas), replicas, faults, 2.0 if hopeless else None)
        history = list(read_history(folder))
        # Many nodes may be noticed one after the other.
        lost = {task for event in history if event["kind"] == "nodes lost" for task in event["down"]}
        expected = {str(task) for task in tasks} - {str(task) for task in replicas}
        if lost != expected:
            wrong = f"{sorted(expected)} were to be lost, {sorted(lost)} were"
            sys.exit(f"the failure was not the one planned for: {wrong}")
        if not final.equals(exact):
            sys.exit("the final output differs from that of the undisturbed run")
        said = read_output(folder, "tentative")
    judged = range(trial.first, trial.options.epochs - 1)
    told = [epoch for epoch in answered_while_down(history) if epoch in judged]
    if not told:
        return {"stamped": 0.0, "accuracy": 0.0, "second": 0.0}
    tentative, true = (
        table.filter(pc.is_in(table["epoch"], pa.array(epochs, pa.int64())))
        for table, epochs in ((said, told), (exact, list(judged)))
    )
    accuracy, second = trial.compare(tentative, true)
    return {"stamped": pc.mean(tentative["fidelity"]).as_py() or 0.0, "accuracy": accuracy, "second": second}


def answered_while_down(history: Iterable[dict[str, Any]]) -> list[int]:
    """Epochs with tentative answers that were published after the failure and before any node came back."""
    epochs: list[int] = []
    down = False
    for event in history:
        if event["kind"] == "nodes lost":
            down = True
        elif event["kind"] == "nodes joined" and down:
            break
        elif event["kind"] == "published" and event["of"] == "tentative":
            epochs += event["epochs"]
    return epochs


def measure(spark: Any, name: str, trial: Trial, budgets: Iterable[int], plans: Iterable[str]) -> list[dict[str, Any]]:
    topology = measured(trial)
    tasks = at_risk(topology)
    with tempfile.TemporaryDirectory(prefix="holdfast-accuracy-", ignore_cleanup_errors=True) as folder:
        exact = run(spark, trial, Path(folder), len(tasks), (), ())
    heads = ("budget", "plan", "OF", "IC", "stamped", "accuracy", trial.second)
    print(f"\n{name}: {len(tasks)} tasks that can be lost, {exact.num_rows} exact rows")
    print(f"{heads[0]:>7} {heads[1]:<16}" + "".join(f"{head:>10}" for head in heads[2:]))
    seen: dict[frozenset[Task], dict[str, float]] = {}
    rows = []
    for budget in budgets:
        for algorithm in plans:
            replicas = chosen(topology, algorithm, budget)
            failed = [task for task in tasks if task not in replicas]
            predicted = {metric: output_fidelity(topology, failed, metric).fidelity for metric in ("of", "ic")}  # type: ignore[arg-type]
            key = frozenset(replicas)
            if key not in seen:
                seen[key] = broken(spark, trial, topology, replicas, exact, hopeless=predicted["of"] <= 0)
            row = {"budget": budget, "plan": algorithm, **predicted, **seen[key]}
            rows.append(row)
            numbers = "".join(f"{row[what]:>10.3f}" for what in NUMBERS)
            print(f"{budget:>7} {algorithm:<16}{numbers}", flush=True)
    return rows


NUMBERS = ("of", "ic", "stamped", "accuracy", "second")


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each budget and plan: the means over the seeds, and the least and largest accuracy."""
    grouped: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[row["budget"], row["plan"]].append(row)
    return [
        {"budget": budget, "plan": name}
        | {what: float(np.mean([row[what] for row in own])) for what in NUMBERS}
        | {"least": min(row["accuracy"] for row in own), "most": max(row["accuracy"] for row in own)}
        for (budget, name), own in grouped.items()
    ]


def summarise(name: str, rows: list[dict[str, Any]], seeds: int) -> None:
    print(f"\n{name}: means over {seeds} seeds, and the range of accuracy")
    print(f"{'budget':>7} {'plan':<16}" + "".join(f"{what:>10}" for what in (*NUMBERS, "least", "most")))
    for row in means(rows):
        numbers = "".join(f"{row[what]:>10.3f}" for what in (*NUMBERS, "least", "most"))
        print(f"{row['budget']:>7} {row['plan']:<16}{numbers}")


def charts(name: str, rows: list[dict[str, Any]]) -> list[Chart]:
    def line(plan_name: str, what: str, label: str, dashed: bool) -> Series:
        own = [row for row in rows if row["plan"] == plan_name]
        return Series(f"{plan_name}: {label}", [row["budget"] for row in own], [row[what] for row in own], dashed)

    plans = list(dict.fromkeys(row["plan"] for row in rows))
    return [
        Chart(
            f"{name}: predicted and measured",
            "replicated tasks",
            "OF / IC / accuracy",
            [
                series
                for each in plans
                for series in (
                    line(each, "ic" if each == "ic" else "of", "IC" if each == "ic" else "OF", True),
                    line(each, "accuracy", "accuracy", False),
                )
            ],
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--workload", choices=["top-k", "traffic-incidents"], action="append")
    parser.add_argument("--budget", type=int, action="append", help="replicated tasks; several by default")
    parser.add_argument("--plan", choices=PLANS, action="append")
    parser.add_argument("--rate", type=int, default=6000, help="rows an epoch")
    parser.add_argument("--seed", type=int, action="append", help="of the input, 7 by default; several: also means")
    parser.add_argument("--plot", type=Path, help="also draw it: .html, .png or .svg")
    asked = parser.parse_args()
    if asked.plot is not None:
        check_plot_path(asked.plot)

    from holdfast.runtime.spark import spark_session

    spark = spark_session("local[2]", settings={"spark.sql.session.timeZone": "UTC"})
    seeds = asked.seed or [7]
    found: dict[str, list[dict[str, Any]]] = {}
    for seed in seeds:
        for name, trial in trials(asked.rate, seed).items():
            if asked.workload is None or name in asked.workload:
                print(f"\nseed {seed}", end="")
                found.setdefault(name, []).extend(
                    measure(spark, name, trial, asked.budget or trial.budgets, asked.plan or PLANS)
                )
    spark.stop()
    if len(seeds) > 1:
        for name, rows in found.items():
            summarise(name, rows, len(seeds))
    drawn = [chart for name, rows in found.items() for chart in charts(name, means(rows))]
    if asked.plot is not None:
        write_charts(drawn, asked.plot)


if __name__ == "__main__":
    main()
