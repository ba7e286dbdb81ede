"""Aggregate functions: what each takes from Spark's rows, what Holdfast keeps of them, and what Spark gets back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, DoubleType, FloatType

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators import Aggregation
from holdfast.queries.plans import Plans, items, kind, type_of
from holdfast.queries.stateful import NotCovered

NULLS_SKIPPED = {"Count", "Sum", "Min", "Max", "Average"}
"""Functions that are covered. To all of them FILTER (WHERE c) is an input that is null where c does not hold."""
COVERED = "count, sum, avg, min and max are"
NAN = ".nan"


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


def function_of(plans: Plans, number: int, expression: Any, columns: list[Any]) -> Function:
    """What an aggregate expression needs of the rows, which is added to ``columns``."""
    if kind(expression) != "AggregateExpression":
        raise NotCovered(f"{kind(expression)} as an aggregate is not covered; {COVERED}")
    function = expression.aggregateFunction()
    name, condition = kind(function), expression.filter()
    if name not in NULLS_SKIPPED:
        raise NotCovered(f"aggregate {expression.sql()}: {name} is not covered; {COVERED}")
    if expression.isDistinct():
        raise NotCovered(f"aggregate {expression.sql()}: DISTINCT is not covered; {COVERED}")
    inputs, types = [], []
    for child in items(function.children()):
        if child.foldable() and condition.isEmpty() and name == "Count":
            continue  # count(1) needs no column
        given = child
        if condition.isDefined():
            given = plans.new("If", condition.get(), child, plans.new("Literal", None, child.dataType()))
        inputs.append(_input(plans, given, columns))
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
        nan = _input(plans, plans.new("IsNaN", next(c.child() for c in columns if c.name() == inputs[0])), columns)
    return Function(name, expression.sql(), tuple(inputs), tuple(types), answers, answer_types, nan, expression)


def _input(plans: Plans, child: Any, columns: list[Any]) -> str:
    """The column of ``below`` with this expression; a new one unless there is one already."""
    ours = [each for each in columns if each.name()[0] == "a"]
    same = [each.name() for each in ours if each.child().semanticEquals(child)]
    if not same:
        same = [f"a{len(ours)}"]
        columns.append(plans.alias(child, same[0]))
    return str(same[0])


def answers_of(each: Function, arrow: Callable[[DataType], pa.DataType]) -> dict[str, Aggregation]:
    """What is kept of it, by the columns of its answers."""
    column = each.inputs[0] if each.inputs else ""
    match each.name:
        case "Count":
            made = [op.count(*each.inputs)]
        case "Sum":
            made = [op.sum(column, arrow(each.input_types[0]))]
        case "Average":
            # As the type that Spark adds up in, so that means of longs round as its own do.
            made = [op.sum(column, arrow(each.answer_types[0])), op.count(column)]
        case _:
            extreme = op.max if each.name == "Max" else op.min
            try:
                made = [extreme(column, arrow(each.input_types[0]))]
            except Invalid as error:
                raise NotCovered(f"aggregate {each.sql}: {error}") from None
    named = dict(zip(each.answers, made, strict=True))
    if each.nan is not None:
        named[each.answers[0] + NAN] = op.max(each.nan, pa.bool_())
    return named


def finished(each: Function, rows: pa.Table) -> pa.Table:
    """What was kept of it, as it is answered."""
    if each.nan is None:
        return rows
    # NaN is the largest of all: the largest if there is one, the smallest if there is nothing else.
    name = each.answers[0]
    values, some = rows[name], rows[name + NAN].fill_null(False)
    if each.name == "Min":
        some = pc.and_(some, pc.is_null(values, nan_is_null=True))
    values = pc.if_else(some, pa.scalar(float("nan"), values.type), values)
    return rows.set_column(rows.schema.get_field_index(name), name, values)
