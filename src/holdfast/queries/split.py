"""A streaming DataFrame cut at its stateful nodes: Spark runs what is below and above them, Holdfast the nodes alone.

What is below becomes a streaming DataFrame with the columns that the lowest node takes; what is above is put on any
batch of answers, under the very expression ids that the user's expressions refer to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from holdfast.errors import Invalid
from holdfast.operators.grouped import Emit
from holdfast.queries.aggregates import Groups
from holdfast.queries.between import Between
from holdfast.queries.chained import made_of
from holdfast.queries.duplicates import Duplicates
from holdfast.queries.joins import Pairs, of_streams, pushed
from holdfast.queries.plans import Plans, items, kind, nodes_of
from holdfast.queries.stateful import NotCovered, Stateful
from holdfast.runtime.spark.shipping import first_cause

ABOVE = {"Project", "Filter"}
"""Nodes above the last one with state: they keep none and look at one row at a time."""
BETWEEN = ABOVE | {"Expand"}
"""Nodes between two with state, which tasks run themselves."""
BELOW = ABOVE | {
    "Expand", "Generate", "EventTimeWatermark", "UpdateEventTimeWatermarkColumn", "Union", "ResolvedHint",
    "Repartition", "RepartitionByExpression", "CollectMetrics", "TypedFilter", "SerializeFromObject",
    "DeserializeToObject", "MapElements", "MapPartitions", "MapInPandas", "MapInArrow", "Join",
    "StreamingRelation", "StreamingRelationV2",
}  # fmt: skip
"""Nodes that keep no state on a stream. Any other is refused by name: such a list is never outdated in silence."""
COVERED: dict[str, Callable[[Plans, Any], Stateful]] = {
    "Aggregate": Groups, "Deduplicate": Duplicates, "DeduplicateWithinWatermark": Duplicates, "Join": Pairs
}  # fmt: skip
INSTEAD = {
    "FlatMapGroupsInPandasWithState": "an operator of your own (docs/operators/own.md) keeps state by key",
    "FlatMapGroupsWithState": "an operator of your own (docs/operators/own.md) keeps state by key",
    "TransformWithStateInPySpark": "an operator of your own (docs/operators/own.md) keeps state by key",
    "Sort": "sort in foreachBatch",
    "GlobalLimit": "op.top_k in a pipeline keeps the first few",
}
"""What would do in place of a node that is not covered."""


@dataclass(frozen=True)
class Above:
    """What stands above the answers, made for a batch of this ``schema`` with these ``columns``: to make it again for
    each would be hundreds of calls through the gateway. ``nodes`` from the top.
    """

    schema: StructType
    nodes: list[Any]
    columns: list[Any]

    def renamed(self, plans: Plans, batch: Any) -> Any:
        """Another batch, under the ids that ``nodes`` refer to."""
        pairs = zip(items(batch.output()), self.columns, self.schema.names, strict=True)
        return plans.project(plans.seq([plans.alias(new, name, old) for new, old, name in pairs]), batch)


class Split:
    """``below``: the rows for the lowest of ``nodes``; ``above`` finishes a batch of what the highest answers.

    ``between``: how the rows of each node but the lowest come from what the one before it answers.
    """

    def __init__(self, frame: DataFrame) -> None:
        if not isinstance(frame, DataFrame):
            raise Invalid(f"writeStream: a streaming DataFrame is needed, got {type(frame).__name__}")
        if not frame.isStreaming:
            raise Invalid("writeStream: this DataFrame is not streaming; use spark.readStream instead of spark.read")
        if not hasattr(frame, "_jdf"):
            raise NotCovered("a session of Spark Connect: its plans cannot be seen; use a classic session")
        self.schema = frame.schema
        self._above: Above | None = None
        self._plans = plans = Plans(frame.sparkSession)
        self._analyzed = frame._jdf.queryExecution().analyzed()
        self._over, plan = self._cut(pushed(plans, plans.normal(self._analyzed)), ABOVE)
        self.nodes: list[Stateful] = [COVERED[kind(plan)](plans, plan)]
        self.between: list[Between] = []
        while any(map(_stateful, nodes_of(self.nodes[0].child))):
            self._put_below()
        for number, node in enumerate(self.nodes):
            before = sum(other.name.partition("-")[0] == node.name for other in self.nodes[:number])
            node.name = f"{node.name}-{before + 1}" if before else node.name
        lowest = self.nodes[0]
        self.watermarked = self._checked(lowest.child)
        self.below = plans.frame(plans.project(plans.seq(lowest.columns), lowest.child))

    @property
    def top(self) -> Stateful:
        return self.nodes[-1]

    @property
    def over(self) -> list[str]:
        """What is above the nodes, from the top, in Spark's words."""
        return [*(str(node.simpleString(80)) for node in self._over), *self.top.over]

    def check(self, mode: Emit) -> None:
        """Refuses what Structured Streaming would in this mode, but for DISTINCT in aggregate functions."""
        checker = self._plans.catalyst.analysis.UnsupportedOperationChecker
        modes = self._plans.jvm.org.apache.spark.sql.streaming.OutputMode
        try:
            checker.checkForStreaming(self._plans.counting_all(self._analyzed), getattr(modes, mode.capitalize())())
        except Exception as error:
            raise NotCovered(f"outputMode {mode}: {first_cause(error)}") from None

    def above(self, answers: DataFrame) -> DataFrame:
        """The user's rows, from a batch with the columns of the highest node's ``values``."""
        given: Any = answers
        batch, plans, known = given._jdf.queryExecution().analyzed(), self._plans, self._above
        if known is not None and known.schema == answers.schema:
            return plans.frame(_stacked(plans, known.nodes, known.renamed(plans, batch)))
        plan = _stacked(plans, self._over, self.top.answered(answers))
        nodes = _down(plan)
        self._above = Above(answers.schema, nodes[: -len(_down(batch))], items(batch.output()))
        return plans.frame(plan)

    def _put_below(self) -> None:
        """The node below the lowest so far, and what stands between the two."""
        upper = self.nodes[0]
        passed, plan = self._cut(upper.child, BETWEEN)
        lower = COVERED[kind(plan)](self._plans, plan)
        self.nodes.insert(0, lower)
        made = made_of(lower, passed, upper)
        if upper.written is not upper.child:  # what is kept is the same
            passed, _ = self._cut(upper.written, BETWEEN)
            made = replace(made, version=made_of(lower, passed, upper).version)
        self.between.insert(0, made)

    def _cut(self, plan: Any, passed: set[str]) -> tuple[list[Any], Any]:
        over = []
        while kind(plan) in passed:
            over.append(plan)
            plan = plan.children().apply(0)
        if not _stateful(plan):
            if not any(map(_stateful, nodes_of(plan))):
                raise NotCovered(
                    "no stateful node in the plan: a query without state loses none; frame.writeStream runs it"
                )
            raise NotCovered(f"{kind(plan)} above a node with state is not covered{_instead(kind(plan))}")
        return over, plan

    def _checked(self, plan: Any) -> bool:
        """Whether a watermark is kept below; refuses what keeps state there."""
        name, children = kind(plan), items(plan.children())
        if not plan.isStreaming():
            return False  # a static side of a join: anything goes
        if name not in BELOW or of_streams(plan):
            raise NotCovered(f"{name} below a node with state is not covered{_instead(name)}")
        return any([name == "EventTimeWatermark", *(self._checked(child) for child in children)])


def _stacked(plans: Plans, nodes: list[Any], plan: Any) -> Any:
    """These nodes, from the top, upon a plan."""
    for node in reversed(nodes):
        plan = node.withNewChildren(plans.seq([plan]))
    return plan


def _down(plan: Any) -> list[Any]:
    """A plan that has no branches, from the top."""
    nodes = [plan]
    while (children := nodes[-1].children()).size():
        nodes.append(children.apply(0))
    return nodes


def _stateful(plan: Any) -> bool:
    return kind(plan) in COVERED and (kind(plan) != "Join" or of_streams(plan))


def _instead(name: str) -> str:
    return f": {INSTEAD[name]}" if name in INSTEAD else ""
