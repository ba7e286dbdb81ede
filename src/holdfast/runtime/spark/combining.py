"""Rows grouped by Spark before they become Arrow, where few groups stand for many rows.

A batch of four million rows in a thousand groups is a few thousand rows then, and so is what the journal holds of it:
replays begin from the same partial groups. With many groups Spark's own map costs more than it saves, so it is chosen
while the job runs, from what the epoch before has shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from holdfast.operators.aggregations import Partial
from holdfast.operators.grouped import ROWS
from holdfast.runtime.spark.columns import column_of
from holdfast.runtime.spark.java import java

MANY = 100_000
"""With fewer rows in a batch, planning one more query costs more than it saves."""
EACH = 8
"""A group must stand for so many rows; half of it while they are combined, so that it does not go to and fro."""
FAST, SLOW = 50_000, 32
"""So many groups in a part of a batch fit into Spark's fast map; with more, each must stand for so many rows."""
FAILURES = 3
PART, EMPTY, AND = "part", ".empty", " and "


class Overflow(Exception):
    """Not said to users: the run is made again with rows as they are, and the operator says what overflows."""


Made = tuple[str, str | None, pa.DataType | None]
"""A function to compute, the column that it is of, and the type that it adds in."""


@dataclass(frozen=True)
class Combined:
    """What the rows of the source may be grouped by, and what is made of them; each is sent on so many ``times``."""

    keys: tuple[str, ...]
    partials: tuple[Partial, ...]
    times: int = 1

    def made(self) -> dict[Made, list[str]]:
        """What is to be computed, each once, and under which names it is wanted."""
        found: dict[Made, list[str]] = {}
        for each in self.partials:
            found.setdefault((each.how.removesuffix("_all"), each.column, each.type), []).append(each.name)
        return found


class Combining:
    """Whether the next batch is combined, and how. Without ``given`` none is."""

    def __init__(self, given: Combined | None) -> None:
        self._given = given
        self._on = False
        self._failures = 0
        self._empty: DataFrame | None = None
        self._layout = ""
        """What Spark made of the first batch that was combined; each later one must be alike."""

    def learn(self, rows: int, groups: int, parts: int) -> None:
        """What an epoch has shown: so many rows were read, and sent on as so many groups, from so many parts."""
        groups //= self._given.times if self._given is not None else 1
        self._failures = 0 if self._on else self._failures
        enough = groups * (EACH // 2 if self._on else EACH) <= rows
        self._on = rows >= MANY and enough and (groups <= FAST * max(1, parts) or groups * SLOW <= rows)

    def plan(self, frame: DataFrame) -> tuple[DataFrame, Any] | None:
        """An empty frame with the columns of partial groups, and the plan that makes them of this batch.

        None where rows are to come as they are.
        """
        if self._given is None or not self._on:
            return None
        try:
            return self._planned(frame, self._given)
        except Exception:  # whatever Spark makes of it: rows can always come as they are
            self.never()
            return None

    def never(self) -> None:
        """Rows are to come as they are from now on."""
        self._given = None

    def failed(self) -> None:
        """A combined run was not finished: the next try does without. After some in a row, all do."""
        self._on, self._failures = False, self._failures + 1
        if self._failures == FAILURES:
            self.never()

    def _planned(self, frame: DataFrame, given: Combined) -> tuple[DataFrame, Any] | None:
        made = given.made()
        if any(AND in key or key.endswith(EMPTY) for key in given.keys):  # fields of a user's struct, as it happens
            self.never()
            return None
        columns = [_column(*each).alias(f"{PART}{place}") for place, each in enumerate(made)]
        grouped: Any = frame.groupBy(*(column_of(key) for key in given.keys)).agg(*columns)._jdf
        final = grouped.queryExecution().sparkPlan()
        partial = final.child() if _hashes(final) else final
        layout = str(partial.schema().json()) if _hashes(partial) and _sums(frame, made) else ""
        if self._empty is None and layout:
            fields = _fields(given.keys, made, final, partial)
            if fields is not None:
                self._empty = frame.sparkSession.createDataFrame([], StructType(fields))
                self._layout = layout
        if self._empty is None or layout != self._layout:
            self.never()
            return None
        session: Any = frame.sparkSession
        execution = java(session.sparkContext).org.apache.spark.sql.execution.QueryExecution
        return self._empty, execution.prepareExecutedPlan(session._jsparkSession, partial)


def uncombined(rows: pa.Table) -> tuple[pa.Table, int]:
    """Partial groups as the operator takes them, and how many rows they stand for.

    Sums of nothing are null, and groups of nothing are not there. What is wanted under several names has them all.
    """
    columns: dict[str, pa.ChunkedArray] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if name.endswith(EMPTY):
            summed = columns[name.removesuffix(EMPTY).split(AND)[0]]
            if pc.any(pc.and_(pc.invert(column), pc.is_null(summed))).as_py():
                raise Overflow("a sum of decimals has more than 38 digits")
            there = pc.if_else(column, pa.scalar(None, summed.type), summed)
            columns |= dict.fromkeys(name.removesuffix(EMPTY).split(AND), there)
        else:
            columns |= dict.fromkeys(name.split(AND), column)
    groups = pa.table(columns)
    return groups.filter(pc.greater(groups[ROWS], 0)), pc.sum(groups[ROWS]).as_py() or 0


def _hashes(node: Any) -> bool:
    return bool(node.getClass().getSimpleName() == "HashAggregateExec")


def _sums(frame: DataFrame, made: Iterable[Made]) -> bool:
    """Whether Spark would say that a sum of whole numbers overflows, as the operator does."""
    whole = any(how == "sum" and type_ is not None and pa.types.is_integer(type_) for how, _, type_ in made)
    return not whole or frame.sparkSession.conf.get("spark.sql.ansi.enabled") == "true"


def _fields(
    keys: Sequence[str], made: Mapping[Made, Sequence[str]], final: Any, partial: Any
) -> list[StructField] | None:
    """What the columns of a partial aggregate are to us, in their order; None if Spark has made something else of it.

    Spark takes functions that come to the same for one, such as the count of what is never null and that of rows: so
    each result is followed to the function that it is of. Small decimals are summed as whole numbers: those results are
    no plain columns, and are left alone. A sum of other decimals has a second column: whether it is empty.
    """
    results = {each.name(): each for each in _each(final.resultExpressions()) if each.name().startswith(PART)}
    names: dict[str, list[str]] = {}
    hows: dict[str, str] = {}
    for place, ((how, _, _), some) in enumerate(made.items()):
        of = results[f"{PART}{place}"].child()
        if of.getClass().getSimpleName() != "AttributeReference":
            return None
        names.setdefault(str(of.exprId()), []).extend(some)
        hows[str(of.exprId())] = how
    told, types = list(keys), StructType.fromJson(json.loads(partial.schema().json())).fields
    for each in _each(partial.aggregateExpressions()):
        ours = str(each.resultAttribute().exprId())
        buffers = [str(buffer.name()) for buffer in _each(each.aggregateFunction().aggBufferAttributes())]
        if ours not in names or buffers not in ([hows[ours]], [hows[ours], "isEmpty"]):
            return None
        name = AND.join(names.pop(ours))
        told += [name, name + EMPTY][: len(buffers)]
    if names or len(told) != len(types):
        return None
    return [StructField(name, each.dataType) for name, each in zip(told, types, strict=True)]


def _each(items: Any) -> Iterator[Any]:
    return (items.apply(place) for place in range(items.size()))


def _column(how: str, name: str | None, type_: pa.DataType | None) -> Column:
    column = F.lit(1) if name is None else column_of(name)
    if how == "count":
        return F.count(column)
    if how == "sum" and type_ is not None:
        column = column.cast(from_arrow_type(type_))
    return {"sum": F.sum, "min": F.min, "max": F.max}[how](column)
