"""Every example in docs/operators runs and prints what its page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "operators").glob("*.md"))
BLOCK = re.compile(r"```(python|text)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_prints_what_it_says(page: Path) -> None:
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    printed, names = io.StringIO(), {"__name__": page.stem}
    with contextlib.redirect_stdout(printed):
        for kind, content in blocks:
            if kind == "python":
                exec(compile(content, page.name, "exec"), names)
    assert printed.getvalue() == "".join(content for kind, content in blocks if kind == "text")
