"""The tables of README and docs say what the JSON of the benchmarks says, in docs/figures."""

from __future__ import annotations

import json
import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
from blocks import ROOT


@pytest.fixture(scope="module")
def figures() -> Any:
    loader = SourceFileLoader("figures", str(ROOT / "scripts" / "figures"))
    spec = spec_from_loader("figures", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def names(page: str) -> list[str]:
    return re.findall(r"<!-- figures: ([\w-]+) -->", (ROOT / page).read_text(encoding="utf-8"))


PAGES = ["README.md", *(f"docs/{name}.md" for name in ("performance", "queries", "cluster", "state"))]


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_those_of_the_json(figures: Any, page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert page in figures.PAGES and names(page) and text.count("<!-- end -->") == len(names(page))
    assert figures.filled(text) == text, f"{page}: scripts/figures --tables writes other tables"


def test_every_table_stands_somewhere_and_was_measured(figures: Any) -> None:
    assert {name for page in figures.PAGES for name in names(page)} == figures.TABLES.keys()
    assert figures.RUNS.keys() == {path.stem for path in figures.KEPT.glob("*.json")} == figures.QUICK.keys()
    assert set(figures.APART) < figures.RUNS.keys()


def test_a_page_whose_table_differs_is_noticed(figures: Any) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    changed = re.sub(r"(<!-- figures: readme -->\n.*?\d)", r"\g<1>1", text, count=1, flags=re.S)
    assert changed != text and figures.filled(changed) == text


def test_a_table_shows_spread_shares_and_whether_others_were_at_work(
    figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(median: float) -> dict[str, dict[str, float]]:
        speed = {"median": median, "least": median - 1000, "most": median + 1000}
        return {"rows_per_second": speed, "cpu": {"median": 0.7, "least": 0.7, "most": 0.7}}

    systems = {"polars": found(4e7), "arrow": found(5e6), "structured": found(1e6), "holdfast": found(2.5e6)}
    row = {"query": "keyed-count", "rows": 1_000_000, "turns": 3, "systems": systems}
    document = {"command": "benchmarks/limit.py", "date": "2026-01-02", "cores": 2, "memory_gib": 24, "others": 0.31,
                "quiet": False, "rows": [row]}  # fmt: skip
    for name in ("keyed-count", "word-frequency"):
        (tmp_path / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    monkeypatch.setattr(figures, "KEPT", tmp_path)
    told = figures.limits()
    assert "2026-01-02, 2 cores, 24 GiB, busy: other work took 31% of it, 3 turns; median (least-most)" in told
    cells = told.splitlines()[-1].split(" | ")
    assert cells[1] == "1,000,000" and cells[4] == "1,000 (999-1,000)" and cells[6:] == ["2.5", "50%", "6% |"]


def test_young_batches_stand_below_warm_ones_once_they_were_measured(
    figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(speed: float, young: float | None) -> dict[str, Any]:
        spreads = {"rows_per_second": speed, "cpu": 1.0} | ({} if young is None else {"young_rows_per_second": young})
        return {name: {"median": value, "least": value, "most": value} for name, value in spreads.items()}

    def told(young: float | None) -> list[str]:
        systems = {name: found(speed, young and speed / young) for name, speed in speeds.items()}
        row = {"query": "keyed-count", "rows": 200_000, "turns": 2, "systems": systems}
        for name in ("keyed-count", "word-frequency"):
            (tmp_path / f"{name}.json").write_text(json.dumps({**head, "rows": [row]}), encoding="utf-8")
        return [line for line in figures.readme().splitlines() if line.startswith("| the same")]

    speeds = {"structured": 1e6, "plain": 2e6, "holdfast": 4e6}
    head = {"command": "limit.py", "date": "2026-01-02", "cores": 2, "memory_gib": 24, "others": 0.0, "quiet": True}
    (tmp_path / "idle.json").write_text((figures.KEPT / "idle.json").read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(figures, "KEPT", tmp_path)
    assert told(None) == []
    assert (
        told(2.0) == ["| the same, the first thirty batches: thousand rows/s | 500 | 1,000 | 2.0 | 2,000 | 4.0 |"] * 2
    )


def test_failover_tells_how_late_exact_by_when_and_where_the_time_went(
    figures: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(**values: float) -> dict[str, Any]:
        return {name: {"median": value, "least": value, "most": value} for name, value in values.items()}

    one = found(answer=3.0, late=2.5, worst=2.75, exact=3.0, exact_by=1, pace=1.0, fidelity=1.0)
    two = found(answer=0.5, late=-0.01, worst=0.12, exact=1.5, exact_by=2, pace=1.0, fidelity=0.9)
    systems = {"structured": one, "holdfast": {**two, "parts": {"noticed": 0.1}}}
    row = {
        "settings": "same",
        "cluster": "standalone",
        "keys": 100_000,
        "trigger": None,
        "turns": 3,
        "systems": systems,
    }
    document = {"command": "benchmarks/failover.py", "date": "2026-01-02", "cores": 2, "memory_gib": 24, "others": 0.0,
                "quiet": True, "rows": [row, {**row, "trigger": 0.2, "cluster": "local-cluster"}]}  # fmt: skip
    (tmp_path / "failover.json").write_text(json.dumps(document), encoding="utf-8")
    monkeypatch.setattr(figures, "KEPT", tmp_path)
    first, second = figures.failover().splitlines()[-2:]
    told = "2.50 | 2.75 | 3.00, +1 | -0.01, fidelity 0.90 | 0.12 | 1.50, +2 |"
    assert first == f"| same, none, 100,000 keys | {told}"
    assert second == f"| same, 0.2 s, 100,000 keys, `local-cluster` | {told}"
    assert figures.failover_parts().splitlines()[-1].split(" | ")[1:4] == ["0.10", "-", "-"]
    assert "1.00 | 1.00 | 3.00 | 0.500 |" in figures.failover_seconds()


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "figures").glob("*.json")), ids=lambda path: path.stem)
def test_what_is_kept_is_small_and_names_no_machine(figures: Any, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    assert path.stem in figures.RUNS and document["rows"] and len(text) < 20_000
    assert not re.search(r'"/|/home|/tmp|/root|host', text)
