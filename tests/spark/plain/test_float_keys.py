"""Floats as keys: 0.0 and -0.0 are one, and so are all NaNs, as in Structured Streaming of Spark 4.3."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from side_by_side import answers, at_once, by_spark

import holdfast

pytestmark = pytest.mark.spark

ODD = np.array([0, 1 << 63, 0x7FF8 << 48, 0x7FF8000000000123, 0xFFF8 << 48, 0x3FF8 << 48], np.uint64).view(np.float64)
"""0.0, -0.0, three NaNs, 1.5."""
BATCHES = ([1, 0, 4, 3, 2, 0, 1], [0, 1, 2, 5, 4, 3], [5, 1, 0])


@pytest.fixture
def rows(spark: SparkSession, place: Path) -> DataFrame:
    """JSON has one NaN alone; a Parquet file has all bits."""
    folder = place / "rows"
    folder.mkdir()
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    for batch, places in enumerate(BATCHES):
        x = ODD[[*places]]
        numbers = range(100 * batch, 100 * batch + len(places))
        table = pa.table({"x": x, "f": x.astype(np.float32), "n": pa.array(numbers, pa.int64())})
        pq.write_table(table, folder / f"{batch}.parquet")
        os.utime(folder / f"{batch}.parquet", (1_700_000_000 + batch,) * 2)
    stream = spark.readStream.schema("x double, f float, n bigint").option("maxFilesPerTrigger", 1)
    return stream.parquet(str(folder)).withColumn("ts", F.timestamp_seconds(F.col("n") + 60))


QUERIES: dict[str, tuple[str, Callable[[DataFrame], DataFrame]]] = {
    "the first of each": ("append", lambda rows: rows.dropDuplicates(["x"])),
    "the first of each, floats in a struct": (
        "append",
        lambda rows: rows.withColumn("s", F.struct("f", F.struct("x"))).dropDuplicates(["s"]),
    ),
    "the first of each within the watermark, counted": (
        "update",
        lambda rows: rows.withWatermark("ts", "1 hour").dropDuplicatesWithinWatermark(["f"]).groupBy("x").count(),
    ),
    "joined": (
        "append",
        lambda rows: rows.alias("a").join(rows.where("n % 3 = 0").alias("b"), "x").select("a.x", "b.x", "a.n", "b.n"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", QUERIES)
def test_equal_floats_are_one_key(rows: DataFrame, place: Path, name: str) -> None:
    mode, make = QUERIES[name]
    frame = make(rows)
    ours, theirs = at_once(
        partial(answers, holdfast.writeStream(frame), mode, place / "ours"),
        partial(by_spark, frame, mode, place / "theirs"),
    )
    assert ours == theirs and sorted(ours) == list(range(len(BATCHES)))
