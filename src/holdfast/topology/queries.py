"""Random topologies of many queries that share operators, with the knobs of paper 004, section 7.3. Seeded."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.topology.model import Operator, Query, Stream, Topology

Priorities = Literal["random", "rising"]


@dataclass(frozen=True, slots=True)
class QueryMix:
    """What to draw.

    ``size``: least and most operators a query uses; ``sharing``: most queries that share an operator; ``skew``: an
    operator is shared by f queries with probability in proportion to f^-skew (0: all equal); ``priorities``: whole
    numbers from 1 to 10, ``random`` or ``rising`` in a line with the work of the query's operators; ``costs``: least
    and most resource units of a task; ``parallelism``: tasks of every operator, joined one-to-one, so that sharing
    holds for tasks as it does for operators.
    """

    queries: int = 18
    size: tuple[int, int] = (4, 10)
    sharing: int = 3
    skew: float = 0.0
    priorities: Priorities = "random"
    costs: tuple[int, int] = (1, 10)
    parallelism: int = 1

    def __post_init__(self) -> None:
        if self.queries < 1 or self.parallelism < 1:
            raise Invalid(f"queries and parallelism must be 1 or more, got {self.queries} and {self.parallelism}")
        if not 1 <= self.size[0] <= self.size[1]:
            raise Invalid(f"size must be least and most operators of a query, 1 or more, got {self.size}")
        if self.sharing < 1:
            raise Invalid(f"sharing must be 1 or more, got {self.sharing}")
        if not np.isfinite(self.skew) or self.skew < 0:
            raise Invalid(f"skew must be 0 or more, got {self.skew}")
        if self.priorities not in ("random", "rising"):
            raise Invalid(f"priorities must be random or rising, got {self.priorities!r}")
        if not 0 <= self.costs[0] <= self.costs[1]:
            raise Invalid(f"costs must be least and most units of a task, 0 or more, got {self.costs}")


def random_queries(mix: QueryMix, seed: int) -> Topology:
    """A topology drawn from this mix; the same seed gives the same one.

    Each query has an output operator of its own. Every other operator is drawn with the set of queries that use it.
    Those that a query has to itself form a chain that ends in its output. A shared operator feeds others that serve
    some of its queries only, and the chains of the queries that it does not reach through them.
    """
    random = np.random.default_rng(seed)
    users = _users(mix, random)
    names = [f"S{number}" for number in range(len(users))]
    streams: list[tuple[str, str]] = []
    chains: list[list[str]] = [[] for _ in range(mix.queries)]
    shared: list[int] = []
    for number, queries in enumerate(users):
        if len(queries) == 1:
            chains[min(queries)].append(names[number])
        else:
            shared.append(number)
    outputs = [f"Q{query}" for query in range(mix.queries)]
    for query, chain in enumerate(chains):
        chain.append(outputs[query])
        streams += list(pairwise(chain))
    streams += _shared_streams(users, shared, names, [chain[0] for chain in chains])
    costs = {
        name: random.integers(mix.costs[0], mix.costs[1], mix.parallelism, endpoint=True) for name in names + outputs
    }
    operators = [
        Operator(name, mix.parallelism, costs=tuple(float(cost) for cost in costs[name])) for name in names + outputs
    ]
    priorities = _priorities(mix, random, users, costs)
    return Topology(
        tuple(operators),
        tuple(Stream(source, target, "one-to-one") for source, target in streams),
        tuple(Query(sink, float(priority)) for sink, priority in zip(outputs, priorities, strict=True)),
    )


def _users(mix: QueryMix, random: np.random.Generator) -> list[frozenset[int]]:
    """For each operator besides the outputs, the queries that use it, until every query has the size it was dealt."""
    room = random.integers(mix.size[0], mix.size[1], mix.queries, endpoint=True) - 1
    counts = np.arange(1, mix.sharing + 1)
    chances = counts**-mix.skew / (counts**-mix.skew).sum()
    users = []
    while room.any():
        open_queries = np.flatnonzero(room)
        count = min(int(random.choice(counts, p=chances)), len(open_queries))
        chosen = random.choice(open_queries, count, replace=False)
        room[chosen] -= 1
        users.append(frozenset(int(query) for query in chosen))
    return users


def _shared_streams(
    users: list[frozenset[int]], shared: list[int], names: list[str], heads: list[str]
) -> list[tuple[str, str]]:
    """Streams out of shared operators: to a chain's head, or by way of another shared operator with fewer users."""
    streams = []
    using: dict[int, list[int]] = {}
    for number in shared:
        for query in users[number]:
            using.setdefault(query, []).append(number)
    for number in shared:
        below = users[number]
        rivals = {other for query in below for other in using[query]}
        narrower = [other for other in rivals if users[other] < below]
        reached: set[int] = set()
        for other in sorted(narrower, key=lambda other: (-len(users[other]), other)):
            if not users[other] <= reached:
                streams.append((names[number], names[other]))
                reached |= users[other]
        streams += [(names[number], heads[query]) for query in sorted(below - reached)]
    return streams


def _priorities(
    mix: QueryMix,
    random: np.random.Generator,
    users: list[frozenset[int]],
    costs: dict[str, NDArray[np.int64]],
) -> NDArray[np.float64]:
    if mix.priorities == "random":
        return random.integers(1, 10, mix.queries, endpoint=True).astype(np.float64)
    work = np.array([costs[f"Q{query}"].sum() for query in range(mix.queries)], np.float64)
    for number, queries in enumerate(users):
        work[list(queries)] += costs[f"S{number}"].sum()
    span = work.max() - work.min()
    return np.round(1.0 + 9.0 * (work - work.min()) / span) if span > 0 else np.ones(mix.queries)
