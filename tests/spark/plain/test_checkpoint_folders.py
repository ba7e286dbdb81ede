"""A checkpointLocation that is still Structured Streaming's: its state is not left behind in silence."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from side_by_side import BATCHES, answers, by_spark
from test_job import counting, numbers

import holdfast
from holdfast.errors import Invalid
from holdfast.state.files import open_files

pytestmark = pytest.mark.spark
DEFAULT = "fs.defaultFS"
REFUSED = (
    r"this is a checkpoint of Structured Streaming \(offsets/, commits/\).*holdfast import-state {} FILE\.py:NAME "
)


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def begun(door: str, frame: DataFrame, store: str, **options: Any) -> Any:
    """One changed line, at either door."""
    if door == "start":
        return holdfast.start(numbers(frame.sparkSession), counting(), store=store, nodes=1, **options)
    writer = holdfast.writeStream(frame).outputMode("update").foreachBatch(lambda *_: None)
    return writer.option("checkpointLocation", store).resilience(**options).start()


@pytest.fixture
def counts(events: DataFrame) -> DataFrame:
    return events.groupBy("k").count()


@pytest.fixture
def old(counts: DataFrame, place: Path) -> Path:
    by_spark(counts, "update", place / "old")
    return place / "old"


def test_a_checkpoint_of_structured_streaming_is_refused_and_stays_as_it_is(
    counts: DataFrame, old: Path, tmp_path: Path
) -> None:
    before, url = contents(old), f"memory://{uuid.uuid4().hex}"
    for name, data in before.items():
        open_files(url).put(name, data, False)
    log = {"spark_log": str(tmp_path / "log")}
    places: list[tuple[str, dict[str, Any]]] = [
        (str(old), {}), (old.as_uri(), {}), (f"file:{old}", {}), (url, log)
    ]  # fmt: skip
    for door in ("writeStream", "start"):
        for given, options in places:
            with pytest.raises(Invalid, match=REFUSED.format(given)) as told:
                begun(door, counts, given, **options)
            assert "\n" not in str(told.value)
    assert contents(old) == before
    assert open_files(url).tree("") == sorted(before) and not (tmp_path / "log").exists()


def test_a_path_without_a_scheme_is_looked_for_where_spark_has_it(
    counts: DataFrame, spark: SparkSession, old: Path
) -> None:
    """``fs.defaultFS`` says where: on most clusters that is no local disk."""
    elsewhere = old.with_name("elsewhere")
    mount = f"fs.viewfs.mounttable.{old.parent.name}.link.{elsewhere}"
    spark.conf.set(DEFAULT, f"viewfs://{old.parent.name}/")
    spark.conf.set(mount, old.as_uri())
    try:
        with pytest.raises(Invalid, match=REFUSED.format(elsewhere)):
            begun("writeStream", counts, str(elsewhere))
    finally:
        spark.conf.unset(DEFAULT)
        spark.conf.unset(mount)


def test_a_store_may_be_named_as_spark_names_a_local_folder(
    counts: DataFrame, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    got = answers(holdfast.writeStream(counts), "update", f"file:{place}/ours")  # type: ignore[arg-type]
    assert len(got) == BATCHES
    assert (place / "ours" / "holdfast-store.json").exists() and not (place / "file:").exists()


def test_a_store_that_was_begun_in_such_a_folder_goes_on(counts: DataFrame, old: Path, place: Path) -> None:
    """By an earlier version, which did not look: what it has counted since is not given up."""
    aside = place / "aside"
    old.rename(aside)
    got = answers(holdfast.writeStream(counts), "update", old)
    shutil.copytree(aside / "offsets", old / "offsets")
    shutil.copy2(aside / "metadata", old / "metadata")
    assert len(got) == BATCHES
    assert answers(holdfast.writeStream(counts), "update", old) == {}
