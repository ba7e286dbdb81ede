"""Errors of the user's own operators and sinks: how often they are called again, and what the error says."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import operators as op
from holdfast.errors import HoldfastError
from holdfast.operators import Pipeline
from holdfast.runtime.driver.ports import Output
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import Job
from holdfast.runtime.spark.runner import SparkRunner
from holdfast.workloads import WORKLOADS

pytestmark = pytest.mark.spark

HERE = Path(__file__).name
ROWS = 20
Begin = Callable[..., Job]


def numbers(spark: Any) -> Any:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 1)
    return stream.load().select("value")


def through(function: Callable[[pa.Table], pa.Table]) -> Pipeline:
    return Pipeline(op.source("rows"), op.step("check", function, "rows"))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs of the Spark jobs that were begun."""
    begun: list[int] = []
    real = SparkRunner._run

    def run(self: SparkRunner, plan: Any, batch: object) -> Any:
        begun.append(plan.ingest)
        return real(self, plan, batch)

    monkeypatch.setattr(SparkRunner, "_run", run)
    return begun


def failed(job: Job) -> tuple[HoldfastError, list[str]]:
    """What ends this job, and what Python prints of it if nobody catches it."""
    with pytest.raises(HoldfastError) as caught:
        job.awaitTermination(120)
    text = "".join(traceback.format_exception(caught.value))
    assert "py4j" not in text and "pyspark" not in text and "\n" not in str(caught.value)
    return caught.value, text.splitlines()


def test_an_operator_that_raises_is_tried_once_more(spark: Any, tmp_path: Path, begin: Begin, runs: list[int]) -> None:
    def invert(batch: pa.Table) -> pa.Table:
        inverse = [1 / (value - 27) for value in batch["value"].to_pylist()]
        return batch.append_column("inverse", pa.array(inverse))

    error, lines = failed(begin(numbers(spark), through(invert), store=tmp_path, epochs=3))
    assert runs == [0, 1, 1]
    where = rf"\({HERE}, line \d+, in <listcomp>\)"
    assert re.search(
        rf"^operator check, task check/0, epoch 1: ZeroDivisionError: division by zero {where}", str(error)
    )
    assert str(error).endswith('sample row: {"value": 27}')
    assert isinstance(error.__cause__, ZeroDivisionError) and str(error.__cause__) == "division by zero"
    assert lines[0] == "ZeroDivisionError: division by zero"
    assert any(re.search(rf"{HERE}\", line \d+, in invert$", line) for line in lines)
    assert read_output(tmp_path, "final")["epoch"].to_pylist() == [0] * ROWS


def test_a_source_that_raises_says_where(spark: Any, tmp_path: Path, begin: Begin) -> None:
    def refuse(batch: pa.Table) -> pa.Table:
        raise LookupError("nobody knows\nthis one")

    pipeline = Pipeline(op.source("rows", refuse), op.step("check", lambda batch: batch, "rows"))
    error, lines = failed(begin(numbers(spark), pipeline, store=tmp_path, epochs=3))
    assert re.search(rf"epoch 0: LookupError: nobody knows this one \({HERE}, line \d+, in refuse\)", str(error))
    assert isinstance(error.__cause__, LookupError) and lines[:2] == ["LookupError: nobody knows", "this one"]


@pytest.mark.parametrize(("times", "raised"), [(1, KeyError), (3, ConnectionError)])
def test_what_an_operator_raises_and_then_does_not_ends_nothing(
    times: int, raised: type[Exception], spark: Any, tmp_path: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A race, and a service that is out of reach for a while."""
    seen = tmp_path / "runs"
    seen.write_text("")
    real = SparkRunner._run

    def run(self: SparkRunner, plan: Any, batch: object) -> Any:
        if plan.ingest == 1:
            seen.write_text(seen.read_text() + "run\n")
        return real(self, plan, batch)

    def look_up(batch: pa.Table) -> pa.Table:
        if 27 in batch["value"].to_pylist() and seen.read_text().count("run") <= times:
            raise raised("not now")
        return batch

    monkeypatch.setattr(SparkRunner, "_run", run)
    assert begin(numbers(spark), through(look_up), store=tmp_path / "store", epochs=3).awaitTermination(120)
    assert read_output(tmp_path / "store", "final")["value"].to_pylist() == [*range(3 * ROWS)]
    assert seen.read_text().count("run") == times + 1


def test_what_a_sink_raises_is_the_cause_and_it_is_called_once_more(spark: Any, tmp_path: Path, begin: Begin) -> None:
    raised: list[Exception] = []

    def write(output: Output) -> None:
        raised.append(TypeError("a number is needed"))
        raise raised[-1]

    error, lines = failed(begin(numbers(spark), through(lambda batch: batch), store=tmp_path, sink=write))
    assert len(raised) == 2 and error.__cause__ is raised[-1]
    where = rf"\({HERE}, line \d+, in write\)"
    assert re.search(rf"output of check/0 in epoch 0: TypeError: a number is needed {where}", str(error))
    assert lines[0] == "Traceback (most recent call last):" and re.search(rf"{HERE}.*in write$", lines[1])


def test_a_workload_that_fails_is_one_line_and_exit_code_1(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(batch: pa.Table) -> pa.Table:
        return pa.table({"n": [1 // 0]})

    pipeline = Pipeline(op.source("lines"), op.step("check", broken, "lines"))
    workload = replace(WORKLOADS["word-count"], pipeline=lambda **_: pipeline)
    monkeypatch.setattr("holdfast.cli.run.workload", lambda _: workload)
    code, out, err = command("run", "word-count", "--epochs", "2", "--out", str(tmp_path / "out"), "--quiet")
    assert code == 1 and out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("holdfast: ")]
    where = rf"\({HERE}, line \d+, in broken\)"
    assert re.search(rf"operator check.*: ZeroDivisionError: integer division or modulo by zero {where}", line)
    assert "Traceback" not in err and "py4j" not in err
