"""``holdfast bench``: what it refuses, what it answers, and what it draws. The measuring itself is tested on Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.cli import bench
from holdfast.cli.app import app
from holdfast.errors import Invalid
from holdfast.report.chart import write_charts
from holdfast.workloads.linear_road.peak import Load, Peak

SERIES = tuple((second, 1.2, 1.8, 2.0, 2.5 + second / 100) for second in range(75, 135))
GOOD = Peak(50, 85_000, 60, 1_700_000, 1.2, 1.8, 2.0, 3.85, None, 60, SERIES)
LATE = Peak(100, 170_000, 60, 0, None, None, None, None, 31.7, 12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nexmark"], "unknown benchmark 'nexmark'; known: linear-road"),
        (["linear-road", "--plot", "latency.gif"], "--plot latency.gif: must end in .html, .png, .svg"),
        (["linear-road", "--out", "FULL"], "it is not empty; name a new folder"),
    ],
)
def test_what_cannot_be_is_refused_before_spark_starts(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("something")
    with pytest.raises(Invalid) as caught:
        app(["bench", *(word.replace("FULL", str(tmp_path)) for word in words)], standalone_mode=False)
    assert message in str(caught.value)


def test_the_answer_is_one_object_with_the_most_that_was_sustained_and_the_machine() -> None:
    content = json.loads(
        json.dumps(bench.report(50, GOOD, [GOOD, LATE], Load(), "local[2]", searched=True), allow_nan=False)
    )
    assert "rating" not in content  # the benchmark's rating asks for more than is measured
    assert (content["most_sustained"], content["expressways"], content["tuples_per_second"]) == (50, 50, 85_000)
    assert (content["latency_p50_s"], content["latency_most_s"], content["sustained"]) == (1.2, 3.85, True)
    assert content["machine"]["cores"] >= 1
    assert [(run["expressways"], run["sustained"], run["behind_s"]) for run in content["runs"]] == [
        (50, True, None),
        (100, False, 31.7),
    ]


def test_a_run_at_a_given_load_says_nothing_of_the_most() -> None:
    content = bench.report(0, LATE, [LATE], Load(), "local[2]", searched=False)
    assert content["most_sustained"] is None
    assert content["sustained"] is False
    console = Console(record=True, width=200)
    bench._read(console, content)
    assert "no, given up" in console.export_text()


def test_percentiles_are_drawn_over_time_with_the_limit(tmp_path: Path) -> None:
    drawn = bench.chart(GOOD)
    assert [line.name for line in drawn.series] == ["median", "95th percentile", "99th percentile", "most", "limit"]
    write_charts([drawn, bench.chart(LATE)], tmp_path / "latency.svg")
    assert (tmp_path / "latency.svg").stat().st_size > 10_000
