"""The matrix of failures (benchmarks/failover.py --matrix): what it makes of a history, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def matrix(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return pytest.importorskip("matrix")


def told(matrix: Any, case: Any, **found: Any) -> dict[str, Any]:
    outcome = matrix.Outcome(answer=1.0, fidelity=0.9, least=0.9, accuracy=0.8, exact=2.0, promised=0.9, same=True)
    return {**matrix.asdict(case), **matrix.asdict(outcome), **found}


def test_a_matrix_that_was_broken_off_goes_on_where_it_was(matrix: Any, tmp_path: Path) -> None:
    cases = matrix.all_cases(["top-k", "word-count"], [(0, 1), (1, 2)], 2, 5000, ["none"])
    lines = tmp_path / "runs.jsonl"
    done = [json.dumps(told(matrix, case)) + "\n" for case in cases[:3]]
    lines.write_text("".join(done) + done[0][:40])
    found = matrix.recorded(lines, cases)
    assert [case.key for case in cases if case.key not in found] == [case.key for case in cases[3:]]
    assert lines.read_text() == "".join(done), "a line that broke off is gone"
    assert [case.seed for case in cases] == sorted(case.seed for case in cases), "some of everything comes first"
    both = matrix.all_cases(["top-k", "linear-road"], [(0, 1)], 1, 5000, ["none", "25 %"])
    assert [(case.workload, case.replicas) for case in both] == [
        ("top-k", "none"), ("linear-road", "none"), ("linear-road", "25 %"),
    ], "a quarter of three tasks buys none"  # fmt: skip
    with pytest.raises(SystemExit, match="has runs with --rate 5000, asked for is 100"):
        matrix.recorded(lines, matrix.all_cases(["top-k"], [(0, 1)], 1, 100, ["none"]))
    lines.write_text("somebody's own")
    with pytest.raises(ValueError, match="none of ours"):
        matrix.recorded(lines, cases)
    assert lines.read_text() == "somebody's own"


def test_an_epoch_without_any_answer_and_rows_that_differ_are_marked(matrix: Any) -> None:
    (case,) = matrix.all_cases(["top-k"], [(0, 1)], 1, 5000, ["none"])
    well, silent, wrong = told(matrix, case), told(matrix, case, least=0.0), told(matrix, case, same=False)
    assert "SILENT" not in matrix.line(well) and "DIFFER" not in matrix.line(well)
    assert "SILENT" in matrix.line(silent) and "DIFFER" in matrix.line(wrong)
    (row,) = matrix.table([well, silent, wrong]).splitlines()[3:]
    assert row.endswith("| 1 with a fidelity of 0, 1 not as undisturbed |") and "| 3 |" in row
    assert matrix.table([well]).splitlines()[-1].endswith("| none |")


def test_what_came_of_a_failure_is_read_from_its_history(matrix: Any) -> None:
    epoch = {"kind": "epoch", "absent": 0, "tentative": 0, "fidelity": 1.0, "replicas": 1}
    said = {"kind": "published", "of": "tentative", "tasks": ["count/0"], "run": 5, "rows": 2}
    events = [
        {"kind": "checkpoint", "time": 1.0, "epoch": 3},
        {**epoch, "time": 2.0, "epoch": 5},
        {"kind": "nodes lost", "time": 3.2, "epoch": 6, "promised": 1.0, "nodes": ["node-1"], "cause": "executor lost"},
        {"kind": "nodes lost", "time": 3.3, "epoch": 6, "promised": 0.8, "nodes": ["node-2"], "cause": "executor lost"},
        {**said, "time": 3.4, "epochs": [5], "fidelity": 1.0},
        {"kind": "nodes lost", "time": 3.4, "epoch": 7, "promised": None, "nodes": ["node-3"], "cause": "silent"},
        {**said, "time": 3.5, "epochs": [6], "fidelity": 0.75},
        {**epoch, "time": 3.6, "epoch": 6, "tentative": 1, "fidelity": 0.75},
        {**epoch, "time": 5.0, "epoch": 7},
    ]
    rows = {"epoch": [6, 6], "task": ["count/0"] * 2, "key": ["a", "b"]}
    tables = {
        "tentative": pa.table({**rows, "count": [9, 4], "fidelity": [0.75] * 2}),
        "final": pa.table({**rows, "count": [10, 4]}),
    }
    found = matrix.judged("word-count", 3.0, events, tables)
    assert (found.answer, found.exact, found.noticed) == pytest.approx((0.5, 2.0, 0.2))
    assert (found.fidelity, found.least, found.accuracy, found.promised) == pytest.approx((0.75, 0.75, 0.95, 0.8))
    assert (found.age, found.copies) == (2, 1), "rows of epoch 5 and a loss behind epoch 6 have nothing to do with it"
    exact = tables["final"].drop_columns(["task"])
    assert matrix.same(tables["final"], exact, 40) and not matrix.same(tables["final"].slice(1), exact, 40)
    assert matrix.judged("word-count", 3.0, events[:2], tables) == matrix.Outcome()
