"""Columns that nobody looks at stay where they are: Spark does not read them for a job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from holdfast import operators as op
from holdfast.runtime.driver.running import RunFailed
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import start
from holdfast.runtime.spark.source import narrowed

pytestmark = pytest.mark.spark


def clicks(spark: Any, folder: Path) -> Any:
    folder.mkdir()
    rows = [{"page": page, "amount": number, "agent": "x" * 50} for number, page in enumerate(["/", "/a", "/"])]
    (folder / "rows.json").write_text("\n".join(map(json.dumps, rows)))
    return spark.readStream.schema("agent string, page string, amount bigint, referrer string").json(str(folder))


def counted(by: str = "page") -> op.Pipeline:
    counts = op.aggregate({by: "string"}, n=op.count(), most=op.max("amount"))
    return op.Pipeline(op.source("clicks"), op.step("counts", counts, "clicks"))


def test_a_job_reads_the_columns_that_it_looks_at(spark: Any, tmp_path: Path) -> None:
    job = start(clicks(spark, tmp_path / "clicks"), counted(), store=tmp_path / "store", epochs=1)
    assert job.awaitTermination(60)
    found = read_output(tmp_path / "store", "final").sort_by("page").select(["page", "n", "most"]).to_pylist()
    assert found == [{"page": "/", "n": 2, "most": 2}, {"page": "/a", "n": 1, "most": 1}]
    source: Any = job._source
    plan = source.query._jsq.streamingQuery().lastExecution().executedPlan().toString()
    assert "page" in plan and "amount" in plan
    assert "agent" not in plan and "referrer" not in plan


def test_whoever_misses_a_column_is_told_all_that_are_there(spark: Any, tmp_path: Path) -> None:
    job = start(clicks(spark, tmp_path / "clicks"), counted("site"), store=tmp_path / "store", epochs=1)
    with pytest.raises(RunFailed, match="agent, page, amount, referrer"):
        job.awaitTermination(60)


def test_names_of_every_kind_stay_as_they_are(spark: Any) -> None:
    frame = spark.range(1).select(
        F.lit(1).alias("a.b"), F.lit(2).alias("c`d"), F.lit(3).alias("e f"), F.lit(4).alias("g"), F.lit(5).alias("G2")
    )
    assert narrowed(frame, frozenset({"c`d", "a.b"})).collect() == [(1, 2)]
    assert narrowed(frame, frozenset()).columns == ["a.b"]  # rows are counted all the same
    for kept in (None, frozenset({"g", "not there"}), frozenset(frame.columns)):
        assert narrowed(frame, kept) is frame
    twice = frame.select("g", "g", "`e f`")
    assert narrowed(twice, frozenset({"g"})) is twice
    alike = frame.select("g", F.col("g").alias("G"), "`e f`")  # which of the two is `g` would be ambiguous
    assert narrowed(alike, frozenset({"g"})) is alike
