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

    def __init__(self, asked: Asked, within: float | None = 2.0) -> None:
        self.seconds = 0.0
        self.armed: list[tuple[float, Any]] = []
        self.told: list[AnswerLate] = []
        clock = SimpleNamespace(now=lambda: self.seconds, after=self._after)
        background = SimpleNamespace(submit=lambda _, work, done: done(work()))
        info = self.nodes = {name: SimpleNamespace(place=name.upper()) for name in ("node-0", "node-1")}
        driver: Any = SimpleNamespace(
            clock=clock, ended=False, nodes=info, snapshot=SimpleNamespace(pending=7, nodes=info),
            running=SimpleNamespace(of_epoch=lambda _: 3), ports=SimpleNamespace(background=background),
            tell=self.told.append,
        )  # fmt: skip
        runner: Any = SimpleNamespace(silent=lambda run, places: asked)
        self.deadline = Deadline(driver, runner, within)
        for _ in range(FIRST):
            self.deadline.met(0.5)
        self.deadline.begin(7)

    def _after(self, seconds: float, action: Any) -> Any:
        self.armed.append((self.seconds + seconds, action))
        return SimpleNamespace(cancel=lambda: None)

    def fire(self, behind: float = 0.0) -> AnswerLate:
        self.ask(behind)
        return self.told[-1]

    def ask(self, behind: float = 0.0) -> None:
        due, action = self.armed.pop()
        self.seconds = due + behind
        action()

    def until_told(self) -> float:
        """When something is told, asked as often as it is."""
        while not self.told:
            self.ask()
        assert self.told[-1].seconds == self.seconds, "counted from when the epoch came"
        return self.seconds


def test_who_is_silent_is_told_with_how_fast_others_answer() -> None:
    alone = Alone(Asked({"NODE-1": "mute", "NODE-0": "late"}, 0.25))
    both, one = frozenset({"node-0", "node-1"}), frozenset({"node-1"})
    assert alone.fire() == AnswerLate(7, both, 1.5, one, 2.0, 0.25)
    assert alone.fire() == AnswerLate(7, both, 1.5 + AGAIN, one, 2.0, 0.25)


def test_a_driver_whose_own_timer_is_late_says_so() -> None:
    alone = Alone(Asked({"NODE-1": "mute"}, 0.25))
    assert alone.fire(behind=1.75).pace == pytest.approx(1.75)
    assert alone.fire().pace == pytest.approx(0.25), "that time only"


@pytest.mark.parametrize("asked", [Asked({"NODE-1": "late"}), Asked({})], ids=["one is slow", "all are"])
def test_of_who_is_only_slow_nobody_is_told_before_the_time_is_up(asked: Asked) -> None:
    """It is asked half a second before, since who says nothing takes that long to be found out: they were told of at
    once, and others stood in for them in half of the time."""
    assert Alone(asked).until_told() == 2.0


def test_a_loss_is_no_delay_of_those_who_are_left() -> None:
    alone = Alone(Asked({"NODE-1": "late"}))
    alone.ask()
    alone.deadline.heard({"kind": "nodes joined"})
    alone.deadline.heard({"kind": "nodes lost"})
    assert alone.until_told() == 1.5 + 2.0
    mute = Alone(Asked({"NODE-1": "mute"}))
    mute.deadline.heard({"kind": "nodes lost"})
    assert mute.fire().seconds == 1.5, "who says nothing is told of at once"


def test_fewer_nodes_take_as_much_longer_as_each_has_more_to_do() -> None:
    alone = Alone(Asked({}), within=None)
    assert alone.deadline.seconds == 1.25, "two and a half times as long as epochs took"
    gone = alone.nodes.pop("node-1")
    assert alone.deadline.seconds == 2.0, "a second more than they will take"
    alone.nodes |= {"node-1": gone, "node-2": gone, "node-3": gone}
    assert alone.deadline.seconds == 1.25, "more nodes need not be faster"
