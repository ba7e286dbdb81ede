"""Parts that own their fields: read off the syntax trees, no part changes what belongs to another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast.runtime.coordinator as room

FOLDER = Path(room.__path__[0])
FILES = sorted(path.name for path in FOLDER.glob("*.py"))
CHANGES = {
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "insert",
    "intersection_update", "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort",
    "subtract", "update",
}  # fmt: skip
"""Methods by which lists, sets, dicts, deques and counters change."""


def owner(node: ast.expr) -> str:
    """The name at the root of ``a.b[c].d``, followed by the attributes on the way."""
    match node:
        case ast.Attribute(value, attribute):
            return f"{owner(value)}.{attribute}"
        case ast.Subscript(value):
            return owner(value)
        case ast.Name(name):
            return name
    return "?"


def targets(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(chosen) | ast.Delete(chosen):
            return [each for target in chosen for each in (target.elts if isinstance(target, ast.Tuple) else [target])]
        case ast.AugAssign(target) | ast.AnnAssign(target) | ast.NamedExpr(target):
            return [target]
        case ast.Call(ast.Attribute(value, name)) if name in CHANGES:
            return [value]
    return []


def changed_elsewhere(source: str) -> Iterator[str]:
    """What is changed beyond fields of ``self`` and what is local: fields of anything else, or deeper ones."""
    for node in ast.walk(ast.parse(source)):
        for target in targets(node):
            name = owner(target)
            if name.count(".") > (1 if name.startswith("self.") else 0):
                yield f"line {target.lineno}: {name}"


@pytest.mark.parametrize("name", FILES)
def test_no_part_changes_what_belongs_to_another(name: str) -> None:
    assert list(changed_elsewhere((FOLDER / name).read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "parts.answering.head = 3",
        "parts.answering.head += 1",
        "self.parts.answering.head = 3",
        "a, parts.answering.head = 1, 2",
        "parts.assignment.primaries[task] = copy",
        "del parts.assignment.primaries[task]",
        "parts.answering.forks.pop(task)",
        "parts.members.leaving.update(nodes)",
        "parts.assignment.primaries[task].position = 3",
    ],
)
def test_a_change_would_be_noticed(source: str) -> None:
    assert len(list(changed_elsewhere(source))) == 1


def test_every_part_is_one_class_with_nothing_above_it() -> None:
    for name in FILES:
        for node in ast.walk(ast.parse((FOLDER / name).read_text())):
            if isinstance(node, ast.ClassDef):
                assert [owner(base) for base in node.bases] in ([], ["Protocol"]), f"{name}: {node.name}"
