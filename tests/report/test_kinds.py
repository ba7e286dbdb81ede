"""Every kind of event that a job can tell is understood by whoever reads a history: none is dropped, none breaks it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import holdfast
from holdfast.cli.display import Display
from holdfast.report import timeline as told
from holdfast.report.digest import digest_events
from holdfast.report.metrics import Metrics
from holdfast.runtime.history.narrative import promise, recoveries
from holdfast.runtime.simulation.fuzzing import CASES, attempt

SOURCE = Path(holdfast.__file__).parent
TELLERS = {"note", "_note", "record", "tell"}
RUNS = {"run", "run broken"}
"""The end of a replay that is told already."""


def emitted() -> set[str]:
    """The kinds that stand in the code of the runtime."""
    found = set()
    for path in (SOURCE / "runtime").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in TELLERS and isinstance(node.args[0].value, str):
                found.add(node.args[0].value)
    return found


def understood() -> set[str]:
    """The kinds for which the timeline has words."""
    tree = ast.parse(Path(told.__file__).read_text(encoding="utf-8"))
    cases = (case.pattern for node in ast.walk(tree) if isinstance(node, ast.Match) for case in node.cases)
    values = (each.value for case in cases for each in ast.walk(case) if isinstance(each, ast.MatchValue))
    return {str(value.value) for value in values if isinstance(value, ast.Constant)}


def test_there_are_words_for_every_kind_that_the_code_tells() -> None:
    kinds = emitted()
    assert {"epoch", "nodes lost", "scaled", "damaged", "store unusable", "listener dropped"} <= kinds
    assert kinds - understood() - set(told.CHARTED) - RUNS == set()
    assert understood() - kinds == set(), "words for what nobody tells any more"


def histories() -> Iterator[list[Mapping[str, Any]]]:
    for make in CASES.values():
        for seed in (0, 1, 7):
            history: list[Mapping[str, Any]] = []
            assert attempt(make(seed), history=history) is None
            yield [event for event in history if "time" in event]


def test_drawn_histories_are_read_without_a_gap() -> None:
    seen = set()
    for history in histories():
        events = [dict(event) for event in history]
        content = digest_events(events, "run")
        silent = {*told.CHARTED, *RUNS}
        assert len(content["timeline"]) == sum(event["kind"] not in silent for event in events)
        assert len(content["recoveries"]) == len(recoveries(events))
        assert all(entry["lane"] in told.LANES and entry["title"] for entry in content["timeline"])
        assert isinstance(promise(events), str)
        metrics, display = Metrics(), Display("run", None, quiet=True)
        for event in events:
            metrics.heard(event)
            display.heard(event)
        assert "holdfast_fidelity" in metrics.text()
        seen |= {str(event["kind"]) for event in events}
    assert len(seen & emitted()) > 30, sorted(seen)
