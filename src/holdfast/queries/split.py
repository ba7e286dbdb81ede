"""A streaming DataFrame cut at its aggregate: Spark runs what is below and above it, Holdfast the aggregate alone.

No expression is translated. Spark's planner is asked for its own factoring (PhysicalAggregation, by which Structured
Streaming plans): grouping expressions, distinct aggregate functions, result expressions over the two. What is below
becomes a streaming DataFrame with columns g* (keys) and a* (inputs); what is above is put on any batch with columns g*
and r* (answers), under the very expression ids that the user's expressions refer to.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from holdfast.errors import Invalid
from holdfast.queries.plans import Plans, items, kind, type_of, unaliased

ABOVE = {"Project", "Filter"}
"""Nodes above the aggregate that keep no state and look at one row at a time."""
BELOW = ABOVE | {
    "Expand", "Generate", "EventTimeWatermark", "UpdateEventTimeWatermarkColumn", "Union", "ResolvedHint",
    "Repartition", "RepartitionByExpression", "CollectMetrics", "TypedFilter", "SerializeFromObject",
    "DeserializeToObject", "MapElements", "MapPartitions", "MapInPandas", "MapInArrow", "Join",
    "StreamingRelation", "StreamingRelationV2",
}  # fmt: skip
"""Nodes that keep no state on a stream. Any other is refused by name: such a list is never outdated in silence."""
INSTEAD = {
    "Deduplicate": "op.deduplicate in a pipeline (docs/operators) does it",
    "DeduplicateWithinWatermark": "op.deduplicate with within= in a pipeline does it",
    "FlatMapGroupsInPandasWithState": "an operator of your own (docs/operators/own.md) keeps state by key",
    "FlatMapGroupsWithState": "an operator of your own (docs/operators/own.md) keeps state by key",
    "TransformWithStateInPySpark": "an operator of your own (docs/operators/own.md) keeps state by key",
    "Sort": "sort in foreachBatch",
    "GlobalLimit": "op.top_k in a pipeline keeps the first few",
    "Aggregate": "two aggregates in a row: put the second in a pipeline, behind op.tumbling or op.aggregate",
    "Distinct": "op.deduplicate in a pipeline does it",
}
"""What would do in place of a node that is not covered."""
NULLS_SKIPPED = {"Count", "Sum", "Min", "Max", "Average"}
"""Functions that are covered. To all of them FILTER (WHERE c) is an input that is null where c does not hold."""


class NotCovered(Invalid):
    """The query has something that cannot be run here; the message names the node of the plan."""


@dataclass(frozen=True)
class Key:
    """A grouping expression. A struct (that of window()) travels as its fields: ``columns`` are those of ``below``.

    ``time``: the column by which its groups close, if it is one that a watermark is kept for; ``spans``: microseconds
    of a window.
    """

    columns: tuple[str, ...]
    type: DataType
    time: str | None
    spans: int | None
    attribute: Any = field(repr=False)


@dataclass(frozen=True)
class Function:
    """An aggregate function: ``inputs`` are columns of ``below``, ``answers`` the columns that ``above`` expects.

    Average is answered by a sum and a count, and Spark divides, so that decimals, ANSI errors and result types are its
    own. All others are answered by their final value. ``nan``: a column that says where the input is NaN.
    """

    name: str
    sql: str
    inputs: tuple[str, ...]
    input_types: tuple[DataType, ...]
    answers: tuple[str, ...]
    answer_types: tuple[DataType, ...]
    nan: str | None
    expression: Any = field(repr=False)


class Split:
    """``below``, ``keys``, ``functions``, ``watermarked``; and ``above``, which finishes a batch of answers.

    ``meaning``: the expression behind each column of ``below``.
    """

    def __init__(self, frame: DataFrame) -> None:
        if not isinstance(frame, DataFrame):
            raise Invalid(f"writeStream: a streaming DataFrame is needed, got {type(frame).__name__}")
        if not frame.isStreaming:
            raise Invalid("writeStream: this DataFrame is not streaming; use spark.readStream instead of spark.read")
        if not hasattr(frame, "_jdf"):
            raise NotCovered("a session of Spark Connect: its plans cannot be seen; use a classic session")
        self.schema = frame.schema
        self._plans = plans = Plans(frame.sparkSession)
        self._over, aggregate = self._cut(plans.normal(frame._jdf.queryExecution().analyzed()))
        physical = plans.catalyst.planning.PhysicalAggregation.unapply(aggregate)
        if not physical.isDefined():
            raise NotCovered(f"Aggregate: {aggregate.simpleStringWithNodeId()} is of a kind that Spark plans otherwise")
        parts = physical.get()
        self._results, child = parts._3(), parts._4()
        self.watermarked = self._checked(child)
        columns: list[Any] = []
        self.meaning: dict[str, str] = {}
        self.keys = [self._key(number, each, columns, child) for number, each in enumerate(items(parts._1()))]
        self.functions = [self._function(number, each, columns) for number, each in enumerate(items(parts._2()))]
        if not columns:  # count(*) of everything reads no column, and a stream needs one
            columns.append(plans.alias(plans.new("Literal", True, plans.java_type("boolean")), "a"))
        self.meaning = {str(each.name()): str(each.child().sql()) for each in columns} | self.meaning
        self.below = plans.frame(plans.project(plans.seq(columns), child))

    @property
    def over(self) -> list[str]:
        """What is above the aggregate, from the top, in Spark's words."""
        nodes = [str(node.simpleString(80)) for node in self._over]
        return [*nodes, "Project [" + ", ".join(each.sql() for each in items(self._results)) + "]"]

    @property
    def time(self) -> str | None:
        """The key column by which groups close."""
        return next((key.time for key in self.keys if key.time is not None), None)

    def above(self, answers: DataFrame) -> DataFrame:
        """The user's rows, from a batch with a row a group: columns of ``keys``, then ``answers`` of ``functions``."""
        plans = self._plans
        columns, attributes, finals = [], [], []
        for key in self.keys:
            column = F.col(key.columns[0])
            if isinstance(key.type, StructType):
                names = zip(key.columns, key.type.fieldNames(), strict=True)
                column = F.struct(*(F.col(name).alias(inner) for name, inner in names))
            columns.append(column.cast(key.type))
            attributes.append(key.attribute)
        for each in self.functions:
            function, answer = each.expression.aggregateFunction(), each.expression.resultAttribute()
            whole = len(each.answers) == 1
            columns += [F.col(name).cast(type_) for name, type_ in zip(each.answers, each.answer_types, strict=True)]
            attributes += [answer] if whole else items(function.aggBufferAttributes())
            finals.append(answer if whole else plans.alias(function.evaluateExpression(), answer.name(), answer))
        plan = answers.select(*columns)._jdf.queryExecution().analyzed() if columns else None
        assert plan is not None
        # Under the ids that the user's expressions refer to: from here on the plan is the user's own.
        renamed = [plans.renamed(old, new) for old, new in zip(items(plan.output()), attributes, strict=True)]
        plan = plans.project(plans.seq(renamed), plan)
        if any(len(each.answers) > 1 for each in self.functions):
            plan = plans.project(plans.seq([*(key.attribute for key in self.keys), *finals]), plan)
        plan = plans.project(self._results, plan)
        for node in reversed(self._over):
            plan = node.withNewChildren(plans.seq([plan]))
        return plans.frame(plan)

    def _cut(self, plan: Any) -> tuple[list[Any], Any]:
        over = []
        while kind(plan) in ABOVE:
            over.append(plan)
            plan = plan.children().apply(0)
        if kind(plan) != "Aggregate":
            if not any(kind(node) == "Aggregate" for node in _nodes(plan)):
                raise NotCovered(
                    "no Aggregate in the plan: a query without state loses none; frame.writeStream runs it"
                )
            raise NotCovered(f"{kind(plan)} above the aggregate is not covered{_instead(kind(plan))}")
        return over, plan

    def _checked(self, plan: Any) -> bool:
        """Whether a watermark is kept below; refuses what keeps state there."""
        name, children = kind(plan), items(plan.children())
        if not plan.isStreaming():
            return False  # a static side of a join: anything goes
        if name == "Join" and sum(child.isStreaming() for child in children) > 1:
            raise NotCovered("Join of two streams below the aggregate is not covered; op.join in a pipeline does it")
        if name not in BELOW:
            raise NotCovered(f"{name} below the aggregate is not covered{_instead(name)}")
        return any([name == "EventTimeWatermark", *(self._checked(child) for child in children)])

    def _key(self, number: int, named: Any, columns: list[Any], below: Any) -> Key:
        plans, attribute, type_ = self._plans, named.toAttribute(), type_of(named)
        metadata = attribute.metadata()
        if metadata.contains("spark.sessionWindow"):
            raise NotCovered("session_window is not covered: its windows merge; window() does not")
        if any(word in str(type_) for word in ("MapType", "VariantType", "collation")):
            raise NotCovered(f"a grouping key of type {type_.simpleString()} is not covered; group by text or numbers")
        child = plans.floats(unaliased(named))
        marked = bool(metadata.contains("spark.watermarkDelayMs"))
        if not isinstance(type_, StructType):
            columns.append(plans.alias(child, f"g{number}"))
            return Key((f"g{number}",), type_, f"g{number}" if marked else None, None, attribute)
        if not metadata.contains("spark.timeWindow"):
            raise NotCovered(
                "a grouping key that is a struct, other than window(), is not covered; group by its fields"
            )
        names = tuple(f"g{number}_{name}" for name in type_.fieldNames())
        for place, name in enumerate(names):
            some = plans.jvm.scala.Some(type_.fieldNames()[place])
            columns.append(plans.alias(plans.new("GetStructField", child, place, some), name))
        span, made = self._window(child, below)
        proof = hashlib.sha256(made.encode()).hexdigest()[:8]
        self.meaning |= {name: f"window of {span / 1e6:g} s ({proof}), {name.rpartition('_')[2]}" for name in names}
        return Key(names, type_, names[-1] if marked else None, span, attribute)

    def _window(self, window: Any, below: Any) -> tuple[int, str]:
        """Microseconds that a window lasts, and what it is made by: its end is its start plus a constant.

        That is the largest which is added there. Tumbling windows are made by a Project, sliding ones by an Expand.
        """
        made = [window]
        for node in _nodes(below) if kind(window) == "AttributeReference" else ():
            if kind(node) == "Project":
                named = [each for each in items(node.projectList()) if kind(each) == "Alias"]
                made += [each.child() for each in named if each.exprId().equals(window.exprId())]
            elif kind(node) == "Expand":
                places = [n for n, each in enumerate(items(node.output())) if each.exprId().equals(window.exprId())]
                made += [node.projections().apply(0).apply(place) for place in places]
        inner = [each for expression in made for each in _expressions(expression)]
        ends = [each for each in inner if kind(each) == "Add" and kind(each.right()) == "Literal"]
        spans = [int(each.right().value()) for each in ends if type_of(each.right()).typeName() == "long"]
        return max(spans, default=1), "; ".join(str(expression.sql()) for expression in made)

    def _function(self, number: int, expression: Any, columns: list[Any]) -> Function:
        plans = self._plans
        if kind(expression) != "AggregateExpression":
            raise NotCovered(f"{kind(expression)} as an aggregate is not covered; {_covered()}")
        function = expression.aggregateFunction()
        name, condition = kind(function), expression.filter()
        if name not in NULLS_SKIPPED:
            raise NotCovered(f"aggregate {expression.sql()}: {name} is not covered; {_covered()}")
        if expression.isDistinct():
            raise NotCovered(f"aggregate {expression.sql()}: DISTINCT is not covered; {_covered()}")
        inputs, types = [], []
        for child in items(function.children()):
            if child.foldable() and condition.isEmpty() and name == "Count":
                continue  # count(1) needs no column
            given = child
            if condition.isDefined():
                given = plans.new("If", condition.get(), child, plans.new("Literal", None, child.dataType()))
            inputs.append(self._input(given, columns))
            types.append(type_of(given))
        if name == "Count" and len(inputs) > 1:
            raise NotCovered(f"aggregate {expression.sql()}: a count of several columns is not covered; count one")
        answers: tuple[str, ...] = (f"r{number}",)
        answer_types: tuple[DataType, ...] = (type_of(function),)
        nan = None
        if name == "Average":
            answers = (f"r{number}_sum", f"r{number}_count")
            answer_types = tuple(type_of(each) for each in items(function.aggBufferAttributes()))
        if name in ("Min", "Max") and isinstance(types[0], (FloatType, DoubleType)):
            # To Spark NaN is larger than anything; Holdfast's own extremes pass over it.
            nan = self._input(plans.new("IsNaN", next(c.child() for c in columns if c.name() == inputs[0])), columns)
        return Function(name, expression.sql(), tuple(inputs), tuple(types), answers, answer_types, nan, expression)

    def _input(self, child: Any, columns: list[Any]) -> str:
        """The column of ``below`` with this expression; a new one unless there is one already."""
        ours = [each for each in columns if each.name()[0] == "a"]
        same = [each.name() for each in ours if each.child().semanticEquals(child)]
        if not same:
            same = [f"a{len(ours)}"]
            columns.append(self._plans.alias(child, same[0]))
        return str(same[0])


def _covered() -> str:
    return "count, sum, avg, min and max are"


def _instead(name: str) -> str:
    return f": {INSTEAD[name]}" if name in INSTEAD else ""


def _nodes(plan: Any) -> list[Any]:
    return [plan, *(node for child in items(plan.children()) for node in _nodes(child))]


def _expressions(expression: Any) -> list[Any]:
    return [expression, *(each for child in items(expression.children()) for each in _expressions(child))]
