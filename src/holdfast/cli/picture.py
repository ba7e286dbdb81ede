"""A topology in the terminal: one line an operator, its tasks as marks, where its output goes."""

from __future__ import annotations

from collections.abc import Collection

from rich.text import Text

from holdfast.topology import Operator, Task, Topology

WIDEST = 40
"""Operators with more tasks than this are summed up instead of drawn."""


def picture(topology: Topology, replicated: Collection[Task]) -> Text:
    """``●`` a task with a replica, ``○`` one without; queries are marked, streams follow the arrow."""
    marked = set(replicated)
    width = max(len(operator.name) for operator in topology.operators)
    tasks = [_tasks(operator, marked) for operator in topology.operators]
    broadest = max(map(len, tasks))
    queries = {query.sink: query.priority for query in topology.queries}
    text = Text()
    for operator, drawn in zip(topology.operators, tasks, strict=True):
        text.append(f"{operator.name:>{width}}  ")
        text.append(drawn.ljust(broadest), style="green" if "●" in drawn else "")
        onward = [f"{stream.target} ({stream.partitioning})" for stream in topology.outputs_of(operator.name)]
        if onward:
            text.append(f"  → {', '.join(onward)}", style="dim")
        if operator.name in queries:
            text.append(f"  query, priority {queries[operator.name]:g}", style="bold")
        if operator.inputs == "correlated":
            text.append("  join", style="dim")
        text.append("\n")
    return text


def _tasks(operator: Operator, marked: set[Task]) -> str:
    held = [Task(operator.name, number) in marked for number in range(operator.parallelism)]
    if operator.parallelism > WIDEST:
        return f"● x {sum(held)}  ○ x {len(held) - sum(held)}"
    return "".join("●" if one else "○" for one in held)
