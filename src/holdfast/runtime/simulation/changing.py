"""A pipeline that does something else under the same names: what a store must refuse."""

from __future__ import annotations

from dataclasses import replace

from holdfast.operators import Operator, Pipeline, Step
from holdfast.operators.description import Description


class _Other(Operator):
    """Does what another operator does, and says that it does not."""

    def __init__(self, like: Operator) -> None:
        self._like = like
        self.tables, self.by, self.event_time = like.tables, like.by, like.event_time

    def describe(self) -> Description:
        return {**self._like.describe(), "kind": "something else"}


def changed(pipeline: Pipeline) -> Pipeline:
    """Every operator with state is another."""

    def other(step: Step) -> Step:
        return replace(step, operator=_Other(step.operator)) if step.operator.tables else step

    return Pipeline(*(other(step) for step in pipeline.steps))
