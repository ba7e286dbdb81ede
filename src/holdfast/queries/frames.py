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

from holdfast.runtime.spark.java import java

FEW = 1_000


def frame_of(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """A DataFrame in this session with these rows, in this order within partitions that follow each other."""
    context: Any = spark.sparkContext
    if rows.num_rows <= FEW or rows.num_columns == 0 or context._encryption_enabled:
        return spark.createDataFrame(rows)
    empty: Any = spark.createDataFrame(rows.schema.empty_table())
    rows = _as_sent(rows, empty.schema, spark.conf.get("spark.sql.session.timeZone"))
    of_each = -(-rows.num_rows // context.defaultParallelism)
    with tempfile.NamedTemporaryFile(dir=context._temp_dir) as file:
        with pa.ipc.new_stream(file, rows.schema) as stream:
            stream.write_table(rows, max_chunksize=of_each)
        file.flush()
        session, read = empty.sparkSession._jsparkSession, java(context).org.apache.spark.sql.api.r.SQLUtils
        batches = read.readArrowStreamFromFile(session, file.name)
    return DataFrame(read.toDataFrame(batches, empty._jdf.schema(), session), spark)


def _as_sent(rows: pa.Table, schema: StructType, zone: str | None) -> pa.Table:
    """In the types that Spark's side expects, by the same steps as ``createDataFrame`` takes."""
    from pyspark.sql.pandas import types

    tool: Any = types
    local = tool._check_arrow_table_timestamps_localize(rows, schema, True, zone)
    sent: pa.Table = local.cast(tool.to_arrow_schema(schema, timezone="UTC"))
    return sent.combine_chunks()
