"""Folders that a plain query writes files to: one query each, and readable by ``spark.read`` as they were written."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from queries import Streams
from side_by_side import Rows, tidy

import holdfast
from holdfast.errors import Invalid

pytestmark = pytest.mark.spark
FORMATS = ("parquet", "json", "csv", "orc", "text")
MARK = "_holdfast"


@pytest.fixture
def seen(streams: Streams) -> DataFrame:
    """Mode append without a watermark: each row once."""
    return streams.e.select("k", "n").dropDuplicates()


def written(frame: DataFrame, store: Path, path: Path | str, format: str = "parquet", **options: Any) -> None:
    writer = holdfast.writeStream(frame).option("checkpointLocation", str(store)).trigger(availableNow=True)
    writer.start(str(path), format=format, **options).awaitTermination()


def refused(frame: DataFrame, store: Path, path: Path | str, told: str, **options: Any) -> None:
    """In one line, with the folder and the store as they were."""
    before = contents(Path(path)), contents(store)
    with pytest.raises(Invalid, match=told) as error:
        written(frame, store, path, **options)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500
    assert (contents(Path(path)), contents(store)) == before


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def rows(spark: SparkSession, path: Path | str) -> Rows:
    return tidy(spark.read.parquet(str(path)).drop("epoch"))


def test_a_folder_belongs_to_one_query(seen: DataFrame, spark: SparkSession, place: Path) -> None:
    """Whatever format the other one writes; a restart of its own query goes on."""
    written(seen, place / "first", place / "rows")
    expected = rows(spark, place / "rows")
    assert expected
    for format in FORMATS:
        frame = seen.selectExpr("concat_ws('/', k, n) as line") if format == "text" else seen
        told = rf"{place}/rows belongs to another query, whose checkpointLocation is {place}/first"
        refused(frame, place / "second", place / "rows", told, format=format)
    assert not (place / "second").exists()
    written(seen, place / "first", place / "rows")
    assert rows(spark, place / "rows") == expected and (place / "rows" / MARK).is_file()


def test_a_store_that_begins_again_is_another_query(seen: DataFrame, place: Path) -> None:
    """Its epochs begin at 0 again."""
    written(seen, place / "store", place / "rows")
    shutil.rmtree(place / "store")
    refused(seen, place / "store", place / "rows", "belongs to another query")


def test_of_two_queries_that_start_at_once_one_has_the_folder(
    seen: DataFrame, spark: SparkSession, place: Path
) -> None:
    meet = threading.Barrier(2)

    def one(name: str) -> str | None:
        meet.wait(60)
        try:
            written(seen, place / name, place / "rows")
        except Invalid as error:
            return str(error)
        return None

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(one, ("a", "b")))
    assert said.count(None) == 1 and "belongs to another query" in next(each for each in said if each is not None)
    written(seen, place / "alone", place / "expected")
    assert rows(spark, place / "rows") == rows(spark, place / "expected")


def test_a_folder_of_an_earlier_version_goes_on_with_its_store(
    seen: DataFrame, spark: SparkSession, place: Path
) -> None:
    """It has no mark: epochs that a store has not come to are not its own."""
    written(seen, place / "store", place / "rows")
    (place / "rows" / MARK).unlink()
    refused(seen, place / "new", place / "rows", r"epoch=\d+, which this query has not written")
    written(seen, place / "store", place / "rows")
    assert (place / "rows" / MARK).is_file()


def test_a_folder_that_others_wrote_is_refused(seen: DataFrame, streams: Streams, place: Path) -> None:
    """Structured Streaming's list of files decides what is read there; beside other files nothing is partitioned."""
    writing = streams.e.select("k", "n").writeStream.option("checkpointLocation", str(place / "old"))
    writing.trigger(availableNow=True).start(str(place / "theirs"), format="parquet").awaitTermination()
    told = rf"{place}/theirs was written by Structured Streaming \(_spark_metadata\), .*give a new folder"
    refused(seen, place / "ours", place / "theirs", told)
    streams.table([("ann", 1)], "k string, n int").write.parquet(str(place / "batch"))
    refused(seen, place / "ours", place / "batch", rf"{place}/batch has files of others, part-.*give a new folder")
    (place / "file").write_text("a file")
    refused(seen, place / "ours", place / "file", rf"{place}/file is a file, give a folder")
    for path in (f"{place}/file/rows", "/proc/nowhere/rows"):
        refused(seen, place / "ours", path, f"folder {path}: cannot be written: ")
    told = rf"the checkpointLocation {place}/rows/state lies within it"
    refused(seen, place / "rows" / "state", place / "rows", told)
    assert not (place / "ours").exists()


@pytest.mark.parametrize("column", ["epoch", "Epoch"])
def test_a_column_called_epoch_is_refused(seen: DataFrame, place: Path, column: str) -> None:
    frame = seen.withColumnRenamed("n", column)
    told = rf"column {column}: .*epoch=N.*rename it"
    refused(frame, place / "ours", place / "rows", told)
    refused(frame, place / "ours", place / "rows", told, format="json", partitionBy=column)
    assert not (place / "rows").exists() and not (place / "ours").exists()


def test_a_folder_behind_a_url_of_hadoops_belongs_to_one_query(
    seen: DataFrame, spark: SparkSession, place: Path
) -> None:
    (place / "rows").mkdir()
    host = place.name.replace("_", "")  # no host has that in its name
    mount, url = f"fs.viewfs.mounttable.{host}.link./out", f"viewfs://{host}/out/rows"
    spark.conf.set(mount, place.as_uri())
    try:
        written(seen, place / "first", url)
        with pytest.raises(Invalid, match=f"{url} belongs to another query"):
            written(seen, place / "second", url)
        written(seen, place / "first", url)
        assert rows(spark, url)
    finally:
        spark.conf.unset(mount)
    assert not (place / "second").exists()
