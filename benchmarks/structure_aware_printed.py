"""The structure-aware algorithm as paper 000 prints it (algorithms 1-3), for benchmarks/replication.py.

It extends one plan by the densest candidate until nothing more fits, and revises no choice. Sub-topologies, units and
segments are those of `holdfast.replication.decompose`. Where the printed text is silent or contradicts itself, the
reading with the better plan is taken:

- Algorithm 1 line 13 compares with the budget that is left; algorithm 3 line 16 is a comparison.
- A segment that alone exceeds the budget left is no candidate, and a candidate without gain is not chosen.
- Among connected segments of equal fidelity (line 12), the one that costs least is taken.
- Lines 3-8 of algorithm 3 do not look at the budget: the first plans of a query's sub-topologies are taken together,
  if they fit. With several queries, the query whose first plans gain most for their cost comes first.
- Gains of all sub-topologies are computed again after each choice, not only that of the chosen one (line 15).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from holdfast.fidelity.loss import shares
from holdfast.replication import Assume, ReplicationPlan, SubTopology, decompose
from holdfast.replication.problem import Bools, Floats, Problem
from holdfast.topology import Query, Topology


def printed(topology: Topology, budget: float, assume: Assume = "all") -> ReplicationPlan:
    """Algorithm 3, and section 4.4 for several queries."""
    problem = Problem(topology, budget, assume)
    waiting = [[_part(problem, query, part) for part in decompose(topology, query.sink)] for query in topology.queries]
    started: list[_Part] = []
    plan = np.zeros(len(topology.tasks), np.bool_)
    while True:
        room = problem.limit - problem.cost(plan)
        first = [_first(parts, plan, room) for parts in waiting]
        steps = [part.step(plan, room) for part in started]
        best = _densest(problem, plan, [each for each in (*first, *steps) if each is not None])
        if best is None:
            return problem.plan("printed", plan)
        for number in reversed(range(len(waiting))):
            if first[number] is best:
                started += waiting.pop(number)
        plan = best


def _first(parts: list[_Part], plan: Bools, room: float) -> Bools | None:
    """Algorithm 3, lines 3-8: the plan with a first plan for every sub-topology of a query; None if they do not fit."""
    for part in parts:
        grown = part.step(plan, room)
        if grown is None and not part.carries(plan):
            return None
        if not part.carries(plan) and grown is not None:
            room -= part.problem.cost(grown & ~plan)
            plan = grown
    return plan


def _densest(problem: Problem, plan: Bools, extended: list[Bools]) -> Bools | None:
    """The plan with the greatest gain for its cost; None where none gains."""
    if not extended:
        return None
    values = problem.values(np.stack([plan, *extended], axis=1))
    gains = values[1:] - values[0]
    costs = np.array([problem.cost(each & ~plan) for each in extended])
    density = np.where(gains > 1e-12, gains / np.maximum(costs, 1e-12), 0.0)
    return extended[int(np.argmax(density))] if density.max() > 0 else None


class _Part:
    """A sub-topology of a query. Inside it a plan is worth the query's fidelity while everything outside is alive."""

    def __init__(self, problem: Problem, query: Query, part: SubTopology) -> None:
        self.problem = problem
        sink = problem.topology.span[query.sink]
        self.output = np.zeros(problem.flow.size)
        self.output[sink] = shares(problem.topology.rates[sink])
        self.spans = [problem.topology.span[name] for name in part.operators]
        self.outside = np.ones(len(problem.topology.tasks), np.bool_)
        for span in self.spans:
            self.outside[span] = False
        self.nothing = float(self.fidelity(self.outside)[0])

    def fidelity(self, alive: Bools) -> Floats:
        return np.asarray(self.output @ self.problem.flow.survivals(alive)[0])

    def values(self, plans: Bools) -> Floats:
        return self.fidelity(plans | self.outside[:, np.newaxis])

    def carries(self, plan: Bools) -> bool:
        return bool(self.values(plan[:, np.newaxis])[0] > self.nothing + 1e-12)

    def step(self, plan: Bools, room: float) -> Bools | None:
        """The plan extended once; None where nothing fits or gains."""
        raise NotImplementedError


class _Full(_Part):
    """Algorithm 2."""

    def __init__(self, problem: Problem, query: Query, part: SubTopology) -> None:
        super().__init__(problem, query, part)
        self.ranked = [self._ranked(span) for span in self.spans]

    def _ranked(self, span: slice) -> list[int]:
        """Tasks of an operator by their gain while its others are failed and other operators are alive (line 2)."""
        places = np.arange(span.start, span.stop)
        alive = np.ones((len(self.outside), len(places)), np.bool_)
        alive[span] = np.eye(len(places), dtype=np.bool_)
        return [int(place) for place in places[np.argsort(-self.fidelity(alive), kind="stable")]]

    def step(self, plan: Bools, room: float) -> Bools | None:
        costs = self.problem.topology.costs
        lacking = [ranked[0] for ranked in self.ranked if not plan[ranked].any()]
        if lacking:
            grown = plan.copy()
            grown[lacking] = True
            return grown if costs[lacking].sum() <= room else None
        open_ranked = [[p for p in ranked if not plan[p] and costs[p] <= room] for ranked in self.ranked]
        places = [places[0] for places in open_ranked if places]
        if not places:
            return None
        plans = np.repeat(plan[:, np.newaxis], len(places), axis=1)
        plans[places, range(len(places))] = True
        return np.asarray(plans[:, int(np.argmax(self.values(plans)))])


class _Structured(_Part):
    """Algorithm 1, one expansion a call (line 19)."""

    def __init__(self, problem: Problem, query: Query, part: SubTopology) -> None:
        super().__init__(problem, query, part)
        topology = problem.topology
        self.units = [[np.array(segment, np.int64) for segment in unit.segments] for unit in part.units]
        unit_of = {name: number for number, unit in enumerate(part.units) for name in unit.operators}
        self.beside: list[list[int]] = [[] for _ in self.units]
        self.linked = np.zeros((len(self.outside), len(self.outside)), np.bool_)
        for link in part.links:
            ends = unit_of[link.source], unit_of[link.target]
            for one, other in (ends, ends[::-1]):
                if other != one and other not in self.beside[one]:
                    self.beside[one].append(other)
            sources, targets = topology.span[link.source].start, topology.span[link.target].start
            for number in range(topology.operator[link.target].parallelism):
                for sender in topology.senders(link, number):
                    self.linked[sources + sender, targets + number] = True
                    self.linked[targets + number, sources + sender] = True
        self.alone = [
            self._alone(segments, unit.operators) for segments, unit in zip(self.units, part.units, strict=True)
        ]

    def _alone(self, segments: list[np.ndarray], operators: tuple[str, ...]) -> Floats:
        """The fidelity of each segment with its unit as an independent topology (line 12)."""
        alive = np.ones((len(self.outside), len(segments)), np.bool_)
        for name in operators:
            alive[self.problem.topology.span[name]] = False
        for column, segment in enumerate(segments):
            alive[segment, column] = True
        return np.round(self.fidelity(alive), 12)

    def step(self, plan: Bools, room: float) -> Bools | None:
        candidates = list(self._candidates(plan, room))
        values = self.values(np.stack([plan, *candidates], axis=1)) if candidates else np.zeros(1)
        costs = [self.problem.cost(each & ~plan) for each in candidates]
        density = [(value - values[0]) / max(cost, 1e-12) for value, cost in zip(values[1:], costs, strict=True)]
        best = max(range(len(density)), key=density.__getitem__, default=None)
        return candidates[best] if best is not None and values[1 + best] > values[0] + 1e-12 else None

    def _candidates(self, plan: Bools, room: float) -> Iterator[Bools]:
        """Lines 6-15: a segment that gains alone, or the connected segments of the units around it."""
        base = float(self.values(plan[:, np.newaxis])[0])
        for unit, segments in enumerate(self.units):
            open_segments = [s for s in segments if not plan[s].all()]
            grown = np.repeat(plan[:, np.newaxis], len(open_segments), axis=1)
            for column, segment in enumerate(open_segments):
                grown[segment, column] = True
            for column, value in enumerate(self.values(grown)):
                candidate = grown[:, column].copy()
                if self.problem.cost(candidate & ~plan) > room:
                    continue
                if value <= base + 1e-12:
                    self._walk(candidate, plan, unit, open_segments[column], room)
                yield candidate

    def _walk(self, candidate: Bools, plan: Bools, start: int, segment: np.ndarray, room: float) -> None:
        """Lines 10-15: breadth-first over the units, from each the best segment connected with those chosen."""
        reached = self.linked[segment].any(axis=0)
        seen, waiting = {start}, deque(self.beside[start])
        while waiting:
            unit = waiting.popleft()
            if unit in seen:
                continue
            seen.add(unit)
            waiting += self.beside[unit]
            best = self._best_connected(unit, reached, candidate)
            if best is None:
                continue
            grown = candidate.copy()
            grown[best] = True
            if self.problem.cost(grown & ~plan) > room:
                return
            candidate |= grown
            reached |= self.linked[best].any(axis=0)

    def _best_connected(self, unit: int, reached: Bools, candidate: Bools) -> np.ndarray | None:
        costs, segments = self.problem.topology.costs, self.units[unit]
        found = [number for number, segment in enumerate(segments) if reached[segment].any()]
        if not found:
            return None
        best = min(found, key=lambda n: (-self.alone[unit][n], costs[segments[n]] @ ~candidate[segments[n]]))
        return segments[best]


def _part(problem: Problem, query: Query, part: SubTopology) -> _Part:
    return (_Full if part.kind == "full" else _Structured)(problem, query, part)
