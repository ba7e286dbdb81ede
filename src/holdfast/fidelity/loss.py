"""Information loss, from sources to queries, when tasks fail (paper 000, section 3.1).

Pure. Everything is vectorised over failure sets: ``failed[s, t]`` says whether set ``s`` has lost task ``t``.
No stream needs a matrix: `full` loses the rate-weighted mean of all senders, the others gather or sum neighbours, so
one failure set costs O(tasks + tasks * streams in) whatever the number of substreams.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.topology import Operator, Stream, Topology

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stale:
    """What tasks that have failed still say, going on from an old state, [ways, tasks].

    Where their input is ``given`` complete: no more than that, and than ``kept`` + ``fresh`` * ``given`` of the worst
    way. Nothing at all where both are 0.
    """

    kept: Floats
    fresh: Floats

    @classmethod
    def losing(cls, loss: ArrayLike, tasks: int) -> Stale:
        """Tasks that lose at least so much, whatever they are given; each its own, or all the same."""
        each = np.broadcast_to(np.asarray(loss, np.float64), (1, tasks))
        return cls(1.0 - each, np.zeros_like(each))

    @property
    def loss(self) -> Floats:
        """What each task loses at least."""
        return np.asarray(1.0 - (self.kept + self.fresh).min(axis=0))

    def told(self, given: Floats, span: slice) -> Floats:
        """What these tasks still say of inputs so complete, [sets, tasks]."""
        kept, fresh = self.kept[:, np.newaxis, span], self.fresh[:, np.newaxis, span]
        return np.asarray(np.minimum(given, (kept + fresh * given).min(axis=0)))


def stale_of(stale: ArrayLike | Stale, tasks: int) -> Stale:
    return stale if isinstance(stale, Stale) else Stale.losing(stale, tasks)


def priorities(topology: Topology) -> Floats:
    return np.array([query.priority for query in topology.queries])


def objectives(topology: Topology, failed: ArrayLike, stale: ArrayLike | Stale = 1.0) -> Floats:
    """Sum of priority x fidelity for each failure set, shape [sets]."""
    return np.asarray(query_fidelities(topology, failed, stale) @ priorities(topology))


def query_fidelities(topology: Topology, failed: ArrayLike, stale: ArrayLike | Stale = 1.0) -> Floats:
    """Fidelity of each query for each failure set, shape [sets, queries]."""
    loss = losses(topology, failed, stale=stale)
    columns = []
    for query in topology.queries:
        span = topology.span[query.sink]
        columns.append(1.0 - loss[:, span] @ shares(topology.rates[span]))
    return np.clip(np.stack(columns, axis=1), 0.0, 1.0)


def losses(topology: Topology, failed: ArrayLike, correlation: bool = True, stale: ArrayLike | Stale = 1.0) -> Floats:
    """Information loss of every task for each failure set, shape [sets, tasks].

    Without ``correlation`` joins are treated like any other operator, as internal completeness does. ``stale``: what a
    task loses at least when it has failed, for each task: 1 where it says nothing then, less where it goes on from an
    old state.
    """
    mask = np.atleast_2d(np.asarray(failed, dtype=np.bool_))
    left = stale_of(stale, mask.shape[1])
    loss = np.where(mask, left.loss, 0.0)
    for operator in topology.operators:
        if not topology.inputs_of(operator.name):
            continue
        span = topology.span[operator.name]
        arriving = arriving_losses(topology, operator, loss, correlation)
        loss[:, span] = np.where(mask[:, span], 1.0 - left.told(1.0 - arriving, span), arriving)
    return loss


def arriving_losses(topology: Topology, operator: Operator, loss: Floats, correlation: bool = True) -> Floats:
    """What the input of each task of an operator lacks, from what the tasks upstream of it lose."""
    streams, span = topology.inputs_of(operator.name), topology.span[operator.name]
    if correlation and operator.inputs == "correlated":
        survival = np.ones_like(loss[:, span])
        for stream in streams:
            survival *= 1.0 - stream_losses(topology, stream, loss)
        return 1.0 - survival
    weights = np.stack([stream_rates(topology, stream) for stream in streams])
    weights = np.where(weights.sum(axis=0) > 0, weights, 1.0)
    weights = weights / weights.sum(axis=0)
    arriving = np.zeros_like(loss[:, span])
    for stream, weight in zip(streams, weights, strict=True):
        arriving += stream_losses(topology, stream, loss) * weight
    return arriving


def stream_losses(topology: Topology, stream: Stream, loss: Floats) -> Floats:
    """Loss of this stream on its way into each downstream task: the rate-weighted mean over its senders."""
    up, down = topology.span[stream.source], topology.span[stream.target]
    sent = loss[:, up]
    n1, n2 = up.stop - up.start, down.stop - down.start
    match stream.partitioning:
        case "one-to-one":
            return sent
        case "split":
            return sent[:, np.arange(n2) * n1 // n2]
        case "full":
            return np.repeat((sent @ shares(topology.rates[up]))[:, np.newaxis], n2, axis=1)
        case "merge":
            group = np.arange(n1) * n2 // n1
            starts = np.searchsorted(group, np.arange(n2))
            return np.asarray(np.add.reduceat(sent * _group_shares(topology.rates[up], group), starts, axis=1))


def stream_rates(topology: Topology, stream: Stream) -> Floats:
    """Total rate of this stream into each downstream task."""
    up, down = topology.span[stream.source], topology.span[stream.target]
    rates, weights = topology.rates[up], np.array(stream.weights)
    n1, n2 = up.stop - up.start, down.stop - down.start
    match stream.partitioning:
        case "one-to-one":
            return rates
        case "merge":
            return np.asarray(np.bincount(np.arange(n1) * n2 // n1, rates, n2), np.float64)
        case "full":
            return np.asarray(rates.sum() * weights / weights.sum())
        case "split":
            sender = np.arange(n2) * n1 // n2
            return np.asarray(rates[sender] * _group_shares(weights, sender))


def shares(rates: Floats) -> Floats:
    """Rates as shares of one; equal where all are 0."""
    total = rates.sum()
    return rates / total if total > 0 else np.full(len(rates), 1.0 / len(rates))


def _group_shares(values: Floats, group: NDArray[np.int64]) -> Floats:
    """Each value as a share of its group's sum; equal within a group of zeros."""
    total = np.bincount(group, values)[group]
    count = np.bincount(group)[group]
    return np.where(total > 0, values / np.where(total > 0, total, 1.0), 1.0 / count)
