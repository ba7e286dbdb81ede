"""Commands, watched: the demo with its verdict and page; a run with its live page, metrics and log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from commands import running

from waiting import DEADLINE

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_the_demo_ends_with_its_verdict_and_a_page(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    folder = tmp_path / "demo"
    code, out, err = command(
        "demo", "--logical", "--epochs", "12", "--rate", "300", "--out", str(folder), "--format", "json"
    )
    assert code == 0, err
    told = json.loads(out)
    assert told["identical"] and told["rows_compared"] == told["rows_undisturbed"] == told["final_rows"] > 0
    assert sorted(told["nodes_lost"]) == ["node-1", "node-2"] and told["nodes"] == "logical"
    page = Path(told["page"]).read_text(encoding="utf-8")
    data = json.loads(page.partition('<script id="data" type="application/json">')[2].partition("</script>")[0])
    assert data["verdict"]["identical"] and not data["running"] and data["recoveries"]
    assert min(each["fidelity"] for each in data["epochs"]) < 1.0
    assert "lost node-1, node-2" in err and "replicas took over" in err


@pytest.mark.xdist_group("programs")
def test_a_run_is_watched_by_page_metrics_and_log(tmp_path: Path) -> None:
    with running(
        "run", "word-count", "--epochs", "200", "--rate", "50", "--trigger", "200ms", "--master", "local[2]",
        "--ui", "--metrics", "0", "--log", "json", "--out", str(tmp_path),
    ) as process:  # fmt: skip
        assert process.stderr is not None
        log: list[dict[str, Any]] = []
        while not any(event["kind"] == "answered" for event in log):
            assert process.poll() is None, log
            line = process.stderr.readline()
            if line.startswith("{"):
                log.append(json.loads(line))
        notes = dict(event["text"].split(": ", 1) for event in log if event["kind"] == "note" and ": " in event["text"])
        metrics = urlopen(notes["metrics"], timeout=DEADLINE).read().decode()
        data = json.loads(urlopen(notes["live page"] + "data.json", timeout=DEADLINE).read())
        page = urlopen(notes["live page"], timeout=DEADLINE).read().decode()
    samples = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert samples["holdfast_up"] == "1" and float(samples["holdfast_rows_total"]) >= 50
    assert (
        data["running"] and data["epochs"][0]["rows"] == 50 and [each["name"] for each in data["topology"]["operators"]]
    )
    assert page.startswith("<!doctype html>")
    kinds = [event["kind"] for event in log]
    assert kinds.index("started") < kinds.index("nodes joined") < kinds.index("epoch") < kinds.index("answered")
