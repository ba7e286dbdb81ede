"""What structure-aware chooses among: local trees, one for each segment, completed within its sub-topology.

A local tree is a segment with the connected segments that it needs to carry data from the edge of its sub-topology to
the other edge (paper 000, algorithm 1, lines 9-15). In a full sub-topology each task is its own local tree (algorithm
2). A candidate is a local tree, with a first one for every sub-topology on the way that has none yet (algorithm 3,
lines 3-8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from holdfast.replication.completion import TIE, Completion, Routes
from holdfast.replication.decomposition import Segment, SubTopology, decompose
from holdfast.replication.problem import Bools, Floats, Problem
from holdfast.topology import Stream, Topology


@dataclass(frozen=True, slots=True)
class Part:
    """A sub-topology of one query: which local trees (rows of the pool) are its own, and for a full one by operator."""

    groups: tuple[tuple[int, ...], ...]
    """Of each group at least one local tree is needed: one group if structured, one for each operator if full."""


class Candidates:
    """The pool of local trees of all queries, and the candidates that they make for a given plan."""

    def __init__(self, problem: Problem) -> None:
        topology = problem.topology
        self._costs = topology.costs
        self._mean_cost = float(topology.costs.mean())
        self._at_risk = problem.at_risk
        self._routes = Routes(topology)
        _, lost = problem.flow.worths(np.ones(len(topology.tasks)))
        self._merit = lost[:, 0]
        self._densities: dict[Segment, float] = {}
        pool: dict[Segment, int] = {}
        self._queries: list[tuple[Part, ...]] = []
        for query in topology.queries:
            parts = []
            for part in decompose(topology, query.sink):
                groups = _local_trees(topology, part, query.sink, self._density)
                parts.append(Part(tuple(tuple(pool.setdefault(t, len(pool)) for t in group) for group in groups)))
            self._queries.append(tuple(parts))
        self._trees = list(pool)
        self._matrix = _incidence(self._trees, len(topology.tasks))
        self._value = np.array([self._merit[list(tree)].min() for tree in self._trees])
        self._ranked = [
            [[sorted(group, key=lambda row: -self._rank(row)) for group in part.groups] for part in parts]
            for parts in self._queries
        ]
        self._rows = [
            np.array(sorted({row for part in parts for group in part.groups for row in group}), np.int64)
            for parts in self._queries
        ]

    def _density(self, tree: Segment) -> float:
        """How much of the answer passes, at most, for each unit of cost: decides between connected segments."""
        known = self._densities.get(tree)
        if known is None:
            places = list(tree)
            known = float(self._merit[places].min() / max(self._costs[places].sum(), 1e-12))
            self._densities[tree] = known
        return known

    def _rank(self, row: int) -> float:
        return self._density(self._trees[row])

    def extensions(self, plan: Bools, most: int) -> Bools:
        """The most promising candidates as plans, columns of [tasks, candidates]; each contains the given plan."""
        lacking = np.where(plan, 0.0, 1.0)
        missing = self._matrix @ lacking
        price = self._matrix @ (lacking * self._costs)
        found: list[Bools] = [self._whole_trees(plan, most)]
        for rows, ranked in zip(self._rows, self._ranked, strict=True):
            starters = self._starters(ranked, missing)
            open_rows = rows[missing[rows] > 0]
            if starters is None or not len(open_rows):
                continue
            with_starters = plan.copy()
            with_starters[starters] = True
            extra = float(self._costs[with_starters & ~plan].sum())
            score = self._value[open_rows] / (price[open_rows] + extra + 1e-12)
            best = open_rows[np.argsort(-score, kind="stable")[:most]]
            extended = np.repeat(with_starters[:, np.newaxis], len(best), axis=1)
            extended |= self._matrix[best].toarray().T > 0
            found.append(extended)
        return np.concatenate(found, axis=1)

    def _whole_trees(self, plan: Bools, most: int) -> Bools:
        """Complete trees through the tasks where most of the answer passes for what is left to pay."""
        owed = ~plan & self._at_risk
        bias = TIE * (1.0 - self._merit / max(float(self._merit.max()), 1e-300))
        completion = Completion(self._routes, np.where(owed, self._costs + bias * self._mean_cost, 0.0))
        open_tasks = np.flatnonzero(owed & (self._merit > 0) & np.isfinite(completion.through))
        score = self._merit[open_tasks] / np.maximum(completion.through[open_tasks], 1e-12)
        best = open_tasks[np.argsort(-score, kind="stable")[:most]]
        extended = np.repeat(plan[:, np.newaxis], len(best), axis=1)
        for column, place in enumerate(best.tolist()):
            extended[completion.tree(place), column] = True
        return extended & self._at_risk[:, np.newaxis]

    def _starters(self, ranked: Sequence[Sequence[Sequence[int]]], missing: Floats) -> list[int] | None:
        """Tasks of the best local tree for each group of this query that has none in the plan."""
        tasks: list[int] = []
        for part in ranked:
            for group in part:
                if not group:
                    return None
                if all(missing[row] > 0 for row in group):
                    tasks += self._trees[group[0]]
        return tasks


def _local_trees(
    topology: Topology, part: SubTopology, sink: str, density: Callable[[Segment], float]
) -> list[list[Segment]]:
    """The local trees of a sub-topology, in groups of which one tree each is needed."""
    if part.kind == "full":
        spans = [topology.span[name] for name in part.operators]
        return [[(place,) for place in range(span.start, span.stop)] for span in spans]
    completion = _Completion(topology, part, sink, density)
    trees = {completion.of(segment): None for unit in part.units for segment in unit.segments}
    return [list(trees)]


class _Completion:
    """Completes segments of a structured sub-topology over the streams that join its units."""

    def __init__(self, topology: Topology, part: SubTopology, sink: str, density: Callable[[Segment], float]) -> None:
        self._topology = topology
        self._density = density
        wanted = topology.upstream_of(sink)
        self._links_into: dict[str, list[Stream]] = {}
        self._links_out: dict[str, list[Stream]] = {}
        for link in part.links:
            self._links_into.setdefault(link.target, []).append(link)
            self._links_out.setdefault(link.source, []).append(link)
        leaving = {s.source for s in topology.streams if s.partitioning == "full" and s.target in wanted}
        self._outputs = leaving | {sink} | {name for name in part.operators if name not in self._links_out}
        self._ending: dict[int, list[Segment]] = {}
        self._holding: dict[int, list[Segment]] = {}
        for unit in part.units:
            for segment in sorted(unit.segments, key=density, reverse=True):
                self._ending.setdefault(segment[-1], []).append(segment)
                for place in segment:
                    self._holding.setdefault(place, []).append(segment)

    def of(self, segment: Segment) -> Segment:
        """The segment with the best connected segments that it needs, upstream and down."""
        tree: set[int] = set()
        waiting = [segment]
        end = segment
        while self._topology.tasks[end[-1]].operator not in self._outputs:
            end = self._onward(end[-1])
            waiting.append(end)
        while waiting:
            for place in waiting.pop():
                if place not in tree:
                    tree.add(place)
                    waiting += self._needed(place, tree)
        return tuple(sorted(tree))

    def _onward(self, place: int) -> Segment:
        """The best segment that takes in what this task sends over a link."""
        task = self._topology.tasks[place]
        choices = [
            segment
            for link in self._links_out[task.operator]
            for number in self._topology.receivers(link, task.number)
            for segment in self._holding[self._topology.span[link.target].start + number]
        ]
        return max(choices, key=self._density)

    def _needed(self, place: int, tree: set[int]) -> list[Segment]:
        """Segments that must end in a sender of this task: one for each link of a join, one in all for a union."""
        task = self._topology.tasks[place]
        links = self._links_into.get(task.operator, [])
        join = self._topology.operator[task.operator].inputs == "correlated"
        if not join and len(links) < len(self._topology.inputs_of(task.operator)):
            return []  # another input, inside the unit or from outside the sub-topology, feeds it already
        best = []
        for link in links:
            start = self._topology.span[link.source].start
            senders = [start + number for number in self._topology.senders(link, task.number)]
            if not tree.intersection(senders):
                best.append(max((self._ending[sender][0] for sender in senders), key=self._density))
            elif not join:
                return []
        return best if join or not best else [max(best, key=self._density)]


def _incidence(trees: Sequence[Segment], tasks: int) -> csr_array:
    pointers = np.concatenate([[0], np.cumsum([len(tree) for tree in trees])])
    places = np.array([place for tree in trees for place in tree], np.int64)
    return csr_array((np.ones(len(places)), places, pointers), shape=(len(trees), tasks))
