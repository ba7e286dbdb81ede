"""Small pipelines that differ in one thing, for tests of what may change under a store."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from holdfast import operators as op
from holdfast.state import StateSchema

SCHEMA = StateSchema(pa.schema({"page": pa.string()}), pa.schema({"n": pa.int64()}))


def remember(batch: pa.Table, state: op.State) -> pa.Table | None:
    return None


class Own(op.Operator):
    """Compared by name and version: what the tables are is compared beside."""

    by = ("page",)

    def __init__(self, value: pa.Schema = SCHEMA.value, name: str = "state", **more: StateSchema) -> None:
        self.tables = {name: StateSchema(SCHEMA.key, value), **more}


class Newer(Own):
    version = 2


TOTALS = op.aggregate("page", total=op.sum("amount"))
MAXIMA = op.aggregate("page", total=op.max("amount"))
VISITS = op.tumbling("30 s", by="page", time="time", n=op.count())


def clicks(
    totals: op.Operator = TOTALS,
    good: op.Operator | None = None,
    tasks: int = 2,
    sources: int = 1,
    name: str = "totals",
    event_time: str | None = None,
    delay: float = 0.0,
    **stream: Any,
) -> op.Pipeline:
    """clicks -> good -> totals, keyed by page."""
    stream = {"key": "page", **stream}
    return op.Pipeline(
        op.source("clicks", parallelism=sources, event_time=event_time, delay_seconds=delay),
        op.step("good", good or op.filter("amount > 0"), "clicks"),
        op.step(name, totals, op.stream("good", **stream), parallelism=tasks),
    )


def ranked(
    ranks: op.Operator,
    key: str = "page",
    tasks: int = 2,
    weights: tuple[float, ...] = (),
    read: op.Input | None = None,
) -> op.Pipeline:
    """clicks -> counts, keyed; then task by task, without a key of its own, to ranks."""
    counts = op.FunctionOperator(remember)
    read = read or op.stream("counts", partitioning="one-to-one")
    return op.Pipeline(
        op.source("clicks"),
        op.step("counts", counts, op.stream("clicks", key=key, weights=weights), parallelism=tasks),
        op.step("ranks", ranks, read, parallelism=tasks),
    )


def timed(
    event_time: str | None = "time", delay: float = 0.0, size: str = "30 s", tasks: int = 2, time: str = "time"
) -> op.Pipeline:
    visits = op.tumbling(size, by="page", time=time, n=op.count())
    return clicks(visits, event_time=event_time, delay=delay, tasks=tasks)


def straight(totals: op.Operator = TOTALS, tasks: int = 2, sources: int = 1, **stream: Any) -> op.Pipeline:
    """The aggregate reads the source itself: rows are combined before they are journalled."""
    stream = {"key": "page", **stream}
    return op.Pipeline(
        op.source("clicks", parallelism=sources),
        op.step("totals", totals, op.stream("clicks", **stream), parallelism=tasks),
    )


def both(*names: str, operator: op.Operator, event_time: str | None = "time") -> op.Pipeline:
    return op.Pipeline(
        *(op.source(name, event_time=event_time) for name in names),
        op.step("both", operator, [op.stream(name, key="page") for name in names], parallelism=2),
    )
