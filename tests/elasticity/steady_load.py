"""A load that never changes, driven through the policy: point masses on the ring, reports, decisions, new routings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.elasticity import CannotScale, Decision, LoadReport, Policy, Scaler, operator_of, rerouted
from holdfast.state import KeyRange, Routing
from holdfast.topology import Task


@dataclass(frozen=True, slots=True)
class Keys:
    """Ring positions and the cores that each of them needs."""

    hashes: NDArray[np.uint32]
    load: NDArray[np.float64]
    known: dict[KeyRange, float] = field(default_factory=dict)

    def of(self, part: KeyRange) -> float:
        """The load never changes: what a range has of it is worked out once."""
        if part not in self.known:
            self.known[part] = float(self.load[part.contains(self.hashes)].sum())
        return self.known[part]


def no_noise() -> float:
    return 1.0


def reports_of(
    operator: str, routing: Routing, keys: Keys, at: float, every: float, noise: Callable[[], float] = no_noise
) -> list[LoadReport]:
    """What a task can report is at most one core: an overloaded one is at 100 %, whatever waits for it."""
    return [
        LoadReport(Task(operator, number), at, every, min(keys.of(part), 1.0) * noise() * every)
        for number, part in zip(routing.owners, routing.ranges, strict=True)
    ]


def drive(
    operators: Mapping[str, tuple[Routing, Keys]],
    policy: Policy,
    rounds: int,
    noise: Callable[[], float] = no_noise,
    measured: bool = False,
    slow: int = 0,
) -> tuple[Scaler, list[tuple[int, Decision, Routing]]]:
    """So many rounds of reports; every decision with its round and routing. ``slow``: rounds a change takes."""
    scaler = Scaler({name: routing for name, (routing, _) in operators.items()}, policy)
    made: list[tuple[int, Decision, Routing]] = []
    pending: list[tuple[int, str, Routing]] = []
    for turn in range(1, rounds + 1):
        at = turn * policy.every
        for due, name, routing in [entry for entry in pending if entry[0] <= turn]:
            scaler.finished(name, routing, at - policy.every)
            pending.remove((due, name, routing))
        routings = scaler.routings
        decisions = scaler.observe(
            [
                report
                for name, (_, keys) in operators.items()
                for report in reports_of(name, routings[name], keys, at, policy.every, noise)
            ]
        )
        for name in {operator_of(d) for d in decisions if not isinstance(d, CannotScale)}:
            keys = operators[name][1]
            samples = dict.fromkeys(routings[name].owners, (keys.hashes, keys.load)) if measured else {}
            mine = [d for d in decisions if operator_of(d) == name]
            pending.append((turn + 1 + slow, name, rerouted(routings[name], mine, samples)))
        made.extend((turn, decision, routings[operator_of(decision)]) for decision in decisions)
    return scaler, made


def range_of(routing: Routing, tasks: Sequence[Task]) -> KeyRange:
    parts = sorted(part for task in tasks for part in routing.owned(task.number))
    return KeyRange(parts[0].lo, parts[-1].hi)
