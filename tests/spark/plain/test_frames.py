"""Rows on their way to Spark and from it: as ``createDataFrame`` has them, and by the settings of the session."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from side_by_side import answers, by_spark

import holdfast
from holdfast.queries.frames import FEW, PART, Frames
from holdfast.queries.split import Split

pytestmark = pytest.mark.spark

SPAN = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
LATE_BOUND = {
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""What tasks ask for when they first meet a row: with generated code the driver would have asked."""


def rows_of_all_types(count: int) -> pa.Table:
    numbers = range(count)
    return pa.table({
        "whole": numbers, "text": [str(i) if i % 7 else None for i in numbers],
        "large": pa.array(map(str, numbers), pa.large_string()),
        "real": [i / 3 if i % 5 else float("nan") for i in numbers],
        "time": pa.array([i * 1_000_003 for i in numbers], pa.timestamp("us", "UTC")),
        "naive": pa.array([i * 1_000_003 for i in numbers], pa.timestamp("us")),
        "window": pa.array([{"start": i, "end": i + 1} if i % 3 else None for i in numbers], SPAN),
        "cents": pa.array([Decimal(i) / 100 for i in numbers], pa.decimal128(20, 2)),
        "day": pa.array(numbers, pa.int32()).cast(pa.date32()), "bytes": [bytes([i % 256]) for i in numbers],
        "list": pa.array([[i, None] for i in numbers], pa.list_(pa.int32())), "yes": [bool(i % 2) for i in numbers],
    })  # fmt: skip


@pytest.mark.parametrize("count", [0, FEW, FEW + 1])
def test_a_frame_has_the_rows_that_spark_would_make_of_them(spark: SparkSession, count: int) -> None:
    rows = rows_of_all_types(count)
    expected, found = spark.createDataFrame(rows), Frames(spark).of(rows)
    assert found.schema == expected.schema
    assert str(found.collect()) == str(expected.collect())


def test_rows_are_spread_over_tasks_once_there_are_many(spark: SparkSession) -> None:
    for count, parts in ((FEW + 1, 1), (PART // 8 + 1, 2)):
        frame: Any = Frames(spark).of(pa.table({"whole": range(count)}))
        assert frame._jdf.rdd().getNumPartitions() == parts


def test_what_stands_above_the_answers_holds_for_batches_of_any_size_and_type(spark: SparkSession) -> None:
    """It is made for the first batch; then few rows follow many, and others have other types."""
    rates = spark.readStream.format("rate").load().selectExpr("value % 10 as k", "value")
    split = Split(rates.groupBy("k").agg(F.sum("value").alias("total")).selectExpr("k + 1 as k", "total * 2 as total"))
    names = split.top.schema().names
    made = {}
    for count, type_ in ((3, pa.int64()), (FEW + 1, pa.int64()), (0, pa.int64()), (3, pa.int32()), (4, pa.int64())):
        rows = pa.table([pa.array(range(count), type_)] * 2, names=names)
        made[count, type_] = split.above(Frames(spark).of(rows))
        assert made[count, type_].schema == split.schema
        assert sorted(made[count, type_].collect()) == [(each + 1, each * 2) for each in range(count)]
    both = made[3, pa.int64()].join(made[4, pa.int64()], "k")
    assert sorted(both.collect()) == [(each + 1, each * 2, each * 2) for each in range(3)]


@pytest.fixture
def late_bound(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name) for name in LATE_BOUND}
    for name, value in LATE_BOUND.items():
        spark.conf.set(name, value)
    yield spark
    for name, found in before.items():
        spark.conf.set(name, str(found))


def test_the_settings_of_a_session_reach_its_tasks(late_bound: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "0.txt").write_text("2026-1-5\n2026-01-05\n")
    texts = late_bound.readStream.text(str(tmp_path / "texts"))
    days = texts.selectExpr("to_timestamp(value, 'yyyy-MM-dd') AS day").groupBy("day").count()
    expected = by_spark(days, "update", tmp_path / "spark")
    assert [count for _, count in expected[0]] == [2]
    assert answers(holdfast.writeStream(days), "update", tmp_path / "holdfast") == expected
