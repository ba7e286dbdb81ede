"""The topology compiled to a flow graph, for planners that ask for the value of a plan thousands of times.

Every task carries ``survival = alive * (weighted sum, or for a join product, of what comes in)``. One sweep up and one
down give the objective and what *each* task is worth at once, instead of one evaluation a task: nodes are grouped by
depth, so a sweep is a few sparse products whatever the number of operators. A full stream is one node in between (all
receivers see the same mean), so the graph stays linear in the number of tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from holdfast.fidelity.loss import Floats, priorities, shares, stream_rates
from holdfast.topology import Operator, Stream, Topology

if TYPE_CHECKING:
    from scipy.sparse import csr_array  # planners alone need it, and it takes long to import

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Sums:
    """Nodes of one depth that add up what comes in."""

    rows: Ints
    matrix: csr_array
    back: csr_array


@dataclass(frozen=True, slots=True)
class _Products:
    """Nodes of one depth that multiply what comes in; short rows are filled up with the node that is always 1."""

    rows: Ints
    factors: Ints
    back: csr_array


class Flow:
    """Values of many alive sets, and the worth of every task; arrays are [tasks, sets]."""

    def __init__(self, topology: Topology) -> None:
        graph = _Graph(topology)
        self.tasks = len(topology.tasks)
        self.size = len(graph.depth)
        self.output = np.zeros(self.size)
        for query, priority in zip(topology.queries, priorities(topology), strict=True):
            span = topology.span[query.sink]
            self.output[span] += priority * shares(topology.rates[span])
        self._layers = graph.layers()

    def survivals(self, alive: NDArray[np.bool_] | Floats) -> tuple[Floats, Floats]:
        """Survival of every node, and what it would be were the node alive; shape [nodes, sets]."""
        alive = np.asarray(alive, np.float64).reshape(self.tasks, -1)
        up = np.ones((self.size, alive.shape[1]))
        up[: self.tasks] = alive
        arriving = np.ones_like(up)
        for sums, products in self._layers:
            if sums is not None:
                arriving[sums.rows] = came = sums.matrix @ up
                up[sums.rows] *= came
            if products is not None:
                arriving[products.rows] = came = up[products.factors].prod(axis=1)
                up[products.rows] *= came
        return up, arriving

    def values(self, alive: NDArray[np.bool_] | Floats) -> Floats:
        """The objective of each alive set, shape [sets]."""
        return np.asarray(self.output @ self.survivals(alive)[0])

    def worths(self, alive: NDArray[np.bool_] | Floats) -> tuple[Floats, Floats]:
        """The objective of each set, and by how much each task's being alive raises it, shape [tasks, sets].

        For a live task that is what its failure would cost, for a dead one what its recovery would bring; exact unless
        two inputs of a join share the task, where it is the slope.
        """
        up, arriving = self.survivals(alive)
        down = np.repeat(self.output[:, np.newaxis], up.shape[1], axis=1)
        lives = np.ones_like(up)
        lives[: self.tasks] = np.asarray(alive, np.float64).reshape(self.tasks, -1)
        for sums, products in reversed(self._layers):
            if sums is not None:
                down += sums.back @ (lives[sums.rows] * down[sums.rows])
            if products is not None:
                others = _products_of_others(up[products.factors])
                others *= (lives[products.rows] * down[products.rows])[:, np.newaxis]
                down += products.back @ others.reshape(-1, up.shape[1])
        return np.asarray(self.output @ up), (down * arriving)[: self.tasks]


class _Graph:
    """Nodes (tasks, then the constant one, then means of streams) with their weighted inputs, while compiling."""

    def __init__(self, topology: Topology) -> None:
        count = len(topology.tasks)
        self.one = count
        self.depth = [0] * (count + 1)
        self.into: list[list[tuple[int, float]]] = [[] for _ in range(count + 1)]
        self.multiplies = [False] * (count + 1)
        for operator in topology.operators:
            streams = topology.inputs_of(operator.name)
            if operator.inputs == "correlated" and len(streams) > 1:
                self._join(topology, operator, streams)
            elif streams:
                self._union(topology, operator, streams)
            span = topology.span[operator.name]
            deepest = max((self._deep(place) for place in range(span.start, span.stop)), default=0)
            for place in range(span.start, span.stop):
                self.depth[place] = deepest

    def _join(self, topology: Topology, operator: Operator, streams: tuple[Stream, ...]) -> None:
        start = topology.span[operator.name].start
        for place in range(start, start + operator.parallelism):
            self.multiplies[place] = True
        for stream in streams:
            means = self._means(topology, stream)
            for number, mean in enumerate(means):
                node = mean[0][0] if len(mean) == 1 else self._node(mean)
                self.into[start + number].append((node, 1.0))

    def _union(self, topology: Topology, operator: Operator, streams: tuple[Stream, ...]) -> None:
        start = topology.span[operator.name].start
        rates = np.stack([stream_rates(topology, stream) for stream in streams])
        rates = np.where(rates.sum(axis=0) > 0, rates, 1.0)
        rates = rates / rates.sum(axis=0)
        for stream, weights in zip(streams, rates, strict=True):
            for number, mean in enumerate(self._means(topology, stream)):
                weight = float(weights[number])
                self.into[start + number] += [(node, weight * share) for node, share in mean]

    def _means(self, topology: Topology, stream: Stream) -> list[list[tuple[int, float]]]:
        """For each downstream task, the nodes and shares whose weighted sum is the survival of its input stream."""
        up, n2 = topology.span[stream.source], topology.operator[stream.target].parallelism
        rates = topology.rates[up]
        if stream.partitioning == "full":
            mean = list(zip(range(up.start, up.stop), map(float, shares(rates)), strict=True))
            return [[(self._node(mean), 1.0)]] * n2
        means = []
        for number in range(n2):
            senders = topology.senders(stream, number)
            share = shares(rates[senders.start : senders.stop])
            means.append([(up.start + sender, float(s)) for sender, s in zip(senders, share, strict=True)])
        return means

    def _node(self, mean: list[tuple[int, float]]) -> int:
        self.into.append(mean)
        self.multiplies.append(False)
        self.depth.append(1 + max(self.depth[node] for node, _ in mean))
        return len(self.into) - 1

    def _deep(self, place: int) -> int:
        return 1 + max((self.depth[node] for node, _ in self.into[place]), default=-1)

    def layers(self) -> list[tuple[_Sums | None, _Products | None]]:
        """Sums and products of each depth from 1 on; depth 0 are the sources and the constant."""
        adding: list[list[int]] = [[] for _ in range(1 + max(self.depth))]
        multiplying: list[list[int]] = [[] for _ in adding]
        for node, depth in enumerate(self.depth):
            (multiplying if self.multiplies[node] else adding)[depth].append(node)
        deeper = zip(adding[1:], multiplying[1:], strict=True)
        return [(self._sums(some), self._products(others)) for some, others in deeper]

    def _sums(self, nodes: list[int]) -> _Sums | None:
        if not nodes:
            return None
        from scipy.sparse import csr_array

        entries = [(row, node, share) for row, n in enumerate(nodes) for node, share in self.into[n]]
        rows, columns, weights = zip(*entries, strict=True)
        matrix = csr_array((weights, (rows, columns)), shape=(len(nodes), len(self.into)))
        return _Sums(np.array(nodes), matrix, csr_array(matrix.T))

    def _products(self, nodes: list[int]) -> _Products | None:
        if not nodes:
            return None
        from scipy.sparse import csr_array

        width = max(len(self.into[node]) for node in nodes)
        factors = np.full((len(nodes), width), self.one)
        for row, node in enumerate(nodes):
            factors[row, : len(self.into[node])] = [factor for factor, _ in self.into[node]]
        flat = factors.ravel()
        back = csr_array((np.ones(len(flat)), (flat, np.arange(len(flat)))), shape=(len(self.into), len(flat)))
        return _Products(np.array(nodes), factors, back)


def _products_of_others(factors: Floats) -> Floats:
    """For each factor of a row the product of the others, shape [rows, k, sets]; undivided, as factors may be 0."""
    before, after = np.ones_like(factors), np.ones_like(factors)
    np.cumprod(factors[:, :-1], axis=1, out=before[:, 1:])
    after[:, :-1] = np.cumprod(factors[:, :0:-1], axis=1)[:, ::-1]
    return before * after
