"""For every failed task at once: the lightest set of failed tasks that completes a minimal complete tree through it.

A dynamic programme over the tasks replaces the enumeration of trees: linear in the tasks of each stream, `full` ones
included. Where two inputs of a join share upstream tasks the shared ones are weighed twice, never bought twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.fidelity import query_fidelities
from holdfast.recovery.demand import Floats, Ints
from holdfast.topology import Stream, Task, Topology


@dataclass(frozen=True, slots=True)
class Completions:
    """``weight[t]``: of the lightest completion through task t, inf where no query can be reached from it."""

    topology: Topology
    weight: Floats
    sender: dict[tuple[str, str], Ints]
    """For each stream: the sender that each downstream task would listen to, as a task index."""
    arriving: dict[tuple[str, str], Floats]
    onward: Ints
    """The task that each task would send to, -1 for the output task of a query."""

    def through(self, task: int, lost: NDArray[np.bool_]) -> tuple[int, ...]:
        """The failed tasks of the lightest completion through this task."""
        found: set[int] = set()
        self._climb(task, found, skip=None)
        while self.onward[task] >= 0:
            source, task = self.topology.tasks[task].operator, int(self.onward[task])
            self._climb(task, found, skip=source)
        return tuple(sorted(place for place in found if lost[place]))

    def ending(self, task: int, lost: NDArray[np.bool_]) -> tuple[int, ...]:
        """The failed tasks of the lightest tree that ends in this task."""
        found: set[int] = set()
        self._climb(task, found, skip=None)
        return tuple(sorted(place for place in found if lost[place]))

    def _climb(self, task: int, found: set[int], skip: str | None) -> None:
        """Add this task and the lightest tree that ends in it; the branch of operator ``skip`` is there already."""
        waiting = [(task, skip)]
        while waiting:
            place, known = waiting.pop()
            found.add(place)
            name, number = self.topology.tasks[place]
            streams = self.topology.inputs_of(name)
            if self.topology.operator[name].inputs == "correlated":
                follow = [stream for stream in streams if stream.source != known]
            elif known is None and streams:
                follow = [min(streams, key=lambda stream: float(self.arriving[_key(stream)][number]))]
            else:
                follow = []
            waiting += [(int(self.sender[_key(stream)][number]), None) for stream in follow]


def essential(topology: Topology, failed: Iterable[Task]) -> tuple[Task, ...]:
    """The lightest failed tasks without which a query would be silent; none where every query has something to say."""
    lost = topology.mask(failed)
    if not lost.any():
        return ()
    silent = query_fidelities(topology, lost)[0] <= 0
    if not silent.any():
        return ()
    # One that nobody gave weight shall not be silent either.
    topology = replace(topology, queries=tuple(replace(query, priority=1.0) for query in topology.queries))
    found: set[int] = set()
    for query, mute in zip(topology.queries, silent, strict=True):
        if mute:
            weights = np.where(lost, np.maximum(topology.costs, 1e-9), 0.0)
            weights[sorted(found)] = 0.0
            lightest = completions(topology, weights)
            span = topology.span[query.sink]
            found.update(lightest.ending(span.start + int(np.argmin(lightest.weight[span])), lost))
    return tuple(topology.tasks[place] for place in sorted(found))


def completions(topology: Topology, weights: Floats) -> Completions:
    """Lightest completions when task t weighs ``weights[t]``; live tasks weigh 0."""
    up = weights.copy()
    sender: dict[tuple[str, str], Ints] = {}
    arriving: dict[tuple[str, str], Floats] = {}
    for operator in topology.operators:
        streams = topology.inputs_of(operator.name)
        for stream in streams:
            above = topology.span[stream.source]
            sender[_key(stream)] = _lightest_senders(topology, stream, up[above]) + above.start
            arriving[_key(stream)] = up[sender[_key(stream)]]
        if streams:
            columns = np.stack([arriving[_key(stream)] for stream in streams])
            up[topology.span[operator.name]] += (
                columns.sum(axis=0) if operator.inputs == "correlated" else columns.min(axis=0)
            )
    down, onward = _downwards(topology, weights, arriving)
    return Completions(topology, up + down, sender, arriving, onward)


def _downwards(topology: Topology, weights: Floats, arriving: dict[tuple[str, str], Floats]) -> tuple[Floats, Ints]:
    """Lightest way from each task down to an output task, the task itself not counted."""
    down = np.full(len(topology.tasks), np.inf)
    onward = np.full(len(topology.tasks), -1, np.int64)
    for query in topology.queries:
        if query.priority > 0:
            down[topology.span[query.sink]] = 0.0
    for operator in reversed(topology.operators):
        span = topology.span[operator.name]
        for stream in topology.outputs_of(operator.name):
            below = topology.span[stream.target]
            onwards = weights[below] + down[below]
            if topology.operator[stream.target].inputs == "correlated":
                for other in topology.inputs_of(stream.target):
                    if other.source != stream.source:
                        onwards = onwards + arriving[_key(other)]
            receiver = _lightest_receivers(topology, stream, onwards)
            better = onwards[receiver] < down[span]
            down[span] = np.where(better, onwards[receiver], down[span])
            onward[span] = np.where(better, receiver + below.start, onward[span])
    return down, onward


def _key(stream: Stream) -> tuple[str, str]:
    return stream.source, stream.target


def _lightest_senders(topology: Topology, stream: Stream, weights: Floats) -> Ints:
    n1, n2 = topology.operator[stream.source].parallelism, topology.operator[stream.target].parallelism
    match stream.partitioning:
        case "one-to-one":
            return np.arange(n1)
        case "split":
            return np.arange(n2) * n1 // n2
        case "full":
            return np.full(n2, int(np.argmin(weights)))
        case "merge":
            return _lightest_of_each(np.arange(n1) * n2 // n1, weights)


def _lightest_receivers(topology: Topology, stream: Stream, weights: Floats) -> Ints:
    n1, n2 = topology.operator[stream.source].parallelism, topology.operator[stream.target].parallelism
    match stream.partitioning:
        case "one-to-one":
            return np.arange(n1)
        case "merge":
            return np.arange(n1) * n2 // n1
        case "full":
            return np.full(n1, int(np.argmin(weights)))
        case "split":
            return _lightest_of_each(np.arange(n2) * n1 // n2, weights)


def _lightest_of_each(group: Ints, weights: Floats) -> Ints:
    """The place of the lightest member of each group; groups are ascending."""
    order = np.lexsort((weights, group))
    ordered = group[order]
    return np.asarray(order[np.concatenate([[True], ordered[1:] != ordered[:-1]])], np.int64)
