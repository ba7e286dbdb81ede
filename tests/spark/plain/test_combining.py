"""Rows that Spark groups before they come: answers stay the same; done where few groups stand for many rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from queries import NAMED, Streams
from side_by_side import BATCHES, answers, by_spark

import holdfast
from holdfast.operators.aggregations import Partial
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history
from holdfast.runtime.spark import combining
from holdfast.runtime.spark.combining import EACH, FAST, MANY, SLOW, Combined, Combining

SHORT = ("no keys", "by a date", "window alone")
LONG = (
    "by a boolean", "by a decimal", "by a float", "by small and large numbers", "structs as keys", "tumbling", "rates",
    "sliding, window alone", "nothing may be late", "batches without rows", "structs, dates and decimals with a window",
    "windows of windows", "how many different", "distinct in sql", "columns by value",
)  # fmt: skip


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Combined from the second batch on, wherever it can be; and whether each was."""
    done: list[bool] = []
    real = Combining.plan

    def plan(self: Combining, frame: DataFrame) -> Any:
        found = real(self, frame)
        done.append(found is not None)
        return found

    monkeypatch.setattr(Combining, "plan", plan)
    monkeypatch.setattr(combining, "MANY", 0)
    monkeypatch.setattr(combining, "EACH", 0)
    return done


@pytest.mark.spark
@pytest.mark.parametrize("name", [*SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in LONG)])
def test_batches_are_those_of_structured_streaming(
    streams: Streams, place: Path, name: str, always: list[bool]
) -> None:
    query = NAMED[name]
    frame = query.make(streams)
    for mode in query.modes:
        assert answers(holdfast.writeStream(frame), mode, place / mode) == by_spark(
            frame, mode, place / f"{mode} spark"
        )
        assert any(always) or name in ("how many different", "distinct in sql"), "nothing was combined"


@pytest.mark.spark
def test_rows_are_counted_and_replayed_though_groups_came(
    streams: Streams, place: Path, always: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal has groups then; two of four nodes die, and the batches stay what they are, late rows too."""
    frame = streams.timed.groupBy(F.window("ts", "10 minutes"), "yes").agg(F.sum("cents"), F.avg("n"), F.max("x"))
    writer, faults = holdfast.writeStream(frame), parse_faults("kill node-1,node-2 at epoch 2")
    writer.resilience(nodes=4, parallelism=4, checkpoint_every=3, faults=faults, rejoin_after=0.5)
    found = answers(writer, "update", place / "groups")
    assert sum(always) >= BATCHES - 1
    monkeypatch.setattr(combining, "MANY", 10**9)
    assert answers(holdfast.writeStream(frame), "update", place / "rows") == found
    groups, rows = (_counted(place / name) for name in ("groups", "rows"))
    del groups[2], rows[2]  # of tasks that were lost nobody has counted what was late
    assert groups == rows and any(late for _, late in rows.values())


def _counted(store: Path) -> dict[int, tuple[int, int]]:
    """Of each epoch, rows that came and rows that were late."""
    told = [event for event in read_history(store) if event["kind"] == "epoch"]
    late = {event["epoch"]: sum(each.get("late", 0) for each in event["counters"].values()) for event in told}
    return {event["epoch"]: (event["rows_in"], late[event["epoch"]]) for event in told}


@pytest.mark.spark
def test_texts_that_are_compared_come_as_they_are(spark: SparkSession) -> None:
    """Spark would sort by them."""
    frame = spark.range(10).selectExpr("id % 2 AS g0", "string(id) AS a0")
    combines = Combining(Combined(("g0",), (Partial("r0", "max", "a0", None),)))
    combines.learn(MANY, 1, 1)
    assert combines.plan(frame) is None


@pytest.mark.parametrize(
    ("read", "sent", "on", "then"),
    [
        (MANY, MANY // EACH, False, True),
        (MANY, MANY // EACH + 1, False, False),
        (MANY, 2 * MANY // EACH, True, True),
        (MANY, 2 * MANY // EACH + 1, True, False),
        (MANY - 1, 1, True, False),
        (EACH * 2 * FAST, 2 * FAST, False, True),
        (EACH * 2 * FAST + EACH, 2 * FAST + 1, False, False),
        (SLOW * 3 * FAST, 3 * FAST, False, True),
    ],
)
def test_it_is_worth_it_where_few_groups_stand_for_many_rows(read: int, sent: int, on: bool, then: bool) -> None:
    combines = Combining(Combined(("g0",), ()))
    combines.learn(*((MANY, 1, 2) if on else (1, 1, 2)))
    combines.learn(read, sent, 2)
    assert combines._on is then
