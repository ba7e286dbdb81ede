"""Arrow rows as a DataFrame. ``createDataFrame`` puts up to 48 MB into the plan itself, as a relation of rows.

Every rule of Spark's optimizer then walks through all of them, and every task has its share sent as Java objects
(``benchmarks/parts.py`` has what that costs). Few rows are right there, since Spark computes what stands above them
without a job; many become partitions of record batches.
"""

from __future__ import annotations

import tempfile
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

FEW = 1_000
PART = 1 << 20
"""Bytes that are worth a task of their own: with less, a hundred cores would write a hundred files of ten rows."""


class Frames:
    """Makes them in a session; what Spark calls the columns of a kind of rows is asked once."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._context: Any = spark.sparkContext
        jvm: Any = spark._jvm
        self._read = jvm.org.apache.spark.sql.api.r.SQLUtils
        self._known: dict[pa.Schema, tuple[StructType, Any]] = {}

    def of(self, rows: pa.Table) -> DataFrame:
        """A DataFrame with these rows, in this order within partitions that follow each other."""
        spark, context = self._spark, self._context
        if rows.num_rows <= FEW or rows.num_columns == 0 or context._encryption_enabled:
            return spark.createDataFrame(rows)
        if rows.schema not in self._known:
            empty: Any = spark.createDataFrame(rows.schema.empty_table())
            self._known[rows.schema] = empty.schema, empty._jdf.schema()
        schema, java_schema = self._known[rows.schema]
        rows = _as_sent(rows, schema, spark.conf.get("spark.sql.session.timeZone"))
        parts = max(1, min(context.defaultParallelism, -(-rows.nbytes // PART)))
        with tempfile.NamedTemporaryFile(dir=context._temp_dir) as file:
            with pa.ipc.new_stream(file, rows.schema) as stream:
                stream.write_table(rows, max_chunksize=-(-rows.num_rows // parts))
            file.flush()
            batches = self._read.readArrowStreamFromFile(spark._jsparkSession, file.name)
        return DataFrame(self._read.toDataFrame(batches, java_schema, spark._jsparkSession), spark)


def _as_sent(rows: pa.Table, schema: StructType, zone: str | None) -> pa.Table:
    """In the types that Spark's side expects, by the same steps as ``createDataFrame`` takes."""
    from pyspark.sql.pandas import types

    tool: Any = types
    local = tool._check_arrow_table_timestamps_localize(rows, schema, True, zone)
    sent: pa.Table = local.cast(tool.to_arrow_schema(schema, timezone="UTC"))
    return sent.combine_chunks()
