"""Small real pipelines for simulations: aggregates, windows, a join, top k, duplicates, a function with state.

Rows are drawn from a seed. They are few: what counts is that every kind of state goes through failure and recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import pyarrow as pa

from holdfast import operators as op
from holdfast.state import StateSchema

Batch = Mapping[str, pa.Table]
WORDS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
SECOND = 1_000_000
HOUR = 3_600 * SECOND
DELAY_MS = 1_000
"""Of the watermark that a stream keeps itself."""


def counted_words() -> op.Pipeline:
    """Running counts by word, and the words that lead."""
    return op.Pipeline(
        op.source("lines", parallelism=2),
        op.step("counts", op.aggregate(by="word", n=op.count(), most=op.max("value")), "lines", parallelism=3),
        op.step("leaders", op.top_k(2, "n", "word"), "counts"),
    )


def windows() -> op.Pipeline:
    """Counts in windows of event time behind a filter."""
    return op.Pipeline(
        op.source("lines", parallelism=2, event_time="time", delay_seconds=1.0),
        op.step("odd", op.filter("value % 2 = 1"), "lines", parallelism=2),
        op.step("windows", op.tumbling("3 s", by="word", time="time", n=op.count()), "odd", parallelism=2),
    )


def joined() -> op.Pipeline:
    """Two streams joined in windows, duplicates taken out of one of them before."""
    left = op.side("once", {"value": "int64"}, time="time")
    right = op.side("prices", {"price": "int64"}, time="time")
    return op.Pipeline(
        op.source("lines", event_time="time"),
        op.source("prices", event_time="time"),
        op.step("once", op.deduplicate({"word": "string", "value": "int64"}), "lines", parallelism=2),
        op.step(
            "pairs",
            op.join(left, right, on="word", size="4 s"),
            [op.stream("once", key="word"), op.stream("prices", key="word")],
            parallelism=2,
            correlated=True,
        ),
    )


def remembered() -> op.Pipeline:
    """A user's function with state of its own, whose answer depends on every row it ever saw, and their order."""
    schema = StateSchema(pa.schema([("word", pa.string())]), pa.schema([("chain", pa.int64())]))
    return op.Pipeline(
        op.source("lines", parallelism=2),
        op.step("chains", op.FunctionOperator(_chain, schema), op.stream("lines", key="word"), parallelism=3),
        op.step("seen", op.map(lambda table: table), op.stream("chains", partitioning="merge"), parallelism=2),
        op.step("total", op.aggregate(by="word", sum=op.sum("chain")), "seen", priority=2.0),
    )


def _chain(batch: pa.Table, state: op.State) -> pa.Table | None:
    if not batch.num_rows:
        return None
    chains: dict[str, int] = {}
    held = state.lookup(batch.select(["word"]))["chain"].to_pylist()
    for word, value, before in zip(batch["word"].to_pylist(), batch["value"].to_pylist(), held, strict=True):
        chains[word] = (31 * chains.get(word, before or 0) + value) % 1_000_003
    answer = pa.table({"word": list(chains), "chain": pa.array(chains.values(), pa.int64())})
    state.update(answer)
    return answer


PIPELINES: Mapping[str, Callable[[], op.Pipeline]] = {
    "counted words": counted_words,
    "windows": windows,
    "joined": joined,
    "remembered": remembered,
}


def counted_twice() -> op.Pipeline:
    """Running counts by word, and their sum: how many rows have come."""
    return op.Pipeline(
        op.source("lines", parallelism=2),
        op.step("counts", op.aggregate("word", rows=op.count()), "lines", parallelism=3),
        op.step("total", op.FunctionOperator(_total), "counts"),
    )


def _total(batch: pa.Table) -> pa.Table | None:
    return pa.table({"rows": [sum(batch["rows"].to_pylist())]}) if batch.num_rows else None


def windows_of_windows() -> op.Pipeline:
    """Rows by word and second, and how many there were in two seconds."""
    return op.Pipeline(
        op.source("lines", parallelism=2, event_time="time"),
        op.step("seconds", op.tumbling("1 s", "word", "time", rows=op.count()), "lines", parallelism=3),
        op.step("kept", op.filter("rows > 0"), op.stream("seconds", partitioning="merge"), parallelism=2),
        op.step("spans", op.tumbling("2 s", None, "start", rows=op.sum("rows")), "kept"),
    )


SKEWED: Mapping[str, tuple[Callable[[], op.Pipeline], str]] = {
    "counted twice": (counted_twice, "total"),
    "windows of windows": (windows_of_windows, "spans"),
}
"""Aggregates over aggregates, and the operator that answers in a column ``rows`` how many rows of the source it knows.
"""


def skewed_batches(pipeline: op.Pipeline, epochs: int, seed: int) -> list[Batch]:
    """Rows of which few words have nearly all, the same in every epoch: what was measured holds in the next one too."""
    draw = Random(seed)
    words = [word for word in WORDS for _ in range(draw.choice((1, 1, 2, 5, 40)))]
    draw.shuffle(words)
    times = [at * SECOND // len(words) for at in range(len(words))]
    return [
        {
            "lines": pa.table({
                "word": words,
                "time": pa.array([epoch * SECOND + time for time in times], pa.timestamp("us", "UTC")),
                "value": pa.array(range(len(words)), pa.int64()),
            })
        }
        for epoch in range(epochs)
    ]  # fmt: skip


def drawn_batches(pipeline: op.Pipeline, epochs: int, seed: int, late: int = 0) -> list[Batch]:
    """A few rows for each source and epoch; now and then none. ``late``: seconds that some rows are behind at most."""
    draw = Random(seed)
    batches: list[Batch] = []
    for epoch in range(epochs):
        batch = {}
        for step in pipeline.sources:
            count = draw.choice((0, 1, 4, 9))
            times = [epoch * SECOND + draw.randrange(SECOND) for _ in range(count)]
            if late:  # long after 1970, where a stream's watermark begins
                times = [time + HOUR - draw.choice((0, 0, draw.randrange(late * SECOND))) for time in times]
            columns = {
                "word": pa.array([draw.choice(WORDS) for _ in times], pa.string()),
                "time": pa.array(times, pa.timestamp("us", "UTC")),
                "price" if step.name == "prices" else "value": pa.array(
                    [draw.randrange(20) for _ in times], pa.int64()
                ),
            }
            batch[step.name] = pa.table(columns)
        batches.append(batch)
    return batches
