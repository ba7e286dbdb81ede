"""What a driver that stands by does beforehand: a few rows go the way that the job's will, on every executor it has.

A first stream, a first shuffle, a first Python task, the job's own code and a first word with the store each load much,
in the driver's JVM and on every executor: seconds that readers would wait for after a take-over. Of the job nothing is
read but the store's id, and nothing is written or kept.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.cloudpickle import loads as unpickled
from pyspark.sql import DataFrame, SparkSession

from holdfast.runtime.spark import stages
from holdfast.runtime.spark.exchange import Exchange
from holdfast.runtime.spark.nodes import locations
from holdfast.state import Store

ROWS = 10
ENOUGH = 60.0
"""Seconds after which what is not warm by then is left."""


@dataclass(frozen=True)
class Nothing:
    """Takes what comes, loads the job's code, asks the store for its id, and sends a bundle of nothing to each slot."""

    slots: int
    store: str
    options: Mapping[str, Any]
    code: bytes

    def __call__(self, _: int, records: Iterable[bytes]) -> Iterable[bytes]:
        stages.read(records)
        with contextlib.suppress(Exception):  # told when it is needed
            unpickled(self.code)
            Store(self.store, options=self.options).marker()
        return [b""] * self.slots


def warm(spark: SparkSession, store: str, options: Mapping[str, Any], code: bytes) -> bool:
    """Blocks until one batch of rows is through; whether it is. In a session of its own: nobody awaits its queries."""
    spark = spark.newSession()
    context = spark.sparkContext
    there = locations(context)
    slots: list[str | None] = [*there] or [None] * context.defaultParallelism
    exchange, through = Exchange(context), threading.Event()

    def each(frame: DataFrame, _: int) -> None:
        if not through.is_set():
            level, partitions = exchange.batch(frame, locations=there)
            level = exchange.shuffle(level, Nothing(len(slots), store, options, code), partitions, slots)
            exchange.collect(level, Nothing(1, store, options, code))
            through.set()

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    with tempfile.TemporaryDirectory(prefix="holdfast-warm-") as folder:
        query = rows.writeStream.foreachBatch(each).option("checkpointLocation", f"file://{folder}").start()
        try:
            return through.wait(ENOUGH)
        finally:
            query.stop()
