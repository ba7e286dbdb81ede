"""The floor: the least that is left of the answer whichever k nodes, or whichever one domain, are lost.

Pure. A task is lost when all nodes of its copies are. Up to some thousands of sets every one is looked at; above, the
worst is searched for, and what the search could not rule out is said as a bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, triu

from holdfast.errors import Invalid
from holdfast.fidelity import Stale, objectives, priorities, stale_of
from holdfast.placement import Node, standing
from holdfast.topology import Task, Topology

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Survive = int | Literal["domain"]

ENUMERATED = 5_000
"""So many sets of nodes are looked at one by one; where there are more, the worst is searched for."""
EXPLORED = 20_000
"""So many sets of nodes a search may look at."""
BATCH = 2_000_000
"""Most cells of one evaluation, tasks x sets."""
DIGITS = 12


@dataclass(frozen=True, slots=True)
class Floor:
    """``fidelity``: the smallest found, when the nodes in ``worst`` are lost; ``sets``: how many were looked at.

    ``bound``: proven, no loss that was asked about leaves less. It equals ``fidelity`` unless a search ended early.
    """

    fidelity: float
    worst: frozenset[str]
    bound: float
    sets: int

    @property
    def exact(self) -> bool:
        return self.bound >= self.fidelity


def floor(
    topology: Topology,
    placement: Mapping[Task, Sequence[str]],
    nodes: Sequence[Node | str],
    survive: Survive,
    stale: ArrayLike | Stale = 1.0,
    *,
    enumerated: int = ENUMERATED,
    explored: int = EXPLORED,
) -> Floor:
    """The smallest fidelity over every loss of ``survive`` nodes, or with "domain" of all nodes of any one domain.

    ``placement``: the nodes of each task's copies, the primary's first. A task that is not in it never fails; one with
    no copies is down already. ``stale``: what a task loses when all its copies are gone, as `losses` takes it.
    """
    live = standing(nodes)
    standings = Standings(topology, placement, live, stale)
    if survive != "domain" and checked_survive(survive) >= len(live):
        everything = np.ones((1, len(live)), np.bool_)
        return _least(standings, everything)
    if survive == "domain":
        return _least(standings, domain_sets(live))
    used = np.flatnonzero(standings.copies.any(axis=0))
    lost = min(survive, len(used))
    if comb(len(used), lost) <= max(enumerated, 1):
        return _padded(_least(standings, node_sets(len(live), used.tolist(), lost)), live, survive)
    return _padded(_Search(standings, used.tolist(), lost, explored).run(), live, survive)


def checked_survive(survive: Survive) -> int:
    if isinstance(survive, bool | str) or survive < 0:
        raise Invalid(f"survive must be a number of nodes, 0 or more, or domain, got {survive!r}")
    return survive


def node_sets(count: int, among: Sequence[int], lost: int) -> Bools:
    """Every loss of so many of these nodes, shape [sets, nodes]."""
    chosen = np.array(list(combinations(among, lost)), np.int64).reshape(comb(len(among), lost), lost)
    sets = np.zeros((len(chosen), count), np.bool_)
    np.put_along_axis(sets, chosen, True, axis=1)
    return sets


def domain_sets(nodes: Sequence[Node]) -> Bools:
    """The loss of each domain, shape [domains, nodes]."""
    domains = list(dict.fromkeys(node.domain for node in nodes))
    return np.array([[node.domain == domain for node in nodes] for domain in domains], np.bool_).reshape(-1, len(nodes))


class Standings:
    """Where every copy lives, as arrays, and what losses of nodes leave. ``copies``: [tasks, nodes]."""

    def __init__(
        self,
        topology: Topology,
        placement: Mapping[Task, Sequence[str]],
        nodes: Sequence[Node],
        stale: ArrayLike | Stale = 1.0,
    ) -> None:
        self.names = [node.name for node in nodes]
        number = {name: place for place, name in enumerate(self.names)}
        self.copies = np.zeros((len(topology.tasks), len(nodes)), np.bool_)
        for task, homes in placement.items():
            if task not in topology.index:
                raise Invalid(f"placement: unknown task {task}")
            for name in homes:
                if name not in number:
                    raise Invalid(f"placement: {task} lives on {name}, which is none of the {len(nodes)} nodes")
                self.copies[topology.index[task], number[name]] = True
        self.held = csr_array(self.copies, dtype=np.int32)
        """The same: a task has few copies, however many nodes there are."""
        self.placed = topology.mask(placement)
        self.stale = checked_stale(topology, stale)
        self._topology = topology
        self._total = float(priorities(topology).sum())

    def failed(self, lost: Bools) -> Bools:
        """The tasks without a living copy for each set of lost nodes, [sets, tasks]."""
        living = self.held @ (~lost).T.astype(np.int32)
        return np.ascontiguousarray(self.placed & (living.T == 0))

    def values(self, failed: Bools) -> Floats:
        """Fidelity of each failure set; equal ones are evaluated once."""
        _, first, back = np.unique(np.packbits(failed, axis=1), axis=0, return_index=True, return_inverse=True)
        different = failed[first]
        step = max(1, BATCH // failed.shape[1])
        parts = [
            objectives(self._topology, different[start : start + step], self.stale)
            for start in range(0, len(different), step)
        ]
        return np.asarray(np.round(np.concatenate(parts) / self._total, DIGITS)[back.ravel()])


def checked_stale(topology: Topology, stale: ArrayLike | Stale) -> Stale:
    """A loss from 0 to 1 for each task."""
    found = stale_of(stale, len(topology.tasks))
    each = found.loss
    if not ((each >= 0) & (each <= 1)).all():
        raise Invalid(f"stale must be losses from 0 to 1, got {each[~((each >= 0) & (each <= 1))][0]:g}")
    return found


def _least(standings: Standings, sets: Bools) -> Floor:
    values = standings.values(standings.failed(sets))
    worst = int(np.argmin(values))
    least = float(values[worst])
    return Floor(least, _named(standings, np.flatnonzero(sets[worst]).tolist()), least, len(sets))


def _named(standings: Standings, places: Sequence[int]) -> frozenset[str]:
    return frozenset(standings.names[place] for place in places)


def _padded(found: Floor, nodes: Sequence[Node], survive: int) -> Floor:
    """With nodes that carry nothing, so that as many are lost as were asked about."""
    idle = [node.name for node in nodes if node.name not in found.worst]
    return Floor(found.fidelity, found.worst | frozenset(idle[: survive - len(found.worst)]), found.bound, found.sets)


class _Search:
    """Branch and bound for the worst loss of nodes.

    Losses of tasks add up to no less than their joint loss. So what j more nodes can take beyond those lost already is
    at most the sum of what each takes alone, and of what each two take by holding both copies of a task. Where a task
    that failed is gone for good (no ``stale``), a set takes the less the more is lost already, and the sums are of what
    it takes then; otherwise of what it takes where nothing else is lost.
    """

    def __init__(self, standings: Standings, nodes: Sequence[int], lost: int, explored: int) -> None:
        self._standings = standings
        self._nodes, self._lost, self._left = list(nodes), lost, explored
        self._allowed = explored
        self._gone = bool((standings.stale.loss >= 1).all())
        self._pairs = self._of_pairs()
        self._best = np.inf
        self._worst: tuple[int, ...] = ()

    def run(self) -> Floor:
        self._attack()
        least = float(self._values_of([tuple(self._nodes)])[0])
        start = float(self._values_of([()])[0])
        waiting: list[tuple[float, int, tuple[int, ...], tuple[int, ...], float]]
        waiting = [(least, 0, (), tuple(self._nodes), start)]
        told = 0
        while waiting and waiting[0][0] < self._best and self._left > 0:
            bound, _, lost, rest, value = heapq.heappop(waiting)
            for child_bound, child, others, child_value in self._children(bound, lost, rest, value):
                told += 1
                heapq.heappush(waiting, (child_bound, told, child, others, child_value))
        bound = min(self._best, waiting[0][0]) if waiting else self._best
        worst = _named(self._standings, self._worst)
        return Floor(float(self._best), worst, max(float(bound), 0.0), self._allowed - self._left)

    def _children(
        self, bound: float, lost: tuple[int, ...], rest: tuple[int, ...], value: float
    ) -> list[tuple[float, tuple[int, ...], tuple[int, ...], float]]:
        """One for each node of the rest: it is lost too, and those before it are not."""
        more = self._lost - len(lost)
        sets = [(*lost, node) for node in rest]
        values = self._values_of(sets)
        if more == 1:
            self._offer(sets, values)
            return []
        takes = value - values if self._gone else self._alone(lost, sets)
        among = self._pairs[np.ix_(rest, rest)]
        shared = np.sort(among, axis=1)[:, len(rest) - (more - 1) :].sum(axis=1) / 2
        order = np.argsort(-(takes + shared), kind="stable")
        most = (takes + shared)[order]
        sums = np.concatenate([[0.0], np.cumsum(most)])
        found = []
        for place in range(len(rest) - more + 1):
            child_bound = max(bound, round(value - float(sums[place + more] - sums[place]), DIGITS))
            if child_bound < self._best:
                others = tuple(rest[other] for other in order[place + 1 :])
                found.append((child_bound, sets[order[place]], others, float(values[order[place]])))
        return found

    def _alone(self, lost: tuple[int, ...], sets: Sequence[tuple[int, ...]]) -> Floats:
        before = self._failed_of([lost])
        return np.asarray(1.0 - self._standings.values(self._failed_of(sets) & ~before))

    def _of_pairs(self) -> Floats:
        """What the loss of two nodes takes through tasks that have copies on both, [nodes, nodes]."""
        held, each = self._standings.copies, self._standings.held
        first, second = triu(each.T @ each, 1).nonzero()
        failed = np.concatenate([(held[:, first] & held[:, second]).T, np.zeros((1, len(held)), np.bool_)])
        if self._gone:
            failed |= self._failed_of([()])
        values = self._standings.values(failed)
        pairs = np.zeros((held.shape[1], held.shape[1]))
        pairs[first, second] = pairs[second, first] = values[-1] - values[:-1]
        return pairs

    def _attack(self) -> None:
        """A bad loss to begin with: one node after the other, whichever takes most; then others for each of them."""
        lost: tuple[int, ...] = ()
        for _ in range(self._lost):
            sets = [(*lost, node) for node in self._nodes if node not in lost]
            values = self._values_of(sets)
            lost = sets[int(np.argmin(values))]
        self._offer([lost], self._values_of([lost]))
        better = True
        while better and self._left > 0:
            held = self._worst
            outside = [node for node in self._nodes if node not in held]
            sets = [(*held[:place], node, *held[place + 1 :]) for place in range(len(held)) for node in outside]
            better = self._offer(sets, self._values_of(sets))

    def _offer(self, sets: Sequence[tuple[int, ...]], values: Floats) -> bool:
        least = int(np.argmin(values))
        if values[least] < self._best:
            self._best, self._worst = float(values[least]), sets[least]
            return True
        return False

    def _values_of(self, sets: Sequence[tuple[int, ...]]) -> Floats:
        self._left -= len(sets)
        return self._standings.values(self._failed_of(sets))

    def _failed_of(self, sets: Sequence[tuple[int, ...]]) -> Bools:
        lost = np.zeros((len(sets), self._standings.copies.shape[1]), np.bool_)
        for row, places in enumerate(sets):
            lost[row, list(places)] = True
        return self._standings.failed(lost)
