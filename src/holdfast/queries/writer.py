"""``holdfast.writeStream(frame)``, in place of ``frame.writeStream``: Spark's writer, state kept by Holdfast."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Self, Unpack

import pyarrow as pa
from pyspark.sql import DataFrame

from holdfast.errors import HoldfastError, Invalid, StreamEnded
from holdfast.operators.grouped import Emit
from holdfast.queries.delivery import Delivery
from holdfast.queries.file_folder import FileFolder, refuse_column
from holdfast.queries.folders import EpochFolders
from holdfast.queries.frames import Frames
from holdfast.queries.memory_table import MemoryTable
from holdfast.queries.pipelines import checked_mode, combined, pipeline_of
from holdfast.queries.split import Split
from holdfast.queries.stateful import NotCovered
from holdfast.queries.writer_options import KNOWN, writer_notes
from holdfast.runtime.driver.driver import Driver
from holdfast.runtime.driver.ports import Listener, Output
from holdfast.runtime.options import Flat, Group, Options
from holdfast.runtime.spark import Job
from holdfast.runtime.spark.foreign import refuse_checkpoint
from holdfast.runtime.spark.shipping import first_cause
from holdfast.runtime.spark.source import Edge, StreamSource
from holdfast.runtime.spark.starting import begin, default_nodes
from holdfast.state import Store

FORMATS = ("parquet", "json", "csv", "orc", "text", "console", "memory", "noop")
NO_DATA = "spark.sql.streaming.noDataMicroBatches.enabled"
ENDS = 60.0
"""Seconds that a job has to say what it ended with."""
Batches = Callable[[DataFrame, int], None]


def writeStream(frame: DataFrame) -> Writer:
    """A writer for a streaming query that keeps state; what cannot be run here is refused by its name."""
    return Writer(Split(frame))


class Query(Job):
    """A running query: a job whose answers go where they were asked for."""

    def __init__(self, store: Store, name: str | None, give: Callable[[pa.Table | None, int], None]) -> None:
        super().__init__(store.url)
        self.name = name
        self.delivery = Delivery(store.files, give, self._not_taken, self._look)

    def processAllAvailable(self) -> None:
        """Until everything that the source has now is answered and delivered; for tests."""
        if self._source is not None and self.isActive:
            try:
                self._source.process_all()
            except Exception as failed:  # Spark's own words; the job has better ones when it has ended
                if not self._ended.wait(ENDS) or self.exception() is None:
                    raise StreamEnded(f"the stream ended: {first_cause(failed)}") from None
            else:
                self.delivery.wait(self.driver.snapshot.head)
        if (error := self.exception()) is not None:
            raise error

    def pace(self) -> None:
        """Whoever takes batches may be a few epochs behind, not more."""
        self.delivery.pace()

    def _attach(self, driver: Driver, source: StreamSource) -> None:
        super()._attach(driver, source)
        driver.telling.hearers.append(self.delivery.heard)

    def _look(self) -> tuple[int | None, int]:
        seen = self._driver.snapshot if self._driver is not None else None
        return (None, -1) if seen is None else (seen.final, seen.checkpoint)

    def _not_taken(self, error: HoldfastError) -> None:
        self.driver.clock.post(lambda: self.driver.fail(error))

    def _notice(self, event: dict[str, Any]) -> None:
        super()._notice(event)
        self.delivery.finals()

    def _finish(self, error: HoldfastError | None) -> None:
        self.delivery.finals()
        self.delivery.end(lambda: super(Query, self)._finish(error or self.delivery.error), error is None)
        if error is None:
            self._begun.set()  # start returns, and what is left is delivered


class Writer:
    """What DataStreamWriter has, and ``resilience`` for what it has not."""

    def __init__(self, split: Split) -> None:
        self._split = split
        self._mode: Emit = "append"
        self._format = "parquet"
        self._options: dict[str, str] = {}
        self._trigger: dict[str, Any] = {}
        self._name: str | None = None
        self._partition: tuple[str, ...] = ()
        self._batches: Batches | None = None
        self._early: Callable[[DataFrame, int, float], None] | None = None
        self._ours = Options()
        self._nodes: int | None = None
        self._parallelism: int | None = None
        self._listeners: tuple[Listener, ...] = ()

    def outputMode(self, outputMode: str) -> Self:
        self._mode = checked_mode(outputMode, "outputMode")
        return self

    def format(self, source: str) -> Self:
        if source not in FORMATS:
            raise NotCovered(
                f"format {source!r} is not covered; {', '.join(FORMATS)} are; foreachBatch writes all that Spark has"
            )
        self._format = source
        return self

    def option(self, key: str, value: str | float | bool | None) -> Self:
        self._options[KNOWN.get(key.lower(), key)] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: str | float | bool | None) -> Self:
        for key, value in options.items():
            self.option(key, value)
        return self

    def partitionBy(self, *cols: str | list[str]) -> Self:
        names = [name for each in cols for name in ([each] if isinstance(each, str) else each)]
        if unknown := [name for name in names if name not in self._split.schema.names]:
            raise Invalid(f"partitionBy {unknown[0]!r}: the columns are {', '.join(self._split.schema.names)}")
        self._partition = tuple(names)
        return self

    def queryName(self, queryName: str) -> Self:
        if not str(queryName).strip():
            raise Invalid(f"queryName must be a text that is not empty, got {queryName!r}")
        self._name = str(queryName)
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
    ) -> Self:
        if continuous is not None:
            raise NotCovered("trigger(continuous=...) is not covered; processingTime, availableNow and once are")
        given = {"processingTime": processingTime, "once": once, "availableNow": availableNow}
        chosen = {name: value for name, value in given.items() if value is not None}
        if len(chosen) != 1:
            raise Invalid(
                f"trigger: give one of processingTime, availableNow and once, got {', '.join(chosen) or 'none'}"
            )
        self._trigger = chosen
        return self

    def foreachBatch(self, func: Batches) -> Self:
        if not callable(func):
            raise Invalid(f"foreachBatch: a function of a DataFrame and a number is needed, got {type(func).__name__}")
        self._batches = func
        return self

    def early(self, func: Callable[[DataFrame, int, float], None]) -> Self:
        """Called with the answer of each task as soon as it is there, with its epoch and its fidelity.

        Exact answers have a fidelity of 1; those after a failure less, and their exact ones follow. Batches wait for
        all tasks to be exact. At least once, in order for each task.
        """
        if not callable(func):
            raise Invalid(
                f"early: a function of a DataFrame, an epoch and a fidelity is needed, got {type(func).__name__}"
            )
        self._early = func
        return self

    def resilience(
        self,
        *options: Group,
        nodes: int | None = None,
        parallelism: int | None = None,
        listeners: Iterable[Listener] = (),
        **flat: Unpack[Flat],
    ) -> Self:
        """How the query is kept alive: what ``holdfast.start`` takes, and ``parallelism``, the number of tasks."""
        counts: dict[str, Any] = {"nodes": nodes, "parallelism": parallelism}
        for name, given in counts.items():
            if given is not None and (not isinstance(given, int) or given < 1):
                raise Invalid(f"resilience {name}: a whole number of at least 1 is needed, got {given!r}")
        self._ours = self._ours.taking(options, flat, "resilience")
        self._nodes = self._nodes if nodes is None else nodes
        self._parallelism = self._parallelism if parallelism is None else parallelism
        self._listeners += tuple(listeners)
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> Query:
        if format is not None:
            self.format(format)
        if outputMode is not None:
            self.outputMode(outputMode)
        if partitionBy is not None:
            self.partitionBy(*([partitionBy] if isinstance(partitionBy, str) else partitionBy))
        if queryName is not None:
            self.queryName(queryName)
        self.options(**options)
        if path is not None:
            self._options["path"] = path
        if self._batches is not None:
            return self._begin(self._batches, "foreachBatch")
        batches, target = self._written()
        return self._begin(batches, self._format, target)

    def toTable(self, tableName: str) -> Query:
        """Every batch is appended to this table, which is made if it is not there."""
        if self._mode != "append":
            raise NotCovered(f"toTable in mode {self._mode} is not covered: rows would be there twice; use append")
        append = partial(_to_table, tableName, self._partition, dict(self._options))
        return self._begin(append, "toTable")

    def _begin(self, batches: Batches, what: str, target: FileFolder | MemoryTable | None = None) -> Query:
        split, spark = self._split, self._split.below.sparkSession
        store = self._options.get("checkpointLocation")
        if store is None:
            raise Invalid(
                'checkpointLocation: say where state, journal and answers are kept: .option("checkpointLocation", d)'
            )
        nodes = default_nodes(spark) if self._nodes is None else self._nodes
        parallelism = max(2, nodes) if self._parallelism is None else self._parallelism
        pipeline = pipeline_of(split, self._mode, parallelism, max(2, nodes))
        empty, frames = split.top.schema().empty_table(), Frames(spark)

        def give(rows: pa.Table | None, epoch: int) -> None:
            answers = split.top.finished(rows) if rows is not None else empty
            batches(split.above(frames.of(answers)), epoch)

        def hear(told: Output) -> None:
            assert early is not None
            early(split.above(frames.of(split.top.finished(told.table))), told.epoch, told.fidelity)

        early = self._early

        def into(place: Store) -> Query:
            refuse_checkpoint(spark, store, place, self._mode)
            if target is not None:
                target.check(place)
            made.append(Query(place, self._name, give))
            return made[-1]

        made: list[Query] = []
        if self._name is not None and any(query.name == self._name for query in spark.streams.active):
            raise Invalid(f"queryName {self._name!r}: a query of that name is running")
        idles = split.watermarked and any(node.idles(self._mode) for node in split.nodes)
        idles = idles and spark.conf.get(NO_DATA, "true") == "true"
        sink = hear if early is not None else None
        edge = Edge(
            self._trigger, self._name, split.watermarked, idles, sink, self._listeners, combines=combined(pipeline)
        )
        begin(split.below, pipeline, store, nodes, self._ours, edge, into, writer_notes(spark, what, self._options))
        try:
            if target is not None:
                target.claim(made[0].driver.writer.store)
            if isinstance(batches, EpochFolders):
                batches.begin(made[0].driver.writer)
            made[0].delivery.begin(made[0].driver.writer, isinstance(target, MemoryTable) and target.again)
        except BaseException:
            made[0].delivery.leave()
            made[0].stop()
            raise
        return made[0]

    def _written(self) -> tuple[Batches, FileFolder | MemoryTable | None]:
        """What takes the batches, and where they go if not every store's batches may go there."""
        spark, schema = self._split.below.sparkSession, self._split.schema
        options = {key: value for key, value in self._options.items() if key != "checkpointLocation"}
        match self._format:
            case "console":
                return partial(_to_console, self._name, options), None
            case "memory":
                if self._name is None:
                    raise Invalid("format memory: give the query a name, which is the table's: .queryName('totals')")
                table = MemoryTable(spark, self._name, self._mode, schema)
                return table, table
            case "noop":
                return lambda frame, _: frame.write.format("noop").mode("overwrite").save(), None
        if self._mode != "append":
            raise NotCovered(
                f"format {self._format} in mode {self._mode} is not covered: files can only be added to; use append"
            )
        path = options.pop("path", None)
        if path is None:
            raise Invalid(f"format {self._format}: say where to: .start(path)")
        refuse_column(schema.names)
        return EpochFolders(spark, self._format, path, self._partition, options), FileFolder(spark, path)


def _to_table(name: str, by: tuple[str, ...], options: Mapping[str, str], frame: DataFrame, epoch: int) -> None:
    chosen = {key: value for key, value in options.items() if key not in ("checkpointLocation", "path")}
    writer = frame.write.mode("append").options(**chosen)
    (writer.partitionBy(*by) if by else writer).saveAsTable(name)


def _to_console(name: str | None, options: Mapping[str, str], frame: DataFrame, epoch: int) -> None:
    print(f"{'-' * 43}\nBatch: {epoch}{f' of {name}' if name else ''}\n{'-' * 43}")
    frame.show(int(options.get("numRows", 20)), options.get("truncate", "true") == "true")
