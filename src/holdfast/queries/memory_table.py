"""``format("memory")``: a temporary view of what a query has answered, in the process that runs it."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.errors import Invalid
from holdfast.operators.grouped import Emit
from holdfast.queries import delivery
from holdfast.state import Store


class MemoryTable:
    """All rows so far, or those of the last batch in mode complete; empty until the first batch.

    A restart has none of the rows before it, so it is refused, as by Structured Streaming, but in mode complete, where
    the last batch is all there is.
    """

    def __init__(self, spark: SparkSession, name: str, mode: Emit, schema: StructType) -> None:
        self._spark = spark
        self._name = name
        self._mode = mode
        self._schema = schema
        self._batches: dict[int, pa.Table] = {}

    @property
    def again(self) -> bool:
        """Whether a restart needs the last batch again."""
        return self._mode == "complete"

    def check(self, store: Store) -> None:
        """Invalid if this store has delivered batches whose rows would be missing. Reads only."""
        if self.again or not store.exists() or (given := delivery.given(store.files)) < 0:
            return
        raise Invalid(
            f"format memory in mode {self._mode}: the rows up to batch {given} were in the table of an earlier process "
            f"alone; use mode complete or another format, or delete {store.url} to start over"
        )

    def claim(self, store: Store) -> None:
        """As ``check``, now that this process holds the store; then an empty table replaces any of its name."""
        self.check(store)
        self._spark.createDataFrame([], self._schema).createOrReplaceTempView(self._name)

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        if self.again:
            self._batches.clear()
        self._batches[epoch] = frame.toArrow()
        rows = pa.concat_tables([self._batches[each] for each in sorted(self._batches)])
        frame.sparkSession.createDataFrame(rows, frame.schema).createOrReplaceTempView(self._name)
