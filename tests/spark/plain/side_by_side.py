"""The same query by Structured Streaming and by Holdfast: micro-batches for both, and what each answers."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from pyspark.sql import DataFrame

BATCHES, ROWS = 4, 120
Rows = list[tuple[Any, ...]]
T = TypeVar("T")


def write_streams(root: Path) -> None:
    """The streams of ``queries.py``, a file for each micro-batch."""
    _write(root / "events", _events(random.Random(7)))
    _write(root / "gaps", [rows if number % 2 else [] for number, rows in enumerate(_events(random.Random(8)), 1)])
    _write(root / "once", _events(random.Random(9))[:1])
    views, clicks = _ads(random.Random(5))
    _write(root / "views", views)
    _write(root / "clicks", clicks)


def _write(folder: Path, batches: list[list[dict[str, Any]]]) -> None:
    folder.mkdir(parents=True)
    for number, rows in enumerate(batches):
        path = folder / f"{number}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_700_000_000 + number,) * 2)


def _events(draw: random.Random) -> list[list[dict[str, Any]]]:
    """Times go on by twenty minutes a batch; a third of the rows is an hour late."""
    batches = []
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
        batches.append(rows)
    return batches


def _ads(draw: random.Random) -> tuple[list[list[dict[str, Any]]], list[list[dict[str, Any]]]]:
    """Views and clicks, ten minutes a batch. Some rows are late, some have no ad or no time."""

    def moment(batch: int) -> str | None:
        minute = batch * 10 + draw.randrange(10) - draw.choice((0, 0, 0, 7, 45))
        time = f"2026-01-01 {5 + minute // 60:02d}:{minute % 60:02d}:{draw.randrange(60):02d}"
        return draw.choice([None] + 19 * [time])

    ads: list[Any] = [None, *(f"ad{number}" for number in range(8))]
    scores = (1.5, -0.0, 0.0, "NaN")
    views, clicks = [], []
    for batch in range(BATCHES):
        views.append([
            {"ad": draw.choice(ads), "page": draw.choice([None, 1, 2, 3]), "seen": moment(batch), "tags": ["a", None],
             "score": draw.choice(scores)}
            for _ in range(30)
        ])  # fmt: skip
        clicks.append([
            {"ad": draw.choice(ads), "user": draw.choice("uvw"), "clicked": moment(batch), "score": draw.choice(scores),
             "cost": f"{draw.randrange(500) / 100:.2f}"}
            for _ in range(30)
        ])  # fmt: skip
    return views, clicks


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


def at_once(*runs: Callable[[], T]) -> list[T]:
    """What each of these gives: queries of one session run beside one another."""
    with ThreadPoolExecutor(len(runs)) as pool:
        return [each.result() for each in [pool.submit(run) for run in runs]]
