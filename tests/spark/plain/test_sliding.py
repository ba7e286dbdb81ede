"""Sliding windows whose rows Spark does not multiply: where that is done, and where it must not be.

That batches stay those of Structured Streaming is shown by the named queries ("sliding, ...") and the composed ones.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from queries import NAMED, Streams

from holdfast.operators.contract import description_of
from holdfast.operators.grouped import Grouped, Slides
from holdfast.operators.sessions import Sessions
from holdfast.queries import aggregates
from holdfast.queries.pipelines import pipeline_of
from holdfast.queries.split import Split

pytestmark = pytest.mark.spark

MINUTE = 60_000_000


def sliding(step: str = "5 minutes", *start: str) -> Column:
    return F.window("ts", "20 minutes", step, *start).alias("w")


ONCE: dict[str, tuple[Callable[[Streams], DataFrame], Slides]] = {
    "a key": (lambda s: s.timed.groupBy(sliding()).count(), Slides("g0_start", "g0_end", 4, 5 * MINUTE)),
    "another name, begun late, filtered": (
        lambda s: s.timed.select("k", sliding("10 minutes", "3 minutes")).where("k > 'b'").groupBy("k", "w").count(),
        Slides("g1_start", "g1_end", 2, 10 * MINUTE),
    ),
    "drawn before there are windows": (
        lambda s: s.timed.where(F.rand(7) < 0.5).groupBy(sliding()).count(),
        Slides("g0_start", "g0_end", 4, 5 * MINUTE),
    ),
    "a name with metadata": (
        lambda s: s.timed.groupBy(sliding().alias("w", metadata={"comment": "x"})).count(),
        Slides("g0_start", "g0_end", 4, 5 * MINUTE),
    ),
    "named": (NAMED["sliding, late rows and batches without any"].make, Slides("g1_start", "g1_end", 4, 5 * MINUTE)),
}
EACH: dict[str, Callable[[Streams], DataFrame]] = {
    "no whole part": lambda s: s.timed.groupBy(sliding("8 minutes")).count(),
    "no key": lambda s: s.timed.select("k", sliding()).groupBy("k").count(),
    "a key made of it": lambda s: s.timed.select("k", sliding()).groupBy("w.start").count(),
    "two keys": lambda s: s.timed.select("k", sliding()).groupBy("w", F.col("w.end").alias("until")).count(),
    "filtered": NAMED["sliding, the window looked at"].make,
    "computed": lambda s: s.timed.select("k", sliding()).groupBy("w").agg(F.max("w.end")),
    "which zero came first": lambda s: s.timed.groupBy(sliding()).agg(F.max("x")),
    "order of arrival": NAMED["sliding, in the order of arrival"].make,
    "a session beside it": NAMED["sessions, cut by sliding windows"].make,
    "a window closes as well as a session": lambda s: s.timed.select("k", "ts", sliding()).groupBy(
        "w", F.session_window("ts", "3 minutes")
    ).count(),
    "metadata of one's own": lambda s: s.timed.select("k", sliding()).withMetadata("w", {"comment": "x"}).groupBy(
        "w"
    ).count(),
    "drawn for each window": lambda s: s.timed.select("k", sliding()).where(F.rand(7) < 0.5).groupBy("w").count(),
    "a key drawn for each window": lambda s: s.timed.groupBy(sliding(), F.floor(F.rand(7) * 3)).count(),
    "a value drawn for each window": lambda s: s.timed.select(sliding(), F.uuid().alias("id")).groupBy("w").agg(
        F.count("id")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONCE)
def test_rows_come_once(streams: Streams, name: str) -> None:
    make, slides = ONCE[name]
    split = Split(make(streams))
    operator = split.top.operator("update")
    assert isinstance(operator, Grouped) and operator.slides == slides
    assert "Expand" not in split.below._jdf.queryExecution().analyzed().toString()


@pytest.mark.parametrize("name", EACH)
def test_rows_come_for_each_window_where_these_are_looked_at(streams: Streams, name: str) -> None:
    split = Split(EACH[name](streams))
    operator = split.top.operator("complete")
    assert isinstance(operator, Sessions) or (isinstance(operator, Grouped) and operator.slides is None)
    assert "Expand" in split.below._jdf.queryExecution().analyzed().toString()


@pytest.mark.parametrize("name", ["sliding, window alone", "windows of windows, sliding"])
def test_stores_fit_whichever_way_rows_come(streams: Streams, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    frame = NAMED[name].make(streams)
    once = Split(frame)
    operator = once.top.operator("append")
    assert isinstance(operator, Grouped) and operator.slides is not None
    monkeypatch.setattr(aggregates, "newest", lambda *_: None)
    multiplied, grouped = (
        [description_of(step.operator) for step in pipeline_of(split, "append", 2, 1).steps[1:]]
        for split in (Split(frame), once)
    )
    assert multiplied == grouped
