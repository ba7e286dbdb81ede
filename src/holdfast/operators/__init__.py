"""Operators: the contract, pipelines, and the ready ones. ``from holdfast import operators as op``; ``op.map(...)``."""

from holdfast.errors import Invalid
from holdfast.operators.aggregate import Aggregate as aggregate
from holdfast.operators.aggregate import Combine as combine
from holdfast.operators.aggregations import Aggregation, count, largest, max, mean, min, sum
from holdfast.operators.columns import Columns, Duration
from holdfast.operators.contract import FunctionOperator, Operator, State, TableView
from holdfast.operators.deduplicate import Deduplicate as deduplicate
from holdfast.operators.grouped import Emit
from holdfast.operators.join import Join as join
from holdfast.operators.join import Side, side
from holdfast.operators.pipeline import Input, Pipeline, Step, source, step, stream
from holdfast.operators.rows import Chain as chain
from holdfast.operators.rows import Filter as filter
from holdfast.operators.rows import FlatMap as flat_map
from holdfast.operators.rows import Map as map
from holdfast.operators.selections import collect, collect_set, count_distinct, first, last, max_by, min_by
from holdfast.operators.sessions import Sessions
from holdfast.operators.statistics import stddev, variance
from holdfast.operators.timers import Timers as timers
from holdfast.operators.top_k import TopK as top_k
from holdfast.operators.trial import Trial
from holdfast.operators.windows import END, START, Answers, Windowed
from holdfast.state import StateSchema


def tumbling(
    size: Duration,
    by: Columns | None,
    time: str,
    *,
    emit: Answers = "append",
    top: tuple[int, str] | None = None,
    **aggregations: Aggregation,
) -> Windowed:
    """Windows that follow one another: ``op.tumbling("30 seconds", by="word", time="time", count=op.count())``."""
    return Windowed("tumbling window", size, size, by, time, emit=emit, top=top, **aggregations)


def sliding(
    size: Duration,
    every: Duration,
    by: Columns | None,
    time: str,
    *,
    emit: Answers = "append",
    top: tuple[int, str] | None = None,
    **aggregations: Aggregation,
) -> Windowed:
    """Windows that overlap: a new one begins ``every`` so often, and lasts ``size``."""
    return Windowed("sliding window", size, every, by, time, emit=emit, top=top, **aggregations)


def session(
    gap: Duration, by: Columns | None, time: str, *, emit: Emit = "append", **aggregations: Aggregation
) -> Sessions:
    """Rows of a key that come within ``gap`` of one another: ``op.session("30 min", "user", "time", n=op.count())``."""
    if taken := [name for name in (START, END, "meaning", "late") if name in aggregations]:
        raise Invalid(f"session: {taken[0]!r} cannot name an aggregation: the name is taken; choose another")
    return Sessions(by, emit, START, END, time=time, gap=gap, meaning=None, late=False, **aggregations)


__all__ = [
    "Aggregation",
    "FunctionOperator",
    "Input",
    "Operator",
    "Pipeline",
    "Sessions",
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
    "session",
    "side",
    "sliding",
    "source",
    "stddev",
    "step",
    "stream",
    "sum",
    "timers",
    "top_k",
    "tumbling",
    "variance",
]
