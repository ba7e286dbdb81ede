"""Columns of a stream that nobody looks at are left out of what Spark reads, where that changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame

from holdfast.runtime.spark.columns import column_of
from holdfast.runtime.spark.java import java

STATELESS = frozenset({
    "EventTimeWatermark", "Filter", "Generate", "LogicalRDD", "Project", "Repartition", "RepartitionByExpression",
    "ResolvedHint", "StreamingRelation", "StreamingRelationV2", "SubqueryAlias", "Union", "View",
})  # fmt: skip
"""Nodes of a plan that keep no state: what Spark keeps of the columns of others is part of the store of a query."""
CORRUPT = "spark.sql.columnNameOfCorruptRecord"
LENIENT = "PERMISSIVE"
"""The mode of a reader that gives malformed rows like all others."""


def narrowed(frame: DataFrame, columns: frozenset[str] | None) -> DataFrame:
    """Without the columns that nobody looks at, so that Spark neither reads them nor turns them into Arrow.

    One stays in any case, to have rows. All do

    - where one that is looked at is not there: whoever misses it tells which there are;
    - where the reader tells malformed rows from others: whether a row is malformed depends on what is parsed of it;
    - where the stream's own query keeps state, whose form is that of its columns.
    """
    there = frame.columns
    spelled = {name.casefold() for name in there}  # Spark does not tell "id" from "ID"
    if columns is None or len(spelled) < len(there) or not columns <= set(there):
        return frame
    kept = [name for name in there if name in columns] or there[:1]
    if len(kept) == len(there) or not _same_rows(frame):
        return frame
    return frame.select(*(column_of(name) for name in kept))


def keeps_state(frame: DataFrame) -> bool:
    """Whether Spark keeps state for the stream's own query, or may."""
    return any(not stateless for _, _, stateless in _streaming(frame))


def _same_rows(frame: DataFrame) -> bool:
    """Whether Spark gives the same rows, and keeps the same state, however few of their columns are asked for."""
    corrupt, context = frame.sparkSession.conf.get(CORRUPT), frame.sparkSession.sparkContext
    return all(
        stateless and (has_children or not _judges(node, corrupt, context))
        for node, has_children, stateless in _streaming(frame)
    )


def _streaming(frame: DataFrame) -> Iterator[tuple[Any, bool, bool]]:
    """The nodes of a plan that stream, whether each has children, and whether it keeps no state."""
    of_spark: Any = frame._jdf
    nodes = [of_spark.queryExecution().analyzed()]
    for node in nodes:
        if not node.isStreaming():
            continue
        listed = node.children()
        children = [listed.apply(number) for number in range(listed.size())]
        with_a_table = node.nodeName() == "Join" and not all(child.isStreaming() for child in children)
        yield node, bool(children), with_a_table or node.nodeName() in STATELESS
        nodes += children


def _judges(leaf: Any, corrupt: str | None, context: SparkContext) -> bool:
    """Whether what is read here depends on which rows are malformed: they are marked, dropped, or end the query."""
    output = leaf.output()
    if any(output.apply(number).name() == corrupt for number in range(output.size())):
        return True
    match leaf.nodeName():
        case "StreamingRelation":
            given = java(context).scala.jdk.javaapi.CollectionConverters.asJava(leaf.dataSource().options())
        case "StreamingRelationV2":
            given = leaf.extraOptions()
        case _:
            return False
    said = {name.casefold(): given[name] for name in given}
    return "columnnameofcorruptrecord" in said or said.get("mode", LENIENT).upper() != LENIENT
