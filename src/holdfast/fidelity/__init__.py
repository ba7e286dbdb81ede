"""Fidelity: how much of the answer is left when tasks fail, and which sets of tasks carry an answer at all."""

from holdfast.fidelity.completeness import internal_completeness, query_completeness
from holdfast.fidelity.flow import Flow
from holdfast.fidelity.loss import (
    Stale,
    arriving_losses,
    losses,
    objectives,
    priorities,
    query_fidelities,
    shares,
    stale_of,
    stream_losses,
    stream_rates,
)
from holdfast.fidelity.output import Fidelity, Metric, output_fidelity
from holdfast.fidelity.trees import count_trees, minimal_trees, tree_counts, trees_through

__all__ = [
    "Fidelity",
    "Flow",
    "Metric",
    "Stale",
    "arriving_losses",
    "count_trees",
    "internal_completeness",
    "losses",
    "minimal_trees",
    "objectives",
    "output_fidelity",
    "priorities",
    "query_completeness",
    "query_fidelities",
    "shares",
    "stale_of",
    "stream_losses",
    "stream_rates",
    "tree_counts",
    "trees_through",
]
