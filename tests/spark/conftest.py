"""Jobs of a test end with it, and commands run upon the one Spark of all tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from subprocess import CompletedProcess
from typing import Any

import pytest

import holdfast
from holdfast.runtime.driver import publishing
from spark_settings import RETAINED
from waiting import DEADLINE


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
            stopping.join(DEADLINE)


@pytest.fixture
def nobody_suspected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails is tried again at once: that a node is lost without being seen cannot be in this process."""
    monkeypatch.setattr("holdfast.runtime.driver.running.SUSPICION", 0.05)


@pytest.fixture
def offered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sink refuses is offered again as often as it is otherwise, without pauses to speak of."""
    at_once = replace(publishing.TRIES, first=0.001, most=0.001)
    for module in ("runtime.driver.publishing", "queries.delivery"):
        monkeypatch.setattr(f"holdfast.{module}.TRIES", at_once)


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    holdfast: Callable[..., CompletedProcess[str]],
) -> Callable[..., tuple[int, str, str]]:
    """The command on the tests' Spark."""
    for module in ("run", "demo"):
        monkeypatch.setattr(f"holdfast.cli.{module}.spark_on", lambda *_: nullcontext(request.getfixturevalue("spark")))

    def run(*words: str) -> tuple[int, str, str]:
        done = holdfast(*words)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture
def retaining(spark: Any) -> Iterator[Any]:
    """Spark, with a log that keeps every batch."""
    before = {name: spark.conf.get(name) for name in RETAINED}
    for name, value in RETAINED.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value)
