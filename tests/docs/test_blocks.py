"""Every block of README.md and docs/ does what it says, pasted into an empty folder; none is passed over in silence."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from blocks import PAGES, ROOT, Block, blocks, runs
from given import FILES, NAMES

from waiting import DEADLINE, until

LONG = 1800
"""Seconds that a long block may take."""


def name_of(together: Sequence[Block]) -> str:
    return f"{together[0].page}-{next(each.kind for each in together if each.kind != 'text')}"


def needs_spark(together: Sequence[Block]) -> bool:
    text = "".join(each.text for each in together if each.kind == "python")
    return re.search(r"\bspark\b|holdfast\.start\(", text) is not None


def cases(kind: str) -> list[Any]:
    found = [each for each in runs("") if name_of(each).endswith(kind)]
    return [pytest.param(e, id=name_of(e), marks=[pytest.mark.spark] if needs_spark(e) else []) for e in found]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_mark_is_one_that_is_known(page: Path) -> None:
    for block in blocks(page):
        how, _, why = block.mark.partition(", ")
        assert how in ("", "long", "elsewhere"), f"{block}: run: {block.mark}?"
        assert not how or why, f"{block}: say why"
        if how == "elsewhere":
            file = ROOT / why.partition(", ")[0]
            assert file.exists(), f"{block}: {file} is not there"
        assert not block.mark or block.kind != "text", f"{block}: nothing to run here"
    marks = page.read_text(encoding="utf-8").count("<!-- run: ")
    assert marks == sum(bool(block.mark) for block in blocks(page)), f"{page.name}: a mark that stands above no block"


@pytest.mark.parametrize("together", cases("python"))
def test_python(
    together: list[Block], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    page = together[0].page
    names: dict[str, Any] = {"__name__": page}
    if page in NAMES:
        names |= NAMES[page](lambda: request.getfixturevalue("spark"))
    try:
        for number, block in enumerate(together):
            if block.kind != "python":
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * block.line + block.text, block.page, "exec"), names)
            behind = together[number + 1] if number + 1 < len(together) else None
            if behind is not None and behind.kind == "text" and behind.line == block.line + block.text.count("\n") + 2:
                assert printed.getvalue() == behind.text, str(block)
    finally:
        for thing in names.values():
            if isinstance(thing, stoppable()) and thing.isActive:
                stop(thing)


def stop(query: Any) -> None:
    """Not before its first epoch is answered: one that is stopped while that is on its way waits long for it."""
    until(lambda: not query.isActive or query.lastProgress is not None)
    query.stop()


def stoppable() -> tuple[type, ...]:
    if "pyspark.sql.streaming.query" not in sys.modules:
        return ()
    from pyspark.sql.streaming.query import StreamingQuery

    from holdfast.runtime.spark import Job

    return (StreamingQuery, Job)


@pytest.mark.parametrize("together", cases("shell"))
def test_shell(together: list[Block], tmp_path: Path) -> None:
    typed(together, tmp_path, DEADLINE)


@pytest.mark.long
@pytest.mark.timeout(LONG + 60)
@pytest.mark.parametrize("together", runs("long"), ids=name_of)
def test_long(together: list[Block], tmp_path: Path) -> None:
    """In processes of their own: each block of Python by itself, as a program."""
    if together[0].kind == "shell":
        typed(together, tmp_path, LONG)
        return
    for number, block in enumerate(together):
        if block.kind == "python":
            (tmp_path / "pasted.py").write_text(block.text, encoding="utf-8")
            out = shell("python pasted.py", tmp_path, LONG)
            behind = together[number + 1] if number + 1 < len(together) else None
            if behind is not None and behind.line == block.line + block.text.count("\n") + 2:
                assert out == behind.text


def typed(together: Sequence[Block], folder: Path, seconds: float) -> None:
    """The commands of a page, one after the other in one folder, which has what the checkout has beside the code."""
    page = together[0].page
    for name in ("examples", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    if page in FILES:
        FILES[page](folder)
    for block in together:
        for command, told in block.commands:
            out = shell(command, folder, seconds)
            if told is not None:
                wanted = ".*".join(re.escape(part) for part in re.split(r"^\.\.\.\n", told, flags=re.M))
                assert re.fullmatch(wanted, out, re.S), f"{block}: {command}\n{out}"


def shell(command: str, folder: Path, seconds: float) -> str:
    """What bash prints; every command has to end well."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "200", "VIRTUAL_ENV_DISABLE_PROMPT": "1"}
    process = subprocess.Popen(
        ["bash", "-euc", command], cwd=folder, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.communicate()
    assert process.returncode == 0, f"{command}\nexit {process.returncode}\n{out}\n{err[-3000:]}"
    return out
