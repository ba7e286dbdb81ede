"""What Structured Streaming keeps of a group, its aggregation buffers, as the parts that Holdfast keeps of it.

Which buffers there are, and in which order, follows from the plan that Spark's own optimizer makes of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType, StructField, StructType

from holdfast.errors import Invalid
from holdfast.operators.columns import contiguous
from holdfast.queries.aggregates import EVERYTHING, Groups
from holdfast.queries.functions import COMOMENTS, MOMENTS, NAN, Function
from holdfast.queries.plans import Plans, expressions_of, items, kind, nodes_of, type_of
from holdfast.queries.split import Split
from holdfast.queries.stateful import NotCovered, Shape

KNOWN = ("Count", "Sum", "Average", "Min", "Max", *MOMENTS, *sorted(COMOMENTS))
"""Functions whose buffers can be taken over."""
WIDEST = 37


@dataclass(frozen=True)
class Held:
    """The buffers of a function: columns ``first`` to ``last`` of the state's value. ``scale``: decimals are kept as
    whole numbers of so many digits after the point.
    """

    function: Function
    first: int
    last: int
    scale: int | None


class Layout:
    """How Structured Streaming lays out the state of a query: ``keys`` and ``values``, and whose values these are.

    A function that nothing above the aggregate reads is in the plan as it was written, but not in Spark's state.
    """

    def __init__(self, frame: DataFrame, split: Split) -> None:
        self.groups = _groups(split)
        plans, analyzed = Plans(frame.sparkSession), frame._jdf.queryExecution().analyzed()
        session: Any = frame.sparkSession._jsparkSession
        optimized = session.sessionState().optimizer().execute(analyzed)
        aggregates = [node for node in nodes_of(optimized) if kind(node) == "Aggregate" and node.isStreaming()]
        if len(aggregates) != 1:
            raise NotCovered(f"import of a query with {len(aggregates)} aggregates is not covered; one is")
        parts = plans.catalyst.planning.PhysicalAggregation.unapply(aggregates[0]).get()
        kept = items(parts._2())
        self.sources = {_sources(analyzed), _sources(plans.normal(analyzed))}  # a CTE is there once, or inlined
        self.keys = StructType([StructField(each.name(), type_of(each)) for each in items(parts._1())])
        buffers = [items(each.aggregateFunction().aggBufferAttributes()) for each in kept]
        self.values = StructType([StructField(a.name(), type_of(a)) for each in buffers for a in each])
        ends = [sum(map(len, buffers[: place + 1])) for place in range(len(kept))]
        places = self._places(aggregates[0], kept)
        self.held: list[Held] = []
        self.unread: list[Function] = []
        for function in self.groups.functions:
            if function.name not in KNOWN or function.leaves is not None:
                raise NotCovered(
                    f"aggregate {function.sql}: the state of {function.name} cannot be imported; "
                    f"that of {', '.join(KNOWN)} can"
                )
            place = places.get(_id(function.expression))
            if place is None:
                self.unread.append(function)
                continue
            child = kind(kept[place].aggregateFunction().children().apply(0))
            given = type_of(function.expression.aggregateFunction().children().apply(0))
            scale = given.scale if child == "UnscaledValue" and isinstance(given, DecimalType) else None
            self.held.append(Held(function, ends[place] - len(buffers[place]), ends[place], scale))

    def _places(self, aggregate: Any, kept: Sequence[Any]) -> dict[int, int]:
        """By the id of a function's result, which of the kept ones has its buffers: equal functions share them."""
        places: dict[int, int] = {}
        for expression in items(aggregate.aggregateExpressions()):
            for each in expressions_of(expression):
                if kind(each) == "AggregateExpression":
                    same = [place for place, other in enumerate(kept) if other.semanticEquals(each)]
                    places[_id(each)] = same[0]
        ours = {_id(function.expression) for function in self.groups.functions}
        for place, each in enumerate(kept):
            if not any(number in ours for number, at in places.items() if at == place):
                raise NotCovered(
                    f"aggregate {each.sql()}: Spark plans it otherwise than it is written; it is not covered"
                )
        return places

    def check(self, state: DataFrame, place: str) -> None:
        """Refused if a state has other columns than this query's."""
        for name, wanted in (("key", self.keys), ("value", self.values)):
            kept = state.schema[name].dataType
            assert isinstance(kept, StructType)
            found, needed = _told(kept), _told(wanted)
            if found != needed:
                raise Invalid(
                    f"checkpoint {place}: it belongs to another query: the {name} of its state is ({found}), "
                    f"that of this query ({needed})"
                )

    def flat(self, state: DataFrame) -> DataFrame:
        """The key columns as Holdfast names them, and the buffers by number; names in Spark's own state may repeat."""
        columns = []
        for place, key in enumerate(self.groups.keys):
            columns += _flattened(F.col("key").cast(_numbered(self.keys))[f"_{place}"], key.value.shape)
        if not columns:
            columns.append(F.lit(0).cast("int").alias(EVERYTHING))
        values = F.col("value").cast(_numbered(self.values)) if len(self.values) else None
        if values is not None:
            columns += [values[f"_{place}"].alias(f"_{place}") for place in range(len(self.values))]
        return state.select(*columns)

    def parts(self, rows: pa.Table) -> pa.Table:
        """Rows of ``flat`` with Holdfast's parts in place of the buffers."""
        made = rows.select([name for name in rows.column_names if not name.startswith("_")])
        for each in self.held:
            buffers = [contiguous(rows.column(f"_{place}")) for place in range(each.first, each.last)]
            for name, values in parts_of(each.function.name, each.function, buffers, each.scale).items():
                made = made.append_column(name, values)
        for function in self.unread:
            for name in function.kept:
                made = made.append_column(name, pa.nulls(rows.num_rows))
        if not self.groups.functions:
            made = made.append_column("r", pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows))
        return made


def parts_of(
    what: str, function: Function, buffers: Sequence[pa.Array], scale: int | None = None
) -> dict[str, pa.Array]:
    """The parts of one function, by the name they have in a state table, from Spark's buffers of it."""
    (name, kept), (first, *others) = next(iter(function.kept.items())), buffers
    match what:
        case "Count":
            return {name: first}
        case "Sum":
            total = _scaled(first, scale)
            if others:  # it says where there was no value yet; a sum that is null although there was one has overflowed
                empty = contiguous(others[0])
                if pc.any(pc.and_(pc.is_null(total), pc.invert(empty))).as_py():
                    raise Invalid(f"aggregate {function.sql}: the sum of a group had overflowed; it cannot go on here")
                total = pc.if_else(empty, pa.scalar(None, total.type), total)
            return {name: total}
        case "Average":
            count = others[0]
            total = _scaled(first, scale)
            # To Spark the sum of nothing is 0, to Holdfast null.
            total = pc.if_else(pc.equal(count, 0), pa.scalar(None, total.type), total)
            return dict(zip(function.kept, (total, count), strict=True))
        case "Min" | "Max":
            made = {name: first}
            if name + NAN in function.kept:
                # NaN is the largest of all: a largest that is NaN stays so, and a smallest has seen nothing else.
                made[name + NAN] = pc.is_nan(first).fill_null(False)
            return made
        case _:
            kind_ = kept.parts[0].type
            columns = [each.cast(inner.type) for each, inner in zip(buffers, kind_, strict=True)]
            return {name: pa.StructArray.from_arrays(columns, fields=list(kind_), mask=pc.equal(first, 0))}


def _scaled(values: pa.Array, scale: int | None) -> pa.Array:
    """Whole numbers as decimals with so many digits after the point."""
    if scale is None:
        return values
    whole = values.cast(pa.decimal128(WIDEST, 0))
    return pa.Array.from_buffers(
        pa.decimal128(WIDEST, scale), len(whole), whole.buffers(), whole.null_count, whole.offset
    )


def _told(columns: StructType) -> str:
    return ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in columns)


def _numbered(columns: StructType) -> StructType:
    return StructType([StructField(f"_{place}", each.dataType) for place, each in enumerate(columns)])


def _groups(split: Split) -> Groups:
    """The aggregate of a query that has no other state."""
    if len(split.nodes) == 1 and isinstance(split.top, Groups):
        return split.top
    told = ", ".join(node.name for node in split.nodes)
    raise NotCovered(f"the state of a query that keeps {told} cannot be imported; that of one aggregate can")


def _flattened(value: Column, shape: Shape) -> list[Column]:
    """The columns as which a value travels."""
    if not isinstance(shape.type, StructType):
        return [value.alias(str(shape.column))]
    columns = [] if shape.column is None else [value.isNotNull().alias(shape.column)]
    for name, inner in zip(shape.type.fieldNames(), shape.fields or (), strict=True):
        columns += _flattened(value[name], inner)
    return columns


def _sources(plan: Any) -> int:
    """How many sources Structured Streaming counts: a stream that is there twice counts twice."""
    return sum(kind(node).startswith("StreamingRelation") for node in nodes_of(plan))


def _id(expression: Any) -> int:
    return int(expression.resultId().id())
