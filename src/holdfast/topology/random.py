"""Seeded random topologies with the knobs of the paper's evaluation (paper 000, section 7.3).

A topology grows upstream from one sink; further queries subscribe to what is there, so that queries share operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from holdfast.errors import Invalid
from holdfast.topology.model import Inputs, Operator, Partitioning, Query, Stream, Task, Topology

Workload = Literal["uniform", "zipf"]
Priorities = Literal["uniform", "rising", "falling"]
Costs = Literal["unit", "workload"]
Range = tuple[int, int]

UNION_SHARE = 0.3
"""How often an operator that is no join has two inputs all the same: a union."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """What random topologies look like. Ranges include both ends.

    ``joins``: share of the operators with inputs that are joins. ``full``: share of the streams that are full, 0 for a
    structured topology, 1 for a full one. ``workload``: tasks of an operator carry equal rates, or rates that fall like
    ``rank ** -skew``. ``priorities``: random from 1 to 10, or rising or falling with what the query's tasks cost.
    ``costs``: 1 for every task, or in proportion to its share of the operator's rate. ``domains``: racks to spread the
    tasks over; 0 for none.
    """

    operators: Range = (5, 10)
    parallelism: Range = (1, 10)
    queries: Range = (1, 1)
    joins: float = 0.0
    full: float = 0.0
    workload: Workload = "uniform"
    skew: float = 0.1
    priorities: Priorities = "uniform"
    costs: Costs = "unit"
    domains: int = 0

    def __post_init__(self) -> None:
        for what in ("operators", "parallelism", "queries"):
            low, high = getattr(self, what)
            if not 1 <= low <= high:
                raise Invalid(f"{what} must be a range from 1 up, such as 5..10, got {low}..{high}")
        for what in ("joins", "full"):
            share = getattr(self, what)
            if not 0 <= share <= 1:
                raise Invalid(f"{what} must be a share from 0 to 1, got {share}")
        if not (math.isfinite(self.skew) and self.skew >= 0):
            raise Invalid(f"skew must be finite and 0 or more, got {self.skew}")
        if self.domains < 0:
            raise Invalid(f"domains must be 0 or more, got {self.domains}")
        for what, known in (("workload", Workload), ("priorities", Priorities), ("costs", Costs)):
            if getattr(self, what) not in get_args(known):
                expected = ", ".join(get_args(known))
                raise Invalid(f"{what} must be one of {expected}, got {getattr(self, what)!r}")
        if self.queries[0] > self.operators[1]:
            raise Invalid(f"queries: {self.queries[0]} at least, but there are {self.operators[1]} operators at most")


@dataclass(slots=True)
class _Growth:
    """The logical graph while it grows: which operators feed which, and which of them are joins or outputs."""

    inputs: list[list[int]] = field(default_factory=list)
    joins: set[int] = field(default_factory=set)
    outputs: list[int] = field(default_factory=list)

    def add(self) -> int:
        self.inputs.append([])
        return len(self.inputs) - 1


def random_topology(seed: int, knobs: Knobs | None = None) -> Topology:
    """The topology of this seed and these knobs: always the same one."""
    if seed < 0:
        raise Invalid(f"seed must be 0 or more, got {seed}")
    knobs = knobs or Knobs()
    draw = np.random.default_rng(seed)
    count = int(draw.integers(knobs.operators[0], knobs.operators[1] + 1))
    queries = min(int(draw.integers(knobs.queries[0], knobs.queries[1] + 1)), count)
    growth = _grown(draw, knobs, count, queries)
    order = _sources_first(growth)
    names = {number: f"O{place + 1}" for place, number in enumerate(order)}
    operators, shares = [], {}
    for number in order:
        parallelism = int(draw.integers(knobs.parallelism[0], knobs.parallelism[1] + 1))
        share = _shares(draw, knobs, parallelism)
        shares[number] = share
        rates = tuple(float(rate) for rate in share * parallelism * float(draw.integers(1, 11)))
        costs = tuple(float(cost) for cost in share * parallelism) if knobs.costs == "workload" else ()
        inputs: Inputs = "correlated" if number in growth.joins else "independent"
        operators.append(Operator(names[number], parallelism, rates, costs, inputs, bool(growth.inputs[number])))
    width = {operator.name: operator.parallelism for operator in operators}
    streams = []
    for number in order:
        for source in growth.inputs[number]:
            name, target = names[source], names[number]
            kind = _partitioning(draw, knobs, width[name], width[target])
            streams.append(Stream(name, target, kind, tuple(float(w) for w in shares[number])))
    sinks = [Query(names[number]) for number in sorted(growth.outputs, key=order.index)]
    plain = Topology(tuple(operators), tuple(streams), tuple(sinks))
    ranked = tuple(Query(query.sink, p) for query, p in zip(plain.queries, _ranks(draw, knobs, plain), strict=True))
    return Topology(plain.operators, plain.streams, ranked, _domains(draw, knobs, plain.tasks))


def _grown(draw: np.random.Generator, knobs: Knobs, count: int, queries: int) -> _Growth:
    growth = _Growth()
    stems = [1 + int(draw.integers(0, 2)) for _ in range(queries - 1)]
    while stems and count - sum(stems) < max(2, count // 3) and max(stems) > 1:
        stems[stems.index(2)] = 1
    _grow(draw, knobs, growth, max(count - sum(stems), 1))
    for length in stems:
        room = count - len(growth.inputs)
        if room <= 0:
            break
        below: int | None = None
        for _ in range(min(length, room)):
            there = [number for number in range(len(growth.inputs)) if number != below]
            chosen, join = _sources_for(draw, knobs, there, below)
            below = growth.add()
            growth.inputs[below] += chosen
            if join:
                growth.joins.add(below)
        growth.outputs.append(len(growth.inputs) - 1)
    return growth


def _grow(draw: np.random.Generator, knobs: Knobs, growth: _Growth, count: int) -> None:
    """From the sink upstream: an operator at random gets its inputs, until there are enough operators."""
    growth.outputs.append(growth.add())
    open_ = [0]
    while len(growth.inputs) < count:
        number = open_.pop(int(draw.integers(len(open_))))
        join = bool(draw.random() < knobs.joins)
        fan = 2 if join or draw.random() < UNION_SHARE else 1
        for _ in range(min(fan, count - len(growth.inputs))):
            source = growth.add()
            growth.inputs[number].append(source)
            open_.append(source)
        if join and len(growth.inputs[number]) > 1:
            growth.joins.add(number)


def _sources_for(
    draw: np.random.Generator, knobs: Knobs, there: Sequence[int], below: int | None
) -> tuple[list[int], bool]:
    """What a new operator subscribes to, and whether it joins: the one below it in its stem, and others at random."""
    chosen = [] if below is None else [below]
    join = bool(draw.random() < knobs.joins) and len(there) + len(chosen) > 1
    shuffled = [there[int(place)] for place in draw.permutation(len(there))]
    chosen += shuffled[: (2 if join else 1) - len(chosen)]
    return chosen, join


def _sources_first(growth: _Growth) -> list[int]:
    """A topological order, so that names read along the flow."""
    order: list[int] = []
    placed: set[int] = set()
    waiting = list(range(len(growth.inputs)))
    while waiting:
        ready = [number for number in waiting if placed.issuperset(growth.inputs[number])]
        order += ready
        placed.update(ready)
        waiting = [number for number in waiting if number not in placed]
    return order


def _shares(draw: np.random.Generator, knobs: Knobs, parallelism: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if knobs.workload == "uniform":
        return np.full(parallelism, 1.0 / parallelism)
    weights = np.arange(1, parallelism + 1, dtype=np.float64) ** -knobs.skew
    return draw.permutation(weights / weights.sum())


def _partitioning(draw: np.random.Generator, knobs: Knobs, n1: int, n2: int) -> Partitioning:
    if draw.random() < knobs.full:
        return "full"
    if n1 == n2:
        return "one-to-one"
    return "merge" if n1 > n2 else "split"


def _ranks(draw: np.random.Generator, knobs: Knobs, topology: Topology) -> list[float]:
    if knobs.priorities == "uniform":
        return [float(draw.integers(1, 11)) for _ in topology.queries]
    needs = [
        sum(sum(topology.operator[name].costs) for name in topology.upstream_of(query.sink))
        for query in topology.queries
    ]
    if knobs.priorities == "rising":
        return [10 * need / max(needs) for need in needs]
    return [10 * min(needs) / need for need in needs]


def _domains(draw: np.random.Generator, knobs: Knobs, tasks: Sequence[Task]) -> dict[str, tuple[Task, ...]]:
    racks: list[list[Task]] = [[] for _ in range(knobs.domains)]
    for place, task in enumerate(draw.permutation(len(tasks))) if racks else ():
        racks[place % len(racks)].append(tasks[int(task)])
    return {f"rack-{number + 1}": tuple(sorted(rack)) for number, rack in enumerate(racks) if rack}
