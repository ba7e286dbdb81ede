"""What a store must not be made upon: a checkpoint of Structured Streaming, whose state it would not read."""

from __future__ import annotations

import shlex

from pyspark.sql import SparkSession

from holdfast.errors import Invalid
from holdfast.runtime.spark.hadoop import HadoopFolder
from holdfast.state import Store

LOGS = ("offsets", "commits")


def refuse_checkpoint(spark: SparkSession, given: str, place: Store, mode: str = "MODE") -> None:
    """Invalid if Structured Streaming has a checkpoint where a store is to be made. Reads only.

    ``given``: the path or URL as it was written; one without a scheme is also looked up where Spark would have it.
    A store that exists is not refused, with other files beside its own.
    """
    if place.exists():
        return
    if found := _logs(place.files.list("")) or _logs(_where_spark_has_it(spark, given)):
        raise Invalid(
            f"store {given}: this is a checkpoint of Structured Streaming ({', '.join(found)}); Holdfast would begin "
            f"without its state; to continue, run holdfast import-state {shlex.quote(given)} FILE.py:NAME --store "
            f"NEW_FOLDER --mode {mode}; to start over, give a folder that is empty or not there yet"
        )


def _where_spark_has_it(spark: SparkSession, given: str) -> list[str]:
    """What is in a folder whose path has no scheme, if that is not on the local disk."""
    if ":/" in given:
        return []
    folder = HadoopFolder(spark, f"store {given}", given)
    return folder.names() if folder.local is None else []


def _logs(names: list[str]) -> list[str]:
    return [f"{name}/" for name in LOGS if name in names]
