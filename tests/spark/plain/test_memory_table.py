"""``format("memory")`` after a restart: a table that would lack rows is refused, as Structured Streaming refuses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from side_by_side import tidy

import holdfast
from holdfast.errors import Invalid

pytestmark = pytest.mark.spark


@pytest.fixture
def stream(spark: SparkSession, place: Path) -> DataFrame:
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    (place / "in").mkdir()
    more(place, 0)
    return spark.readStream.schema("k string, n long").json(str(place / "in"))


def more(place: Path, batch: int) -> None:
    rows = [{"k": name, "n": batch} for name in ("ann", "bob", f"new-{batch}")]
    (place / "in" / f"{batch}.json").write_text("\n".join(map(json.dumps, rows)))


def in_memory(writer: Any, mode: str, store: Path, name: str) -> list[tuple[Any, ...]]:
    """The table when all that there is was answered; none of a query before it is left."""
    writing = writer.outputMode(mode).format("memory").queryName(name).option("checkpointLocation", str(store))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    session = active()
    rows = tidy(session.table(name))
    session.catalog.dropTempView(name)
    return rows


def active() -> SparkSession:
    found = SparkSession.getActiveSession()
    assert found is not None
    return found


@pytest.mark.parametrize("mode", ["update", "append"])
def test_a_table_that_grows_is_not_restarted(stream: DataFrame, place: Path, mode: str) -> None:
    """Rows of earlier batches are nowhere but in the table of the process before."""
    frame = stream.groupBy("k").count() if mode == "update" else stream.dropDuplicates(["k"])
    first = in_memory(frame.writeStream, mode, place / "theirs", "theirs")
    assert in_memory(holdfast.writeStream(frame), mode, place / "ours", "ours") == first
    more(place, 1)
    with pytest.raises(AnalysisException, match="does not support recovering from checkpoint location"):
        in_memory(frame.writeStream, mode, place / "theirs", "theirs")
    before = {str(path): path.stat().st_mtime_ns for path in (place / "ours").rglob("*")}
    told = rf"^format memory in mode {mode}: .*batch 0.*; use mode complete.*delete {place}/ours to start over$"
    with pytest.raises(Invalid, match=told):
        in_memory(holdfast.writeStream(frame), mode, place / "ours", "ours")
    assert {str(path): path.stat().st_mtime_ns for path in (place / "ours").rglob("*")} == before


def test_a_table_of_mode_complete_is_whole_after_a_restart(stream: DataFrame, place: Path) -> None:
    """Before anything more comes too, when Structured Streaming's is empty."""
    frame = stream.groupBy("k").count()
    first = in_memory(holdfast.writeStream(frame), "complete", place / "ours", "ours")
    assert first == in_memory(frame.writeStream, "complete", place / "theirs", "theirs")
    assert in_memory(holdfast.writeStream(frame), "complete", place / "ours", "ours") == first
    more(place, 1)
    theirs = in_memory(frame.writeStream, "complete", place / "theirs", "theirs")
    assert in_memory(holdfast.writeStream(frame), "complete", place / "ours", "ours") == theirs
    assert theirs == [("ann", 2), ("bob", 2), ("new-0", 1), ("new-1", 1)]


def test_a_table_is_empty_until_the_first_batch(spark: SparkSession, stream: DataFrame, place: Path) -> None:
    spark.range(3).createOrReplaceTempView("early")
    for file in (place / "in").iterdir():
        file.unlink()
    frame = stream.groupBy("k").count()
    assert in_memory(holdfast.writeStream(frame), "update", place / "ours", "early") == []
