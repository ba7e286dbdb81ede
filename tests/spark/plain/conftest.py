from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from queries import Streams
from side_by_side import write_streams


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of all streams."""
    made = tmp_path_factory.mktemp("streams")
    write_streams(made)
    return made


@pytest.fixture
def streams(spark: SparkSession, root: Path) -> Streams:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    return Streams(spark, root)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: whether files outlive a crash of the machine is not asked here."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-test-", dir=memory, ignore_cleanup_errors=True) as made:
        yield Path(made)


@pytest.fixture
def events(streams: Streams) -> DataFrame:
    return streams.e
