"""The stateful nodes of a query as a pipeline."""

from __future__ import annotations

from typing import cast, get_args

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.grouped import Emit, Grouped
from holdfast.queries.aggregates import EVERYTHING, keyed
from holdfast.queries.chained import Behind
from holdfast.queries.split import Split
from holdfast.runtime.spark.combining import Combined

SOURCE = "rows"


def checked_mode(written: str, name: str) -> Emit:
    """An output mode as Spark takes it, in any case of letters; ``name``: the option that it was given to."""
    for mode in get_args(Emit):
        if str(written).strip().lower() == mode:
            return cast(Emit, mode)
    raise Invalid(f"{name} must be update, append or complete, got {written!r}")


def combined(pipeline: op.Pipeline) -> Combined | None:
    """How Spark may group rows before they come in: by the keys of the lowest node, if it groups and folds simply."""
    lowest = pipeline.steps[1].operator
    if not isinstance(lowest, Grouped) or (partials := lowest.partials) is None:
        return None
    times = 1 if lowest.slides is None else lowest.slides.times
    return Combined(tuple(name for name in lowest.by if name != EVERYTHING), tuple(partials), times)


def pipeline_of(split: Split, emit: Emit, parallelism: int, source_parallelism: int) -> op.Pipeline:
    """Spark's rows come in at a source, and are kept by tasks that can be lost and come back.

    A node that another one follows answers when its state closes, whatever the mode: what it says is not taken back.
    """
    lowest, top = split.nodes[0], split.top
    operators = [node.operator(emit if node is top else "append") for node in split.nodes]
    split.check(emit)
    timed = "watermark" if any(operator.event_time for operator in operators) else None
    entering = op.map(keyed) if lowest.alone else None
    steps = [op.source(SOURCE, entering, parallelism=source_parallelism, event_time=timed)]
    for place, (node, operator) in enumerate(zip(split.nodes, operators, strict=True)):
        behind = operator
        if place:
            trails = sum(each.trails for each in split.nodes[:place])
            behind = Behind(operator, split.nodes[place - 1].finish(), split.between[place - 1], node.alone, trails)
        steps.append(op.step(node.name, behind, steps[-1].name, parallelism=1 if node.alone else parallelism))
    return op.Pipeline(*steps)
