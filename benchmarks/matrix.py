"""Every workload, every pair of nodes: the first answer after a failure, on executors. See failover.py --matrix."""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from standalone import ARCHIVE, NODES, Standalone, kill, standalone

KILL_AT = 20
"""Windows of a minute that end every ten seconds close in this epoch, and running counts have a past."""
DEADLINE = 120.0
KEYS = {
    "word-count": ("key",),
    "hashtags": ("key",),
    "word-frequency": ("word", "start"),
    "top-k": ("page", "start"),
    "traffic-incidents": ("segment", "incident", "start"),
    "bargain-discovery": ("key", "symbol"),
    "linear-road": ("kind", "time", "vid", "segment", "query"),
}
"""By which columns a row of the tentative answer is compared with one of the exact answer."""


@dataclass(frozen=True)
class Outcome:
    """Seconds after the kill; ``fidelity`` as it was stamped, ``accuracy`` against the exact answer that followed."""

    workload: str
    pair: tuple[int, int]
    replicas: str
    seed: int
    answer: float | None
    fidelity: float | None
    accuracy: float | None
    exact: float | None
    promised: float | None


def accuracy(tentative: pa.Table, exact: pa.Table, keys: Sequence[str]) -> float:
    """How right an answer is: over all rows of either, 1 less the relative error of its numbers; 0 for one not there.

    Without numbers beside the keys a row is there or it is not.
    """
    names = [name for name in exact.column_names if name not in ("epoch", "task", "fidelity")]
    by = list(keys)
    numbers = [name for name in names if name not in by and pa.types.is_primitive(exact.schema.field(name).type)]
    told, true = (_by_key(table, by, numbers) for table in (tentative, exact))
    total = score = 0.0
    for key in told.keys() | true.keys():
        ours, theirs = told.get(key, []), true.get(key, [])
        total += max(len(ours), len(theirs))
        score += sum(_close(a, b) for a, b in zip(ours, theirs, strict=False))
    return score / total if total else 1.0


def _by_key(table: pa.Table, by: Sequence[str], numbers: Sequence[str]) -> dict[Any, list[tuple[float, ...]]]:
    found: dict[Any, list[tuple[float, ...]]] = {}
    for row in table.to_pylist():
        values = tuple(float(row[name]) if isinstance(row[name], int | float) else math.nan for name in numbers)
        found.setdefault(tuple(row[name] for name in by), []).append(values)
    return found


def _close(one: tuple[float, ...], two: tuple[float, ...]) -> float:
    errors = [
        abs(a - b) / max(abs(a), abs(b)) if max(abs(a), abs(b)) > 0 else 0.0
        for a, b in zip(one, two, strict=True)
        if not (math.isnan(a) or math.isnan(b))
    ]
    return 1.0 - min(1.0, statistics.mean(errors)) if errors else 1.0


def trial(
    spark: Any, name: str, pair: tuple[int, int], budget: float | None, seed: int, rate: int, whole_nodes: bool
) -> Outcome:
    """One run: two nodes are killed when an epoch was answered; how it went on until it was exact again."""
    from holdfast.runtime.history.history import read_history
    from holdfast.runtime.history.outputs import read_output
    from holdfast.runtime.spark import start
    from holdfast.workloads import Options, workload

    chosen, folder = workload(name), Path(tempfile.mkdtemp(prefix="holdfast-matrix-"))
    whole, reached = threading.Event(), threading.Event()
    lost: list[float] = []

    def listen(event: dict[str, Any]) -> None:
        if event["kind"] == "answered" and event["epoch"] >= KILL_AT - 1:
            reached.set()
        elif event["kind"] == "nodes lost":
            lost.append(time.time())
        elif event["kind"] == "epoch" and lost and not event["absent"] and not event["tentative"]:
            whole.set()

    job = start(
        chosen.stream(spark, Options(rate=rate, seed=seed, epochs=1000)), chosen.pipeline(), store=folder, nodes=NODES,
        budget=budget, trigger="1 second", listeners=[listen],
    )  # fmt: skip
    try:
        reached.wait(DEADLINE)
        nodes = job.driver.nodes
        victims = [nodes[f"node-{number}"].incarnation for number in pair]
        killed = kill(spark.sparkContext.applicationId, victims, whole_nodes)
        whole.wait(DEADLINE)
        job.stop()
        events = list(read_history(folder))
        tables = {kind: read_output(folder, kind) for kind in ("tentative", "final")}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return judged(name, pair, "none" if budget is None else "25 %", seed, killed, events, tables)


def judged(
    name: str, pair: tuple[int, int], replicas: str, seed: int, killed: float, events: Iterable[dict[str, Any]],
    tables: dict[str, pa.Table],
) -> Outcome:  # fmt: skip
    """What the history and the outputs of a run say of its failure."""
    events = list(events)
    place = next((number for number, event in enumerate(events) if event["kind"] == "nodes lost"), None)
    if place is None:
        return Outcome(name, pair, replicas, seed, None, None, None, None, None)
    later = events[place:]
    said = next((e for e in later if e["kind"] == "published" and e["rows"] > 0 and e["fidelity"] > 0), None)
    exact = next((e for e in later if e["kind"] == "epoch" and not e["absent"] and not e["tentative"]), None)
    right = None
    if said is not None:
        epoch = max(said["epochs"])
        answers = {kind: table.filter(pc.equal(table["epoch"], epoch)) for kind, table in tables.items()}
        exactly = [task for e in later if e["kind"] == "published" and e["run"] == said["run"] and e["of"] == "final"
                   for task in e["tasks"]]  # fmt: skip
        final = answers["final"]
        first = pa.concat_tables(
            [
                answers["tentative"].drop_columns([c for c in ("fidelity",) if c in answers["tentative"].column_names]),
                final.filter(pc.is_in(final["task"], pa.array(exactly, pa.string()))),
            ],
            promote_options="permissive",
        )
        right = accuracy(first, final, KEYS[name])
    return Outcome(
        name, pair, replicas, seed,
        None if said is None else said["time"] - killed,
        None if said is None else said["fidelity"],
        right,
        None if exact is None else exact["time"] - killed,
        events[place].get("promised"),
    )  # fmt: skip


def run(
    names: Sequence[str], pairs: Sequence[tuple[int, int]], seeds: int, rate: int, budgets: Sequence[bool], where: str
) -> None:
    """All of it in one session; a line a run, then a table with medians and worst cases.

    ``standalone``: worker and executor die together, and others come when the run is over, as on other machines;
    ``local-cluster``: Spark starts new executors at once, which take CPU from the survivors.
    """
    if where == "standalone":
        scratch = tempfile.TemporaryDirectory(prefix="holdfast-matrix-", ignore_cleanup_errors=True)
        with scratch as folder, standalone(Path(folder)) as cluster:
            _run(names, pairs, seeds, rate, budgets, cluster.url, cluster)
    else:
        _run(names, pairs, seeds, rate, budgets, f"local-cluster[{NODES},1,1024]", None)


def _run(
    names: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    seeds: int,
    rate: int,
    budgets: Sequence[bool],
    master: str,
    cluster: Standalone | None,
) -> None:
    from holdfast.runtime.spark import spark_session
    from holdfast.workloads import workload

    settings = {"spark.sql.session.timeZone": "UTC"}
    if cluster is not None:
        settings |= {"spark.executor.memory": "1g", "spark.executor.extraJavaOptions": ARCHIVE}
    spark = spark_session(master, settings=settings)
    found: list[Outcome] = []
    try:
        for seed, pair, name, replicated in product(range(seeds), pairs, names, budgets):
            topology = workload(name).pipeline().coordinated
            quarter = 0.25 * sum(1 for task in topology.tasks if topology.inputs_of(task.operator))
            one = trial(spark, name, pair, quarter if replicated else None, seed, rate, cluster is not None)
            found.append(one)
            print(
                f"{name:<20}{one.replicas:>6} seed {seed} nodes {pair[0]},{pair[1]}: next answer "
                f"{_seconds(one.answer)}, fidelity {_share(one.fidelity)} (promised {_share(one.promised)}), "
                f"accuracy {_share(one.accuracy)}, exact {_seconds(one.exact)}",
                flush=True,
            )
            if cluster is not None:
                cluster.workers(len(pair))
    finally:
        _table(found)  # of what there is, if it was broken off
    spark.stop()


def _table(found: Sequence[Outcome]) -> None:
    print("\n| workload | replicas | runs | next answer, worst | fidelity, worst | accuracy, worst | exact, worst |")
    print("|---|---|---|---|---|---|---|")
    for (name, replicas), runs in Counter((one.workload, one.replicas) for one in found).items():
        ours = [one for one in found if (one.workload, one.replicas) == (name, replicas)]
        cells = [
            _both([one.answer for one in ours], "s", max),
            _both([one.fidelity for one in ours], "", min),
            _both([one.accuracy for one in ours], "", min),
            _both([one.exact for one in ours], "s", max),
        ]
        print(f"| {name} | {replicas} | {runs} | " + " | ".join(cells) + " |", flush=True)


def all_pairs() -> list[tuple[int, int]]:
    return list(combinations(range(NODES), 2))


def _seconds(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _both(values: Sequence[float | None], unit: str, worst: Any) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "none"
    form = (lambda v: f"{v:.2f} s") if unit else (lambda v: f"{v:.3f}")
    missing = f" ({len(values) - len(known)} none)" if len(known) < len(values) else ""
    return f"{form(statistics.median(known))}, {form(worst(known))}{missing}"
