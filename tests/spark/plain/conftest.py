from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from side_by_side import SCHEMA, write_events


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each micro-batch."""
    made = tmp_path_factory.mktemp("events")
    write_events(made)
    return made


@pytest.fixture
def events(spark: SparkSession, folder: Path) -> DataFrame:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).option("allowNonNumericNumbers", True)
    return stream.json(str(folder))
