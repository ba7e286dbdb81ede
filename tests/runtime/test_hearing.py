"""Who is silent, by when everybody was asked and answered: a late answer is one, and slow is who is so alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from driving import Driver, chain

from holdfast.runtime.coordinator.giving_up import PATIENCE
from holdfast.runtime.coordinator.standing_in import SHORT
from holdfast.runtime.driver.hearing import ANSWER, CONTROL, MOST, RECENT, TIMES, Hearing
from holdfast.runtime.messages import AnswerLate, GiveUp
from holdfast.runtime.simulation.asking import QUESTION, SimulatedAsking
from holdfast.runtime.simulation.loop import Environment

NODES = ["node-0", "node-1", "node-2"]


def told(*took: float, at: float = 0.0) -> Hearing:
    """The driver and as many nodes as there are times were asked, and took so long."""
    hearing = Hearing()
    for name, seconds in zip([CONTROL, *NODES], took, strict=False):
        hearing.asked(name, at - seconds)
        hearing.answered(name, at)
        hearing.over(name)
    return hearing


def test_a_late_answer_is_an_answer_and_no_answer_is_silence() -> None:
    hearing = Hearing()
    hearing.asked("node-1", 0.0)
    assert hearing.judge(NODES) == {"node-1": "mute"}
    hearing.answered("node-1", 0.6)
    hearing.over("node-1")
    hearing.asked("node-1", 0.75)
    assert hearing.judge(NODES) == {"node-1": "late"}, "it has spoken since"
    assert [hearing.judge(NODES)["node-1"] for _ in range(3)] == ["late", "mute", "mute"]
    hearing.answered("node-1", 5.0)
    assert hearing.judge(NODES) == {}
    hearing.over("node-1")
    hearing.asked("node-1", 5.25)
    assert hearing.judge(NODES) == {"node-1": "late"}, "and that was too late too"


def test_who_answered_in_time_and_then_falls_silent_is_mute_at_once() -> None:
    hearing = told(0.02, 0.02, 0.02)
    assert hearing.judge(NODES) == {}
    hearing.asked("node-1", 0.4)
    assert hearing.judge(NODES) == {"node-1": "mute"}


def test_a_question_that_ended_without_an_answer_is_still_owed_and_asked_again() -> None:
    hearing = Hearing()
    hearing.asked("node-1", 0.0)
    assert not hearing.free("node-1")
    hearing.over("node-1")
    assert hearing.free("node-1") and hearing.owes("node-1")
    assert hearing.judge(NODES) == {"node-1": "mute"}


@pytest.mark.parametrize(
    "took, wait",
    [
        ((), ANSWER),
        ((0.02, 0.02, 0.03, 0.03), ANSWER),
        ((0.02, 0.3, 0.3, 0.4), TIMES * 0.3),
        ((0.02, 0.02, 0.02, 9.0), ANSWER),
        ((0.02, 0.02, 9.0), ANSWER),
        ((0.5, 0.02, 0.02, 0.02), TIMES * 0.5),
        ((0.02, 2.0, 2.0, 0.02), MOST),
    ],
    ids=["nobody yet", "all are well", "all are slow", "one was frozen", "one of two", "the driver is slow", "bounded"],
)
def test_everybody_has_as_long_as_the_well_take_now(took: tuple[float, ...], wait: float) -> None:
    assert told(*took).wait(NODES, 0.0) == pytest.approx(wait)


def test_what_was_slow_is_forgotten_and_what_the_driver_waits_for_itself_counts() -> None:
    hearing = told(1.0, 1.0, 1.0, 1.0)
    assert hearing.wait(NODES, RECENT - 0.1) == MOST and hearing.wait(NODES, RECENT) == ANSWER
    hearing.asked(CONTROL, RECENT)
    assert hearing.pace(NODES, RECENT + 0.4) == pytest.approx(0.4)
    assert hearing.pace(NODES, RECENT + 1000) == MOST, "a driver that cannot ask itself says nothing of the others"


# Simulated nodes, the coordinator, and the same rules


def given_up(speeds: dict[str, float], stalled: str = "", askings: int = 60) -> set[str]:
    """Who is, where an epoch is late for long and everybody is asked every three quarters of a second."""
    driver = Driver(chain(1, 3, 3), nodes=3, capacity=1000.0, checkpoint_every=3)
    driver.join(0, 1, 2)
    driver.epoch(0)
    driver.arrive(1)
    nodes = {
        name: SimpleNamespace(alive=True, stalled=float("inf") if name == stalled else 0.0, speed=speeds.get(name, 1.0))
        for name in NODES
    }
    asking, gone = SimulatedAsking(nodes, Environment()), set[str]()
    for number in range(askings):
        silent, pace = asking.unanswering([name for name in NODES if name not in gone])
        mute = frozenset(name for name, how in silent.items() if how == "mute")
        driver.tell(AnswerLate(1, frozenset(silent), 1.0 + 0.75 * number, mute, 1.0, pace))
        gone |= {name for each in driver.of(GiveUp) for name, _ in each.nodes}
    return gone


def test_who_answers_every_question_a_little_late_is_not_given_up() -> None:
    assert given_up({"node-1": QUESTION / 0.6}) == set()
    assert given_up({"node-1": QUESTION / 0.8}) == set()


def test_who_says_nothing_is_given_up_whatever_the_others_do() -> None:
    for slow in (1.0, 0.2, 0.1):
        assert given_up(dict.fromkeys(NODES, slow), stalled="node-1") == {"node-1"}, slow
    soon = int(PATIENCE / 0.75) + 2
    assert given_up({}, stalled="node-1", askings=soon) == {"node-1"}


def test_nobody_is_given_up_where_all_are_slow_even_if_some_more_than_others() -> None:
    crowded = {"node-0": QUESTION / SHORT, "node-1": QUESTION / 1.3, "node-2": QUESTION / 2.9}
    assert given_up(crowded) == set()
