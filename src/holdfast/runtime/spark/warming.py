"""What a driver that stands by does beforehand: a few rows go the way that the job's will, on every executor it has.

A first stream, a first shuffle and a first Python task each load much, in the driver's JVM and in every executor's:
seconds that readers would wait for after a take-over. Nothing of the job is read or written, and nothing is kept.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from holdfast.runtime.spark import stages
from holdfast.runtime.spark.exchange import Exchange
from holdfast.runtime.spark.nodes import locations

ROWS = 10
ENOUGH = 60.0
"""Seconds after which what is not warm by then is left."""


@dataclass(frozen=True)
class Nothing:
    """Takes what comes and sends a bundle of nothing to each slot."""

    slots: int

    def __call__(self, _: int, records: Iterable[bytes]) -> Iterable[bytes]:
        stages.read(records)
        return [b""] * self.slots


def warm(spark: SparkSession) -> bool:
    """Blocks until one batch of rows is through; whether it is. In a session of its own: nobody awaits its queries."""
    spark = spark.newSession()
    context = spark.sparkContext
    there = locations(context)
    slots: list[str | None] = [*there] or [None] * context.defaultParallelism
    exchange, through = Exchange(context), threading.Event()

    def each(frame: DataFrame, _: int) -> None:
        if not through.is_set():
            level, partitions = exchange.batch(frame, locations=there)
            level = exchange.shuffle(level, Nothing(len(slots)), partitions, slots)
            exchange.collect(level, Nothing(1))
            through.set()

    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    with tempfile.TemporaryDirectory(prefix="holdfast-warm-") as folder:
        query = rows.writeStream.foreachBatch(each).option("checkpointLocation", f"file://{folder}").start()
        try:
            return through.wait(ENOUGH)
        finally:
            query.stop()
