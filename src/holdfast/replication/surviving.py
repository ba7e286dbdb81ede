"""Replicas planned together with where they live: the most that is left whichever k nodes, or one domain, are lost.

As structure-aware does, every level of cost keeps the best placing found for it: first coming down from a replica for
every task, then climbing by single replicas and by trees made whole for the worst losses. What a level holds does not
depend on the budget, so more budget is not worse where there is a level for every number of replicas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import ArrayLike

from holdfast.errors import Infeasible, Invalid
from holdfast.fidelity import Stale
from holdfast.placement import Node, place, standing
from holdfast.replication.climb import Climb
from holdfast.replication.exposure import NOWHERE, Bools, Exposure, Ints
from holdfast.replication.floor import (
    Floor,
    Standings,
    Survive,
    checked_stale,
    checked_survive,
    domain_sets,
    floor,
    node_sets,
)
from holdfast.replication.moves import GAIN
from holdfast.topology import Task, Topology

SETS = 128
"""So many losses are planned for at once; where there are more, those that turn out worst."""
ROUNDS = 3
ADDED = 32
"""So often the worst losses of a plan, and so many of them, are added to those planned for, where not all are."""
WORTH_MOVING = 0.01
"""Replicas that are there are left as they are, but for what a floor higher by so much asks for."""


@dataclass(frozen=True, slots=True)
class SurvivingPlan:
    """``replicas``: the node of each task's replica. ``placement``: the nodes of each task's copies, primary first."""

    budget: float
    cost: float
    survive: Survive
    replicas: Mapping[Task, str]
    placement: Mapping[Task, tuple[str, ...]]
    floor: Floor


def plan_surviving(
    topology: Topology,
    budget: float,
    nodes: Sequence[Node | str],
    survive: Survive,
    primaries: Mapping[Task, str] | None = None,
    *,
    stale: ArrayLike | Stale = 1.0,
    keep: Mapping[Task, str] | None = None,
) -> SurvivingPlan:
    """Which tasks to replicate within this budget and on which nodes, so that the floor is high. Not proven optimal.

    ``primaries``: the node of each task that can be lost; by default every task but the sources', by worst fit, as a
    running job places them. A node's ``load`` is what it carries besides these tasks. A replica is never in its
    primary's domain where there is another. ``keep``: replicas that are there already, which stay unless the floor
    gains by a move.
    """
    if not math.isfinite(budget) or budget < 0:
        raise Invalid(f"budget must be a finite number, 0 or more, got {budget!r}")
    live = standing(nodes, 1.0 + 4.0 * float(topology.costs.sum()))
    if not live:
        raise Invalid("nodes: at least one is needed, got none")
    if survive != "domain":
        checked_survive(survive)
    homes = dict(primaries) if primaries is not None else _worst_fit(topology, live)
    planning = _Planning(topology, float(budget), live, survive, homes, checked_stale(topology, stale))
    return planning.plan(keep or {})


def _worst_fit(topology: Topology, nodes: Sequence[Node]) -> dict[Task, str]:
    tasks = [task for task in topology.tasks if topology.inputs_of(task.operator)]
    placed = place(topology, tasks, nodes, ceiling=1.0)
    if placed.unplaced:
        raise Infeasible(f"nodes: no room for {len(placed.unplaced)} of {len(tasks)} tasks, first {placed.unplaced[0]}")
    return dict(placed.nodes)


class _Planning:
    """One question, with tasks and nodes as numbers."""

    def __init__(
        self,
        topology: Topology,
        budget: float,
        nodes: Sequence[Node],
        survive: Survive,
        homes: Mapping[Task, str],
        stale: Stale,
    ) -> None:
        self.topology, self.budget, self.nodes, self.survive, self.homes = topology, budget, nodes, survive, homes
        self.stale = stale
        self.limit = budget + 1e-9 * max(1.0, budget)
        self.home = self._placing(homes, "primary")

    def _placing(self, where: Mapping[Task, str], what: str) -> Ints:
        number = {node.name: place for place, node in enumerate(self.nodes)}
        placing = np.full(len(self.topology.tasks), NOWHERE)
        for task, name in where.items():
            if task not in self.topology.index:
                raise Invalid(f"{what} of {task}: unknown task")
            if name not in number:
                raise Invalid(f"{what} of {task}: lives on {name}, which is none of the {len(self.nodes)} nodes")
            placing[self.topology.index[task]] = number[name]
        return placing

    def plan(self, keep: Mapping[Task, str]) -> SurvivingPlan:
        there = {task: name for task, name in keep.items() if name in {node.name for node in self.nodes}}
        kept = self._placing(there, "replica")
        sets, complete = self._losses()
        best: SurvivingPlan | None = None
        for _ in range(ROUNDS):
            exposure = Exposure(self.topology, self.nodes, self.home, sets.T, self.stale)
            found = self._told(self._searched(exposure, kept))
            if best is None or found.floor.bound > best.floor.bound + GAIN:
                best = found
            if complete or not len(more := _unknown(self._around(found), sets)):
                break
            sets = np.concatenate([sets, more])
        assert best is not None
        return best

    def _losses(self) -> tuple[Bools, bool]:
        """The losses to plan for, [sets, nodes], and whether these are all that count."""
        count = len(self.nodes)
        if self.survive == "domain":
            return domain_sets(self.nodes), True
        lost = min(self.survive, count)
        if comb(count, lost) <= SETS:
            return node_sets(count, range(count), lost), True
        carried = np.bincount(self.home[self.home >= 0], minlength=count)
        ranked = np.argsort(-carried, kind="stable").tolist()
        most = max(size for size in range(lost, count) if comb(size, lost) <= SETS)
        return node_sets(count, sorted(ranked[:most]), lost), False

    def _around(self, found: SurvivingPlan) -> Bools:
        """The worst loss of a plan, and the worst of those that differ from it in one node."""
        lost = np.array([node.name in found.floor.worst for node in self.nodes])
        rows = [lost]
        for gone in np.flatnonzero(lost):
            for other in np.flatnonzero(~lost):
                rows.append(lost.copy())
                rows[-1][[gone, other]] = False, True
        around = np.array(rows)
        standings = Standings(self.topology, found.placement, self.nodes, self.stale)
        left = standings.values(standings.failed(around))
        return around[np.argsort(left, kind="stable")[:ADDED]]

    def _told(self, placing: Ints) -> SurvivingPlan:
        names = [node.name for node in self.nodes]
        tasks = zip(self.topology.tasks, placing.tolist(), strict=True)
        replicas = {task: names[node] for task, node in tasks if node >= 0}
        placement = {
            task: (self.homes[task], replicas[task]) if task in replicas else (self.homes[task],)
            for task in self.topology.tasks
            if task in self.homes
        }
        least = floor(self.topology, placement, self.nodes, self.survive, self.stale)
        cost = round(float(self.topology.costs[placing >= 0].sum()), 9)
        return SurvivingPlan(self.budget, cost, self.survive, replicas, placement, least)

    def _searched(self, exposure: Exposure, kept: Ints) -> Ints:
        """The best placing found; what is there already wins unless another is worth its moves."""
        climb = Climb(exposure, self.limit)
        best = climb.best()
        kept = np.where(exposure.allowed[np.arange(len(kept)), kept], kept, NOWHERE)
        if (kept >= 0).any() and exposure.fits(kept[np.newaxis])[0]:
            near = climb.from_there(kept)
            if climb.standing(best)[0] < climb.standing(near)[0] + WORTH_MOVING:
                return near
        return best


def _unknown(sets: Bools, known: Bools) -> Bools:
    """Those of the sets that are not known yet."""
    held = {row.tobytes() for row in known}
    return sets[[row.tobytes() not in held for row in sets]]
