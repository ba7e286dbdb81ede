"""The objective by what survives instead of what is lost, and what each task would add to it.

Right after a large failure the first trees are worth less than the rounding of ``1 - loss``: 1e-20 for ten `full`
operators with a hundred tasks each. Survival itself keeps its digits, so that the first steps can be ranked.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.fidelity import priorities, stream_losses, stream_rates
from holdfast.recovery.demand import Floats, Ints
from holdfast.topology import Operator, Stream, Topology


def survivals(topology: Topology, lost: NDArray[np.bool_]) -> Floats:
    """``1 - losses(topology, lost)``, shape [sets, tasks], without the subtraction."""
    alive = np.where(np.atleast_2d(lost), 0.0, 1.0)
    for operator in topology.operators:
        if topology.inputs_of(operator.name):
            intact, factors = _inputs(topology, operator, alive)
            joined = intact.prod(axis=0) if factors is None else np.einsum("is,iks->ks", factors, intact)
            alive[:, topology.span[operator.name]] *= joined
    return alive


def values(topology: Topology, lost: NDArray[np.bool_]) -> Floats:
    """The objective for each failure set, shape [sets]: exact in relative terms however small it is."""
    alive = survivals(topology, lost)
    total = np.zeros(len(alive))
    for query, priority in zip(topology.queries, priorities(topology), strict=True):
        span = topology.span[query.sink]
        total += priority * (alive[:, span] @ _shares(topology.rates[span]))
    return total


def _inputs(topology: Topology, operator: Operator, alive: Floats) -> tuple[Floats, Floats | None]:
    """What arrives intact over each input stream, [streams, sets, tasks]; the weights of streams, None for a join."""
    streams = topology.inputs_of(operator.name)
    # The mean over senders that fidelity takes of losses is the mean of what survives just as well.
    intact = np.stack([stream_losses(topology, stream, alive) for stream in streams])
    if operator.inputs == "correlated":
        return intact, None
    rates = np.stack([stream_rates(topology, stream) for stream in streams])
    rates = np.where(rates.sum(axis=0) > 0, rates, 1.0)
    return intact, rates / rates.sum(axis=0)


def marginals(topology: Topology, lost: NDArray[np.bool_]) -> Floats:
    """The derivative of the objective by each task's survival, times what arrives at the task.

    For a failed task it is the exact gain of recovering it, unless its streams meet again in a join; then an estimate.
    """
    alive = survivals(topology, lost)
    worth = np.zeros(len(topology.tasks))
    arriving = np.ones(len(topology.tasks))
    for query in topology.queries:
        span = topology.span[query.sink]
        worth[span] += query.priority * _shares(topology.rates[span])
    for operator in reversed(topology.operators):
        streams = topology.inputs_of(operator.name)
        if not streams:
            continue
        span = topology.span[operator.name]
        sets, factors = _inputs(topology, operator, alive)
        intact = sets[:, 0]
        if factors is None:
            arriving[span] = intact.prod(axis=0)
            factors = np.stack([np.delete(intact, i, axis=0).prod(axis=0) for i in range(len(streams))])
        else:
            arriving[span] = (factors * intact).sum(axis=0)
        passed_on = np.where(lost[span], 0.0, worth[span])
        for stream, factor in zip(streams, factors, strict=True):
            worth[topology.span[stream.source]] += _sent_back(topology, stream, passed_on * factor)
    return worth * arriving


def _sent_back(topology: Topology, stream: Stream, worth: Floats) -> Floats:
    """What the worth of the receivers of this stream is to its senders: the transpose of ``stream_losses``."""
    rates = topology.rates[topology.span[stream.source]]
    n1, n2 = len(rates), len(worth)
    match stream.partitioning:
        case "one-to-one":
            return worth
        case "split":
            return np.bincount(np.arange(n2) * n1 // n2, worth, n1).astype(np.float64)
        case "merge":
            group = np.arange(n1) * n2 // n1
            return np.asarray(_group_shares(rates, group) * worth[group])
        case "full":
            return np.asarray(_shares(rates) * worth.sum())


def _shares(rates: Floats) -> Floats:
    return _group_shares(rates, np.zeros(len(rates), np.int64))


def _group_shares(rates: Floats, group: Ints) -> Floats:
    """Each rate as a share of its group's sum; equal within a group of zeros."""
    total, count = np.bincount(group, rates)[group], np.bincount(group)[group]
    return np.where(total > 0, rates / np.where(total > 0, total, 1.0), 1.0 / count)
