"""Options that nobody knows: a source or a writer that takes them in silence is told about, with the name meant."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from queries import EVENTS
from test_job import counting

import holdfast
from holdfast.runtime.history.history import read_history

pytestmark = pytest.mark.spark


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.WARNING, "holdfast")
    return lambda: "\n".join(each.getMessage() for each in caplog.records if "option" in each.getMessage())


def ran(frame: DataFrame, store: Path, name: str = "noop", **options: Any) -> None:
    writer = holdfast.writeStream(frame).format(name).outputMode("update").trigger(availableNow=True)
    writer.queryName("options").option("checkpointLocation", str(store)).options(**options).start().awaitTermination()


def test_a_misspelt_option_of_a_source_is_told_with_the_name_meant(
    spark: SparkSession, root: Path, place: Path, told: Callable[[], str]
) -> None:
    """In the log and in the history; at both doors."""
    stream = spark.readStream.schema(EVENTS).option("maxFilePerTrigger", 1).option("MULTILINE", False)
    frame = stream.option("allowNonNumericNumber", True).option("parquet.block.size", 1).json(str(root / "once"))
    ran(frame.groupBy("k").count(), place / "ours")
    noted = [event["message"] for event in read_history(place / "ours") if event["kind"] == "note"]
    for said in (told(), "\n".join(noted)):
        assert "option maxFilePerTrigger of source json" in said and "did you mean maxFilesPerTrigger?" in said
        assert "option allowNonNumericNumber of source json" in said and "did you mean allowNonNumericNumbers?" in said
        assert "multiline" not in said.lower() and "parquet.block" not in said

    rate = spark.readStream.format("rate-micro-batch").option("rowPerBatch", 9).option("rowsPerBatch", 400).load()
    holdfast.start(rate.select("value"), counting(), store=place / "job", nodes=1, epochs=1).awaitTermination(60)
    assert "option rowPerBatch of source rate-micro-batch" in told() and "did you mean rowsPerBatch?" in told()


def test_options_of_a_source_that_is_not_sparks_are_its_own(
    spark: SparkSession, place: Path, told: Callable[[], str]
) -> None:
    class Given(SimpleDataSourceStreamReader):
        def initialOffset(self) -> dict[str, int]:
            return {"at": 0}

        def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
            return iter([(1,)] if start["at"] == 0 else []), {"at": 1}

        def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:
            return iter([(1,)])

    class Ours(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ours"

        def schema(self) -> str:
            return "n int"

        def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
            return Given()

    spark.dataSource.register(Ours)
    frame = spark.readStream.format("ours").option("maxFilePerTrigger", 1).option("hosts", "a").load()
    writer = holdfast.writeStream(frame.groupBy("n").count()).outputMode("update").format("noop")
    writer.option("checkpointLocation", str(place / "ours")).start().stop()
    assert told() == ""


def test_an_option_that_the_writer_does_not_know_is_told(
    spark: SparkSession, root: Path, place: Path, told: Callable[[], str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Names are as good in upper and lower case; what belongs into ``resilience`` is told to go there."""
    frame = spark.readStream.schema(EVENTS).json(str(root / "once"))
    grouped = frame.groupBy("k").count()
    ran(grouped, place / "right", "console", numrows=2, TRUNCATE=False)
    assert told() == "" and "only showing top 2 rows" in capfd.readouterr().out
    ran(grouped, place / "console", "console", numRow=2)
    assert "option numRow of format console" in told() and "did you mean numRows?" in told()
    ran(grouped, place / "ours", budget=2.0, anything=1)
    assert "option budget" in told() and ".resilience(budget=...)" in told()
    assert "option anything of format noop" in told()
    writer = holdfast.writeStream(frame.select("k").distinct()).trigger(availableNow=True)
    writer.option("CHECKPOINTLOCATION", str(place / "files")).option("compresion", "gzip").option("Header", True)
    writer.start(str(place / "rows"), format="csv").awaitTermination()
    assert "option compresion of format csv" in told() and "did you mean compression?" in told()
    assert "Header" not in told()
