"""An aggregate of all rows is answered in every batch, as in Structured Streaming: without any row too."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from side_by_side import answers, by_spark

import holdfast

pytestmark = pytest.mark.spark

BATCHES = ([-1, -2], [3, -4, None], [-5], [6, 7])
"""Only numbers above 0 pass: none in the first batch, nor in the third."""


def totals(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.readStream.schema("n long, x double").option("maxFilesPerTrigger", 1).json(str(folder))
    functions = [
        F.count("*").alias("rows"),
        F.count("n").alias("known"),
        F.sum("n").alias("sum"),
        F.avg("x").alias("mean"),
        F.max("n").alias("most"),
        F.stddev("x").alias("spread"),
        F.sum(F.lit(1)).alias("ones"),
    ]
    return rows.filter("n > 0").agg(*functions)


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_a_batch_without_rows_is_answered_as_by_structured_streaming(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    for number, values in enumerate(BATCHES):
        path = folder / f"{number}.json"
        path.write_text("".join(json.dumps({"n": n, "x": None if n is None else n / 2}) + "\n" for n in values))
        os.utime(path, (1_700_000_000 + number,) * 2)
    theirs = by_spark(totals(spark, folder), mode, tmp_path / "theirs")
    assert len(theirs) == len(BATCHES) and theirs[0], "Structured Streaming answers every batch"
    assert answers(holdfast.writeStream(totals(spark, folder)), mode, tmp_path / "ours") == theirs
