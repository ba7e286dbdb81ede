"""A stream's batches on their way to Python and no further: what Spark's source, and Arrow, cost without any work.

``source``: Spark makes the rows and throws them away. ``arrow``: they are handed to Python as Arrow, as Holdfast's
runner has them handed over, counted by batch and forgotten. ``copied``: the same through the copy of every row that
``foreachBatch`` makes, which is how it once was.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

WAYS = ("source", "arrow", "copied")


@dataclass(frozen=True)
class Counted:
    """How many rows a partition's record batches have."""

    schema: bytes

    def __call__(self, _: int, messages: Iterable[bytes]) -> Iterable[bytes]:
        schema = pa.ipc.read_schema(pa.py_buffer(self.schema))
        return [b"%d" % sum(pa.ipc.read_record_batch(pa.py_buffer(each), schema).num_rows for each in messages)]


def start(stream: Any, way: str, checkpoint: str, rows: int) -> Any:
    """The query, running. It fails if a batch comes with fewer rows than the ``rows`` it has."""
    writing = stream.writeStream.option("checkpointLocation", checkpoint)
    if way == "source":
        return writing.format("noop").start()
    from pyspark import cloudpickle

    from holdfast.runtime.spark.exchange import Exchange
    from holdfast.runtime.spark.shipping import arrow_schema

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not look into this folder
    exchange, schema = Exchange(stream.sparkSession.sparkContext), b""
    begun = threading.Event()
    queries: list[Any] = []

    def take(frame: Any, batch: int) -> None:
        nonlocal schema
        schema = schema or arrow_schema(frame.sparkSession, frame)
        begun.wait()
        plan = queries[0]._jsq.streamingQuery().lastExecution().executedPlan() if way == "arrow" else None
        level, _ = exchange.batch(frame, plan)
        if (came := sum(map(int, exchange.collect(level, Counted(schema))))) != rows:
            raise ValueError(f"batch {batch} came with {came} rows of {rows}")

    queries.append(writing.foreachBatch(take).start())
    begun.set()
    return queries[0]
