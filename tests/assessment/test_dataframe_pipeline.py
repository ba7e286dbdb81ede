"""holdfast.assess on an ordinary PySpark pipeline: metrics as worked out by hand, points, streams, and messages."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.errors import Invalid

pytestmark = pytest.mark.spark
ROWS = 1000


@pytest.fixture(scope="module")
def numbers(spark: Any) -> Any:
    rows = spark.range(ROWS).selectExpr("id as key", "timestamp_seconds(id div 10) as time", "id % 2 as odd")
    return rows.selectExpr("*", "1.0D as gain").cache()


def both(rows: Any, point: Any) -> Any:
    """Even and odd rows on two ways; odd ones are worth three times as much."""
    even = point("even", rows.where("odd = 0"))
    odd = point("odd", rows.where("odd = 1").withColumn("gain", rows["gain"] * 3))
    return even.unionByName(odd)


def test_the_metrics_of_each_point(numbers: Any) -> None:
    found = holdfast.assess(
        both, numbers, score="total:gain", key="key", time="time",
        offsets=[200, 500], outages=[1, 5, 10], repeat=1, sections=100,
    )  # fmt: skip
    assert [each.operator for each in found.operators] == ["source", "even", "odd"]
    for name in ("source", "even", "odd"):
        point = found[name]
        assert point.correlation == -1.0
        assert (point.deviation, point.accepted) == (0.0, True)
        # At 10 rows a second 10 s are 100 rows of the source, and half as many at each of the others.
        assert point.rows_lost == ((10, 50, 100) if name == "source" else (5, 25, 50))
        # What is affected is what was lost, all of it at the longest outage.
        assert point.quality[0] == pytest.approx((0.9, 0.5, 0.0))
    # 100 keys are ten to eleven sections, the first and last of them cut: a whole one loses all, or its share.
    assert found["source"].impact == pytest.approx(10, abs=1)
    assert found["even"].impact == pytest.approx(10 / 16, abs=0.1)
    assert found["odd"].impact == pytest.approx(10 * 9 / 16, abs=0.6)
    assert found["source"].recovery == pytest.approx(10, abs=1)
    assert found.golden == 500 + 1500


def test_points_can_be_chosen_and_faults_too(numbers: Any) -> None:
    shared = {
        "score": "count",
        "key": "key",
        "rate": 10.0,
        "offsets": 1,
        "outages": [5],
        "repeat": 1,
        "inject": ["odd"],
    }
    twice = holdfast.assess(both, numbers, fault="duplication", **shared)
    assert [each.operator for each in twice.operators] == ["odd"]
    assert twice["odd"].quality == ((2.0,),)
    wrong = holdfast.assess(both, numbers, **{**shared, "score": "total:gain"}, fault="corruption:gain:4")
    assert wrong["odd"].quality == ((4.0,),)


def test_a_streaming_source_runs_to_its_end(spark: Any, numbers: Any, tmp_path: Path) -> None:
    numbers.coalesce(1).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(numbers.schema).parquet(str(tmp_path / "rows"))
    found = holdfast.assess(
        both, stream, score="total:gain", key="key", time="time", offsets=[300], outages=[5], repeat=1, inject=["odd"]
    )
    assert found["odd"].rows_lost == (25,)
    assert found["odd"].quality == ((0.0,),)
    assert found.golden == 2000


def test_what_is_wrong_is_told(numbers: Any) -> None:
    good: dict[str, Any] = {"score": "count", "key": "key", "rate": 10.0}
    for pipeline, changes, message in (
        (both, {"key": "id"}, "the source has no such column; found: key, time"),
        (both, {"inject": ["evn"]}, "the pipeline marks no such point; points: source, even, odd"),
        (both, {"time": "time"}, "give one of them"),
        (both, {"rate": None}, "give one of them"),
        (both, {"fault": "reordering"}, "a DataFrame has no order of arrival"),
        (both, {"score": "total:x"}, "the output has no column 'x'"),
        (lambda rows, point: rows.select("gain"), {}, "it does not reach the output"),
        (lambda rows, point: point("a", rows.select("gain")), {}, "is not among its columns"),
        (lambda rows, point: point("a", point("a", rows)), {}, "marks it twice"),
    ):
        with pytest.raises(Invalid, match=message):
            holdfast.assess(pipeline, numbers, **{**good, **changes})


def test_a_pipeline_that_draws_lots_is_told_apart_from_damage(numbers: Any) -> None:
    seeds = count()  # rand() draws one by itself, and a test must not

    def shaky(rows: Any, point: Any) -> Any:
        from pyspark.sql import functions as F

        return point("all", rows).withColumn("gain", F.col("gain") * (F.rand(next(seeds)) * 0.8 + 0.6))

    asked: dict[str, Any] = {"score": "total:gain", "key": "key", "time": "time", "inject": ["all"], "offsets": [500]}
    asked |= {"outages": [10], "repeat": 1, "sections": 50, "golden": 3}
    found = holdfast.assess(shaky, numbers, **asked)
    assert found.golden_runs == 3
    assert 0 < found.golden_spread < found.noise < 0.5
    assert found["all"].impact == pytest.approx(5, abs=1)  # 100 rows are five sections, all of each
    assert found["all"].recovery == pytest.approx(5, abs=1)
    assert any("no more than golden runs may be" in note for note in found["all"].notes)
    harmless = holdfast.assess(shaky, numbers, **asked, fault="corruption:nothing")["all"]
    assert (harmless.impact, harmless.recovery, harmless.quality) == (0.0, 0, ((1.0,),))
