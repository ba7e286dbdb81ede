"""The docs are true where a machine can tell: links lead somewhere, commands and their options exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from holdfast.cli.app import COMMANDS, loaded

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(rf"holdfast ({'|'.join(COMMANDS)})\b([^\n`]*)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in headings(target), f"{page.name}: no heading for {link}"


def headings(page: Path) -> set[str]:
    """Anchors as they are made from headings: lower case, hyphens for spaces."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page: Path) -> None:
    for name, rest in COMMAND.findall(page.read_text(encoding="utf-8")):
        known = {option for parameter in loaded(name).params for option in parameter.opts} | {"--help"}
        for word in re.findall(r"(?<!\S)--[a-z][a-z-]*", rest.partition("#")[0].partition("|")[0]):
            assert word in known, f"{page.name}: holdfast {name} has no {word}"


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_in_the_help_have_known_options(name: str) -> None:
    command = loaded(name)
    known = {option for parameter in command.params for option in parameter.opts}
    examples = [part for line in command.help.splitlines() for part in line.split(";") if f"holdfast {name}" in part]
    assert examples
    for example in examples:
        words = shlex.split(example[example.index("holdfast") :], comments=True)
        assert {word for word in words if word.startswith("--")} <= known, example
