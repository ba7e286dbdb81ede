"""Columns that nobody looks at stay where they are: Spark does not read them for a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import functions as F

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.runtime.driver.running import RunFailed
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import start
from holdfast.runtime.spark.narrowing import narrowed
from waiting import DEADLINE

pytestmark = pytest.mark.spark


def clicks(spark: Any, folder: Path) -> Any:
    folder.mkdir()
    rows = [{"page": page, "amount": number, "agent": "x" * 50} for number, page in enumerate(["/", "/a", "/"])]
    (folder / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    return spark.readStream.schema("agent string, page string, amount bigint, referrer string").json(str(folder))


def counted(by: str = "page") -> op.Pipeline:
    counts = op.aggregate({by: "string"}, n=op.count(), most=op.max("amount"))
    return op.Pipeline(op.source("clicks"), op.step("counts", counts, "clicks"))


def test_a_job_reads_the_columns_that_it_looks_at(spark: Any, tmp_path: Path) -> None:
    job = start(clicks(spark, tmp_path / "clicks"), counted(), store=tmp_path / "store", epochs=1)
    assert job.awaitTermination(DEADLINE)
    found = read_output(tmp_path / "store", "final").sort_by("page").select(["page", "n", "most"]).to_pylist()
    assert found == [{"page": "/", "n": 2, "most": 2}, {"page": "/a", "n": 1, "most": 1}]
    source: Any = job._source
    plan = source.query._jsq.streamingQuery().lastExecution().executedPlan().toString()
    assert "page" in plan and "amount" in plan
    assert "agent" not in plan and "referrer" not in plan


def test_whoever_misses_a_column_is_told_all_that_are_there(spark: Any, tmp_path: Path) -> None:
    job = start(clicks(spark, tmp_path / "clicks"), counted("site"), store=tmp_path / "store", epochs=1)
    with pytest.raises(RunFailed, match="agent, page, amount, referrer"):
        job.awaitTermination(DEADLINE)


def test_names_of_every_kind_stay_as_they_are(spark: Any) -> None:
    frame = spark.range(1).select(
        F.lit(1).alias("a.b"), F.lit(2).alias("c`d"), F.lit(3).alias("e f"), F.lit(4).alias("g"), F.lit(5).alias("G2")
    )
    assert narrowed(frame, frozenset({"c`d", "a.b"})).collect() == [(1, 2)]
    assert narrowed(frame, frozenset()).columns == ["a.b"]  # rows are counted all the same
    for kept in (None, frozenset({"g", "not there"}), frozenset(frame.columns)):
        assert narrowed(frame, kept) is frame
    twice = frame.select("g", "g", "`e f`")
    assert narrowed(twice, frozenset({"g"})) is twice
    alike = frame.select("g", F.col("g").alias("G"), "`e f`")  # which of the two is `g` would be ambiguous
    assert narrowed(alike, frozenset({"g"})) is alike


def test_what_is_journalled_of_few_columns_is_not_replayed_for_more(spark: Any, tmp_path: Path) -> None:
    """Else the rows of that epoch would have nulls where the stream has values, and nobody would be told."""

    def pipeline(kind: pl.DataType | type[pl.DataType], *more: op.Step) -> op.Pipeline:
        good = op.step("good", op.filter("amount >= 0"), "clicks")
        small = op.step("small", op.map("page", amount=pl.col("amount").cast(kind)), "good")
        return op.Pipeline(op.source("clicks"), good, small, *more)

    rows = clicks(spark, tmp_path / "clicks")
    line = json.dumps({"page": "/b", "amount": 1000, "agent": "y"})
    (tmp_path / "clicks" / "later.json").write_text(line)
    one_by_one = rows.sparkSession.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1)
    stream = one_by_one.json(str(tmp_path / "clicks"))
    job = start(stream, pipeline(pl.Int8), store=tmp_path / "store")
    with pytest.raises(RunFailed, match="operator small"):
        job.awaitTermination(DEADLINE)
    everything = op.step("everything", lambda rows: rows, "good")
    with pytest.raises(Invalid, match=r"what is read of source clicks \(all columns, not amount and page alone\)"):
        start(stream, pipeline(pl.Int64, everything), store=tmp_path / "store")
    mended = start(stream, pipeline(pl.Int64), store=tmp_path / "store", epochs=2)
    assert mended.awaitTermination(DEADLINE)
    found = read_output(tmp_path / "store", "final").sort_by("amount").select(["amount"]).to_pylist()
    assert [row["amount"] for row in found] == [0, 1, 2, 1000]
    whole = start(stream, pipeline(pl.Int64, everything), store=tmp_path / "store", epochs=2)
    assert whole.awaitTermination(DEADLINE)


MARKED = "page string, amount bigint, other string, _corrupt_record string"
JUDGED: dict[str, tuple[str, dict[str, str], str]] = {
    "marked": (MARKED, {}, "_corrupt_record IS NULL"),
    "marked by another name": (
        MARKED.replace("_corrupt_record", "bad"), {"columnNameOfCorruptRecord": "bad"}, "bad IS NULL"
    ),
    "dropped": ("page string, amount bigint", {"MODE": "dropMalformed"}, "true"),
}  # fmt: skip
MALFORMED = '{"page": "/", "amount": 1}\n{"page": "/", "amount": "none"}\n{"page": "/", "amount": 2}\n'


@pytest.mark.parametrize("how", JUDGED)
def test_malformed_rows_do_not_come_back_since_nobody_looks_at_what_is_wrong_with_them(
    spark: Any, tmp_path: Path, how: str
) -> None:
    schema, options, condition = JUDGED[how]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "rows.json").write_text(MALFORMED)
    stream = spark.readStream.options(**options).schema(schema).json(str(tmp_path / "rows")).filter(condition)
    pages = op.Pipeline(op.source("rows"), op.step("n", op.aggregate({"page": "string"}, n=op.count()), "rows"))
    assert pages.columns_of("rows") == {"page"}
    assert start(stream, pages, store=tmp_path / "store", epochs=1).awaitTermination(DEADLINE)
    assert read_output(tmp_path / "store", "final").select(["page", "n"]).to_pylist() == [{"page": "/", "n": 2}]


def test_a_reader_that_is_to_fail_at_a_malformed_row_fails(spark: Any, tmp_path: Path) -> None:
    stream = spark.readStream.option("mode", "FAILFAST").schema("page string, amount bigint").json(str(tmp_path))
    assert narrowed(stream, frozenset({"page"})) is stream
    lenient = spark.readStream.option("mode", "permissive").schema("page string, amount bigint").json(str(tmp_path))
    assert narrowed(lenient, frozenset({"page"})).columns == ["page"]


def test_a_stream_that_keeps_state_of_its_own_keeps_its_columns(spark: Any) -> None:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    plain = stream.filter("value > 1").withColumn("more", F.col("value") * 2).alias("rows")
    named = spark.range(3).selectExpr("id AS value", "'x' AS name").groupBy("value", "name").count()
    for frame in (plain, plain.union(plain), plain.join(named, "value")):
        assert narrowed(frame, frozenset({"value"})).columns == ["value"]
    timed = plain.withWatermark("timestamp", "1 second")
    kept = [timed.dropDuplicatesWithinWatermark(["value"]), plain.join(timed.drop("more"), "value"), plain.distinct()]
    for frame in kept:
        assert narrowed(frame, frozenset({"value"})) is frame


def test_each_stream_of_a_job_is_read_by_its_own_columns(spark: Any, tmp_path: Path) -> None:
    both = op.Pipeline(
        op.source("left"),
        op.source("right"),
        op.step("pages", op.aggregate({"page": "string"}, n=op.count()), "left"),
        op.step("most", op.aggregate({"page": "string"}, most=op.max("amount")), "right"),
    )
    streams = {name: clicks(spark, tmp_path / name) for name in ("left", "right")}
    job = start(streams, both, store=tmp_path / "store", epochs=1)
    assert job.awaitTermination(DEADLINE)
    rows = read_output(tmp_path / "store", "final").select(["page", "n", "most"]).to_pylist()
    assert {tuple(row.values()) for row in rows} == {("/", 2, None), ("/a", 1, None), ("/", None, 2), ("/a", None, 1)}
    source: Any = job._source
    plan = source.query._jsq.streamingQuery().lastExecution().executedPlan().toString()
    assert "amount" in plan and "agent" not in plan and "referrer" not in plan
