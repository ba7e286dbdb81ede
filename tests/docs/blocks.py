"""The blocks of README.md and docs/: what is Python, what is for a shell, what is said to come out, how each is run.

Blocks of a page go on where the one before left off: Python shares its names, shells share a folder. A block of text
right behind one of Python is what that prints. What a page takes as known is in given.py. A comment above a block says
what is special about it:

    <!-- run: long, WHY -->              not in make test, but by make docs-blocks
    <!-- run: elsewhere, FILE, WHY -->   nobody could paste it as it stands; that test has what it says
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCED = re.compile(r"(?:^<!-- run: (?P<mark>.*?) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
_COMMAND = re.compile(r"^(\$ |holdfast |make |python3? |\. |mkdir |#!|\$[A-Z])", re.M)
KINDS = {"python", "bash", "text", "json", "yaml", ""}


@dataclass(frozen=True)
class Block:
    """``kind``: python, shell or text. ``mark``: the comment above it."""

    page: str
    line: int
    kind: str
    text: str
    mark: str

    @property
    def how(self) -> str:
        return self.mark.partition(",")[0]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[tuple[str, str | None]]:
        """For a shell: what to type, and what is said to come out, if that is shown."""
        if not re.search(r"^\$ ", self.text, re.M):
            return [(self.text, None)]
        told = re.split(r"^\$ ", self.text, flags=re.M)[1:]
        return [(each.partition("\n")[0], each.partition("\n")[2] or None) for each in told]


def blocks(page: Path) -> list[Block]:
    found, text = [], page.read_text(encoding="utf-8")
    for match in _FENCED.finditer(text):
        name = match["kind"]
        assert name in KINDS, f"{page.name}: a block of {name}? known: {', '.join(sorted(KINDS))}"
        shell = name == "bash" or (not name and _COMMAND.search(match["text"]) is not None)
        kind = "shell" if shell else "python" if name == "python" else "text"
        line = text.count("\n", 0, match.start("text"))
        found.append(Block(str(page.relative_to(ROOT)), line, kind, match["text"], match["mark"] or ""))
    return found


def runs(how: str) -> list[list[Block]]:
    """The blocks that are run together, in their order: those of a page that are of one kind, with what they print.

    ``how``: "" for what make test runs, "long" for the rest.
    """
    together = []
    for page in PAGES:
        for kind in ("python", "shell"):
            wanted = [each for each in blocks(page) if each.kind == "text" or (each.kind == kind and each.how == how)]
            if any(each.kind == kind for each in wanted):
                together.append([each for each in wanted if kind in (each.kind, "python")])
    return together
