"""What is told of a late epoch: who is silent, how fast others answer, and whether the driver was late itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.driver.deadline import AGAIN, FIRST, Deadline
from holdfast.runtime.driver.ports import Asked
from holdfast.runtime.messages import AnswerLate


class Alone:
    """A driver whose timers fire when a test lets them, and whose runner says what a test wants."""

    def __init__(self, asked: Asked) -> None:
        self.seconds = 0.0
        self.armed: list[tuple[float, Any]] = []
        self.told: list[AnswerLate] = []
        clock = SimpleNamespace(now=lambda: self.seconds, after=self._after)
        background = SimpleNamespace(submit=lambda _, work, done: done(work()))
        info = {name: SimpleNamespace(place=name.upper()) for name in ("node-0", "node-1")}
        driver: Any = SimpleNamespace(
            clock=clock, ended=False, nodes=info, snapshot=SimpleNamespace(pending=7, nodes=info),
            running=SimpleNamespace(of_epoch=lambda _: 3), ports=SimpleNamespace(background=background),
            tell=self.told.append,
        )  # fmt: skip
        runner: Any = SimpleNamespace(silent=lambda run, places: asked)
        self.deadline = Deadline(driver, runner, 2.0)
        for _ in range(FIRST):
            self.deadline.met(0.5)
        self.deadline.begin(7)

    def _after(self, seconds: float, action: Any) -> Any:
        self.armed.append((self.seconds + seconds, action))
        return SimpleNamespace(cancel=lambda: None)

    def fire(self, behind: float = 0.0) -> AnswerLate:
        due, action = self.armed.pop()
        self.seconds = due + behind
        action()
        return self.told[-1]


def test_who_is_silent_is_told_with_how_fast_others_answer() -> None:
    alone = Alone(Asked({"NODE-1": "mute", "NODE-0": "late"}, 0.25))
    both, one = frozenset({"node-0", "node-1"}), frozenset({"node-1"})
    assert alone.fire() == AnswerLate(7, both, 1.5, one, 2.0, 0.25)
    assert alone.fire() == AnswerLate(7, both, 1.5 + AGAIN, one, 2.0, 0.25)


def test_a_driver_whose_own_timer_is_late_says_so() -> None:
    alone = Alone(Asked({"NODE-1": "mute"}, 0.25))
    assert alone.fire(behind=1.75).pace == pytest.approx(1.75)
    assert alone.fire().pace == pytest.approx(0.25), "that time only"
