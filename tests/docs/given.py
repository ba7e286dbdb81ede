"""What pages take as known: names that their Python blocks use without making them, files that their commands read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast
from holdfast.elasticity import LoadReport, Pool, PoolPolicy
from holdfast.recovery import Node
from holdfast.runtime.history.history import NAME
from holdfast.state import Routing, output
from holdfast.state.files import open_files
from holdfast.topology import Task, Topology, read_topology, topology_to
from holdfast.workloads import Options, workload

ROOT = Path(__file__).parents[2]
Spark = Callable[[], Any]


def three_queries() -> Topology:
    return read_topology(ROOT / "examples/topologies/three-queries.json")


def elasticity(_: Spark) -> dict[str, Any]:
    busy = [LoadReport(Task("counts", number), float(at), 5.0, 4.5) for at in (5, 10) for number in range(4)]
    return {"routing": Routing.even(4), "reports": busy, "now": 10.0, "Pool": Pool, "PoolPolicy": PoolPolicy}


def recovery(_: Spark) -> dict[str, Any]:
    topology = three_queries()
    nodes = [Node(f"node-{number}", domain=f"rack-{number}", capacity=5) for number in range(3)]
    tasks = list(topology.tasks)
    return {
        "topology": topology, "failed": set(tasks), "capacity": 5, "nodes": nodes, "task": tasks[0],
        "cpu_of_node": {"node-0": 2.0}, "tuples_of_task": dict.fromkeys(tasks, 10),
        "node_of_task": dict.fromkeys(tasks, "node-0"),
    }  # fmt: skip


def lines(spark: Spark, epochs: int = 1000) -> Any:
    return workload("word-count").stream(spark(), Options(rate=50, epochs=epochs, seed=1))


def runtime(spark: Spark) -> dict[str, Any]:
    return {"stream": lines(spark)}


def scaling(spark: Spark) -> dict[str, Any]:
    return {"holdfast": holdfast, "stream": lines(spark), "pipeline": workload("word-count").pipeline(parallelism=2)}


def tentative(_: Spark) -> dict[str, Any]:
    files = open_files("run-1")
    output.place(
        files, [output.stage(files, "1-0", "final", 0, "count/0", pa.table({"word": ["to"]}), 1.0, False)], False
    )
    return {"holdfast": holdfast}


NAMES: dict[str, Callable[[Spark], dict[str, Any]]] = {
    "docs/elasticity.md": elasticity,
    "docs/recovery.md": recovery,
    "docs/runtime.md": runtime,
    "docs/scaling.md": scaling,
    "docs/tentative.md": tentative,
    "docs/workloads.md": lambda spark: {"spark": spark()},
}
"""Called in the folder that the page's blocks are run in."""


def progress(folder: Path) -> None:
    """Two triggers of a query, as Spark tells of them."""
    for at, rows in (("2026-11-15T00:00:00.000Z", 0), ("2026-11-15T00:01:00.000Z", 60_000)):
        state = [{"numRowsTotal": 1000, "memoryUsedBytes": 1_000_000, "customMetrics": {}}]
        told = {"timestamp": at, "batchId": rows, "numInputRows": rows, "processedRowsPerSecond": 5000.0}
        told |= {"durationMs": {"triggerExecution": 900}, "stateOperators": state}
        with (folder / "progress.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(told) + "\n")


def run_folder(folder: Path) -> None:
    (folder / "run-1").mkdir()
    started = {"time": 1.0, "kind": "started", "job": "j", "nodes": 1, "epochs": 1, "master": "local[2]"}
    started |= {"settings": {}, "topology": topology_to(three_queries())}
    (folder / "run-1" / NAME).write_text(json.dumps(started) + "\n", encoding="utf-8")
    (folder / "topology.json").write_bytes((ROOT / "examples/topologies/incidents.json").read_bytes())


def tuples(folder: Path) -> None:
    """A minute of Linear Road: type, time, car, speed, expressway, lane, direction, segment, position, query, day."""
    rows = [(0, at, car, 55, 0, 1, 0, 10, 53_000 + 40 * at) for at in (0, 30) for car in range(20)]
    text = "".join(",".join(map(str, (*row, -1, -1, -1, -1, -1, -1))) + "\n" for row in rows)
    (folder / "tuples.csv").write_text(text, encoding="utf-8")


FILES: dict[str, Callable[[Path], None]] = {
    "docs/advisor.md": progress,
    "docs/report.md": run_folder,
    "docs/linear-road.md": tuples,
}
