"""Minimal complete trees: the least sets of tasks that carry data from sources to one output task (paper 000, 3.2).

At an independent operator a tree follows one substream, at a correlated one a substream of each input stream. Counting
is linear in the number of tasks; enumeration is bounded, because the number grows with the product of parallelisms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import Infeasible, Invalid
from holdfast.topology import Stream, Task, Topology

Alive = NDArray[np.bool_] | None


def count_trees(topology: Topology, alive: Alive = None) -> int:
    """How many minimal complete trees end in a query's tasks; with ``alive``, how many of them are whole.

    Choices of substreams are counted. Where two inputs of a join share upstream tasks, several choices may describe
    one set of tasks, and the count is an upper bound of the number of sets.
    """
    counts = tree_counts(topology, alive)
    return sum(sum(counts[topology.span[query.sink]]) for query in topology.queries)


def tree_counts(topology: Topology, alive: Alive = None) -> list[int]:
    """How many trees end in each task, of whatever operator; Python integers, since they outgrow 64 bits."""
    counts = [1 if alive is None or alive[place] else 0 for place in range(len(topology.tasks))]
    for operator in topology.operators:
        streams = topology.inputs_of(operator.name)
        if not streams:
            continue
        arriving = [_arriving(topology, stream, counts) for stream in streams]
        join = prod if operator.inputs == "correlated" else sum
        start = topology.span[operator.name].start
        for number in range(operator.parallelism):
            counts[start + number] *= join(column[number] for column in arriving)
    return counts


def trees_through(topology: Topology, alive: Alive = None) -> list[int]:
    """How many of the trees that end in a query's tasks contain each task."""
    counts = tree_counts(topology, alive)
    onward = [0] * len(counts)  # in how many ways a tree that ends here becomes a complete one
    for query in topology.queries:
        for place in range(*topology.span[query.sink].indices(len(counts))):
            onward[place] += 1
    for operator in reversed(topology.operators):
        streams = topology.inputs_of(operator.name)
        arriving = [_arriving(topology, stream, counts) for stream in streams]
        start = topology.span[operator.name].start
        lives = [
            onward[start + number] if alive is None or alive[start + number] else 0
            for number in range(operator.parallelism)
        ]
        for which, stream in enumerate(streams):
            ways = lives
            if operator.inputs == "correlated":
                rest = [column for other, column in enumerate(arriving) if other != which]
                ways = [lives[number] * prod(column[number] for column in rest) for number in range(len(lives))]
            _send_back(topology, stream, ways, onward)
    return [before * after for before, after in zip(counts, onward, strict=True)]


def minimal_trees(topology: Topology, limit: int = 10_000) -> tuple[frozenset[Task], ...]:
    """Every minimal complete tree, each once, as its set of tasks; Infeasible when there are more than ``limit``."""
    if limit < 1:
        raise Invalid(f"limit of minimal complete trees must be at least 1, got {limit}")
    count = count_trees(topology)
    if count > limit:
        raise Infeasible(f"there are {count} minimal complete trees, more than the limit of {limit}")
    found: dict[frozenset[int], None] = {}
    ending: list[list[frozenset[int]]] = []
    for place, task in enumerate(topology.tasks):
        ending.append(_ending_in(topology, place, task, ending))
    for query in topology.queries:
        for trees in ending[topology.span[query.sink]]:
            found.update(dict.fromkeys(trees))
    return tuple(frozenset(topology.tasks[place] for place in tree) for tree in found)


def _ending_in(
    topology: Topology, place: int, task: Task, ending: Sequence[list[frozenset[int]]]
) -> list[frozenset[int]]:
    streams = topology.inputs_of(task.operator)
    own = frozenset((place,))
    if not streams:
        return [own]
    choices = []
    for stream in streams:
        start = topology.span[stream.source].start
        choices.append([tree for u in topology.senders(stream, task.number) for tree in ending[start + u]])
    if topology.operator[task.operator].inputs != "correlated":
        return [own | tree for trees in choices for tree in trees]
    unions = [own.union(*trees) for trees in product(*choices)]
    apart = all(len(union) == 1 + sum(map(len, trees)) for union, trees in zip(unions, product(*choices), strict=True))
    return unions if apart else _minimal(unions)


def _minimal(sets: Iterable[frozenset[int]]) -> list[frozenset[int]]:
    """Those that contain no other, each once: a shared task that was asked twice must choose the same substream."""
    kept: list[frozenset[int]] = []
    for candidate in sorted(set(sets), key=lambda tree: (len(tree), sorted(tree))):
        if not any(smaller <= candidate for smaller in kept):
            kept.append(candidate)
    return kept


def _arriving(topology: Topology, stream: Stream, counts: Sequence[int]) -> list[int]:
    """Sum of the senders' counts for each downstream task."""
    sent = counts[topology.span[stream.source]]
    n2 = topology.operator[stream.target].parallelism
    if stream.partitioning == "full":
        return [sum(sent)] * n2
    return [sum(sent[u] for u in topology.senders(stream, number)) for number in range(n2)]


def _send_back(topology: Topology, stream: Stream, ways: Sequence[int], onward: list[int]) -> None:
    start = topology.span[stream.source].start
    n1 = topology.operator[stream.source].parallelism
    if stream.partitioning == "full":
        back = [sum(ways)] * n1
    else:
        back = [sum(ways[d] for d in topology.receivers(stream, sender)) for sender in range(n1)]
    for sender, count in enumerate(back):
        onward[start + sender] += count
