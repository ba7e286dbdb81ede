"""The inputs as Structured Streaming sources: generated rows on the JVM, and files by row number. Spark lives here.

Both give an epoch again, to the row, from the offsets in Spark's own log, so a restart replays what was planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holdfast.errors import Invalid
from holdfast.workloads.files import InputFile, cut, open_input
from holdfast.workloads.picks import Pick, from_json, read_picked, schema_of, to_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def numbered_stream(spark: SparkSession, rate: int, partitions: int) -> DataFrame:
    """``rate`` rows an epoch, numbered on from epoch to epoch by ``value``."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rate)
        .option("numPartitions", partitions)
        .option("startTimestamp", 0)
        .option("advanceMillisPerBatch", 1000)
        .load()
    )


def computed(numbers: DataFrame, layers: Sequence[Mapping[str, str]], columns: Mapping[str, str]) -> DataFrame:
    """Columns from row numbers (``value``): SQL text for random draws and what follows from them, then for the columns.

    Draws are columns of their own, so that each is computed once however often it is used.
    """
    known = numbers.select("value")
    for layer in layers:
        known = known.selectExpr("*", *(f"{sql} AS {name}" for name, sql in layer.items()))
    return known.selectExpr(*(f"{sql} AS {name}" for name, sql in columns.items()))


def file_stream(spark: SparkSession, file: InputFile, picks: Sequence[Pick], epochs: int, partitions: int) -> DataFrame:
    """A file read once, in ``epochs`` micro-batches of nearly equal row counts."""
    spark.dataSource.register(FileSource)
    return (
        spark.readStream.format(FileSource.name())
        .option("path", file.path)
        .option("picks", to_json(picks))
        .option("epochs", epochs)
        .option("partitions", partitions)
        .load()
    )


class FileSource(DataSource):
    """``holdfast-file``: offsets are an epoch and the row it ends at; a partition is a range of rows."""

    @classmethod
    def name(cls) -> str:
        return "holdfast-file"

    def schema(self) -> StructType:
        return from_arrow_schema(schema_of(from_json(self.options["picks"])))

    def streamReader(self, schema: StructType) -> FileStream:
        return FileStream(
            open_input(self.options["path"]),
            from_json(self.options["picks"]),
            int(self.options["epochs"]),
            int(self.options["partitions"]),
        )


@dataclass
class RowRange(InputPartition):
    """Rows [start, stop) of the file."""

    start: int
    stop: int


@dataclass
class FileStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans an epoch at a time; reads row ranges as Arrow batches."""

    file: InputFile
    picks: tuple[Pick, ...]
    epochs: int
    parts: int

    def initialOffset(self) -> dict[str, int]:
        return {"epoch": 0, "row": 0, "bytes": self.file.size}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(max(1, -(-self.file.rows // self.epochs)))

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        self._check(start)
        if start["epoch"] >= self.epochs:
            return start
        epoch = self.epochs if isinstance(limit, ReadAllAvailable) else start["epoch"] + 1
        _, row = cut(self.file.rows, self.epochs, epoch - 1)
        return {"epoch": epoch, "row": max(row, start["row"]), "bytes": self.file.size}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self._check(end)
        rows = end["row"] - start["row"]
        shares = [cut(rows, self.parts, place) for place in range(self.parts)]
        return [RowRange(start["row"] + a, start["row"] + b) for a, b in shares if b > a]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, RowRange)
        rows = read_picked(self.file, self.picks, partition.start, partition.stop)
        yield from rows.to_batches(max_chunksize=100_000)

    def prepareForTriggerAvailableNow(self) -> None:
        """The file is whole from the start: what is there now is all there will be."""

    def _check(self, offset: dict[str, int]) -> None:
        if offset["bytes"] != self.file.size:
            raise Invalid(
                f"{self.file.path}: the file changed since the run began: it had {offset['bytes']} bytes, "
                f"now {self.file.size}; go on with the file as it was, or start anew"
            )
