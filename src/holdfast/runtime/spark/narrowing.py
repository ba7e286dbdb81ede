"""Columns of a stream that nobody looks at are left out of what Spark reads, where that changes nothing else."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

STATELESS = frozenset({
    "EventTimeWatermark", "Filter", "Generate", "LogicalRDD", "Project", "Repartition", "RepartitionByExpression",
    "ResolvedHint", "StreamingRelation", "StreamingRelationV2", "SubqueryAlias", "Union", "View",
})  # fmt: skip
"""Nodes of a plan that keep no state: what Spark keeps of the columns of others is part of the store of a query."""
CORRUPT = "spark.sql.columnNameOfCorruptRecord"


def narrowed(frame: DataFrame, columns: frozenset[str] | None) -> DataFrame:
    """Without the columns that nobody looks at, so that Spark neither reads them nor turns them into Arrow.

    One stays in any case, to have rows. All do

    - where one that is looked at is not there: whoever misses it tells which there are;
    - where the column of malformed rows is looked at: whether a row is malformed depends on what is parsed of it;
    - where the stream's own query keeps state, whose form is that of its columns.
    """
    there = frame.columns
    spelled = {name.casefold() for name in there}  # Spark does not tell "id" from "ID"
    if columns is None or len(spelled) < len(there) or not columns <= set(there):
        return frame
    kept = [name for name in there if name in columns] or there[:1]
    if len(kept) == len(there) or frame.sparkSession.conf.get(CORRUPT) in columns or not _stateless(frame):
        return frame
    return frame.select(*(F.col("`" + name.replace("`", "``") + "`") for name in kept))


def _stateless(frame: DataFrame) -> bool:
    of_spark: Any = frame._jdf
    nodes = [of_spark.queryExecution().analyzed()]
    for node in nodes:
        if not node.isStreaming():
            continue
        listed = node.children()
        children = [listed.apply(number) for number in range(listed.size())]
        with_a_table = node.nodeName() == "Join" and not all(child.isStreaming() for child in children)
        if node.nodeName() not in STATELESS and not with_a_table:
            return False
        nodes += children
    return True
