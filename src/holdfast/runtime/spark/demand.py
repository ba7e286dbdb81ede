"""What is asked of a running job beside its stream: requests of other processes, scaling by load, nodes that stand by.

The shell looks in every tenth of a second, from the thread that watches the nodes, and tells who came and went.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.elasticity import Policy, Pool, PoolPolicy
from holdfast.errors import Invalid
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.driver.autoscaling import Elastic, growth
from holdfast.runtime.driver.requests import asked
from holdfast.runtime.messages import NodesUnneeded, Report

if TYPE_CHECKING:
    from holdfast.runtime.spark.shell import Shell

LATE = 300.0
"""Nodes that have not come after so many seconds are not waited for any longer."""
Elasticity = Policy | Mapping[str, Any] | bool
"""A policy, what departs from the usual one, or whether to have the usual one at all."""


class Demand:
    """``requests``: the folder in which other processes leave theirs; None: nobody can. ``elastic`` None: no policy."""

    def __init__(
        self, shell: Shell, requests: Path | None, elastic: Elastic | None, pool: Pool, max_nodes: int
    ) -> None:
        self._shell = shell
        self._requests = requests
        self._elastic = elastic
        self._pool = pool
        self._max_nodes = max_nodes
        self._least = shell.coordinator.settings.nodes
        self._spare_since = 0
        """So many rounds in a row there were more nodes than needed."""
        if requests is not None:
            for each in asked(requests):
                left = each if isinstance(each, str) else f"request {each.name} ({each.operator} to {each.to} tasks)"
                shell.note("request refused", {"reason": f"{left}: it was left when no job was running"})

    def look(self) -> None:
        """Take what was asked for, and let the policy decide if its time has come."""
        for each in asked(self._requests) if self._requests is not None else ():
            if isinstance(each, str):
                self._shell.note("request refused", {"reason": each})
            else:
                self._shell.scale(each.operator, each.to, each.name)
        now = time.monotonic()
        if late := self._pool.overdue(now, LATE):
            self._pool.refused(late)
            self._shell.note("nodes wanted", {"count": late, "given": False, "most": self._max_nodes})
        if self._elastic is not None and self._elastic.due(now):
            self._by_load(self._elastic, now)

    def _by_load(self, elastic: Elastic, now: float) -> None:
        shell = self._shell
        with shell.lock:
            wanted, hopeless = elastic.decide(now, shell.coordinator.samples)
            for each in hopeless:
                shell.note("cannot scale", {"task": str(each.task), "why": each.why})
            self.provide_nodes(growth(wanted, shell.coordinator.shape, shell.coordinator.declared))
            for request in wanted:
                shell.tell(request)
            self._give_back(elastic, now)

    def _give_back(self, elastic: Elastic, now: float) -> None:
        """Nodes that nobody needed for a while go, those with the least on them; as many as at the start stay."""
        coordinator = self._shell.coordinator
        standing, policy = coordinator.standing, elastic.policy
        changing = coordinator.scaling.shadow is not None or coordinator.scaling.queue or self._pool.coming
        needed = max(self._least, policy.nodes(elastic.tasks)) + self._pool.target(now)
        spare = len(standing.nodes) - needed
        calm = not changing and not self._pool.waiting and not standing.leaving and standing.all_up
        self._spare_since = self._spare_since + 1 if spare > 0 and calm else 0
        if self._spare_since < policy.low_reports:
            return
        self._spare_since = 0
        idle = set(self._pool.idle)
        loads = sorted(standing.loads(1.0), key=lambda node: (node.name in idle, node.load, -_number(node.name)))
        why = f"{len(standing.nodes)} nodes, {needed} were enough in {policy.low_reports} reports"
        self._shell.tell(NodesUnneeded(tuple(node.name for node in loads[:spare]), why))

    def provide_nodes(self, needed: int = 0) -> None:
        """So many are needed now: those that stand by are there, others are asked for, as far as the job may grow."""
        now, pool = time.monotonic(), self._pool
        if needed:
            pool.request(now, needed)
        room = self._max_nodes - len(self._shell.coordinator.standing.nodes) - pool.coming
        count = min(pool.wanted(now), room)
        if count <= 0:
            return
        given = self._shell.cluster.grow(count)
        if given:
            pool.ordered(now, count)
        self._shell.note("nodes wanted", {"count": count, "given": given, "most": self._max_nodes})

    def heard(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "nodes released":
            self._pool.lost(event["nodes"])
        if self._elastic is not None:
            self._elastic.hear(event, self._shell.coordinator.shape, time.monotonic())

    def worked(self, reports: Iterable[Report]) -> None:
        if self._elastic is not None:
            self._elastic.worked(reports)

    def moved(self, lost: Sequence[str], joined: Sequence[str]) -> None:
        """Nodes that went and came; of those that came as many as were asked for."""
        self._pool.lost(lost)
        if self._pool.coming:
            self._pool.arrived(time.monotonic(), joined)


def _number(node: str) -> int:
    """Younger nodes have higher numbers."""
    digits = node.rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def elastic_by(policy: Elasticity, coordinator: Coordinator, nodes: int, max_nodes: int) -> Elastic:
    """The policy at work. Usually a node carries as many tasks that can be scaled as it does at the start."""
    able = coordinator.scaling.scalable
    if not able:
        raise Invalid("elastic: no operator of this pipeline can be scaled; keyed ones between full streams can")
    if not isinstance(policy, Policy):
        tasks = sum(coordinator.topology.operator[name].parallelism for name in able)
        usual = {"max_nodes": max_nodes, "tasks_per_node": max(1, -(-tasks // nodes))}
        policy = Policy(**{**usual, **({} if isinstance(policy, bool) else policy)})
    return Elastic(coordinator.declared, able, policy, coordinator.shape, time.monotonic())


def standby(pool: int, nodes: int, max_nodes: int) -> Pool:
    """At least so many stand by, more when many are asked for; none, if none are wanted."""
    return Pool(PoolPolicy(least=pool, most=max_nodes - nodes if pool else 0))
