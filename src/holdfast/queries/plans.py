"""Spark's plans from Python: what a node is, what it holds, and how new ones are made. No Spark Connect."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, _parse_datatype_json_string

from holdfast.runtime.spark.java import java, scala_object

FEW, PREPENDED = 6, "$colon$colon"
"""A Scala list of fewer items is made by ``::``, two calls through the gateway for each; more by a Java list."""


class Plans:
    """Makes expressions and plans in the JVM of a session."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.jvm = jvm = java(spark.sparkContext)
        self.catalyst = jvm.org.apache.spark.sql.catalyst
        self._none = jvm.scala.Option.empty()
        self._new_id = self.catalyst.expressions.NamedExpression.newExprId
        self._as_scala = self.jvm.scala.jdk.javaapi.CollectionConverters.asScala
        self._nothing = scala_object(jvm.scala.collection.immutable, "Nil")

    def new(self, name: str, *arguments: Any) -> Any:
        """An expression of this class."""
        return getattr(self.catalyst.expressions, name)(*arguments)

    def literal(self, value: str | bool) -> Any:
        return scala_object(self.catalyst.expressions, "Literal").apply(value)

    def field(self, struct: Any, place: int, name: str) -> Any:
        return self.new("GetStructField", struct, place, self.jvm.scala.Some(name))

    def aggregate(self, name: str, *arguments: Any) -> Any:
        """An aggregate function of this class, as an expression."""
        return getattr(self.catalyst.expressions.aggregate, name)(*arguments).toAggregateExpression()

    def grouped(self, keys: list[Any], columns: list[Any], child: Any) -> Any:
        return self.catalyst.plans.logical.Aggregate(self.seq(keys), self.seq(columns), child, self._none)

    def project(self, columns: Any, child: Any) -> Any:
        return self.catalyst.plans.logical.Project(columns, child)

    def filtered(self, condition: Any, child: Any) -> Any:
        return self.catalyst.plans.logical.Filter(condition, child)

    def frame(self, plan: Any) -> DataFrame:
        return DataFrame(
            self.jvm.org.apache.spark.sql.classic.Dataset.ofRows(self.spark._jsparkSession, plan), self.spark
        )

    def seq(self, items: list[Any]) -> Any:
        if len(items) < FEW:
            listed = self._nothing
            for item in reversed(items):
                listed = getattr(listed, PREPENDED)(item)
            return listed
        made = self.jvm.java.util.ArrayList()
        for item in items:
            made.add(item)
        return self._as_scala(made).toSeq()

    def java_type(self, name: str) -> Any:
        return self.spark._jsparkSession.parseDataType(json.dumps(name))

    def alias(self, expression: Any, name: str, like: Any = None) -> Any:
        """Named; with the id of ``like``, where others refer to it, or with a new one."""
        number = like.exprId() if like is not None else self._new_id()
        return self.new("Alias", expression, name, number, self._nothing, self._none, self._nothing)

    def renamed(self, old: Any, new: Any) -> Any:
        """One attribute in place of another, as nullable as that one was: the user's schema says what is never null."""
        if old.nullable() != new.nullable():
            old = self.new("KnownNullable" if new.nullable() else "KnownNotNull", old)
        return self.alias(old, new.name(), new)

    def normal(self, plan: Any) -> Any:
        """As the first batch of Spark's own optimizer has it: no aliases, views, CTEs, nor functions for others."""
        analysis, optimizer = self.catalyst.analysis, self.catalyst.optimizer
        if kind(plan) == "WithCTE":
            plan = optimizer.InlineCTE(True, False, False).apply(plan)
        plan = analysis.EliminateSubqueryAliases.apply(plan)
        plan = optimizer.ReplaceExpressions.apply(analysis.EliminateView.apply(plan))
        return optimizer.ReplaceDistinctWithAggregate.apply(plan)

    def counting_all(self, plan: Any) -> Any:
        """The same plan with DISTINCT left out of its aggregate functions."""

        def without(expression: Any) -> Any:
            made = expression.withNewChildren(self.seq([without(child) for child in items(expression.children())]))
            if kind(made) == "AggregateExpression" and made.isDistinct():
                return made.aggregateFunction().toAggregateExpression(False, made.filter())
            return made

        below = items(plan.children())
        others = [self.counting_all(child) for child in below]
        same = all(other is child for other, child in zip(others, below, strict=True))
        made = plan if same else plan.withNewChildren(self.seq(others))
        named = items(plan.aggregateExpressions()) if kind(plan) == "Aggregate" else []
        inner = [each for one in named for each in expressions_of(one)]
        if any(kind(each) == "AggregateExpression" and each.isDistinct() for each in inner):
            return self.grouped(items(plan.groupingExpressions()), [without(each) for each in named], made.child())
        return made

    def floats(self, expression: Any) -> Any:
        """As Spark groups floats: -0.0 is 0.0 and NaN is NaN."""
        return scala_object(self.catalyst.optimizer, "NormalizeFloatingNumbers").normalize(expression)


def kind(node: Any) -> str:
    """The name of its class, which case classes say in one call."""
    return str(node.productPrefix() or node.getClass().getSimpleName())


def items(seq: Any) -> list[Any]:
    return [seq.apply(place) for place in range(seq.size())]


def nodes_of(plan: Any) -> list[Any]:
    return [plan, *(node for child in items(plan.children()) for node in nodes_of(child))]


def expressions_of(expression: Any) -> list[Any]:
    return [expression, *(each for child in items(expression.children()) for each in expressions_of(child))]


def type_of(expression: Any) -> DataType:
    """Its type, nulls allowed within: what comes back from elsewhere cannot be cast to an array that never has any."""
    return _parse_datatype_json_string(expression.dataType().asNullable().json())


def collated(type_: DataType) -> bool:
    """Whether it has text in it that is compared otherwise than by its bytes."""
    return "string collate " in type_.simpleString()


def uncompared(type_: DataType) -> bool:
    """Whether it cannot be a key: nobody but Spark knows when two such values are the same."""
    return collated(type_) or any(word in str(type_) for word in ("MapType", "ArrayType", "VariantType"))


def unaliased(named: Any) -> Any:
    return named.child() if kind(named) == "Alias" else named
