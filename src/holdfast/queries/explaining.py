"""What runs where of a plain query: Spark below, the tasks that can be lost, Spark above, and what a loss leaves."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from holdfast.errors import Invalid
from holdfast.queries.grouping import GROUPS, checked_mode, pipeline_of
from holdfast.queries.split import Split
from holdfast.replication import plan_surviving

WIDE = 150


def explain(
    frame: DataFrame, *, mode: str = "update", nodes: int = 4, parallelism: int | None = None, budget: float = 0.0
) -> str:
    """The query in words; what cannot be run is refused as the writer refuses it. Starts nothing."""
    return told(explained(frame, mode, nodes, parallelism, budget))


def explained(frame: DataFrame, mode: str, nodes: int, parallelism: int | None, budget: float) -> dict[str, Any]:
    """The same as JSON."""
    for name, value in (("nodes", nodes), ("parallelism", parallelism)):
        if value is not None and value < 1:
            raise Invalid(f"{name} must be at least 1, got {value}")
    split, emit = Split(frame), checked_mode(mode, "mode")
    topology = pipeline_of(split, emit, parallelism or max(2, nodes), max(2, nodes)).topology
    keys = [split.meaning[key.columns[0]].removesuffix(", start") for key in split.keys]
    left = []
    for lost in sorted({1, 2, nodes // 2} & set(range(1, nodes))):
        plan = plan_surviving(topology, budget, [f"node-{number}" for number in range(nodes)], lost)
        replicas = [str(task) for task in plan.replicas]
        left.append({"lost": lost, "fidelity": round(plan.floor.bound, 6), "replicas": replicas})
    return {
        "mode": emit,
        "above": [line.strip() for line in split.over],
        "keys": keys,
        "functions": [each.sql for each in split.functions],
        "closes": split.meaning[split.time] if split.time is not None and emit != "complete" else None,
        "tasks": topology.operator[GROUPS].parallelism,
        "nodes": nodes,
        "below": str(split.below._jdf.queryExecution().analyzed().toString()).splitlines(),
        "left": left,
    }


def told(found: dict[str, Any]) -> str:
    lines = ["Spark, above the groups, on what they answer:"]
    lines += [f"  {line}" for line in found["above"]]
    by = f" by {'; '.join(found['keys'])}" if found["keys"] else ", all rows together"
    lines += ["", f"Holdfast, {found['tasks']} tasks with state: {', '.join(found['functions']) or 'the keys'}{by}"]
    closing = f"groups close when the watermark has reached {found['closes']}" if found["closes"] else "no group closes"
    lines += [f"  mode {found['mode']}; {closing}"]
    for each in found["left"]:
        copies = f", with replicas of {', '.join(each['replicas'])}" if each["replicas"] else ""
        some = "any node is" if each["lost"] == 1 else f"any {each['lost']} are"
        lines.append(f"  when {some} lost, live copies leave a fidelity of at least {each['fidelity']:.3f}{copies}")
    lines += ["  lost tasks answer from the last checkpoint on top of that", "", "Spark, below the groups:"]
    cut = [line if len(line) <= WIDE else line[: WIDE - 3] + "..." for line in found["below"]]
    return "\n".join([*lines, *(f"  {line}" for line in cut)])
