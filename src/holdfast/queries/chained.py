"""A stateful node behind another one: its rows are made of what that one answers, by the tasks themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.operators import Operator, State
from holdfast.operators.contract import description_of
from holdfast.operators.description import Description
from holdfast.queries.aggregates import keyed
from holdfast.queries.between import Between, between
from holdfast.queries.plans import items
from holdfast.queries.stateful import Finish, Stateful


class Behind(Operator):
    """``inner``, whose rows ``made`` of the answers of the operator before it; senders do that, before rows are routed.

    ``finish``: first turns what that operator has said into its answers. ``alone``: all rows are one group.
    ``trails``: so many microseconds behind the watermark that operator may still answer for.
    """

    def __init__(self, inner: Operator, finish: Finish, made: Between, alone: bool, trails: int) -> None:
        self._inner, self._finish, self._made, self._alone, self._trails = inner, finish, made, alone, trails
        self.tables, self.by = inner.tables, inner.by
        self.event_time, self.horizon = inner.event_time, inner.horizon

    def describe(self) -> Description:
        return {**description_of(self._inner), "made": self._made.version, "trails_us": self._trails}

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        if batch.num_columns:
            batch = self._made.apply(self._finish(batch))
            batch = keyed(batch) if self._alone else batch
        return self._inner.prepare(stream, batch)

    def process_inputs(self, inputs: Mapping[str, pa.Table], state: State) -> pa.Table | None:
        before, now = state.watermark_before, state.watermark
        state.watermark_before, state.watermark = self._trailing(before), self._trailing(now)
        try:
            return self._inner.process_inputs(inputs, state)
        finally:
            state.watermark_before, state.watermark = before, now

    def _trailing(self, watermark: int | None) -> int | None:
        return None if watermark is None else watermark - self._trails


def made_of(lower: Stateful, passed: Sequence[Any], upper: Stateful) -> Between:
    """How the columns of the upper node come from the answers of the lower; ``passed``: the plan's nodes in between."""
    given = {int(value.attribute.exprId().id()): value.columns for value in lower.values}
    projections = [items(each) for each in reversed(lower.projections)]
    wanted = [(str(each.name()), each.child()) for each in upper.columns]
    filters = [lower.plans.filtered(condition, lower.child) for condition in reversed(lower.filters)]
    return between(lower.plans, [*passed, *projections, *filters], given, wanted)
