"""Columns by their names, whatever is in them: a dot or a backtick would mean something else to Spark."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def column_of(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
