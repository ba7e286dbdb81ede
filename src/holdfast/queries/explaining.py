"""What runs where of a plain query: Spark below, the tasks that can be lost, Spark above, and what a loss leaves."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from holdfast.errors import Invalid
from holdfast.queries.pipelines import checked_mode, pipeline_of
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
    left = []
    for lost in sorted({1, 2, nodes // 2} & set(range(1, nodes))):
        plan = plan_surviving(topology, budget, [f"node-{number}" for number in range(nodes)], lost)
        replicas = [str(task) for task in plan.replicas]
        left.append({"lost": lost, "fidelity": round(plan.floor.bound, 6), "replicas": replicas})
    return {
        "mode": emit,
        "above": [line.strip() for line in split.over],
        "keeps": [
            {
                "operator": node.name,
                "tasks": topology.operator[node.name].parallelism,
                "state": node.described(),
                "closes": node.meaning[node.closes] if node.closes is not None and emit != "complete" else None,
            }
            for node in reversed(split.nodes)
        ],
        "nodes": nodes,
        "below": str(split.below._jdf.queryExecution().analyzed().toString()).splitlines(),
        "left": left,
    }


def told(found: dict[str, Any]) -> str:
    lines = ["Spark, above, on what Holdfast answers:"]
    lines += [f"  {line}" for line in found["above"]]
    lines += ["", f"Holdfast, mode {found['mode']}, tasks that can be lost and come back:"]
    for each in found["keeps"]:
        closes = f"until the watermark has reached {each['closes']}" if each["closes"] else "for ever"
        lines += [f"  {each['operator']}, {each['tasks']} tasks, {closes}: {each['state']}"]
    for each in found["left"]:
        copies = f", with replicas of {', '.join(each['replicas'])}" if each["replicas"] else ""
        some = "any node is" if each["lost"] == 1 else f"any {each['lost']} are"
        lines.append(f"  when {some} lost, live copies leave a fidelity of at least {each['fidelity']:.3f}{copies}")
    lines += ["  lost tasks answer from the last checkpoint on top of that", "", "Spark, below:"]
    cut = [line if len(line) <= WIDE else line[: WIDE - 3] + "..." for line in found["below"]]
    return "\n".join([*lines, *(f"  {line}" for line in cut)])
