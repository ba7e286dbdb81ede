"""Internal completeness: the share of all tuples that the tasks together still process (paper 000, section 7.2).

The older metric, kept for comparison: it knows no correlation, so a join counts as busy with one dead input.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.fidelity.loss import Floats, losses, priorities, stream_rates
from holdfast.topology import Topology


def internal_completeness(topology: Topology, failed: ArrayLike) -> Floats:
    """Priority-weighted sum of every query's completeness for each failure set, shape [sets]."""
    return np.asarray(query_completeness(topology, failed) @ priorities(topology))


def query_completeness(topology: Topology, failed: ArrayLike) -> Floats:
    """Completeness of each query for each failure set, shape [sets, queries].

    The tuples of a query are those that its output operator and everything upstream of it take in; a source takes in
    what it sends out. A task that failed processes nothing.
    """
    processed = 1.0 - losses(topology, failed, correlation=False)
    arriving = arriving_rates(topology)
    columns = []
    for query in topology.queries:
        share = np.where(upstream_mask(topology, query.sink), arriving, 0.0)
        if share.sum() <= 0:  # nothing flows at all: every task counts the same
            share = upstream_mask(topology, query.sink).astype(np.float64)
        columns.append(processed @ (share / share.sum()))
    return np.asarray(np.clip(np.stack(columns, axis=1), 0.0, 1.0))


def arriving_rates(topology: Topology) -> Floats:
    """The rate at which each task takes in tuples when nothing has failed."""
    rates = topology.rates.copy()
    for operator in topology.operators:
        streams = topology.inputs_of(operator.name)
        if streams:
            arriving = np.stack([stream_rates(topology, stream) for stream in streams])
            rates[topology.span[operator.name]] = arriving.sum(axis=0)
    return rates


def upstream_mask(topology: Topology, sink: str) -> NDArray[np.bool_]:
    """Marks the tasks of this operator and of every operator upstream of it."""
    marks = np.zeros(len(topology.tasks), np.bool_)
    for name in topology.upstream_of(sink):
        marks[topology.span[name]] = True
    return marks
