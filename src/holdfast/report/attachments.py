"""Answers of other commands that lie in a run's folder: what each is, told by its shape, as tables for the page.

Save them with, say, ``holdfast plan T.json --budget 6 --format json > DIR/plan.json``; any name will do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OWN = frozenset({"run.json", "summary.json", "verdict.json", "holdfast-store.json"})
MOST_ROWS = 200
LARGEST = 5_000_000
"""Bytes; whatever is larger is no answer of a command."""


def attachments(folder: Path) -> list[dict[str, Any]]:
    """``{kind, title, file, facts, columns, rows}`` for each file that is recognised, in the order of their names."""
    told = []
    for path in sorted(folder.glob("*.json")):
        if path.name in OWN or path.stat().st_size > LARGEST:
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        section = _section(content, path.stem)
        if section is not None:
            told.append({**section, "file": path.name})
    return told


def _section(content: Any, name: str) -> dict[str, Any] | None:
    if isinstance(content, list):
        content = {"results": content}
    if not isinstance(content, dict):
        return None
    if "strategies" in content and "best" in content:
        return _told("advice", f"Advice: {content['best'] or 'nothing feasible'}", content, "strategies")
    if "replicas" in content and "budget" in content:
        names = ", ".join(map(str, content["replicas"])) or "none"
        title = f"Replication plan with a budget of {content['budget']}"
        return {**_told("plan", title, content, None), "facts": {**_facts(content), "replicas": names}}
    if "steps" in content and "algorithm" in content:
        return _told("plan", f"Recovery schedule: {content['algorithm']}", content, "steps")
    if "curve" in content or "plans" in content:
        return _told("plan", "Replication plans", content, "curve" if "curve" in content else "plans")
    if "benchmarks" in content:
        return _told("benchmark", f"Benchmark {name}", content, "benchmarks")
    if isinstance(content.get("operators"), list) and "streams" not in content:
        return _told("assessment", f"Assessment {name}", content, "operators")
    tables = [key for key, value in content.items() if _is_table(value)]
    if tables and name.startswith(("bench", "throughput", "failover")):
        return _told("benchmark", f"Benchmark {name}", content, tables[0])
    if tables and name.startswith("assess"):
        return _told("assessment", f"Assessment {name}", content, tables[0])
    return None


def _told(kind: str, title: str, content: Mapping[str, Any], rows: str | None) -> dict[str, Any]:
    found: Any = content.get(rows) if rows is not None else None
    listed: list[Mapping[str, Any]] = found if _is_table(found) else []
    columns = list(dict.fromkeys(key for row in listed for key in row))
    return {
        "kind": kind,
        "title": title,
        "facts": _facts(content),
        "columns": columns,
        "rows": [[_cell(row.get(column)) for column in columns] for row in listed[:MOST_ROWS]],
        "left_out": max(0, len(listed) - MOST_ROWS),
    }


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _facts(content: Mapping[str, Any]) -> dict[str, str]:
    return {key: _cell(value) for key, value in content.items() if isinstance(value, (str, int, float, bool))}


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}" if math.isfinite(value) else str(value)
        case list():
            return ", ".join(_cell(each) for each in value)
        case dict():
            return ", ".join(f"{key} {_cell(each)}" for key, each in value.items())
    return str(value)
