"""The work of throughput.py's queries in polars, in one process: no Spark, no exchange, nothing durable, no output.

Rows are those of the stream, batch by batch, made before the clock starts. What is timed is what an answer needs at
least: rows are counted and added to what was there before; windows that are over are put together from panes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from holdfast.workloads import Options, workload
from holdfast.workloads.generated import SPARK_SEED, xxhash64
from measuring import young_speed

PANE, WINDOW = timedelta(seconds=5), timedelta(seconds=30)


def keys_of(rows: int, batch: int, keys: int, stride: int | None = None) -> pl.DataFrame:
    """The keys of a batch: ``pmod(xxhash64(value), keys)``, as the stream's own expression has it; or by a stride."""
    numbers = np.arange(batch * rows, (batch + 1) * rows, dtype=np.int64)
    spread = xxhash64(numbers, SPARK_SEED).view(np.int64) if stride is None else numbers * stride
    return pl.DataFrame({"key": spread % keys})


def texts_of(rows: int, batch: int) -> pl.DataFrame:
    """The texts of a batch, a second of event time."""
    numbers = np.arange(batch * rows, (batch + 1) * rows, dtype=np.int64)
    made = pl.from_arrow(workload("word-frequency").rows(numbers, Options(rate=rows, seed=1)))
    assert isinstance(made, pl.DataFrame)
    return made


class KeyedCount:
    def __init__(self) -> None:
        self.totals = pl.DataFrame({"key": [], "count": []}, {"key": pl.Int64, "count": pl.UInt32})

    def take(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The new totals, which are what changed wherever every key is met."""
        counted = rows.lazy().group_by("key").agg(count=pl.len()).collect(engine="streaming")
        self.totals = pl.concat([self.totals, counted]).group_by("key").agg(pl.col("count").sum())
        return self.totals


class WordFrequency:
    """Panes of five seconds; a window of thirty is six of them, and leaves when a batch begins behind its end."""

    def __init__(self) -> None:
        self.panes: list[pl.DataFrame] = []

    def take(self, rows: pl.DataFrame) -> pl.DataFrame:
        words = rows.select(pl.col("time").dt.truncate(PANE), pl.col("text").str.extract_all(r"\S+").alias("word"))
        counted = words.explode("word", empty_as_null=False).group_by("time", "word").agg(count=pl.len())
        self.panes.append(counted)
        begins = rows["time"][0]
        panes = pl.concat(self.panes).group_by("time", "word").agg(pl.col("count").sum())
        ends = begins.replace(microsecond=0) if begins.second % 5 == 0 and begins.microsecond == 0 else None
        self.panes = [panes if ends is None else panes.filter(pl.col("time") > ends - WINDOW)]
        if ends is None:
            return panes.clear()
        over = panes.filter((pl.col("time") >= ends - WINDOW) & (pl.col("time") < ends))
        return over.group_by("word").agg(pl.col("count").sum())


def measure(query: str, rows: int, batches: int, skip: int, keys: int, stride: int) -> dict[str, Any]:
    """Seconds of each batch behind the first ``skip``, and CPU for a million rows; the answer is checked."""
    taken = WordFrequency() if query == "word-frequency" else KeyedCount()
    make: Callable[[int], pl.DataFrame] = {
        "word-frequency": lambda batch: texts_of(rows, batch),
        "keyed-count": lambda batch: keys_of(rows, batch, keys),
        "stride-count": lambda batch: keys_of(rows, batch, keys, stride),
    }[query]
    seconds, cpu = [], 0.0
    for batch in range(batches):
        came = make(batch)
        began, used = time.perf_counter(), time.process_time()
        taken.take(came)
        seconds.append(time.perf_counter() - began)
        if batch >= skip:
            cpu += time.process_time() - used
    if isinstance(taken, KeyedCount) and int(taken.totals["count"].sum()) != rows * batches:
        raise SystemExit(f"polars counted {taken.totals['count'].sum()} rows, {rows * batches} came")
    kept = seconds[skip:]
    return {
        "rows": rows,
        "median": statistics.median(kept),
        "rows_per_second": rows * len(kept) / sum(kept),
        "young_rows_per_second": young_speed(seconds, rows),
        "cpu": cpu / (rows * len(kept)) * 1e6,
    }
