"""One name for one thing: no class of the runtime or of the state has the name of another."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import holdfast

PACKAGE = Path(holdfast.__path__[0])


def classes(*rooms: str) -> dict[str, list[str]]:
    """The classes of these rooms that are not private, and the files that define them."""
    found: dict[str, list[str]] = defaultdict(list)
    for room in rooms:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(path.relative_to(PACKAGE)))
    return found


def test_no_two_classes_of_the_runtime_and_the_state_share_a_name() -> None:
    found = classes("runtime", "state")
    assert {"Driver", "Coordinator", "Worker", "Store"} <= found.keys()
    twice = {name: where for name, where in found.items() if len(where) > 1}
    assert not twice, twice
