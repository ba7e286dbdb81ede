"""The same query by Structured Streaming and by Holdfast: micro-batches for both, and what each answers."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

SCHEMA = "k string, n int, x double, cents decimal(10,2), ts timestamp, day date, yes boolean"
BATCHES, ROWS = 4, 120
Rows = list[tuple[Any, ...]]


def write_events(made: Path) -> None:
    """A file for each micro-batch. Times go on by twenty minutes a batch; a third of the rows is an hour late."""
    draw = random.Random(7)
    for batch in range(BATCHES):
        rows = []
        for number in range(ROWS):
            minute = batch * 20 + draw.randrange(20) - draw.choice((0, 0, 60))
            rows.append({
                "k": draw.choice(["ann", "bob", "cy", None]), "n": draw.choice([None, *range(9)]),
                "x": draw.choice([draw.uniform(-5, 9), -0.0, 0.0, "NaN"]), "cents": f"{draw.randrange(9999) / 100:.2f}",
                "ts": f"2026-01-01 {5 + minute // 60:02d}:{minute % 60:02d}:{number % 60:02d}",
                "day": f"2026-01-{1 + draw.randrange(3):02d}", "yes": draw.choice([True, False, None]),
            })  # fmt: skip
        path = made / f"{batch}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_700_000_000 + batch,) * 2)


def tidy(frame: DataFrame) -> Rows:
    """Rows in an order of their own, floats to 12 digits."""
    return sorted((_rounded(tuple(row)) for row in frame.collect()), key=str)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, (tuple, list)):
        return type(value)(map(_rounded, value)) if type(value) in (tuple, list) else tuple(map(_rounded, value))
    return {key: _rounded(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def answers(writer: Any, mode: str, store: Path) -> dict[int, Rows]:
    """Each batch, by its number, until the source has no more."""
    got: dict[int, Rows] = {}
    writing = writer.outputMode(mode).foreachBatch(lambda frame, epoch: got.update({epoch: tidy(frame)}))
    writing.option("checkpointLocation", str(store)).trigger(availableNow=True).start().awaitTermination()
    return got


def by_spark(frame: DataFrame, mode: str, store: Path) -> dict[int, Rows]:
    return answers(frame.writeStream, mode, store)
