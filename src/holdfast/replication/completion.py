"""The cheapest minimal complete tree through every task, given what is replicated already.

Two sweeps over the operators: what it costs to bring data to a task from the sources, and from it on to a query. Trees
are then read off for the few tasks that are worth it. Where two inputs of a join share tasks these count twice, so a
tree may be cheaper than its estimate, never dearer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.topology import Stream, Task, Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TIE = 0.01
"""Of equally cheap trees the one through which more of the answer passes, as a share of a task's mean cost."""


def cheapest_tree(topology: Topology) -> tuple[Task, ...]:
    """The tasks of a complete tree that costs little: the cheapest, unless inputs of a join share tasks."""
    completion = Completion(Routes(topology), topology.costs)
    return tuple(topology.tasks[place] for place in completion.tree(int(np.argmin(completion.through))))


class Completion:
    """``through[t]``: the price of a complete tree through task t; a task's price is what is left to pay for it."""

    def __init__(self, routes: Routes, prices: Floats) -> None:
        self._routes = routes
        self._topology = routes.topology
        self._prices = prices
        self._bring = prices.copy()
        self._arriving: dict[Stream, Floats] = {}
        self._beyond: dict[Stream, Floats] = {}
        self._onward = np.full(len(prices), np.inf)
        self._sweep_down()
        self._sweep_up()
        self.through = self._bring + self._onward

    def _sweep_down(self) -> None:
        for operator in self._topology.operators:
            streams = self._topology.inputs_of(operator.name)
            if not streams:
                continue
            for stream in streams:
                sent = self._bring[self._topology.span[stream.source]]
                self._arriving[stream] = self._routes.cheapest_sender(stream, sent)
            brought = np.stack([self._arriving[stream] for stream in streams])
            best = brought.sum(axis=0) if operator.inputs == "correlated" else brought.min(axis=0)
            self._bring[self._topology.span[operator.name]] += best

    def _sweep_up(self) -> None:
        for name in self._routes.wanted:
            self._onward[self._topology.span[name]] = 0.0
        for operator in reversed(self._topology.operators):
            span = self._topology.span[operator.name]
            streams = self._topology.inputs_of(operator.name)
            for stream in streams:
                beyond = self._prices[span] + self._onward[span]
                if operator.inputs == "correlated":
                    for other in streams:
                        beyond = beyond + self._arriving[other] if other is not stream else beyond
                self._beyond[stream] = beyond
                up = self._topology.span[stream.source]
                self._onward[up] = np.minimum(self._onward[up], self._routes.cheapest_receiver(stream, beyond))

    def tree(self, place: int) -> list[int]:
        """The tasks of the cheapest tree through this one."""
        found: set[int] = set()
        self._bring_to(place, found)
        while self._topology.tasks[place].operator not in self._routes.wanted:
            stream, place = self._next(place)
            found.add(place)
            if self._topology.operator[stream.target].inputs == "correlated":
                for other in self._topology.inputs_of(stream.target):
                    if other is not stream:
                        self._bring_to(self._sender(other, place), found)
        return sorted(found)

    def _next(self, place: int) -> tuple[Stream, int]:
        task = self._topology.tasks[place]
        choices = []
        for stream in self._topology.outputs_of(task.operator):
            receivers = self._topology.receivers(stream, task.number)
            beyond = self._beyond[stream][receivers.start : receivers.stop]
            best = int(np.argmin(beyond))
            choices.append((float(beyond[best]), receivers.start + best, stream))
        _, number, stream = min(choices, key=lambda choice: choice[0])
        return stream, self._topology.span[stream.target].start + number

    def _bring_to(self, place: int, found: set[int]) -> None:
        waiting = [place]
        while waiting:
            place = waiting.pop()
            if place in found:
                continue
            found.add(place)
            task = self._topology.tasks[place]
            streams = self._topology.inputs_of(task.operator)
            if streams and self._topology.operator[task.operator].inputs != "correlated":
                streams = (min(streams, key=lambda stream: self._arriving[stream][task.number]),)
            waiting += [self._sender(stream, place) for stream in streams]

    def _sender(self, stream: Stream, place: int) -> int:
        start = self._topology.span[stream.source].start
        senders = self._topology.senders(stream, self._topology.tasks[place].number)
        first = int(start + senders.start)
        return first + int(self._bring[first : start + senders.stop].argmin()) if len(senders) > 1 else first


class Routes:
    """Which tasks a stream joins, prepared once: an index to gather by, or starts to reduce from; None for all."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.wanted = {query.sink for query in topology.queries if query.priority > 0}
        self._gather: dict[tuple[str, str], Ints] = {}
        self._starts: dict[tuple[str, str], Ints] = {}
        for stream in topology.streams:
            key = (stream.source, stream.target)
            n1, n2 = (topology.operator[name].parallelism for name in key)
            if stream.partitioning == "merge":
                self._gather[key] = np.arange(n1) * n2 // n1
                self._starts[key] = -(-np.arange(n2) * n1 // n2)
            elif stream.partitioning == "split":
                self._gather[key] = np.arange(n2) * n1 // n2
                self._starts[key] = -(-np.arange(n1) * n2 // n1)

    def cheapest_sender(self, stream: Stream, sent: Floats) -> Floats:
        """For each downstream task the least of its senders."""
        return self._least(stream, sent, "merge", stream.target)

    def cheapest_receiver(self, stream: Stream, beyond: Floats) -> Floats:
        """For each upstream task the least of its receivers."""
        return self._least(stream, beyond, "split", stream.source)

    def _least(self, stream: Stream, values: Floats, reduces: str, end: str) -> Floats:
        if stream.partitioning == "one-to-one":
            return values
        if stream.partitioning == "full":
            return np.full(self.topology.operator[end].parallelism, values.min())
        key = (stream.source, stream.target)
        if stream.partitioning == reduces:
            return np.minimum.reduceat(values, self._starts[key])
        return np.asarray(values[self._gather[key]])
