"""incremental: the best average fidelity while recovering (INC of paper 000, section 5).

A candidate is the lightest set of failed tasks that completes a minimal complete tree through some failed task. In a
sub-topology without a live tree it spans all that is dead, so connecting comes first; in a full one with live operators
it is a single task. Within a sub-topology candidates are ranked by gain / sum(cost / f), across them by gain / cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.fidelity import trees_through
from holdfast.placement import affords
from holdfast.recovery.completions import completions
from holdfast.recovery.demand import Floats, Ints, demand, plan_for
from holdfast.recovery.frontier import Frontier
from holdfast.recovery.plan import RecoveryPlan
from holdfast.recovery.survival import marginals, values
from holdfast.replication.decomposition import decompose
from holdfast.topology import Task, Topology

NAME = "incremental"
ROUNDS = 200
"""Gains are measured anew after each candidate as long as that takes no more than about this many rounds."""
PASSES = 10_000
"""Rounds x operators: with more than 50 operators rounds are fewer and spend more before gains are measured anew."""
SHORTLIST = 96
"""At least so many candidates are measured in a round, and enough to spend what a round is to spend."""

ROUNDING = 1e-12

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Candidate:
    tasks: tuple[int, ...]
    parts: frozenset[int]
    gain: float
    cost: float
    weight: float

    @property
    def density(self) -> float:
        return self.gain / max(self.cost, 1e-300)


@dataclass(frozen=True, slots=True)
class _Setting:
    """What does not change while one plan is made."""

    topology: Topology
    part_of: Ints
    """The sub-topology of each task."""
    charges: Floats
    """cost / f of each task, f = how many minimal complete trees run through it: all are failed when it is."""
    reach: Floats
    """What the objective loses at most when the task fails alone."""
    pricings: tuple[Floats, ...]
    """What trees must be light in: cost / f, and cost / (f x reach), which prefers the tasks that carry much."""
    portion: float
    """What a round is to spend before gains are measured anew, in units of cost."""
    listed: int


def incremental(topology: Topology, failed: frozenset[Task], capacity: float, more: bool = False) -> RecoveryPlan:
    """Spend on the best candidate, again and again; what buys no gain yet is left for the next arrival.

    When ``more`` is to come, one that is too dear for now but gains more for its cost than all others is saved for: to
    raise an average over time the best gain / cost goes first, as in Smith's rule for jobs on a machine.
    """
    lost = topology.mask(failed)
    if affords(capacity, float(topology.costs[lost].sum())):
        chosen = [int(place) for place in np.flatnonzero(lost)]
    else:
        chosen = _choose(_setting(topology, lost), lost.copy(), capacity, more)
    return plan_for(topology, demand(topology, failed), capacity, NAME, chosen)


def _choose(setting: _Setting, lost: Mask, capacity: float, more: bool) -> list[int]:
    chosen: list[int] = []
    left = capacity
    while candidates := _candidates(setting, lost, left, more):
        for pick in list(_picks(candidates, left, setting.portion)):
            lost[list(pick.tasks)] = False
            left -= pick.cost
            chosen += pick.tasks
    now, most = values(setting.topology, np.stack([lost, np.zeros_like(lost)]))
    if now >= most * (1 - ROUNDING):
        chosen += _worthless(setting.topology, lost, left)
    return chosen


def _candidates(setting: _Setting, lost: Mask, left: float, more: bool) -> list[_Candidate]:
    """Affordable candidates that gain something; by plain cost, the cheapest, when the favoured ones are too dear.

    None when ``more`` is to come and one that is too dear for now is worth saving for.
    """
    aim = 0.0
    for pricing in (setting.pricings, (setting.topology.costs,)):
        sets: dict[tuple[int, ...], None] = {}
        for charges in pricing:
            trees = completions(setting.topology, np.where(lost, charges, 0.0))
            anchors = np.flatnonzero(lost & np.isfinite(trees.weight))
            if len(anchors) > setting.listed:
                anchors = _shortlist(setting, lost, anchors, trees.weight[anchors], charges[anchors])
            sets |= dict.fromkeys(trees.through(place, lost) for place in anchors.tolist())
        costs = setting.topology.costs
        found = _measured(
            setting, lost, [tasks for tasks in sets if more or affords(left, float(costs[list(tasks)].sum()))]
        )
        affordable = [candidate for candidate in found if affords(left, candidate.cost)]
        if more and found:
            aim = max(aim, next(_picks(found, math.inf, 0.0)).density)
        if affordable:
            best = next(_picks(affordable, left, 0.0))
            return affordable if best.density >= aim * (1 - ROUNDING) else []
    return []


def _shortlist(setting: _Setting, lost: Mask, anchors: Ints, weights: Floats, charges: Floats) -> Ints:
    """The most promising: half lone tasks, whose gain is known, half trees, of which only a bound of the gain is."""
    alone = weights <= charges * (1 + 1e-9)
    worth = np.where(alone, marginals(setting.topology, lost)[anchors], setting.reach[anchors])
    order = np.argsort(-worth / np.maximum(weights, 1e-12), kind="stable")
    lone, trees = order[alone[order]], order[~alone[order]]
    half = setting.listed // 2
    return np.asarray(anchors[np.concatenate([lone[:half], trees[:half]])], np.int64)


def _measured(setting: _Setting, lost: Mask, sets: list[tuple[int, ...]]) -> list[_Candidate]:
    if not sets:
        return []
    after = np.repeat(lost[np.newaxis], len(sets) + 1, axis=0)
    for row, tasks in enumerate(sets):
        after[row, list(tasks)] = False
    worth = values(setting.topology, after)
    found = []
    for tasks, value in zip(sets, worth[:-1], strict=True):
        gain = float(value - worth[-1])
        if gain > value * ROUNDING:
            places = list(tasks)
            cost, weight = float(setting.topology.costs[places].sum()), float(setting.charges[places].sum())
            found.append(_Candidate(tasks, frozenset(setting.part_of[places].tolist()), gain, cost, weight))
    return found


def _picks(candidates: list[_Candidate], left: float, portion: float) -> Iterator[_Candidate]:
    """What to take of these before gains are measured anew: the best, and on until this portion is spent.

    The best of each sub-topology is that with the highest gain / sum(cost / f), the best of those by gain / cost.
    """
    queues: dict[int, list[_Candidate]] = {}
    for candidate in sorted(candidates, key=lambda c: c.gain / max(c.weight, 1e-300)):
        for part in candidate.parts:
            queues.setdefault(part, []).append(candidate)
    taken: set[int] = set()
    spent = 0.0
    while queues and spent <= portion:
        for part in list(queues):
            queue = queues[part]
            while queue and not (taken.isdisjoint(queue[-1].tasks) and affords(left - spent, queue[-1].cost)):
                queue.pop()
            if not queue:
                del queues[part]
        if queues:
            best = max((queue[-1] for queue in queues.values()), key=lambda c: (c.density, c.gain))
            taken.update(best.tasks)
            spent += best.cost
            yield best


def _setting(topology: Topology, lost: Mask) -> _Setting:
    part_of = np.zeros(len(topology.tasks), np.int64)
    for number, part in enumerate(decompose(topology)):
        for name in part.operators:
            part_of[topology.span[name]] = number
    through = trees_through(topology)
    most = max(through)
    shared = np.array([count / most if count else 1.0 for count in through])
    reach = marginals(topology, np.zeros_like(lost))
    rounds = max(10, min(ROUNDS, PASSES // len(topology.operators)))
    portion = float(topology.costs[lost].sum()) / rounds if int(lost.sum()) > rounds else 0.0
    listed = max(SHORTLIST, int(lost.sum()) // rounds)
    charges = topology.costs / shared
    carried = np.maximum(reach / (reach.max() or 1.0), 1e-12)
    return _Setting(topology, part_of, charges, reach, (charges, charges / carried), portion, listed)


def _worthless(topology: Topology, lost: Mask, left: float) -> list[int]:
    """When fidelity can rise no more: the tasks that add nothing to it, upstream first, while they fit."""
    frontier = Frontier(topology, (int(place) for place in np.flatnonzero(lost)))
    waiting, chosen = frontier.ready, []
    for place in waiting:
        cost = float(topology.costs[place])
        if affords(left, cost):
            left -= cost
            chosen.append(place)
            waiting += frontier.recover(place)
    return chosen
