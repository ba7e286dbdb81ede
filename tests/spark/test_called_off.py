"""A run that was called off because nodes went is none of Spark's failures, however often that happens."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.messages import Event, Run, RunBroken
from holdfast.runtime.spark import shell as module
from holdfast.runtime.spark.shell import TRIES, Shell


class Watched(Shell):
    """A shell without a job: its nodes never change while it looks, and it remembers what it told."""

    def __init__(self, called_off: set[int]) -> None:
        self.told: list[Event] = []
        self.failed: list[Exception] = []
        self.coordinator: Any = SimpleNamespace(runs={0: None})
        self._called_off = called_off
        self._stopping = threading.Event()
        self._strikes = 0

    def _look(self) -> list[str]:
        return []

    def tell(self, event: Event) -> None:
        self.told.append(event)

    def fail(self, error: Any) -> None:
        self.failed.append(error)


def broken(shell: Watched, times: int) -> None:
    for _ in range(times):
        shell._broken(Run(0, "epoch", ()), RuntimeError("Job 7 cancelled as part of cancellation of all jobs"))


def test_losses_that_the_watcher_noticed_first_are_no_strikes() -> None:
    shell = Watched(called_off={0})
    broken(shell, 3 * TRIES)
    assert shell.told == [RunBroken(0, "nodes were lost")] * (3 * TRIES)
    assert not shell.failed


def test_a_run_that_breaks_for_no_reason_is_given_up_after_some_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(0, 10_000, 10))
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: float(next(moments))))
    shell = Watched(called_off=set())
    broken(shell, TRIES + 1)
    assert len(shell.told) == TRIES
    assert [str(error) for error in shell.failed] == [
        f"Spark could not finish a run in {TRIES} tries: Job 7 cancelled as part of cancellation of all jobs"
    ]
