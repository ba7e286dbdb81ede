"""Jobs of a test end with it, and commands run upon the one Spark of all tests."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

import holdfast
from holdfast.cli import main


@pytest.fixture
def begin() -> Iterator[Callable[..., holdfast.Job]]:
    """``holdfast.start``; what still runs when the test is over is stopped, and waited for up to a deadline."""
    started: list[holdfast.Job] = []

    def start(*given: Any, **options: Any) -> holdfast.Job:
        started.append(holdfast.start(*given, **options))
        return started[-1]

    yield start
    for job in started:
        if job.isActive:
            stopping = threading.Thread(target=job.stop, daemon=True)
            stopping.start()
            stopping.join(10)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process, on the tests' Spark: its exit code, its answer, and what it told meanwhile."""
    for module in ("run", "demo"):
        monkeypatch.setattr(f"holdfast.cli.{module}.spark_on", lambda *_: nullcontext(request.getfixturevalue("spark")))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run
