"""The stateful nodes of a query as a pipeline."""

from __future__ import annotations

from typing import cast, get_args

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.grouped import Emit
from holdfast.queries.aggregates import keyed
from holdfast.queries.split import Split

SOURCE = "rows"


def checked_mode(written: str, name: str) -> Emit:
    """An output mode as Spark takes it, in any case of letters; ``name``: the option that it was given to."""
    for mode in get_args(Emit):
        if str(written).strip().lower() == mode:
            return cast(Emit, mode)
    raise Invalid(f"{name} must be update, append or complete, got {written!r}")


def pipeline_of(split: Split, emit: Emit, parallelism: int, source_parallelism: int) -> op.Pipeline:
    """Spark's rows come in at a source, and are kept by tasks that can be lost and come back."""
    node = split.top
    operator = node.operator(emit)
    split.check(emit)
    entering = op.map(keyed) if node.alone else None
    timed = "watermark" if operator.event_time else None
    return op.Pipeline(
        op.source(SOURCE, entering, parallelism=source_parallelism, event_time=timed),
        op.step(node.name, operator, SOURCE, parallelism=1 if node.alone else parallelism),
    )
