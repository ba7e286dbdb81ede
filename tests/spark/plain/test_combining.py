"""Rows that Spark groups before they come: answers stay the same; done where few groups stand for many rows."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
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
from holdfast.runtime.spark.combining import EACH, FAST, MANY, SLOW, Combined, Combining, uncombined
from holdfast.runtime.spark.exchange import Exchange
from holdfast.runtime.spark.shipping import arrow_schema

SHORT = ("by a date",)
LONG = (
    "no keys", "window alone",
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


COUNTED = Partial("rows.sent", "count_all", None, None)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        ("string(id)", Partial("r0", "max", "a0", None)),  # Spark would sort
        ("CAST(id AS decimal(5, 2))", Partial("r0", "sum", "a0", pa.decimal128(5, 2))),  # summed as whole numbers
        ("CAST(id AS double)", Partial("r0", "stddev", "a0", pa.float64())),  # not known
    ],
)
def test_what_spark_makes_something_else_of_comes_as_it_is(spark: SparkSession, column: str, wanted: Partial) -> None:
    combines = Combining(Combined(("g0",), (wanted, COUNTED)))
    combines.learn(MANY, 1, 1)
    assert combines.plan(spark.range(10).selectExpr("id % 2 AS g0", f"{column} AS a0")) is None


@pytest.mark.spark
def test_functions_that_come_to_the_same_are_told_apart(spark: SparkSession) -> None:
    """What is never null is counted as rows are: Spark makes one of the two."""
    wanted = [
        Partial("r0", "count", "a0", None), Partial("r1", "sum", "a1", pa.int64()), Partial("r2", "min", "a0", None),
        Partial("r3", "sum", "a2", pa.decimal128(10, 2)), Partial("r4", "sum", "a1", pa.float64()), COUNTED,
    ]  # fmt: skip
    combines = Combining(Combined(("g0",), tuple(wanted)))
    combines.learn(MANY, 1, 1)
    cents = "if(id = 3, 1.5, CAST(null AS decimal(10, 2))) AS a2"
    columns = ["id % 2 AS g0", "id AS a0", "if(id > 7, id, null) AS a1", cents]
    planned = combines.plan(spark.range(0, 10, 1, 1).selectExpr(*columns))
    assert planned is not None
    messages, _ = Exchange(spark.sparkContext).batch(*planned)
    schema = pa.ipc.read_schema(pa.py_buffer(arrow_schema(spark, planned[0])))
    batches = [pa.ipc.read_record_batch(pa.py_buffer(each), schema) for each in messages.mapPartitions(list).collect()]
    groups, read = uncombined(pa.Table.from_batches(batches, schema))
    assert read == 10
    assert sorted(groups.to_pylist(), key=lambda row: row["g0"]) == [
        {"g0": 0, "r0": 5, "r1": 8, "r2": 0, "r3": None, "r4": 8.0, "rows.sent": 5},
        {"g0": 1, "r0": 5, "r1": 9, "r2": 1, "r3": Decimal("1.50"), "r4": 9.0, "rows.sent": 5},
    ]


@pytest.mark.spark
def test_fields_of_keys_may_be_named_as_anybody_likes(streams: Streams, place: Path, always: list[bool]) -> None:
    key = F.struct(F.col("k").alias("salt and pepper"), F.col("yes").alias("`k`.empty")).alias("key")
    frame = streams.e.groupBy(key).agg(F.sum("n"), F.count("*"))
    assert answers(holdfast.writeStream(frame), "update", place / "ours") == by_spark(frame, "update", place / "theirs")
    assert always and not any(always)


@pytest.mark.spark
def test_whether_sums_may_overflow_is_asked_of_every_batch(spark: SparkSession) -> None:
    combines = Combining(Combined(("g0",), (Partial("r0", "sum", "a0", pa.int64()), COUNTED)))
    combines.learn(MANY, 1, 1)
    careful, careless = spark.newSession(), spark.newSession()
    careless.conf.set("spark.sql.ansi.enabled", "false")
    for _ in range(2):
        assert combines.plan(careful.range(10).selectExpr("id % 2 AS g0", "id AS a0")) is not None
    assert combines.plan(careless.range(10).selectExpr("id % 2 AS g0", "id AS a0")) is None


@pytest.mark.spark
def test_batches_that_spark_lays_out_otherwise_come_as_they_are(spark: SparkSession) -> None:
    combines = Combining(Combined(("g0",), (Partial("r0", "max", "a0", None), COUNTED)))
    combines.learn(MANY, 1, 1)
    assert combines.plan(spark.range(10).selectExpr("id % 2 AS g0", "id AS a0")) is not None
    assert combines.plan(spark.range(10).selectExpr("id % 2 AS g0", "int(id) AS a0")) is None


@pytest.mark.spark
def test_means_of_whole_numbers_beyond_those_of_floats(streams: Streams, place: Path, always: list[bool]) -> None:
    """The first batch comes as rows, the others as groups."""
    frame = streams.e.groupBy("k").agg(F.avg(F.col("n") + 2**53 + 1))
    assert answers(holdfast.writeStream(frame), "update", place / "ours") == by_spark(frame, "update", place / "theirs")
    assert any(always)


def test_a_sum_that_does_not_fit_is_not_taken_for_nothing() -> None:
    sums = pa.array([None], pa.decimal128(38, 2))
    with pytest.raises(combining.Overflow):
        uncombined(pa.table({"r0": sums, "r0.empty": [False], "rows.sent": [3]}))
    groups, _ = uncombined(pa.table({"r0": sums, "r0.empty": [True], "rows.sent": [3]}))
    assert groups.to_pylist() == [{"r0": None, "rows.sent": 3}]


@pytest.mark.spark
@pytest.mark.usefixtures("nobody_suspected")
def test_a_run_that_fails_combined_is_made_again_without(
    streams: Streams, place: Path, always: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Combining.plan

    def broken(self: Combining, frame: DataFrame) -> Any:
        found = real(self, frame)
        return found and (found[0].withColumnRenamed("rows.sent", "gone"), found[1])

    monkeypatch.setattr(Combining, "plan", broken)
    frame = streams.e.groupBy("day").agg(F.sum("n"))
    assert answers(holdfast.writeStream(frame), "update", place / "ours") == by_spark(frame, "update", place / "theirs")
    assert 1 <= always.count(True) <= combining.FAILURES


def test_a_lost_node_does_not_end_it_and_failures_in_a_row_do() -> None:
    combines = Combining(Combined(("g0",), ()))
    for _ in range(2 * combining.FAILURES):
        combines.learn(MANY, 1, 2)
        combines.learn(MANY, 1, 2)  # one that was combined came through
        combines.failed()
    assert combines._given is not None and not combines._on
    for _ in range(combining.FAILURES):
        combines.failed()
    assert combines._given is None


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
