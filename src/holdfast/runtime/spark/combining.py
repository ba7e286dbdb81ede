"""Rows grouped by Spark before they become Arrow, where few groups stand for many rows.

A batch of four million rows in a thousand groups is a few thousand rows then, and so is what the journal holds of it:
replays begin from the same partial groups. With many groups Spark's own map costs more than it saves, so it is chosen
while the job runs, from what the epoch before has shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
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

MANY = 100_000
"""With fewer rows in a batch, planning one more query costs more than it saves."""
EACH = 8
"""A group must stand for so many rows; half of it while they are combined, so that it does not go to and fro."""
FAST, SLOW = 50_000, 32
"""So many groups in a part of a batch fit into Spark's fast map; with more, each must stand for so many rows."""
EMPTY, AND = ".empty", " and "


@dataclass(frozen=True)
class Combined:
    """What the rows of the source may be grouped by, and what is made of them."""

    keys: tuple[str, ...]
    partials: tuple[Partial, ...]

    def made(self) -> dict[tuple[str, str | None, pa.DataType | None], list[str]]:
        """What is to be computed, each once, and under which names it is wanted."""
        found: dict[tuple[str, str | None, pa.DataType | None], list[str]] = {}
        for each in self.partials:
            found.setdefault((each.how.removesuffix("_all"), each.column, each.type), []).append(each.name)
        return found


class Combining:
    """Whether the next batch is combined, and how. Without ``given`` none is."""

    def __init__(self, given: Combined | None) -> None:
        self._given = given
        self._on = False

    def learn(self, rows: int, groups: int, parts: int) -> None:
        """What an epoch has shown: so many rows were read, and sent on as so many groups, from so many parts."""
        enough = groups * (EACH // 2 if self._on else EACH) <= rows
        self._on = rows >= MANY and enough and (groups <= FAST * max(1, parts) or groups * SLOW <= rows)

    def plan(self, frame: DataFrame) -> tuple[DataFrame, Any] | None:
        """An empty frame with the columns of partial groups, and the plan that makes them of this batch.

        None where rows are to come as they are.
        """
        if self._given is None or not self._on:
            return None
        made = self._given.made()
        grouped: Any = frame.groupBy(*self._given.keys).agg(*(_column(*each) for each in made))._jdf
        final = grouped.queryExecution().sparkPlan()
        partial = final.child() if final.getClass().getSimpleName() == "HashAggregateExec" else final
        if partial.getClass().getSimpleName() != "HashAggregateExec":
            self._given = None  # texts to compare, say: Spark would sort, which costs more than it saves
            return None
        session: Any = frame.sparkSession
        execution = session._jvm.org.apache.spark.sql.execution.QueryExecution
        found = StructType.fromJson(json.loads(partial.schema().json())).fields
        names = [*self._given.keys, *_names([each.name for each in found[len(self._given.keys) :]], made.values())]
        schema = StructType([StructField(name, each.dataType) for name, each in zip(names, found, strict=True)])
        ready = execution.prepareExecutedPlan(session._jsparkSession, partial)
        return frame.sparkSession.createDataFrame([], schema), ready


def uncombined(rows: pa.Table) -> tuple[pa.Table, int]:
    """Partial groups as the operator takes them, and how many rows they stand for.

    Sums of nothing are null, and groups of nothing are not there. What is wanted under several names has them all.
    """
    columns: dict[str, pa.ChunkedArray] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if name.endswith(EMPTY):
            for each in name.removesuffix(EMPTY).split(AND):
                columns[each] = pc.if_else(column, pa.scalar(None, columns[each].type), columns[each])
        else:
            columns |= dict.fromkeys(name.split(AND), column)
    groups = pa.table(columns)
    return groups.filter(pc.greater(groups[ROWS], 0)), pc.sum(groups[ROWS]).as_py() or 0


def _names(found: Sequence[str], wanted: Iterable[Sequence[str]]) -> Iterator[str]:
    """Of the columns that Spark makes: a sum of decimals comes with a word on whether there was anything to add."""
    names = iter(wanted)
    last = ""
    for each in found:
        last = last + EMPTY if each == "isEmpty" else AND.join(next(names))
        yield last


def _column(how: str, name: str | None, type_: pa.DataType | None) -> Column:
    column = F.lit(1) if name is None else F.col(name)
    if how == "count":
        return F.count(column)
    if type_ is not None:
        column = column.cast(from_arrow_type(type_))
    return {"sum": F.sum, "min": F.min, "max": F.max}[how](column)
