"""Operators: the contract, pipelines, and the ready ones. ``from holdfast import operators as op``; ``op.map(...)``."""

from holdfast.operators.aggregate import Aggregate as aggregate
from holdfast.operators.aggregate import Combine as combine
from holdfast.operators.aggregations import Aggregation, count, largest, max, mean, min, sum
from holdfast.operators.columns import Columns, Duration
from holdfast.operators.contract import FunctionOperator, Operator, State, TableView
from holdfast.operators.deduplicate import Deduplicate as deduplicate
from holdfast.operators.join import Join as join
from holdfast.operators.join import Side, side
from holdfast.operators.pipeline import Input, Pipeline, Step, source, step, stream
from holdfast.operators.rows import Chain as chain
from holdfast.operators.rows import Filter as filter
from holdfast.operators.rows import FlatMap as flat_map
from holdfast.operators.rows import Map as map
from holdfast.operators.selections import collect, collect_set, count_distinct, first, last, max_by, min_by
from holdfast.operators.statistics import stddev, variance
from holdfast.operators.top_k import TopK as top_k
from holdfast.operators.trial import Trial
from holdfast.operators.windows import Windowed
from holdfast.state import StateSchema


def tumbling(
    size: Duration, by: Columns, time: str, *, top: tuple[int, str] | None = None, **aggregations: Aggregation
) -> Windowed:
    """Windows that follow one another: ``op.tumbling("30 seconds", by="word", time="time", count=op.count())``."""
    return Windowed("tumbling window", size, size, by, time, top=top, **aggregations)


def sliding(
    size: Duration,
    every: Duration,
    by: Columns,
    time: str,
    *,
    top: tuple[int, str] | None = None,
    **aggregations: Aggregation,
) -> Windowed:
    """Windows that overlap: a new one begins ``every`` so often, and lasts ``size``."""
    return Windowed("sliding window", size, every, by, time, top=top, **aggregations)


__all__ = [
    "Aggregation",
    "FunctionOperator",
    "Input",
    "Operator",
    "Pipeline",
    "Side",
    "State",
    "StateSchema",
    "Step",
    "TableView",
    "Trial",
    "Windowed",
    "aggregate",
    "chain",
    "collect",
    "collect_set",
    "combine",
    "count",
    "count_distinct",
    "deduplicate",
    "filter",
    "first",
    "flat_map",
    "join",
    "largest",
    "last",
    "map",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "side",
    "sliding",
    "source",
    "stddev",
    "step",
    "stream",
    "sum",
    "top_k",
    "tumbling",
    "variance",
]
