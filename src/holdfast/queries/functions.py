"""Aggregate functions: what each takes from Spark's rows, what Holdfast keeps of them, and what Spark gets back.

Functions that merge (count, sum, variance, first, max_by and the like) are kept as a few values, and answered by the
final one or by the function's own buffer, from which Spark goes on. Of every other function the inputs of a group's
rows are kept as a list, and Spark itself computes it over that list, so that any function it has is covered. Where
fewer rows decide, fewer are kept: each distinct one (DISTINCT, collect_set), or those that set a register of the sketch
(approx_count_distinct).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators import Aggregation
from holdfast.operators.aggregations import Part
from holdfast.operators.selections import registers
from holdfast.operators.statistics import comoments, moments
from holdfast.queries.plans import Plans, collated, items, kind, type_of
from holdfast.queries.stateful import NotCovered, in_types
from holdfast.runtime.spark.columns import column_of

MOMENTS = {"VariancePop": 2, "VarianceSamp": 2, "StddevPop": 2, "StddevSamp": 2, "Skewness": 3, "Kurtosis": 4}
"""The central moments that a function is made of."""
COMOMENTS = {"Corr", "CovPopulation", "CovSample"}
ONCE = {"Min", "Max", "CollectSet", "HyperLogLogPlusPlus", "BitAndAgg", "BitOrAgg"}
"""To these a value that comes again says nothing new."""
COMPARING = {"Min", "Max", "MaxBy", "MinBy", "CollectSet", "HyperLogLogPlusPlus"}
NAN = ".nan"
Columns = Sequence[tuple[str, DataType]]
Ending = Literal["value", "fields", "nan"]


@dataclass(frozen=True)
class Function:
    """An aggregate function. ``kept``: what the operator computes for it, which ``finished`` turns into ``columns``.

    ``answers``: the columns that Spark goes on from: the final value, or the function's buffer if there are several.
    ``leaves``: the inputs behind a list of rows, over which Spark is to compute it. ``keeps``: how its state grows.
    """

    sql: str
    kept: Mapping[str, Aggregation]
    columns: Columns
    answers: Columns
    ending: Ending = "value"
    keeps: str | None = None
    leaves: Sequence[Any] | None = field(default=None, repr=False)
    expression: Any = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return kind(self.expression.aggregateFunction())

    @property
    def unordered(self) -> bool:
        """Whether it comes to the same in whatever order rows come, but for the last digits of floats.

        Of 0.0 and -0.0, which are equal, the smallest and the largest are the one that came first.
        """
        parts = [part for each in self.kept.values() for part in each.parts]
        return all(part.fold == "sum" or _compared(part) for part in parts)

    def __str__(self) -> str:
        return self.sql if self.keeps is None else f"{self.sql} (keeps {self.keeps} of a group)"


class Functions:
    """Makes them, one after another. What they need of the rows is added to ``columns``."""

    def __init__(self, plans: Plans, arrow: Callable[[DataType], pa.DataType], columns: list[Any]) -> None:
        self._plans, self._arrow, self._columns = plans, arrow, columns

    def of(self, number: int, expression: Any) -> Function:
        name = f"r{number}"
        function = expression.aggregateFunction() if kind(expression) == "AggregateExpression" else expression
        if "Python" in kind(function) or "Pandas" in kind(function) or function is expression:
            raise NotCovered(
                f"aggregate {expression.sql()}: {kind(function)} is not covered; Spark's own functions are; "
                "collect_list in the query and a function of your own in foreachBatch do the same"
            )
        before = len(self._columns)
        try:
            made = self._merging(name, expression, function)
        except Invalid:  # values that Holdfast cannot add or compare
            made = None
        if made is None:
            del self._columns[before:]
            made = self._listing(name, expression, function)
        return made

    def _merging(self, name: str, expression: Any, function: Any) -> Function | None:
        """One that is kept as a few values; None if this one cannot be."""
        what, children = kind(function), items(function.children())
        types = [type_of(child) for child in children]
        answer = ((name, type_of(function)),)
        made = partial(Function, str(expression.sql()), columns=answer, answers=answer, expression=expression)
        if what in COMPARING and any(map(collated, types)):
            return None
        if expression.isDistinct() and what not in ONCE:
            return self._distinct(made, name, expression, children) if what == "Count" else None
        column = partial(self._column, expression)
        match what:
            case "Count":
                return made({name: self._counted(expression, children)})
            case "Sum" if not _trying(function):
                return made({name: op.sum(column(children[0]), self._arrow(types[0]))})
            case "Average" if not _trying(function):
                # As the type that Spark adds up in, so that means of longs round as its own do.
                buffer = self._buffer(name, function)
                parts = [op.sum(column(children[0]), self._arrow(buffer[0][1])), op.count(column(children[0]))]
                kept = {each: part for (each, _), part in zip(buffer, parts, strict=True)}
                return made(kept, columns=buffer, answers=buffer)
            case "Min" | "Max":
                return self._extreme(made, name, expression, children[0], op.max if what == "Max" else op.min)
            case "First" | "Last":
                given = children[0] if function.ignoreNulls() else self._struct(children[:1])
                kept_type = self._arrow(type_of(given))
                kept = {name: (op.first if what == "First" else op.last)(column(given), kept_type)}
                return made(kept, ending="value" if function.ignoreNulls() else "fields")
            case "MaxBy" | "MinBy":
                best = op.max_by if what == "MaxBy" else op.min_by
                value = self._input(children[0])
                return made({name: best(value, column(children[1]), *map(self._arrow, types))})
            case "CollectList" if not function.dataType().containsNull():
                kept = {name: op.collect(column(children[0]), self._arrow(types[0]))}
                return made(kept, keeps="every value")
            case "CollectSet" if not function.dataType().containsNull() and not _floating(types[0]):
                kept = {name: op.collect_set(column(children[0]), self._arrow(types[0]))}
                return made(kept, keeps="every distinct value")
        if what in MOMENTS or what in COMOMENTS:
            buffer = self._buffer(name, function)
            inputs = [column(child) for child in children]
            moment = moments(inputs[0], MOMENTS[what]) if what in MOMENTS else comoments(*inputs)
            return made({name: moment}, columns=buffer, answers=buffer, ending="fields")
        return None

    def _counted(self, expression: Any, children: Sequence[Any]) -> Aggregation:
        """Rows in which nothing is null, for which the filter holds."""
        plans = self._plans
        wanted = [child for child in children if child.nullable()]
        filtered = expression.filter().isDefined()
        if not wanted and not filtered:
            return op.count()
        if len(wanted) == 1 and not filtered:
            return op.count(self._input(wanted[0]))
        true = plans.literal(True)
        return op.count(self._column(expression, self._where(self._all_there(wanted), true) if wanted else true))

    def _distinct(self, made: Callable[..., Function], name: str, expression: Any, children: Sequence[Any]) -> Function:
        """count(DISTINCT ...): combinations in which nothing is null."""
        same = [self._plans.floats(child) for child in children]
        if any(collated(type_of(child)) for child in children):
            raise Invalid("values of different bytes may be the same")
        given = same[0] if len(same) == 1 else self._where(self._all_there(children), self._struct(same))
        kept = op.count_distinct(self._column(expression, given), self._arrow(type_of(given)))
        return made({name: kept}, keeps="every distinct value")

    def _extreme(
        self, made: Callable[..., Function], name: str, expression: Any, child: Any, extreme: Callable[..., Aggregation]
    ) -> Function:
        kept = {name: extreme(self._column(expression, child), self._arrow(type_of(child)))}
        if not isinstance(type_of(child), (FloatType, DoubleType)):
            return made(kept)
        # To Spark NaN is larger than anything; Holdfast's own extremes pass over it.
        nan = self._column(expression, self._plans.new("IsNaN", child))
        return made({**kept, name + NAN: op.max(nan, pa.bool_())}, ending="nan")

    def _listing(self, name: str, expression: Any, function: Any) -> Function:
        """One that Spark computes over the rows that are kept; functions of the same rows share them."""
        plans, leaves = self._plans, _leaves(function)
        struct = self._struct(leaves or [plans.literal(True)])
        row, rows = self._arrow(type_of(struct)), ArrayType(type_of(struct))
        column, what = self._column(expression, struct), kind(function)
        keeps, listed, kept = "every value", f"all_{column}", op.collect(column, row)
        if what == "HyperLogLogPlusPlus" and not collated(type_of(leaves[0])):
            words = function.aggBufferAttributes().size()
            bits = next(bits for bits in range(4, 64) if 2**bits // 10 + 1 == words)
            hashed = self._column(expression, self._hashed(leaves[0]))
            keeps, listed = f"at most {2**bits} values", f"registers{bits}_{column}"
            kept = registers(bits, column, hashed, row)
        elif expression.isDistinct() or what in ONCE:
            with suppress(Invalid):  # lists and maps are not told apart here: Spark does that
                keeps, listed, kept = "every distinct value", f"set_{column}", op.collect_set(column, row)
        answer = ((name, type_of(function)),)
        return Function(
            str(expression.sql()), {listed: kept}, ((listed, rows),), answer, keeps=keeps, leaves=leaves,
            expression=expression,
        )  # fmt: skip

    def _buffer(self, name: str, function: Any) -> Columns:
        return tuple((f"{name}_{each.name()}", type_of(each)) for each in items(function.aggBufferAttributes()))

    def _struct(self, fields: Sequence[Any]) -> Any:
        named = [part for n, each in enumerate(fields) for part in (self._plans.literal(f"f{n}"), each)]
        return self._plans.new("CreateNamedStruct", self._plans.seq(named))

    def _hashed(self, child: Any) -> Any:
        """As Spark's sketch hashes it: floats in their normal form, but not within structs."""
        plans = self._plans
        same = plans.floats(child) if isinstance(type_of(child), (FloatType, DoubleType)) else child
        return self._where(self._all_there([child]), plans.new("XxHash64", plans.seq([same])))

    def _all_there(self, children: Sequence[Any]) -> Any:
        there = [self._plans.new("IsNotNull", child) for child in children]
        return reduce(partial(self._plans.new, "And"), there)

    def _where(self, condition: Any, value: Any) -> Any:
        plans = self._plans
        return plans.new("If", condition, value, plans.new("Literal", None, value.dataType()))

    def _column(self, expression: Any, value: Any) -> str:
        """A column with this value; null where the function's FILTER does not hold, as none of them counts a null."""
        condition = expression.filter()
        return self._input(self._where(condition.get(), value) if condition.isDefined() else value)

    def _input(self, value: Any) -> str:
        """The column of ``below`` with this value; a new one unless there is one already."""
        ours = [each for each in self._columns if each.name()[0] == "a"]
        same = [each.name() for each in ours if each.child().semanticEquals(value)]
        if not same:
            same = [f"a{len(ours)}"]
            self._columns.append(self._plans.alias(value, same[0]))
        return str(same[0])


def finished(each: Function, rows: pa.Table) -> pa.Table:
    """What was kept of it, as the columns that it is answered by."""
    name = next(iter(each.kept))
    if each.ending == "fields":
        parts = rows[name].flatten()
        rows = rows.drop_columns([name])
        for (answer, _), part in zip(each.columns, parts, strict=False):
            rows = rows.append_column(answer, part)
    if each.ending == "nan":
        # NaN is the largest of all: the largest if there is one, the smallest if there is nothing else.
        values, some = rows[name], rows[name + NAN].fill_null(False)
        if each.kept[name].what == "min":
            some = pc.and_(some, pc.is_null(values, nan_is_null=True))
        values = pc.if_else(some, pa.scalar(float("nan"), values.type), values)
        rows = rows.set_column(rows.schema.get_field_index(name), name, values)
    return rows


def all_finished(functions: Sequence[Function], schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """The same for several, without a JVM."""
    for each in functions:
        rows = finished(each, rows)
    return in_types(schema, rows)


def evaluated(plans: Plans, answers: DataFrame, functions: Sequence[Function]) -> DataFrame:
    """A batch of answers with the values of those functions that Spark computes over lists, in place of the lists.

    The lists of a row are laid side by side and unrolled; of the rows of one row the functions are computed, each over
    its own list, and all other columns come along.
    """
    over = [each for each in functions if each.leaves is not None]
    if not over:
        return answers
    lists = dict(pair for each in over for pair in each.columns)
    zipped = F.arrays_zip(*(column_of(name).cast(type_).alias(name) for name, type_ in lists.items()))
    others = [name for name in answers.columns if name not in lists]
    frame = answers.select(*others, F.monotonically_increasing_id().alias("row"), zipped.alias("lists"))
    frame = frame.select(*others, "row", F.explode_outer("lists").alias("each"))
    plan = frame._jdf.queryExecution().analyzed()
    *carried, row, element = items(plan.output())
    made = [plans.alias(plans.aggregate("First", each, False), each.name()) for each in carried]
    for each in over:
        (name, _) = each.columns[0]
        mine = plans.field(element, list(lists).index(name), name)
        function = each.expression.aggregateFunction()
        rebuilt = function.withNewChildren(plans.seq([_over(plans, c, each, mine) for c in items(function.children())]))
        there = plans.jvm.scala.Some(plans.new("IsNotNull", mine))
        computed = rebuilt.toAggregateExpression(each.expression.isDistinct(), there)
        made.append(plans.alias(computed, each.answers[0][0]))
    return plans.frame(plans.grouped([row], made, plan))


def _over(plans: Plans, child: Any, each: Function, element: Any) -> Any:
    """An input of a function, from a row of its list."""
    if child.foldable():
        return child
    if kind(child) == "SortOrder":
        return child.withNewChildren(
            plans.seq([_over(plans, inner, each, element) for inner in items(child.children())])
        )
    place = next(place for place, leaf in enumerate(each.leaves or ()) if leaf.semanticEquals(child))
    return plans.field(element, place, f"f{place}")


def _leaves(function: Any) -> list[Any]:
    """What a function reads of a row, each once. Constants stay where they are: Spark insists on some."""
    found: list[Any] = []
    for child in items(function.children()):
        inner = _leaves(child) if kind(child) == "SortOrder" else [] if child.foldable() else [child]
        found += [each for each in inner if not any(each.semanticEquals(other) for other in found)]
    return found


def _trying(function: Any) -> bool:
    """try_sum and try_avg: null where a sum overflows."""
    return str(function.prettyName()).startswith("try_")


def _compared(part: Part) -> bool:
    return part.fold in ("min", "max") and not pa.types.is_floating(part.type)


def _floating(type_: DataType) -> bool:
    return any(word in type_.simpleString() for word in ("float", "double"))
