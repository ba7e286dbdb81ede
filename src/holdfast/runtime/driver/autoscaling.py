"""Scaling by load: what tasks report goes to the policy, what it decides becomes a request to the coordinator.

Pure: time is what the callers say. Both shells feed it; what becomes of a request it hears from the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.elasticity import CannotScale, Decision, LoadReport, Policy, Sample, Scaler, operator_of, rerouted
from holdfast.runtime.messages import Report, ScaleWanted
from holdfast.runtime.shape import Shape, renumbered, routing_of
from holdfast.topology import Task, Topology

ENDINGS = ("scaled", "scaling aborted", "scaling refused")


@dataclass(slots=True)
class _Load:
    seconds: float = 0.0
    rows_in: int = 0
    rows_out: int = 0


@dataclass(slots=True)
class Elastic:
    """``declared`` and ``shape`` as at the start; ``scalable``: the operators that the policy may scale."""

    declared: Topology
    scalable: Iterable[str]
    policy: Policy
    shape: Shape = field(default_factory=Shape)
    at: float = 0.0
    _loads: dict[Task, _Load] = field(default_factory=dict)
    _scaler: Scaler = field(init=False)

    def __post_init__(self) -> None:
        routings = {name: routing_of(self.declared, self.shape, name) for name in sorted(self.scalable)}
        self._scaler = Scaler(routings, self.policy, self.at)

    def worked(self, reports: Iterable[Report]) -> None:
        """What an epoch took: only the exact lane is the task's own work."""
        for report in reports:
            if report.lane == "exact" and report.status == "committed":
                load = self._loads.setdefault(report.task, _Load())
                load.seconds += report.seconds
                load.rows_in += report.rows_in
                load.rows_out += report.rows_out

    @property
    def tasks(self) -> int:
        """Tasks of all operators that the policy scales, those included that changes under way will make."""
        return self._scaler.tasks

    def due(self, now: float) -> bool:
        return now - self.at >= self.policy.every

    def decide(
        self, now: float, samples: Callable[[str], Mapping[int, Sample]] = lambda _: {}
    ) -> tuple[list[ScaleWanted], list[CannotScale]]:
        """What to ask for, and what cannot be helped, by what was reported since the last time.

        ``samples``: how the load of an operator's tasks lies over their keys; where it was not measured, tasks are
        split in halves of their keys.
        """
        seconds = now - self.at
        reports = []
        for name, routing in self._scaler.routings.items():
            for number in routing.owners:
                load = self._loads.get(Task(name, number), _Load())
                reports.append(LoadReport(Task(name, number), now, seconds, load.seconds, load.rows_in, load.rows_out))
        self.at = now
        self._loads.clear()
        made: dict[str, list[Decision]] = {}
        hopeless = []
        for decision in self._scaler.observe(reports):
            if isinstance(decision, CannotScale):
                hopeless.append(decision)
            else:
                made.setdefault(operator_of(decision), []).append(decision)
        wanted = []
        for name, decisions in made.items():
            now_in_force = self._scaler.routings[name]
            routing = renumbered(now_in_force, rerouted(now_in_force, decisions, samples(name)).ranges)
            why = "; ".join(each.why for each in decisions)
            wanted.append(ScaleWanted(name, len(routing.owners), routing, why, request="load"))
        return wanted, hopeless

    def hear(self, event: Mapping[str, Any], shape: Shape, now: float) -> None:
        """What became of a request, this policy's or anybody's; and lost tasks that came back as several."""
        kind = event["kind"]
        if kind == "recovering in parallel":
            for name in event["operators"]:
                self._finished(name, shape, now)
        elif kind in ENDINGS and event["operator"] in self._scaler.routings:
            if kind == "scaled":
                self._finished(event["operator"], shape, now)
            elif not event.get("again") and event["operator"] in self._scaler.under_way:
                self._scaler.abandoned(event["operator"], now)

    def _finished(self, name: str, shape: Shape, now: float) -> None:
        if name in self._scaler.routings:
            self._scaler.finished(name, routing_of(self.declared, shape, name), now)
            self._loads = {task: load for task, load in self._loads.items() if task.operator != name}


def growth(wanted: Iterable[ScaleWanted], shape: Shape, declared: Topology) -> int:
    """How many more tasks there will be when all of these requests are carried out."""
    return sum(max(0, each.to - len(routing_of(declared, shape, each.operator).owners)) for each in wanted)
