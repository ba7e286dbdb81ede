"""A join of two streams, as Structured Streaming's planner takes it apart: keys, conditions, and when rows are over.

No expression is translated: what is compared, Spark computes below as columns, and Spark says how long a row may find a
match (StreamingJoinHelper). Both sides come as one stream, so that one query with one watermark feeds the join.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from holdfast.operators import Operator
from holdfast.operators.grouped import Emit
from holdfast.operators.stream_join import LEFT, RIGHT, SIDE, Comparison, Half, Kind, StreamJoin
from holdfast.queries.plans import Plans, items, kind, nodes_of, type_of, uncompared
from holdfast.queries.stateful import NotCovered, Stateful, Value

DELAY, WINDOW = "spark.watermarkDelayMs", "spark.timeWindow"
KINDS: dict[str, Kind] = {
    "INNER": "inner", "CROSS": "inner", "LEFT OUTER": "left", "RIGHT OUTER": "right", "FULL OUTER": "full",
}  # fmt: skip
COMPARISONS: dict[str, Comparison] = {
    "LessThan": "<", "LessThanOrEqual": "<=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "EqualTo": "=",
    "EqualNullSafe": "<=>",
}  # fmt: skip
TURNED: dict[Comparison, Comparison] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
SOME_TIME = 10**12
"""Milliseconds, of a year when watermarks are: Spark is asked what it lets go of then, and it is the same at others."""


def of_streams(plan: Any) -> bool:
    """Whether this is a join of two streams."""
    return kind(plan) == "Join" and all(child.isStreaming() for child in items(plan.children()))


def pushed(plans: Plans, plan: Any) -> Any:
    """Conditions where the joins are, and no column that nobody reads: as Spark has it when it looks at watermarks."""
    optimizer = plans.catalyst.optimizer
    rules = ["RewriteWithExpression", "ConstantFolding", "PushDownPredicates", "ColumnPruning"]
    clock = plans.catalyst.trees.TreePattern.CURRENT_LIKE()
    if plan.containsPattern(clock) or not any(map(of_streams, nodes_of(plan))):
        rules.remove("ConstantFolding")  # current_timestamp() would stand still: Spark sets it in each batch
    for rule in rules:
        plan = getattr(optimizer, rule).apply(plan)
    return plan


@dataclass
class Branch:
    """One side: its plan, and the columns that it sends, as named expressions."""

    plan: Any = field(repr=False)
    letter: str
    keys: list[Any] = field(default_factory=list)
    columns: list[Any] = field(default_factory=list)
    time: str | None = None
    over: tuple[str, int] | None = None
    passes: str | None = None

    def has(self, expression: Any) -> bool:
        """Whether all that it looks at is of this side."""
        return bool(expression.references().subsetOf(self.plan.outputSet()))

    @property
    def marked(self) -> Any | None:
        """The attribute that a watermark is kept for."""
        found = {str(each.exprId()): each for each in items(self.plan.output()) if each.metadata().contains(DELAY)}
        if len(found) > 1:
            names = " and ".join(str(each.name()) for each in found.values())
            raise NotCovered(f"Join: one side has several event times, {names}; keep one, and name it in withWatermark")
        return next(iter(found.values()), None)


class Pairs(Stateful):
    """Columns are side, k* (keys), l* and r* (of the two sides); rows of one side have nulls in those of the other."""

    name = "pairs"

    def __init__(self, plans: Plans, join: Any) -> None:
        super().__init__(plans, join)
        self._kind = _kind(join)
        parts = plans.catalyst.planning.ExtractEquiJoinKeys.unapply(join)
        if not parts.isDefined():
            raise NotCovered(
                "Join of two streams: nothing must be equal on both sides; Structured Streaming has no such joins "
                "either: join by a column, such as a window"
            )
        taken = parts.get()
        self._sides = Branch(taken._6(), "l"), Branch(taken._7(), "r")
        self._condition = taken._4()
        for branch in self._sides:
            for number, attribute in enumerate(items(branch.plan.output())):
                branch.columns.append(plans.alias(attribute, f"{branch.letter}{number}"))
        self._outputs = [tuple(str(each.name()) for each in branch.columns) for branch in self._sides]
        self.values = [
            Value.plain(attribute, name)
            for attribute, name in zip(items(join.output()), self._outputs[LEFT] + self._outputs[RIGHT], strict=True)
        ]
        self._take_keys(items(taken._2()), items(taken._3()))
        self._where: list[tuple[str, Comparison, str]] = []
        self._take_conditions()
        self._one_stream()
        self.trails = max([0, *(branch.over[1] for branch in self._sides if branch.over is not None)])
        texts = [f"{each.child().sql()}" for each in self._sides[RIGHT].keys]
        self.meaning = {str(each.name()): str(each.child().sql()) for b in self._sides for each in b.columns}
        for key, other in zip(self._sides[LEFT].keys, texts, strict=True):
            self.meaning[str(key.name())] = f"{key.child().sql()} = {other}"
        self._tell(str(join.joinType().sql()))

    def operator(self, emit: Emit) -> Operator:
        by = {str(each.name()): self.arrow(type_of(each)) for each in self._sides[LEFT].keys}
        return StreamJoin(by, self._half(LEFT), self._half(RIGHT), self._kind, self._where, self.meaning)

    def _half(self, side: int) -> Half:
        branch = self._sides[side]
        schema = pa.schema([(str(each.name()), self.arrow(type_of(each))) for each in branch.columns])
        return Half(schema, self._outputs[side], branch.time, branch.over, branch.passes)

    def idles(self, emit: Emit) -> bool:
        return self.closes is not None

    def described(self) -> str:
        return self._told

    @property
    def over(self) -> list[str]:
        return [f"Filter {each.sql()}" for each in self.filters]

    def _take_keys(self, left: list[Any], right: list[Any]) -> None:
        marked = next((n for side in (left, right) for n, each in enumerate(side) if _has(each, DELAY)), None)
        for number, keys in enumerate(zip(left, right, strict=True)):
            name = f"k{number}"
            for branch, key in zip(self._sides, keys, strict=True):
                window = any(_has(each, WINDOW) for each in keys)
                if _nested(type_of(key)) and not window:
                    what = type_of(key).simpleString()
                    raise NotCovered(f"Join by {key.sql()}: a {what} is not compared here; join by its parts")
                self.columns = branch.keys
                shape = self.flattened(self.plans.floats(key), name, window)
                if number == marked:
                    branch.over = (list(shape.columns)[-1][0], 0)
        for branch, other in (self._sides, self._sides[::-1]):
            if (attribute := branch.marked) is not None:
                branch.time = self._column(branch, self._moment(attribute))
                bound = self._bound(branch, other) if marked is None else None
                branch.over = branch.over if bound is None else (branch.time, -bound)

    def _bound(self, branch: Branch, other: Branch) -> int | None:
        """A row may be let go of when its time is at or before the watermark and so many microseconds."""
        helper = self.plans.catalyst.analysis.StreamingJoinHelper
        some = self.plans.jvm.scala.Some(SOME_TIME)
        got = helper.getStateValueWatermark(branch.plan.outputSet(), other.plan.outputSet(), self._condition, some)
        return (int(got.get()) - SOME_TIME) * 1000 if got.isDefined() else None

    def _moment(self, attribute: Any) -> Any:
        """When a row is late: by its time, or the end of its window."""
        if not isinstance(type_of(attribute), StructType):
            return attribute
        return self.plans.new("GetStructField", attribute, 1, self.plans.jvm.scala.Some("end"))

    def _take_conditions(self) -> None:
        passing: tuple[list[Any], list[Any]] = ([], [])
        for condition in _conjuncts(self._condition.get()) if self._condition.isDefined() else []:
            alone = [side for side in (LEFT, RIGHT) if self._sides[side].has(condition)]
            if condition.deterministic() and alone:
                for side in alone:
                    passing[side].append(condition)
            elif condition.deterministic() and (compared := self._compared(condition)) is not None:
                self._where.append(compared)
            elif self._kind == "inner":
                self.filters.append(condition)
            else:
                raise NotCovered(
                    f"Join: the condition {condition.sql()} of an outer join of two streams is not covered; compare an "
                    "expression of one side with one of the other, and combine with AND"
                )
        for branch, conditions in zip(self._sides, passing, strict=True):
            if conditions:
                whole = conditions[0]
                for each in conditions[1:]:
                    whole = self.plans.new("And", whole, each)
                branch.passes = self._column(branch, whole)

    def _compared(self, condition: Any) -> tuple[str, Comparison, str] | None:
        """As a comparison of two columns, one of each side, if it is one."""
        differ = kind(condition) == "Not" and kind(condition.child()) == "EqualTo"
        inner = condition.child() if differ else condition
        how: Comparison | None = "!=" if differ else COMPARISONS.get(kind(inner))
        if how is None or _nested(type_of(inner.left())):
            return None
        for (left, right), turned in ((self._sides, False), (self._sides[::-1], True)):
            if left.has(inner.left()) and right.has(inner.right()):
                one, two = self._column(left, inner.left()), self._column(right, inner.right())
                return (two, TURNED.get(how, how), one) if turned else (one, how, two)
        return None

    def _column(self, branch: Branch, expression: Any) -> str:
        """The column of this side with this expression; a new one unless there is one already."""
        same = [each for each in branch.columns if each.child().semanticEquals(expression)]
        if not same:
            same = [self.plans.alias(expression, f"{branch.letter}{len(branch.columns)}")]
            branch.columns += same
        return str(same[0].name())

    def _one_stream(self) -> None:
        """Both sides under one another, each with nulls for what the other has."""
        plans, made = self.plans, []
        for side, branch in enumerate(self._sides):
            columns = [plans.alias(plans.new("Literal", side, plans.java_type("integer")), SIDE), *branch.keys]
            for other in self._sides:
                columns += [
                    each if other is branch
                    else plans.alias(plans.new("Literal", None, each.dataType()), each.name())
                    for each in other.columns
                ]  # fmt: skip
            made.append(plans.project(plans.seq(columns), branch.plan))
        self.child = plans.catalyst.plans.logical.Union(plans.seq(made), False, False)
        self.columns = items(self.child.output())

    def _tell(self, how: str) -> None:
        keys = [self.meaning[str(each.name())] for each in self._sides[LEFT].keys]
        conditions = (
            [str(each.sql()) for each in _conjuncts(self._condition.get())] if self._condition.isDefined() else []
        )
        self._told = f"{how.lower()} join of two streams on {', '.join([*keys, *conditions])}"
        closes = []
        for side, branch in zip(("left", "right"), self._sides, strict=True):
            if branch.over is not None:
                column, lasts = branch.over
                closes.append(
                    f"{self.meaning[column]} {'-' if lasts < 0 else '+'} {abs(lasts) / 1e6:g} s of {side} rows"
                )
        if closes:
            self.closes, self.meaning[SIDE] = SIDE, ", ".join(closes)


def _kind(join: Any) -> Kind:
    written = str(join.joinType().sql())
    if written not in KINDS:
        raise NotCovered(f"Join: {written} of two streams is not covered; inner, left, right and full outer joins are")
    return KINDS[written]


def _nested(type_: DataType) -> bool:
    return uncompared(type_) or isinstance(type_, StructType)


def _has(expression: Any, what: str) -> bool:
    return kind(expression) == "AttributeReference" and bool(expression.metadata().contains(what))


def _conjuncts(condition: Any) -> list[Any]:
    if kind(condition) != "And":
        return [condition]
    return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]
