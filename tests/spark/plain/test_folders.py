"""Files of plain queries: an epoch gets its name once, when it is whole, and from one query."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import Invalid
from holdfast.queries import NotCovered
from holdfast.queries.folders import MARK, STAGED, EpochFolders, OnDisk, OnHadoop, Place, place_of
from holdfast.runtime.spark.java import java
from holdfast.state import Fenced, Store

pytestmark = pytest.mark.spark


@pytest.fixture(params=["disk", "hadoop"])
def place(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Place:
    """A folder, as the operating system has it and as Hadoop does."""
    if request.param == "disk":
        return OnDisk(tmp_path)
    context: Any = spark.sparkContext
    root = java(context).org.apache.hadoop.fs.Path(str(tmp_path))
    return OnHadoop(context, root.getFileSystem(context._jsc.hadoopConfiguration()), root)


def put(tmp_path: Path, name: str, text: str = "") -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text)


def test_a_name_that_is_taken_is_not_taken_away(place: Place, tmp_path: Path) -> None:
    put(tmp_path, "one/rows", "1")
    put(tmp_path, "two/rows", "2")
    assert place.rename("one", "epoch=7") and not place.rename("two", "epoch=7")
    assert [path.name for path in (tmp_path / "epoch=7").iterdir()] == ["rows"]
    assert (tmp_path / "epoch=7/rows").read_text() == "1" and (tmp_path / "two/rows").read_text() == "2"
    with pytest.raises(Exception, match="one"):
        place.rename("one", "epoch=8")


def test_a_place_keeps_small_files_and_lists_and_deletes_folders(place: Place, tmp_path: Path) -> None:
    put(tmp_path, "a/b/rows")
    place.put("a/mark", '{"ö": 1}')
    assert place.read("a/mark") == '{"ö": 1}' and place.read("a/none") is None and place.read("none/mark") is None
    assert place.list("a") == ["b", "mark"] and place.list("none") == []
    place.delete("a")
    place.delete("none")
    assert place.list("a") == []


Writes = Callable[[str], EpochFolders]


@pytest.fixture
def writes(spark: SparkSession, tmp_path: Path) -> Writes:
    """Drivers of queries, by their stores; the newer one of a store shuts the older one out."""

    def begin(store: str) -> EpochFolders:
        made = EpochFolders(spark, "json", str(tmp_path / "rows"), (), {})
        made.begin(Store(tmp_path / store).writer("job", force=True))
        return made

    return begin


def numbers(spark: SparkSession, *values: int) -> DataFrame:
    return spark.createDataFrame([(value,) for value in values], "value long")


def rows(spark: SparkSession, tmp_path: Path) -> list[tuple[int, int]]:
    found = spark.read.schema("value long, epoch long").json(str(tmp_path / "rows")).collect()
    return sorted((row["epoch"], row["value"]) for row in found)


def test_an_epoch_that_comes_again_is_there_once(spark: SparkSession, writes: Writes, tmp_path: Path) -> None:
    for _ in range(2):
        driver = writes("store")
        driver(numbers(spark, 1, 2), 0)
        driver(numbers(spark, 3), 1)
        driver(numbers(spark, 3), 1)
    assert rows(spark, tmp_path) == [(0, 1), (0, 2), (1, 3)]
    assert not list((tmp_path / "rows" / STAGED).iterdir())


def test_a_folder_of_another_query_is_refused_and_stays(spark: SparkSession, writes: Writes, tmp_path: Path) -> None:
    writes("one")(numbers(spark, 1), 0)
    other = writes("two")
    one, two = (Store(tmp_path / name).marker() for name in ("one", "two"))
    with pytest.raises(Invalid, match=rf"epoch=0: another query .*store {one}.*store {two}.*a folder of its own"):
        other(numbers(spark, 2), 0)
    assert rows(spark, tmp_path) == [(0, 1)]


def test_an_epoch_from_before_folders_were_marked_is_written_anew(
    spark: SparkSession, writes: Writes, tmp_path: Path
) -> None:
    """It had its name since it was begun: the driver may have died in the middle of it."""
    numbers(spark, 1).write.json(str(tmp_path / "rows" / "epoch=0"))
    put(tmp_path, "rows/epoch=0/_temporary/0/rows")
    writes("store")(numbers(spark, 1, 2), 0)
    assert rows(spark, tmp_path) == [(0, 1), (0, 2)]
    assert not list((tmp_path / "rows" / STAGED).iterdir())


def test_a_driver_that_is_superseded_while_it_writes_gives_no_name(
    spark: SparkSession, writes: Writes, tmp_path: Path
) -> None:
    older = writes("store")
    newer = writes("store")
    with pytest.raises(Fenced):
        older(numbers(spark, 1), 0)
    assert rows(spark, tmp_path) == []
    left = [path.name for path in (tmp_path / "rows" / STAGED).iterdir()]
    newer(numbers(spark, 1), 0)
    assert len(left) == 1 and not list((tmp_path / "rows" / STAGED).iterdir())


def test_two_that_write_an_epoch_at_once_give_its_name_once(
    spark: SparkSession, writes: Writes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older driver is stopped after its look at the fence, and renames when the newer one has.

    Its files are deleted by then, or, if the newer one was stopped too, not yet.
    """
    older, newer = writes("store"), writes("store")
    monkeypatch.setattr(older, "_guard", lambda: newer(numbers(spark, 1, 2), epoch))
    for epoch, gone in enumerate((True, False)):
        if not gone:
            monkeypatch.setattr(newer, "_tidy", lambda _: None)
        with pytest.raises(FileNotFoundError) if gone else nullcontext():
            older(numbers(spark, 1, 2), epoch)
    assert rows(spark, tmp_path) == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_what_is_staged_for_a_later_epoch_or_by_others_stays(
    spark: SparkSession, writes: Writes, tmp_path: Path
) -> None:
    driver, store = writes("store"), Store(tmp_path / "store").marker()
    kept = [f"{store}-1-2-a", f"{store}-9-0-a", "another-1-0-a", "notes"]
    for name in (*kept, f"{store}-1-1-a", f"{store}-1-0-b"):
        put(tmp_path, f"rows/{STAGED}/{name}/rows")
    driver(numbers(spark, 1), 1)
    assert sorted(path.name for path in (tmp_path / "rows" / STAGED).iterdir()) == sorted(kept)


def test_epochs_are_partitioned_and_marked(spark: SparkSession, tmp_path: Path) -> None:
    made = EpochFolders(spark, "parquet", f"file:{tmp_path}/rows", ("key",), {"compression": "none"})
    made.begin(Store(tmp_path / "store").writer("job"))
    made(numbers(spark, 1, 2).selectExpr("value", "value as key"), 3)
    epoch = tmp_path / "rows" / "epoch=3"
    assert json.loads((epoch / MARK).read_text()) == {"store": Store(tmp_path / "store").marker(), "epoch": 3}
    assert sorted(path.name for path in epoch.glob("key=*")) == ["key=1", "key=2"]
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 2


def test_a_place_without_renames_is_refused(spark: SparkSession) -> None:
    with pytest.raises(
        NotCovered,
        match=r"format json to http://host/rows is not covered: .*not atomic on http://; write to a disk or to hdfs:",
    ):
        place_of(spark, "json", "http://host/rows")
    with pytest.raises(Invalid, match="format csv: Spark has no file system for nosuch://host/rows"):
        place_of(spark, "csv", "nosuch://host/rows")
