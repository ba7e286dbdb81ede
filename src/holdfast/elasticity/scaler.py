"""The bottleneck detector and scaling policy: load reports in, decisions out (paper 002, 5.1; scale in is ours).

No clock, thread or file: time is what reports and calls say. A Scaler knows the routing of every operator it may
scale; one change of an operator is under way at a time, and it ends with ``finished`` or ``abandoned``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.elasticity.decisions import CannotScale, Decision, ScaleIn, ScaleOut
from holdfast.elasticity.load import LoadReport
from holdfast.elasticity.policy import Policy
from holdfast.errors import Invalid
from holdfast.state import KeyRange, Routing
from holdfast.topology import Task

LONGEST_RETRY = 300.0
"""Seconds; a change that keeps failing is tried again at least so often."""


@dataclass(slots=True)
class _Watched:
    """What is known of one operator. Facts about a part of its keys are kept by key range: numbers change."""

    routing: Routing
    since: float
    recent: dict[int, deque[float]] = field(default_factory=dict)
    newest: dict[int, float] = field(default_factory=dict)
    splitting: tuple[KeyRange, ...] = ()
    to: int | None = None
    failures: int = 0
    families: list[tuple[KeyRange, ...]] = field(default_factory=list)
    futile: dict[KeyRange, int] = field(default_factory=dict)
    said: dict[KeyRange, str] = field(default_factory=dict)

    @property
    def parallelism(self) -> int:
        """Tasks there are, or will be when the change under way is done."""
        return len(self.routing.ranges) if self.to is None else self.to

    def order(self) -> list[tuple[int, KeyRange]]:
        return list(zip(self.routing.owners, self.routing.ranges, strict=True))


class Scaler:
    """Give it every round of reports with ``observe``, carry out what it answers, and tell it how that ended.

    Under a steady load it makes finitely many decisions: a task is split only above ``threshold``, two are merged only
    when together below ``low`` x ``threshold``, so neither undoes the other; and splits that do not help are counted.
    """

    def __init__(self, routings: Mapping[str, Routing], policy: Policy | None = None, at: float = 0.0) -> None:
        self.policy = policy or Policy()
        if unknown := [name for name in self.policy.per_operator if name not in routings]:
            raise Invalid(f"scaling policy: no operator {unknown[0]!r} to scale, there is {_names(routings)}")
        for name, routing in routings.items():
            if len(set(routing.owners)) < len(routing.owners):
                raise Invalid(f"scaling: operator {name} has a task with several key ranges; merge them first")
        self._watched = {name: _Watched(routing, at) for name, routing in routings.items()}

    @property
    def routings(self) -> dict[str, Routing]:
        return {name: watched.routing for name, watched in self._watched.items()}

    @property
    def under_way(self) -> frozenset[str]:
        """Operators with a change that is neither finished nor abandoned."""
        return frozenset(name for name, watched in self._watched.items() if watched.to is not None)

    @property
    def tasks(self) -> int:
        """Tasks of all operators, counting changes under way as done."""
        return sum(watched.parallelism for watched in self._watched.values())

    def observe(self, reports: Iterable[LoadReport]) -> list[Decision]:
        """Take these reports in; what to do now. Bottlenecks come first, the busiest of all operators at the head.

        Decisions about one operator in one answer belong together: ``rerouted`` makes one change of them.
        """
        for report in reports:
            self._take(report)
        for watched in self._watched.values():
            self._judge(watched)
            self._forget(watched)
        decisions: list[Decision] = []
        bottlenecks = [
            (sum(watched.recent[number]) / len(watched.recent[number]), name, number, part)
            for name, watched in self._watched.items()
            if watched.to is None
            for number, part in watched.order()
            if self._overloaded(watched, number)
        ]
        for _, name, number, part in sorted(bottlenecks, key=lambda found: (-found[0], found[1], found[2])):
            if decision := self._relieve(self._watched[name], Task(name, number), part):
                decisions.append(decision)
        for name, watched in self._watched.items():
            if watched.to is None:
                decisions.extend(self._mergers(name, watched))
        return decisions

    def finished(self, operator: str, routing: Routing, at: float) -> None:
        """A change is in force since ``at``, one that was decided here or a user's own; reports start afresh."""
        watched = self._of(operator)
        for parent in watched.splitting:
            children = tuple(r for r in routing.ranges if parent.lo <= r.lo and r.hi <= parent.hi)
            if len(children) > 1:
                watched.families.append(children)
            before = watched.futile.pop(parent, 0)
            watched.futile.update({child: before for child in children if before})
        ranges = set(routing.ranges)
        watched.routing = routing
        watched.families = [family for family in watched.families if ranges.issuperset(family)]
        watched.futile = {r: n for r, n in watched.futile.items() if r in ranges}
        watched.said = {r: why for r, why in watched.said.items() if r in ranges}
        watched.failures = 0
        self._reset(watched, at + self.policy.settle)

    def abandoned(self, operator: str, at: float) -> None:
        """The change under way came to nothing and the old tasks go on; it is tried again later, ever more rarely."""
        watched = self._of(operator)
        pause = min(self.policy.retry * 2**watched.failures, LONGEST_RETRY)
        watched.failures += 1
        self._reset(watched, at + pause)

    def _reset(self, watched: _Watched, since: float) -> None:
        watched.since = since
        watched.to = None
        watched.splitting = ()
        watched.recent.clear()
        watched.newest.clear()

    def _of(self, operator: str) -> _Watched:
        try:
            return self._watched[operator]
        except KeyError:
            raise Invalid(f"scaling: no operator {operator!r}, there is {_names(self._watched)}") from None

    def _take(self, report: LoadReport) -> None:
        """Reports that began before the last change are of other tasks, though they may have the same names."""
        watched = self._watched.get(report.task.operator)
        number = report.task.number
        if watched is None or watched.to is not None or number not in watched.routing.owners:
            return
        slack = 1e-6 * report.seconds  # intervals that adjoin may differ in the last digit
        if report.began < watched.since - slack or report.at <= watched.newest.get(number, -float("inf")):
            return
        recent = watched.recent.setdefault(number, deque(maxlen=self.policy.low_reports))
        if report.began > watched.newest.get(number, report.began) + report.seconds / 2:
            recent.clear()  # it was away for a while: what it did before is not consecutive
        watched.newest[number] = report.at
        recent.append(report.utilisation)

    def _last(self, watched: _Watched, number: int) -> list[float]:
        """The last ``reports`` of a task, or nothing while there are fewer."""
        recent = watched.recent.get(number, ())
        return list(recent)[-self.policy.reports :] if len(recent) >= self.policy.reports else []

    def _overloaded(self, watched: _Watched, number: int) -> bool:
        last = self._last(watched, number)
        return bool(last) and min(last) > self.policy.threshold

    def _judge(self, watched: _Watched) -> None:
        """Did the last split help? Not if one part has almost all of the load, as with a single hot key."""
        numbers = {part: number for number, part in watched.order()}
        for family in list(watched.families):
            lasts = [self._last(watched, numbers[child]) for child in family]
            if not all(lasts):
                continue
            watched.families.remove(family)
            loads = [sum(last) for last in lasts]
            heaviest = max(range(len(family)), key=loads.__getitem__)
            helped = loads[heaviest] <= (1 - self.policy.gain) * sum(loads)
            counts = {family[heaviest]: watched.futile.get(family[heaviest], 0) + 1} if not helped else {}
            for child in family:
                watched.futile.pop(child, None)
            watched.futile.update(counts)

    def _forget(self, watched: _Watched) -> None:
        """What was said of a bottleneck holds until it is far from being one."""
        for number, part in watched.order():
            last = self._last(watched, number)
            if last and max(last) < self.policy.merge_below:
                watched.futile.pop(part, None)
                watched.said.pop(part, None)

    def _relieve(self, watched: _Watched, task: Task, part: KeyRange) -> ScaleOut | CannotScale | None:
        if any(part in family for family in watched.families):
            return None  # its siblings have not reported yet
        policy = self.policy
        tried = watched.futile.get(part, 0)
        into, limit = self._room(task.operator, watched, part)
        busy = f"at {_percent(self._last(watched, task.number))}"
        if tried >= policy.attempts:
            why = (
                f"{task} stays {busy}: each of the last {tried} splits left at least {1 - policy.gain:.0%} of the load "
                f"in one part, so most of it must be one key, which cannot be split"
            )
        elif into < 2:
            why = f"{task} stays {busy}: {limit}"
        else:
            watched.said.pop(part, None)
            watched.splitting = (*watched.splitting, part)
            watched.to = watched.parallelism + into - 1
            why = f"{task} was {busy} in {policy.reports} reports, above {policy.threshold:.0%}: into {into}"
            return ScaleOut(task, into, why)
        kind = "hot" if tried >= policy.attempts else limit
        if watched.said.get(part) == kind:
            return None
        watched.said[part] = kind
        return CannotScale(task, why)

    def _room(self, operator: str, watched: _Watched, part: KeyRange) -> tuple[int, str]:
        """Into how many this range may be split within all limits, and which limit is the tightest."""
        policy = self.policy
        _, most = policy.bounds(operator)
        limits = [(policy.into, ""), (part.width, "its key range is a single position, which cannot be split")]
        if most is not None:
            limits.append((1 + most - watched.parallelism, f"{operator} may have at most {most} tasks"))
        if policy.max_nodes is not None:
            room = policy.max_nodes * policy.tasks_per_node - self.tasks
            limits.append(
                (1 + room, f"at most {policy.max_nodes} nodes, {policy.tasks_per_node} tasks each, are allowed")
            )
        return min(limits, key=lambda limit: limit[0])

    def _mergers(self, operator: str, watched: _Watched) -> list[ScaleIn]:
        """Disjoint pairs of neighbours that were idle together for long enough, the idlest first."""
        policy = self.policy
        order = watched.order()
        idle = []
        for (one, _), (other, _) in pairwise(order):
            pair = [watched.recent.get(number, deque[float]()) for number in (one, other)]
            if min(map(len, pair)) == policy.low_reports:
                together = max(map(sum, zip(*pair, strict=True)))
                if together < policy.merge_below:
                    idle.append((together, one, other))
        least, _ = policy.bounds(operator)
        taken: set[int] = set()
        found: list[ScaleIn] = []
        for together, one, other in sorted(idle):
            if len(order) - len(found) <= least or {one, other} & taken:
                continue
            taken |= {one, other}
            tasks = (Task(operator, one), Task(operator, other))
            why = (
                f"{tasks[0]} and {tasks[1]} together were at {together:.1%} or less in {policy.low_reports} reports, "
                f"below {policy.merge_below:.0%}: into 1"
            )
            found.append(ScaleIn(tasks, why))
        if found:
            watched.to = len(order) - len(found)
        return found


def _names(operators: Iterable[str]) -> str:
    return ", ".join(operators) or "none"


def _percent(values: list[float]) -> str:
    shown = sorted({f"{value:.0%}" for value in (min(values), max(values))}, key=lambda text: float(text[:-1]))
    return " to ".join(shown)
