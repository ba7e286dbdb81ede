"""Joins of two streams: each run by Structured Streaming and by Holdfast over the same micro-batches."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from side_by_side import answers, by_spark

import holdfast
from holdfast.operators.stream_join import StreamJoin
from holdfast.queries import NotCovered
from holdfast.queries.joins import Pairs
from holdfast.queries.split import Split
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history

pytestmark = pytest.mark.spark

VIEWS = "ad string, page int, seen timestamp, tags array<string>, score double"
CLICKS = "ad string, user string, clicked timestamp, cost decimal(8,2), score double"
BATCHES = 5
Streams = tuple[DataFrame, DataFrame]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each stream a file for each micro-batch, ten minutes later. Some rows are late, some have no ad or no time."""
    made, draw = tmp_path_factory.mktemp("ads"), random.Random(5)

    def moment(batch: int) -> str | None:
        minute = batch * 10 + draw.randrange(10) - draw.choice((0, 0, 0, 7, 45))
        return draw.choice(
            [None] + 19 * [f"2026-01-01 {5 + minute // 60:02d}:{minute % 60:02d}:{draw.randrange(60):02d}"]
        )

    for batch in range(BATCHES):
        ads: list[Any] = [None, *(f"ad{number}" for number in range(8))]
        scores = (1.5, -0.0, 0.0, "NaN")
        views = [
            {"ad": draw.choice(ads), "page": draw.choice([None, 1, 2, 3]), "seen": moment(batch), "tags": ["a", None],
             "score": draw.choice(scores)}
            for _ in range(30)
        ]  # fmt: skip
        clicks = [
            {"ad": draw.choice(ads), "user": draw.choice("uvw"), "clicked": moment(batch), "score": draw.choice(scores),
             "cost": f"{draw.randrange(500) / 100:.2f}"}
            for _ in range(30)
        ]  # fmt: skip
        for name, rows in (("views", views), ("clicks", clicks)):
            path = made / name / f"{batch}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text("\n".join(map(json.dumps, rows)))
            os.utime(path, (1_700_000_000 + batch,) * 2)
    return made


@pytest.fixture
def streams(spark: SparkSession, folders: Path) -> Streams:
    spark.conf.set("spark.sql.shuffle.partitions", "1")

    def read(name: str, schema: str) -> DataFrame:
        stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).option("allowNonNumericNumbers", True)
        return stream.json(str(folders / name))

    return read("views", VIEWS), read("clicks", CLICKS)


def ranged(views: DataFrame, clicks: DataFrame, how: str, also: str = "true") -> DataFrame:
    """A click comes up to ten minutes after its view."""
    left = views.withWatermark("seen", "5 minutes").alias("v")
    right = clicks.withWatermark("clicked", "8 minutes").alias("c")
    soon = "v.ad = c.ad and clicked >= seen and clicked <= seen + interval 10 minutes"
    return left.join(right, F.expr(f"{soon} and {also}"), how)


def windowed(views: DataFrame, clicks: DataFrame, how: str) -> DataFrame:
    left = views.withWatermark("seen", "5 minutes").select(F.window("seen", "5 minutes"), "ad", "page")
    right = clicks.withWatermark("clicked", "8 minutes").select(F.window("clicked", "5 minutes"), "ad", "user")
    return left.join(right, ["window", "ad"], how)


def sql(views: DataFrame, clicks: DataFrame) -> DataFrame:
    views.withWatermark("seen", "5 minutes").createOrReplaceTempView("views")
    clicks.withWatermark("clicked", "8 minutes").createOrReplaceTempView("clicks")
    return views.sparkSession.sql(
        "select upper(v.ad) ad, page + 1 as page, user, cost * 2 twice from views v, clicks c where v.ad = c.ad and "
        "clicked between seen - interval 3 minutes and seen + interval 10 minutes and page > 1 and user <> 'u' "
        "and (page = 3 or user = 'v')"
    )


QUERIES: dict[str, tuple[Callable[[DataFrame, DataFrame], DataFrame], str]] = {
    "inner": (lambda v, c: ranged(v, c, "inner"), "append"),
    "left": (lambda v, c: ranged(v, c, "left"), "append"),
    "inner, then windows": (
        lambda v, c: ranged(v, c, "inner", "(page > 1 or user = 'v')")
        .groupBy(F.window("seen", "5 minutes"), "user")
        .agg(F.count("*"), F.sum("cost"), F.max(F.col("page") + 1)),
        "append",
    ),
    "right": (lambda v, c: ranged(v, c, "right").select("v.ad", "user", "cost", "tags"), "append"),
    "full": (
        lambda v, c: ranged(v.dropna(subset="ad"), c.dropna(subset="ad"), "full").where("page is null or page > 1"),
        "append",
    ),
    "left, conditions on one side and on both": (
        lambda v, c: ranged(v, c, "left", "page > 1 and user <> 'w' and v.score >= c.score and v.ad <> upper(user)"),
        "append",
    ),
    "sql, conditions above": (sql, "update"),
    "windows, inner": (lambda v, c: windowed(v, c, "inner"), "append"),
    "windows, left": (lambda v, c: windowed(v, c, "left"), "append"),
    "floats are equal, a static table": (
        lambda v, c: v.join(v.sparkSession.createDataFrame([(1, "one")], "page int, name string"), "page").join(
            c.selectExpr("score", "user as u").where("u = 'u'"), "score"
        ),
        "append",
    ),
    "null safe": (
        lambda v, c: v.select("ad", "page").join(c, v["ad"].eqNullSafe(c["ad"])).where("user = 'v'"),
        "append",
    ),
    "no time is read": (
        lambda v, c: v.withWatermark("seen", "1 minute").join(
            c.withWatermark("clicked", "1 minute").selectExpr("ad", "user", "clicked"), "ad"
        ).select("ad", "page", "user"),
        "append",
    ),
    "a watermark on one side": (
        lambda v, c: v.withColumn("at", F.date_trunc("minute", "seen")).withWatermark("at", "5 minutes").join(
            c.withColumn("at", F.date_trunc("minute", "clicked")), ["ad", "at"]
        ).select("ad", "at", "page", "user"),
        "append",
    ),
}  # fmt: skip
SHORT = {"left, conditions on one side and on both"}
CASES = [pytest.param(name, marks=[] if name in SHORT else [pytest.mark.long]) for name in QUERIES]


@pytest.mark.parametrize("name", CASES)
def test_every_batch_is_that_of_structured_streaming(streams: Streams, tmp_path: Path, name: str) -> None:
    make, mode = QUERIES[name]
    frame = make(*streams)
    ours = answers(holdfast.writeStream(frame), mode, tmp_path / "ours")
    assert ours == by_spark(frame, mode, tmp_path / "theirs")
    assert len(ours) >= BATCHES and any(ours.values())


def test_a_node_behind_a_join_never_runs_ahead(streams: Streams) -> None:
    """A click that must come five minutes after its view lets views go early, not what is answered."""
    views, clicks = streams[0].withWatermark("seen", "1 minute"), streams[1].withWatermark("clicked", "1 minute")
    late = F.expr("v.ad = c.ad and clicked >= seen + interval 5 minutes")
    both = views.alias("v").join(clicks.alias("c"), late)
    assert Split(both.groupBy(F.window("clicked", "1 minute")).count()).nodes[0].trails == 0


@pytest.mark.long
def test_a_node_dies_and_batches_stay_what_they_are(streams: Streams, tmp_path: Path) -> None:
    frame = QUERIES["left"][0](*streams)
    writer = holdfast.writeStream(frame)
    faults = parse_faults("kill node-1 at epoch 3")
    writer.resilience(nodes=3, parallelism=3, checkpoint_every=2, faults=faults, rejoin_after=0.5)
    ours = answers(writer, "append", tmp_path / "ours")
    assert ours == by_spark(frame, "append", tmp_path / "theirs")
    assert any(event["kind"] == "nodes lost" for event in read_history(tmp_path / "ours"))


def node_of(frame: DataFrame) -> Pairs:
    (node,) = Split(frame).nodes
    assert isinstance(node, Pairs)
    return node


def test_rows_are_held_as_long_as_spark_holds_them(streams: Streams) -> None:
    """A view for ten minutes; a click until no view of the same moment can come."""
    operator: Any = node_of(ranged(*streams, "left")).operator("append")
    assert isinstance(operator, StreamJoin) and operator.horizon == 600_001_000
    left, right = operator.describe()["left"], operator.describe()["right"]
    assert left["over"][1] == 600_001_000 and right["over"][1] == 1000
    between = node_of(sql(*streams))
    does = between.operator("append").describe()
    assert does["left"]["over"][1] == 600_001_000 and does["right"]["over"][1] == 180_001_000
    assert len(does["where"]) == 2 and len(between.over) == 1, "all but the OR are compared below"
    text = holdfast.explain(ranged(*streams, "left"), mode="append")
    assert "pairs, 4 tasks, until the watermark has reached" in text and "+ 600.001 s of left rows" in text
    assert "left outer join of two streams on v.ad = c.ad" in text


REFUSED: dict[str, tuple[Callable[[DataFrame, DataFrame], DataFrame], str]] = {
    "semi": (lambda v, c: ranged(v, c, "left_semi"), "Join: LEFT SEMI of two streams is not covered; inner, left"),
    "nothing equal": (
        lambda v, c: v.join(c, v["page"] > F.length(c["user"])),
        "nothing must be equal on both sides; Structured Streaming has no such joins either",
    ),
    "either": (
        lambda v, c: ranged(v, c, "left", "(page = 1 or user = 'u')"),
        r"the condition \(\(v.page = 1\) OR \(c.user = 'u'\)\) of an outer join of two streams is not covered; compare",
    ),
    "lists": (lambda v, c: v.join(c.select(F.array("user").alias("tags")), "tags"), "a array<string> is not compared"),
    "two times": (
        lambda v, c: v.withWatermark("seen", "1 hour").withColumn("again", F.col("seen")).join(c, "ad"),
        "one side has several event times, seen and again",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_covered_is_refused_by_its_name(streams: Streams, name: str) -> None:
    make, told = REFUSED[name]
    with pytest.raises(NotCovered, match=told):
        holdfast.writeStream(make(*streams))


def test_modes_and_watermarks_are_as_spark_wants_them(streams: Streams, tmp_path: Path) -> None:
    def start(frame: DataFrame, mode: str) -> None:
        answers(holdfast.writeStream(frame), mode, tmp_path / "ours")

    with pytest.raises(NotCovered, match=r"LeftOuter join .* not supported in Update output mode"):
        start(ranged(*streams, "left"), "update")
    views, clicks = streams
    with pytest.raises(NotCovered, match=r"LeftOuter join .* not supported without a watermark in the join keys"):
        start(views.join(clicks, "ad", "left"), "append")
