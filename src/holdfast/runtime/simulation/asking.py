"""Simulated nodes are asked as executors are, and judged by the same rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.runtime.driver.deadline import AGAIN
from holdfast.runtime.driver.hearing import CONTROL, Hearing
from holdfast.runtime.driver.ports import Silence
from holdfast.runtime.simulation.loop import Environment

QUESTION = 0.03
"""Seconds that a node of speed 1 takes to answer."""


class Askable(Protocol):
    """``stalled``: until when it answers nobody."""

    alive: bool
    stalled: float
    speed: float


class SimulatedAsking:
    """What is asked takes none of the world's time: it has a clock of its own, upon which one asking follows another.

    A node that is gone or stalled answers nothing; one that is slow takes as many times as long.
    """

    def __init__(self, nodes: Mapping[str, Askable], world: Environment) -> None:
        self._nodes = nodes
        self._world = world
        self._hearing = Hearing()
        self._asked: dict[str, float] = {}
        self._clock = 0.0

    def unanswering(self, places: Sequence[str]) -> tuple[dict[str, Silence], float]:
        """Those of these places that do not answer in time, and how long others take."""
        hearing, everybody = self._hearing, (CONTROL, *places)
        self._clock += AGAIN
        self._hear(everybody, places, self._clock)
        for each in filter(hearing.free, everybody):
            hearing.asked(each, self._clock)
            self._asked[each] = self._clock
        self._clock = self._hear(everybody, places, None)
        return hearing.judge(places), hearing.pace(places, self._clock)

    def _hear(self, everybody: Sequence[str], places: Sequence[str], until: float | None) -> float:
        """Take the answers that come until then, or else until all have answered or their time is up: when that is."""
        hearing, began, last = self._hearing, self._clock, self._clock
        owing = [(self._asked[each] + self._takes(each), each) for each in everybody if not hearing.free(each)]
        for moment, each in sorted(owing):
            if moment > (began + hearing.wait(places, last) if until is None else until):
                return began + hearing.wait(places, last)
            last = max(last, moment)
            hearing.answered(each, moment)
            hearing.over(each)
        return last

    def _takes(self, name: str) -> float:
        if name == CONTROL:
            return QUESTION
        node = self._nodes[name]
        return QUESTION / node.speed if node.alive and node.stalled <= self._world.now else float("inf")
