"""A node of Spark's plan that keeps state, as Holdfast runs it: what it takes, what it does, what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BooleanType, DataType, StructType

from holdfast.errors import Invalid
from holdfast.operators import Operator
from holdfast.operators.grouped import Emit
from holdfast.queries.plans import Plans, items, type_of
from holdfast.runtime.spark.columns import column_of

Finish = Callable[[pa.Table], pa.Table]


class NotCovered(Invalid):
    """The query has something that cannot be run here; the message names the node of the plan."""


@dataclass(frozen=True)
class Shape:
    """How a value travels: as a column; or a struct as its ``fields``, and then ``column`` says where it is not null.

    A window, which is never null, has no such column.
    """

    column: str | None
    type: DataType
    fields: tuple[Shape, ...] | None = None

    @property
    def columns(self) -> Iterator[tuple[str, DataType]]:
        if self.column is not None:
            yield self.column, self.type if self.fields is None else BooleanType()
        for each in self.fields or ():
            yield from each.columns

    def joined(self, given: StructType) -> Column:
        """The value again, from its columns in rows of this type."""
        if self.fields is None or not isinstance(self.type, StructType):
            assert self.column is not None
            column = column_of(self.column)
            return column if given[self.column].dataType == self.type else column.cast(self.type)
        names = zip(self.type.fieldNames(), self.fields, strict=True)
        whole = F.struct(*(each.joined(given).alias(name) for name, each in names))
        if self.column is not None:
            whole = F.when(column_of(self.column), whole)
        return whole.cast(self.type)


@dataclass(frozen=True)
class Value:
    """An attribute of the plan, and the columns that it travels as."""

    attribute: Any = field(repr=False)
    shape: Shape

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.shape.columns)

    @staticmethod
    def plain(attribute: Any, column: str, type_: DataType | None = None) -> Value:
        """In a column of its own, whatever its type."""
        kind = type_of(attribute) if type_ is None else type_
        return Value(attribute, Shape(column, kind))


def in_types(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """Answers in the types that the plan above expects."""
    return rows.select(schema.names).cast(schema)


class Stateful(ABC):
    """What all such nodes have.

    ``columns``: named expressions over ``child``, which is everything below; ``meaning``: what is behind each.
    ``written``: everything below as the query has it, where ``child`` is something faster that comes to the same.
    ``values``: its answers, under the ids that the plan above refers to; ``filters`` and then ``projections`` stand
    between these and the node's own output. ``closes``: the column by whose time state is let go of. ``alone``: it
    cannot be cut by key. ``trails``: its answers may be so many microseconds older than the watermark.
    """

    name: str
    closes: str | None = None
    alone: bool = False
    trails: int = 0

    def __init__(self, plans: Plans, child: Any) -> None:
        self.plans, self.child, self.written = plans, child, child
        self.columns: list[Any] = []
        self.meaning: dict[str, str] = {}
        self.values: list[Value] = []
        self.projections: list[Any] = []
        self.filters: list[Any] = []

    @abstractmethod
    def operator(self, emit: Emit) -> Operator:
        """What keeps its state."""

    @abstractmethod
    def described(self) -> str:
        """What it keeps, in words."""

    def idles(self, emit: Emit) -> bool:
        """Whether Structured Streaming runs a batch without rows for it when the watermark has moved."""
        return True

    @property
    def over(self) -> list[str]:
        """Its projections, from the top, in Spark's words."""
        return [f"Project [{', '.join(each.sql() for each in items(one))}]" for one in reversed(self.projections)]

    def finished(self, rows: pa.Table) -> pa.Table:
        """What the operator has answered, with the columns of ``values``."""
        return rows.select(self.schema().names)

    def finish(self) -> Finish:
        """``finished`` for tasks: without a JVM, and it can be sent to them."""
        return partial(in_types, self.schema())

    def schema(self) -> pa.Schema:
        """The columns of ``finished``, for an epoch in which nobody said anything."""
        columns = dict(pair for value in self.values for pair in value.shape.columns)
        return pa.schema([pa.field(name, self.arrow(kind)) for name, kind in columns.items()])

    def answered(self, answers: DataFrame) -> Any:
        """The plan of the node's output, from a batch of its answers."""
        plans, given = self.plans, answers.schema
        chosen: Any = answers.select(*(each.shape.joined(given) for each in self.values))
        plan = chosen._jdf.queryExecution().analyzed()
        # Under the ids that the user's expressions refer to: from here on the plan is the user's own.
        renamed = [
            plans.renamed(old, new.attribute) for old, new in zip(items(plan.output()), self.values, strict=True)
        ]
        plan = plans.project(plans.seq(renamed), plan)
        for condition in self.filters:
            plan = plans.filtered(condition, plan)
        for projection in self.projections:
            plan = plans.project(projection, plan)
        return plan

    def arrow(self, kind: DataType) -> pa.DataType:
        zone = self.plans.spark.conf.get("spark.sql.session.timeZone")
        try:
            return to_arrow_type(kind, timezone=zone)
        except Exception as error:
            raise NotCovered(f"a column of type {kind.simpleString()} is not covered: {error}") from None

    def flattened(self, expression: Any, name: str, window: bool = False) -> Shape:
        """Takes a value whose parts can be compared: a struct as its fields. Adds them to ``columns``."""
        kind, column = type_of(expression), name
        if not isinstance(kind, StructType):
            self.columns.append(self.plans.alias(expression, name))
            return Shape(column, kind)
        if not window:
            self.columns.append(self.plans.alias(self.plans.new("IsNotNull", expression), column))
        fields = []
        for place, inner in enumerate(kind.fieldNames()):
            some = self.plans.jvm.scala.Some(inner)
            fields.append(self.flattened(self.plans.new("GetStructField", expression, place, some), f"{name}_{inner}"))
        return Shape(None if window else column, kind, tuple(fields))
