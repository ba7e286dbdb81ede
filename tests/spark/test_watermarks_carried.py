"""Two streams with a watermark each: a restart knows how far each of them was, which Spark's own log does not say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.state import Store
from holdfast.state.journal import Journal

pytestmark = pytest.mark.spark

DELAYS = {"a": 5, "b": 10}
BATCHES = ({"a": [20, 31], "b": [24]}, {"a": [90]}, {"b": [70, 50]}, {"a": [95]}, {"b": [120]})
"""Event times in seconds, by stream; a stream without any has no new file."""


def drop(root: Path, number: int, times: dict[str, list[int]]) -> None:
    for name, seconds in times.items():
        made = root / f".{name}-{number}.json"
        made.write_text("".join(json.dumps({"at": at}) + "\n" for at in seconds))
        made.rename(root / name / f"{number}.json")


def both(spark: SparkSession, root: Path) -> DataFrame:
    streams = []
    for name, delay in DELAYS.items():
        rows = spark.readStream.schema("at long").json(str(root / name)).withColumn("t", F.timestamp_seconds("at"))
        streams.append(rows.withWatermark("t", f"{delay} seconds"))
    return streams[0].union(streams[1]).groupBy(F.window("t", "10 seconds")).count()


def left_by(policy: str, batches: Any) -> list[int]:
    """The watermark behind each batch, by a plain loop."""
    newest: dict[str, int] = {}
    left, told = 0, []
    for times in batches:
        for name, seconds in times.items():
            newest[name] = max(newest.get(name, 0), max(seconds) - DELAYS[name])
        chosen = (min if policy == "min" else max)(newest.get(name, 0) for name in DELAYS)
        left = max(left, chosen)
        told.append(left)
    return told


@pytest.mark.parametrize("policy", ["min", "max"])
def test_each_stream_continues_from_its_own_watermark(policy: str, spark: SparkSession, tmp_path: Path) -> None:
    for name in DELAYS:
        (tmp_path / name).mkdir()
    key = "spark.sql.streaming.multipleWatermarkPolicy"
    spark.conf.set(key, policy)
    seen: list[int] = []
    try:
        for number, times in enumerate(BATCHES):
            drop(tmp_path, number, times)
            writer = holdfast.writeStream(both(spark, tmp_path)).outputMode("update").format("noop")
            query = writer.option("checkpointLocation", str(tmp_path / "store")).trigger(availableNow=True).start()
            assert query.awaitTermination(120)
            origin = Journal.load(store := Store(tmp_path / "store"), store.checkpoints()[-1].epoch).origin
            assert origin is not None and origin.left is not None
            seen.append(origin.left // 1000)
    finally:
        spark.conf.unset(key)
    assert seen == left_by(policy, BATCHES)
