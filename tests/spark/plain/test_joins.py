"""Joins of two streams: how long rows are held, and what is refused. Their answers: ``test_named.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from queries import NAMED, Streams
from side_by_side import answers

import holdfast
from holdfast.operators.stream_join import StreamJoin
from holdfast.queries import NotCovered
from holdfast.queries.joins import Pairs
from holdfast.queries.split import Split

pytestmark = pytest.mark.spark

Make = Callable[[Streams], DataFrame]


def test_a_node_behind_a_join_never_runs_ahead(streams: Streams) -> None:
    """A click that must come five minutes after its view lets views go early, not what is answered."""
    views, clicks = streams.views.withWatermark("seen", "1 minute"), streams.clicks.withWatermark("clicked", "1 minute")
    late = F.expr("v.ad = c.ad and clicked >= seen + interval 5 minutes")
    both = views.alias("v").join(clicks.alias("c"), late)
    assert Split(both.groupBy(F.window("clicked", "1 minute")).count()).nodes[0].trails == 0


def node_of(frame: DataFrame) -> Pairs:
    (node,) = Split(frame).nodes
    assert isinstance(node, Pairs)
    return node


def test_rows_are_held_as_long_as_spark_holds_them(streams: Streams) -> None:
    """A view for ten minutes; a click until no view of the same moment can come."""
    operator: Any = node_of(streams.ranged("left")).operator("append")
    assert isinstance(operator, StreamJoin) and operator.horizon == 600_001_000
    left, right = operator.describe()["left"], operator.describe()["right"]
    assert left["over"][1] == 600_001_000 and right["over"][1] == 1000
    between = node_of(NAMED["joined in sql, conditions above"].make(streams))
    does = between.operator("append").describe()
    assert does["left"]["over"][1] == 600_001_000 and does["right"]["over"][1] == 180_001_000
    assert len(does["where"]) == 2 and len(between.over) == 1, "all but the OR are compared below"
    text = holdfast.explain(streams.ranged("left"), mode="append")
    assert "pairs, 4 tasks, until the watermark has reached" in text and "+ 600.001 s of left rows" in text
    assert "left outer join of two streams on v.ad = c.ad" in text


REFUSED: dict[str, tuple[Make, str]] = {
    "semi": (lambda s: s.ranged("left_semi"), "Join: LEFT SEMI of two streams is not covered; inner, left"),
    "nothing equal": (
        lambda s: s.views.join(s.clicks, F.expr("page > length(user)")),
        "nothing must be equal on both sides; Structured Streaming has no such joins either",
    ),
    "either": (
        lambda s: s.ranged("left", "(page = 1 or user = 'u')"),
        r"the condition \(\(v.page = 1\) OR \(c.user = 'u'\)\) of an outer join of two streams is not covered; compare",
    ),
    "lists": (
        lambda s: s.views.join(s.clicks.select(F.array("user").alias("tags")), "tags"),
        "a array<string> is not compared",
    ),
    "collated": (
        lambda s: s.views.selectExpr("ad collate UTF8_LCASE as ad").join(
            s.clicks.selectExpr("ad collate UTF8_LCASE as ad"), "ad"
        ),
        "a string collate UTF8_LCASE is not compared",
    ),
    "two times": (
        lambda s: s.views.withWatermark("seen", "1 hour").withColumn("again", F.col("seen")).join(s.clicks, "ad"),
        "one side has several event times, seen and again",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_covered_is_refused_by_its_name(streams: Streams, name: str) -> None:
    make, told = REFUSED[name]
    with pytest.raises(NotCovered, match=told):
        holdfast.writeStream(make(streams))


def test_modes_and_watermarks_are_as_spark_wants_them(streams: Streams, tmp_path: Path) -> None:
    def start(frame: DataFrame, mode: str) -> None:
        answers(holdfast.writeStream(frame), mode, tmp_path / "ours")

    with pytest.raises(NotCovered, match=r"LeftOuter join .* not supported in Update output mode"):
        start(streams.ranged("left"), "update")
    with pytest.raises(NotCovered, match=r"LeftOuter join .* not supported without a watermark in the join keys"):
        start(streams.views.join(streams.clicks, "ad", "left"), "append")
