"""A stateful node behind another one: its rows are made of what that one answers, by the tasks themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from holdfast.operators import Operator, State
from holdfast.operators.contract import description_of
from holdfast.operators.description import Description
from holdfast.queries.between import Between, between
from holdfast.queries.plans import items
from holdfast.queries.stateful import Stateful

Finish = Callable[[pa.Table], pa.Table]


class Behind(Operator):
    """``inner``, whose rows ``made`` of the answers of the operator before it; senders do that, before rows are routed.

    ``finish``: first turns what that operator has answered into its answers.
    """

    def __init__(self, inner: Operator, finish: Finish, made: Between) -> None:
        self._inner, self._finish, self._made = inner, finish, made
        self.tables, self.by = inner.tables, inner.by
        self.event_time, self.horizon = inner.event_time, inner.horizon

    def describe(self) -> Description:
        return {**description_of(self._inner), "made": self._made.version}

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        rows = self._made.apply(self._finish(batch).flatten()) if batch.num_columns else batch
        return self._inner.prepare(stream, rows)

    def process_inputs(self, inputs: Mapping[str, pa.Table], state: State) -> pa.Table | None:
        return self._inner.process_inputs(inputs, state)


def made_of(lower: Stateful, passed: Sequence[Any], upper: Stateful) -> Between:
    """How the columns of the upper node come from the answers of the lower; ``passed``: the plan's nodes in between."""
    given: dict[int, tuple[str, ...]] = {}
    for value in lower.values:
        shape, (first, *_) = value.shape, value.columns
        columns = value.columns
        if isinstance(shape.type, StructType) and not shape.fields:
            columns = tuple(f"{first}.{name}" for name in shape.type.fieldNames())
        if shape.fields and shape.column is not None:
            continue  # a struct that may be null: whoever refers to it is refused
        given[int(value.attribute.exprId().id())] = columns
    projections = [items(each) for each in reversed(lower.projections)]
    wanted = [(str(each.name()), each.child()) for each in upper.columns]
    return between(lower.plans, [*passed, *projections], given, wanted)
