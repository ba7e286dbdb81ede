"""holdfast assess and holdfast plan --assessment from the front door; a campaign that is killed and goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from waiting import until

JSON = ("--format", "json")
SMALL = ["bargain-discovery", "--score", "total:gain", "--epochs", "4", "--rate", "5000", "--sections", "40"]
SMALL += ["--offsets", "2", "--outages", "0.5,2"]
Holdfast = Callable[..., subprocess.CompletedProcess[str]]


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.long
def test_killed_half_way_and_resumed_gives_the_same(tmp_path: Path, holdfast: Holdfast) -> None:
    asked = ["assess", *SMALL, "--repeat", "2", "--precision", "0", "--cores", "1", "--quiet"]
    whole = answer(holdfast(*asked, "--out", str(tmp_path / "whole"), *JSON))
    runs = tmp_path / "killed" / "runs.jsonl"
    program = [sys.executable, "-c", "from holdfast.cli import main; main()"]
    process = subprocess.Popen([*program, *asked, "--out", str(tmp_path / "killed")], stdout=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or _lines(runs) >= 4)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = _lines(runs)
    assert 4 <= before < 20
    assert not (tmp_path / "killed" / "assessment.json").exists()
    resumed = answer(holdfast(*asked, "--out", str(tmp_path / "killed"), *JSON))
    assert {**resumed, "seconds": 0} == {**whole, "seconds": 0}
    assert _lines(runs) == 20
    page = (tmp_path / "whole" / "assessment.html").read_text()
    assert all(name in page for name in ("TradeFilter: quality over time", "QuoteFilter: quality against outage"))
    _plan_by_it(tmp_path / "whole", asked, holdfast)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _plan_by_it(folder: Path, asked: list[str], holdfast: Holdfast) -> None:
    topology = str(folder / "topology.json")
    plan = answer(holdfast("plan", topology, "--assessment", str(folder), "--budget", "2", *JSON))
    impacts = {each["operator"]: each["impact"] for each in plan["operators"]}
    assert len(plan["replicas"]) == 2
    assert plan["fidelity"] == 0.0  # two replicas complete no tree
    assert plan["impact_removed"] == pytest.approx(sum(sorted(impacts.values())[-2:]) / sum(impacts.values()))
    assert plan["by_fidelity_alone"] == {"replicas": [], "fidelity": 0.0, "impact_removed": 0.0}
    assert plan["disagree"]
    text = holdfast("plan", topology, "--assessment", str(folder), "--budget", "2").stdout
    assert "they disagree" in text
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    after = answer(holdfast(*asked, "--plan", str(path), "--failover", "0.1", "--before", str(folder), *JSON))
    struck = next(each for each in after["operators"] if each["operator"] == plan["replicas"][0].split("/")[0])
    assert struck["impact"] < after["before"][struck["operator"]]["impact"]


def test_a_pipeline_of_ones_own(tmp_path: Path, holdfast: Holdfast) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import polars as pl\n"
        "from holdfast import operators as op\n"
        "def pipeline():\n"
        "    double = op.map('id', twice=pl.col('x') * 2)\n"
        "    return op.Pipeline(op.source('in'), op.step('double', double, 'in'))\n"
        "def largest(table):\n"
        "    return max(table['twice'].to_pylist(), default=0)\n"
    )
    rows = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": range(400), "x": [1.0] * 400}), rows)
    asked = ["assess", f"{file}:pipeline", "--key", "id", "--offsets", "2", "--outages", "1,2", "--repeat", "2"]
    found = answer(holdfast(*asked, "--input", str(rows), "--score", "total:twice", "--cores", "1", *JSON))
    (result,) = found["operators"]
    assert result["stands_for"] == ["in", "double"]
    assert result["correlation"] == -1.0
    assert found["golden"] == 800.0
    own = answer(holdfast(*asked, "--input", str(rows), "--score", f"{file}:largest", "--cores", "2", *JSON))
    assert own["golden"] == 2.0
    missing = holdfast(*asked)
    assert missing.returncode == 2
    assert "no input; give --input FILE, or write batch(epoch)" in missing.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "'nothing': neither a workload nor a pipeline in a file"),
        (["nothing.py:pipeline"], "no such file nothing.py"),
        (["word-count", "--score", "best"], "write total:COLUMN"),
        (["word-count", "--outages", "1,x"], "--outages: numbers with commas between are needed, got '1,x'"),
        (["word-count", "--offsets", "many"], "--offsets: a number of offsets, or positions"),
        (["word-count", "--fault", "gone"], "must be one of loss"),
        (["word-count", "--rate-of", "top"], "--rate-of must be one of peak, average"),
        (["word-count", "--replicas", "count/9"], "--replicas:"),
        (["word-count", "--fault", "kill"], "--fault kill: nodes are killed on Spark alone, use --engine spark"),
        (["word-count", "--deadline", "1"], "--deadline: it is for --fault kill; got --fault loss"),
        (["word-count", "--fault", "kill", "--engine", "spark", "--nodes", "1"], "--nodes: at least 2 are needed"),
        (["word-count", "--fault", "kill", "--engine", "spark", "--trigger", "soon"], "--trigger 'soon': a time"),
        (["word-count", "--master", "local[2]"], "--master local[2]: it is for --engine spark"),
        (["word-count", "--golden", "0"], "--golden: from 1 to"),
        (["word-count", "--engine", "magic"], "--engine must be one of trial, spark"),
        (["word-count", "--targets", "counts"], "--targets: unknown operator 'counts'; operators: lines, count"),
        (["word-count", "--before", "nowhere"], "no assessment.json here"),
        (["word-count", "--plan", "nowhere.json"], "--plan nowhere.json: not what holdfast plan"),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], message: str, holdfast: Holdfast) -> None:
    done = holdfast("assess", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_plan_refuses_what_is_no_assessment(tmp_path: Path, holdfast: Holdfast) -> None:
    topology = tmp_path / "t.json"
    topology.write_text(json.dumps({"operators": [{"name": "a"}]}))
    (tmp_path / "assessment.json").write_text("{}")
    for arguments, message in (
        (["--assessment", str(tmp_path / "none"), "--budget", "1"], "no assessment.json here"),
        (["--assessment", str(tmp_path), "--budget", "1"], "not a finished assessment"),
        (["--assessment", str(tmp_path), "--budget", "1..3"], "--assessment: takes one budget"),
    ):
        done = holdfast("plan", str(topology), *arguments)
        assert done.returncode == 2
        assert message in done.stderr
