"""Sliding windows under an aggregate: rows come with the newest of their windows, and the operator has the others.

Spark's plan makes a row for every window that a row is in (Expand), before anything is counted. Where windows begin a
whole part of their length apart, all rows with the same newest window are in the same windows: they are grouped first,
and only their groups are multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.queries.plans import Plans, items, kind, unaliased


@dataclass(frozen=True)
class Newest:
    """``plan``: what is below, with one row for each; ``times``: windows of a row, ``step`` microseconds apart.

    ``key``: the place of the window among the keys.
    """

    plan: Any
    key: int
    times: int
    step: int


def newest(plans: Plans, child: Any, keys: Sequence[Any], functions: Sequence[Any]) -> Newest | None:
    """None where rows must come with all their windows: something looks at these beside the one key that they are.

    So does what is drawn anew for each of them.
    """
    passed, plan = [], child
    while kind(plan) in ("Project", "Filter"):
        passed.append(plan)
        plan = plan.child()
    found = _windows(plan) if kind(plan) == "Expand" else None
    if found is None:
        return None
    place, times, step = found
    known = {_id(items(plan.output())[place])}
    for node in reversed(passed):
        for each in items(node.projectList()) if kind(node) == "Project" else [node.condition()]:
            if not each.deterministic():
                return None
            if _looks(each, known):
                if kind(node) == "Filter" or kind(unaliased(each)) != "AttributeReference":
                    return None
                known.add(_id(each))
    if not all(each.deterministic() for each in (*keys, *functions)):
        return None
    by = [number for number, each in enumerate(keys) if _looks(each, known)]
    if len(by) != 1 or kind(keys[by[0]]) != "AttributeReference" or any(_looks(each, known) for each in functions):
        return None
    made = zip(items(plan.projections().apply(0)), items(plan.output()), strict=True)
    below = plans.project(plans.seq([plans.alias(each, name.name(), name) for each, name in made]), plan.child())
    for node in reversed(passed):
        below = node.withNewChildren(plans.seq([below]))
    return Newest(below, by[0], times, step)


def _windows(expand: Any) -> tuple[int, int, int] | None:
    """Where the window is, how many a row has, and how far apart they begin; None if this is something else.

    As Spark makes them: the newest first, each a step earlier than the one before.
    """
    projections = expand.projections()
    times = int(projections.size())
    places = [n for n, each in enumerate(items(expand.output())) if each.metadata().contains("spark.timeWindow")]
    if times < 2 or len(places) != 1:
        return None
    bounds = [_bounds(projections.apply(number).apply(places[0])) for number in (0, 1, times - 1)]
    found = [each for each in bounds if each is not None]
    if len(found) < len(bounds):
        return None
    (origin, first, size), (_, step, _), (_, last, _) = found
    same = all(each.semanticEquals(origin) and length == size for each, _, length in found)
    return (
        (places[0], times, step)
        if same and first == 0 and last == step * (times - 1) and size == step * times
        else None
    )


def _bounds(window: Any) -> tuple[Any, int, int] | None:
    """A window is ``named_struct(start, origin - back, end, origin - back + size)``: these three."""
    parts = items(window.children()) if kind(window) == "CreateNamedStruct" else []
    if len(parts) != 4:
        return None
    start, end = (_moment(parts[place]) for place in (1, 3))
    if kind(start) != "Subtract" or kind(end) != "Add" or not end.left().semanticEquals(start):
        return None
    if any(kind(each.right()) != "Literal" for each in (start, end)):
        return None
    return start.left(), int(start.right().value()), int(end.right().value())


def _moment(expression: Any) -> Any:
    """The number behind a time."""
    while kind(expression) in ("KnownNullable", "PreciseTimestampConversion"):
        expression = expression.child()
    return expression


def _looks(expression: Any, known: set[int]) -> bool:
    return any(_id(each) in known for each in items(expression.references().toSeq()))


def _id(named: Any) -> int:
    return int(named.exprId().id())
