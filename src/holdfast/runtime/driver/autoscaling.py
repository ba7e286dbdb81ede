"""Scaling by load: what tasks report goes to the policy, what it decides becomes a request to the coordinator.

``Elastic`` is pure: time is what the callers say, and what becomes of a request it hears from the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.elasticity import (
    CannotScale,
    Decision,
    LoadReport,
    Policy,
    Pool,
    PoolPolicy,
    Sample,
    Scaler,
    operator_of,
    rerouted,
)
from holdfast.errors import Invalid
from holdfast.runtime.driver.config import JobConfig
from holdfast.runtime.driver.ports import Failed
from holdfast.runtime.driver.requests import Request
from holdfast.runtime.messages import NodesUnneeded, Report, ScaleWanted
from holdfast.runtime.options import Elasticity
from holdfast.runtime.shape import Shape, check_scalable, renumbered, routing_of, scalable
from holdfast.topology import Task, Topology

if TYPE_CHECKING:
    from holdfast.runtime.driver.driver import Driver

LATE = 300.0
"""Nodes that have not come after so many seconds are not waited for any longer."""
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


class Autoscaler:
    """What is asked of a running job beside its stream: requests of other processes, scaling by load, standby nodes.

    A part of the driver, on its thread; it looks in whenever the nodes were looked at.
    """

    def __init__(self, driver: Driver, elastic: Elastic | None, pool: Pool) -> None:
        self._driver = driver
        self._elastic = elastic
        self._pool = pool
        self._most = driver.config.most_nodes
        self._least = driver.config.settings.nodes
        self._spare_since = 0
        """So many rounds in a row there were more nodes than needed."""

    def take(self, asked: Iterable[Request | str]) -> None:
        """What other processes have asked for."""
        for each in asked:
            if isinstance(each, str):
                self._driver.note("request refused", {"reason": each})
            else:
                self.scale(each.operator, each.to, each.name)

    def look(self) -> None:
        """Let the policy decide if its time has come."""
        now = self._driver.clock.now()
        if late := self._pool.overdue(now, LATE):
            self._pool.refused(late)
            self._driver.note("nodes wanted", {"count": late, "given": False, "most": self._most})
        if self._elastic is not None and self._elastic.due(now):
            self._by_load(self._elastic, now)

    def scale(self, operator: str, to: int, request: str, why: str = "asked for") -> None:
        """Ask for another number of tasks; the history tells under ``request`` what became of it."""
        try:
            check_scalable(self._driver.config.pipeline, operator)
        except Invalid as error:
            fields = {"operator": operator, "request": request, "reason": str(error)}
            self._driver.note("scaling refused", fields)
            return
        self._driver.tell(ScaleWanted(operator, to, why=why, request=request))

    def _by_load(self, elastic: Elastic, now: float) -> None:
        driver = self._driver
        wanted, hopeless = elastic.decide(now, driver.coordinator.samples)
        for each in hopeless:
            driver.note("cannot scale", {"task": str(each.task), "why": each.why})
        self.provide_nodes(growth(wanted, driver.snapshot.shape, driver.coordinator.declared))
        for request in wanted:
            driver.tell(request)
        self._give_back(elastic, now)

    def _give_back(self, elastic: Elastic, now: float) -> None:
        """Nodes that nobody needed for a while go, those with the least on them; as many as at the start stay."""
        seen, policy = self._driver.snapshot, elastic.policy
        changing = seen.scaling is not None or seen.queued_scalings or self._pool.coming
        needed = max(self._least, policy.nodes(elastic.tasks)) + self._pool.target(now)
        spare = len(seen.nodes) - needed
        calm = not changing and not self._pool.waiting and not seen.leaving and not seen.down
        self._spare_since = self._spare_since + 1 if spare > 0 and calm else 0
        if self._spare_since < policy.low_reports:
            return
        self._spare_since = 0
        idle = set(self._pool.idle)
        loads = sorted(
            self._driver.coordinator.loads(1.0), key=lambda node: (node.name in idle, node.load, -_number(node.name))
        )
        why = f"{len(seen.nodes)} nodes, {needed} were enough in {policy.low_reports} reports"
        self._driver.tell(NodesUnneeded(tuple(node.name for node in loads[:spare]), why))

    def provide_nodes(self, needed: int = 0) -> None:
        """So many are needed now: those that stand by are there, others are asked for, as far as the job may grow."""
        now, pool = self._driver.clock.now(), self._pool
        if needed:
            pool.request(now, needed)
        count = min(pool.wanted(now), self._most - len(self._driver.nodes) - pool.coming)
        if count <= 0:
            return

        def asked(given: bool | Failed) -> None:
            if given is not True:
                pool.refused(count)
            self._driver.note("nodes wanted", {"count": count, "given": given is True, "most": self._most})

        pool.ordered(now, count)
        self._driver.ports.background.submit("nodes", lambda: self._driver.ports.nodes.grow(count), asked)

    def heard(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "nodes released":
            self._pool.lost(event["nodes"])
        if self._elastic is not None:
            self._elastic.hear(event, self._driver.snapshot.shape, self._driver.clock.now())

    def worked(self, reports: Iterable[Report]) -> None:
        if self._elastic is not None:
            self._elastic.worked(reports)

    def moved(self, lost: Sequence[str], joined: Sequence[str]) -> None:
        """Nodes that went and came; of those that came as many as were asked for."""
        self._pool.lost(lost)
        if self._pool.coming:
            self._pool.arrived(self._driver.clock.now(), joined)


def _number(node: str) -> int:
    """Younger nodes have higher numbers."""
    digits = node.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def elastic_by(policy: Elasticity, driver: Driver) -> Elastic | None:
    """The policy at work. Usually a node carries as many tasks that can be scaled as it does at the start."""
    coordinator, config = driver.coordinator, driver.config
    if policy is False:
        return None
    able = scalable(config.pipeline)
    if not able:
        raise Invalid("elastic: no operator of this pipeline can be scaled; keyed ones between full streams can")
    if not isinstance(policy, Policy):
        tasks = sum(coordinator.topology.operator[name].parallelism for name in able)
        usual = {"max_nodes": config.most_nodes, "tasks_per_node": max(1, -(-tasks // config.settings.nodes))}
        policy = Policy(**{**usual, **({} if isinstance(policy, bool) else policy)})
    return Elastic(coordinator.declared, able, policy, driver.snapshot.shape, driver.clock.now())


def standby(config: JobConfig) -> Pool:
    """At least so many stand by, more when many are asked for; none, if none are wanted."""
    least = config.scaling.pool
    return Pool(PoolPolicy(least=least, most=config.most_nodes - config.settings.nodes if least else 0))
