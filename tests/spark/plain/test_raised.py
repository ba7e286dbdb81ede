"""Errors of the user's own code in plain queries: how often it is called again, and what the error says."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from queries import Streams
from side_by_side import BATCHES, answers, by_spark

import holdfast
from holdfast.errors import HoldfastError
from holdfast.runtime.driver.ports import Retry
from holdfast.runtime.spark.runner import SparkRunner

pytestmark = pytest.mark.spark

HERE = Path(__file__).name


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The Spark jobs that were begun for epochs."""
    begun: list[str] = []
    real = SparkRunner._run

    def run(self: SparkRunner, plan: Any, batch: object) -> Any:
        begun.append(plan.kind)
        return real(self, plan, batch)

    monkeypatch.setattr(SparkRunner, "_run", run)
    return begun


def failed(frame: DataFrame, store: Path, take: Callable[[DataFrame, int], None] | None = None) -> HoldfastError:
    """What ends this query."""
    writer = holdfast.writeStream(frame).outputMode("update").foreachBatch(take or (lambda *_: None))
    query = writer.option("checkpointLocation", str(store)).trigger(availableNow=True).start()
    with pytest.raises(HoldfastError) as caught:
        query.awaitTermination(120)
    assert query.exception() is caught.value
    return caught.value


def shown(error: HoldfastError) -> str:
    """What Python prints of an error that nobody catches."""
    text = "".join(traceback.format_exception(error))
    assert "py4j" not in text and "Py4J" not in text
    assert "\n" not in str(error)
    assert text.splitlines()[-1].endswith(str(error))
    return text


def counts(streams: Streams) -> DataFrame:
    return streams.e.groupBy("k").count()


class TestForeachBatch:
    def test_what_it_raises_is_the_cause_and_it_is_called_once_more(self, streams: Streams, tmp_path: Path) -> None:
        raised: list[Exception] = []

        def take(rows: DataFrame, epoch: int) -> None:
            raised.append(KeyError("no such column"))
            raise raised[-1]

        error = failed(counts(streams), tmp_path, take)
        assert len(raised) == 2 and error.__cause__ is raised[-1]
        assert re.search(rf"batch 0\b.*: KeyError: 'no such column' \({HERE}, line \d+, in take\)$", str(error))
        lines = shown(error).splitlines()
        assert lines[0] == "Traceback (most recent call last):" and re.search(rf"{HERE}.*in take$", lines[1])

    def test_the_same_from_a_function_of_spark_s(self, streams: Streams, tmp_path: Path) -> None:
        calls: list[int] = []

        def take(rows: DataFrame, epoch: int) -> None:
            calls.append(epoch)
            rows.select(F.col("count") / F.lit(0)).collect()

        error = failed(counts(streams), tmp_path, take)
        assert calls == [0, 0]
        assert re.search(rf"batch 0\b.*ArithmeticException: \[DIVIDE_BY_ZERO\].* \({HERE}, line \d+\)$", str(error))
        assert re.search(rf"{HERE}.*in take$", shown(error).splitlines()[1])

    def test_the_same_from_a_function_of_the_user_in_a_plan_of_spark_s(self, streams: Streams, tmp_path: Path) -> None:
        """The output of the query goes through it when ``take`` asks for rows."""
        calls: list[int] = []

        def ratio(count: int) -> float:
            return count / (count - count)

        def take(rows: DataFrame, epoch: int) -> None:
            calls.append(epoch)
            rows.collect()

        error = failed(counts(streams).select(F.udf(ratio, "double")("count")), tmp_path, take)
        assert calls == [0, 0]
        where = rf"\({HERE}, line \d+, in ratio\)"
        assert re.search(rf"batch 0\b.*: ZeroDivisionError: division by zero {where}$", str(error))
        assert "ZeroDivisionError: division by zero" in shown(error)

    def test_what_may_pass_is_called_again_more_often(
        self, streams: Streams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.queries.delivery.TRIES", Retry(limit=6, first=0.01, most=0.01))
        calls: list[int] = []

        def take(rows: DataFrame, epoch: int) -> None:
            calls.append(epoch)
            if len(calls) < 6:
                raise ConnectionError("the warehouse is away")

        writer = holdfast.writeStream(counts(streams)).outputMode("update").foreachBatch(take)
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
        assert calls == [0] * 6 + [*range(1, BATCHES)]

    def test_what_fails_once_ends_nothing(self, streams: Streams, tmp_path: Path) -> None:
        calls: list[int] = []

        def take(rows: DataFrame, epoch: int) -> None:
            calls.append(epoch)
            if calls == [0]:
                raise KeyError("another thread was first")

        writer = holdfast.writeStream(counts(streams)).outputMode("update").foreachBatch(take)
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
        assert calls == [0, *range(BATCHES)]


def test_what_early_raises_is_the_cause_and_it_is_called_once_more(streams: Streams, tmp_path: Path) -> None:
    raised: list[Exception] = []

    def early(rows: DataFrame, epoch: int, fidelity: float) -> None:
        raised.append(ValueError("not a number"))
        raise raised[-1]

    writer = holdfast.writeStream(counts(streams)).outputMode("update").foreachBatch(lambda *_: None).early(early)
    query = writer.option("checkpointLocation", str(tmp_path)).resilience(parallelism=1).start()
    with pytest.raises(HoldfastError) as caught:
        query.awaitTermination(120)
    error = caught.value
    assert len(raised) == 2 and error.__cause__ is raised[-1]
    assert re.search(rf"epoch 0: ValueError: not a number \({HERE}, line \d+, in early\)", str(error))
    assert re.search(rf"{HERE}.*in early$", shown(error).splitlines()[1])


def dividing(calls: Path, fails: Callable[[int], Exception | None]) -> Callable[[int | None], float]:
    """For a UDF: raises over an eight if ``fails`` says so of the number of the call, and writes the calls down."""

    def ratio(n: int | None) -> float:
        if n == 8:
            with calls.open("a") as file:
                file.write("called\n")
            if (error := fails(calls.read_text().count("called"))) is not None:
                raise error
        return 1.0

    return ratio


class TestFunctionsInThePlan:
    """A function of the user's below the state, which executors call as they read the source."""

    @pytest.mark.parametrize("kind", ["rows", "arrow"])
    def test_what_it_raises_is_the_cause_and_it_is_called_once_more(
        self, kind: str, streams: Streams, tmp_path: Path, runs: list[str]
    ) -> None:
        calls = tmp_path / "calls"

        def ratio(n: int | None) -> float:
            if n == 8:
                with calls.open("a") as file:
                    file.write("called\n")
            return 0.0 if n is None else 1 / (n - 8)

        def ratios(n: pa.Array) -> pa.Array:
            return pa.array([ratio(each) for each in n.to_pylist()])

        function: Callable[[str], Column] = F.arrow_udf(ratios, "double") if kind == "arrow" else F.udf(ratio, "double")
        error = failed(streams.e.where(function("n") < 1).groupBy("k").count(), tmp_path / "store")
        assert len(runs) == 2 and calls.read_text().count("called") == 2
        where = rf"\({HERE}, line \d+, in ratio\)"
        assert re.search(rf"epoch 0\b.*: ZeroDivisionError: division by zero {where}$", str(error))
        assert isinstance(error.__cause__, ZeroDivisionError) and str(error.__cause__) == "division by zero"
        lines = shown(error).splitlines()
        assert lines[0] == "ZeroDivisionError: division by zero"
        assert any(re.search(rf"{HERE}\", line \d+, in ratio$", line) for line in lines)

    def test_an_exception_of_the_user_s_own_class_is_named(self, streams: Streams, tmp_path: Path) -> None:
        class BadRow(Exception):
            pass

        ratio = dividing(tmp_path / "calls", lambda _: BadRow("an eight\nand more of it"))
        error = failed(streams.e.where(F.udf(ratio, "double")("n") > 0).groupBy("k").count(), tmp_path / "store")
        assert re.search(rf"BadRow: an eight and more of it \({HERE}, line \d+, in ratio\)$", str(error))
        assert type(error.__cause__).__name__ == "BadRow" and str(error.__cause__) == "an eight\nand more of it"
        assert shown(error).splitlines()[0].endswith("BadRow: an eight")

    @pytest.mark.usefixtures("nobody_suspected")
    @pytest.mark.parametrize(("times", "error"), [(3, ConnectionError("no route")), (1, KeyError("a race"))])
    def test_what_passes_ends_nothing(self, times: int, error: Exception, streams: Streams, tmp_path: Path) -> None:
        ratio = dividing(tmp_path / "calls", lambda call: error if call <= times else None)
        frame = streams.e.where(F.udf(ratio, "double")("n") > 0).groupBy("k").count()
        usual = by_spark(counts(streams), "update", tmp_path / "theirs")
        assert answers(holdfast.writeStream(frame), "update", tmp_path / "ours") == usual

    def test_an_error_of_an_expression_is_tried_once_more_and_says_where_it_is(
        self, streams: Streams, tmp_path: Path, runs: list[str]
    ) -> None:
        error = failed(streams.e.where(F.lit(1) / (F.col("n") - 8) < 1).groupBy("k").count(), tmp_path)
        assert len(runs) == 2
        assert re.search(rf"epoch 0\b.*: \[DIVIDE_BY_ZERO\].* \({HERE}, line \d+\)$", str(error))
        assert "[DIVIDE_BY_ZERO]" in str(error.__cause__)
        shown(error)

    def test_a_malformed_row_is_told_with_its_file(
        self, spark: SparkSession, streams: Streams, tmp_path: Path, runs: list[str]
    ) -> None:
        source = tmp_path / "rows"
        source.mkdir()
        (source / "rows.json").write_text('{"k": "a", "n": 1}\n{"k": "b", "n": "none"}\n')
        frame = spark.readStream.option("mode", "FAILFAST").schema("k string, n int").json(str(source))
        error = failed(frame.groupBy("k").agg(F.sum("n")), tmp_path / "store")
        assert len(runs) == 2
        assert "rows/rows.json" in str(error) and "MALFORMED_RECORD_IN_PARSING" in str(error)
        shown(error)


def test_an_error_that_spark_s_query_was_told_too_has_no_frames_of_its_callback(
    streams: Streams, tmp_path: Path, runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's query waits in a callback for the epoch, and ends when the job does."""

    def broken(*_: object) -> None:
        raise HoldfastError("no more today")

    monkeypatch.setattr(SparkRunner, "_run", broken)
    error = failed(counts(streams), tmp_path)
    assert str(error) == "no more today"
    shown(error)
