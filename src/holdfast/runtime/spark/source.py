"""A streaming query as the source of a job: each micro-batch is offered, and committed when it is released."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import HoldfastError, Invalid, StreamEnded
from holdfast.runtime.driver.durable import taken
from holdfast.runtime.driver.ports import Listener, Sink
from holdfast.runtime.spark.columns import column_of
from holdfast.runtime.spark.combining import Combined
from holdfast.runtime.spark.idle import IdleEpoch, IdleEpochs
from holdfast.runtime.spark.log import belongs, renaming
from holdfast.runtime.spark.shipping import first_cause
from holdfast.state.files import Files

ENDS, GOES_ON = 0.05, 0.2
"""Seconds between two looks at a query that will end by itself, and at one that goes on: each is a call through the
gateway, and there may be a hundred queries.
"""


@dataclass(frozen=True)
class Batch:
    """A micro-batch: its rows, in which column each source finds its own (None: all), and whether it is the last.

    ``watermark``: the one that Spark has for it, in microseconds, if sources go by that. ``plan``: Spark's own plan of
    it, which gives the rows that ``frame`` has a copy of. ``combines``: how they may be grouped before they come.
    """

    frame: DataFrame
    sources: Mapping[str, str | None]
    ends: bool = False
    watermark: int | None = None
    plan: Any = None
    combines: Combined | None = None


class _Closed(Exception):
    """Ends the stream from within when no more epochs are wanted; the batch is left uncommitted."""


@dataclass(frozen=True, slots=True)
class Edge:
    """How the stream is read, and who is told. ``trigger``: as ``DataStreamWriter.trigger`` takes it. ``watermarked``:
    Spark keeps the watermark, by ``withWatermark``; ``idles``: an epoch without rows is run when it has moved and
    nothing comes. ``bounded``: nothing follows the ``epochs``. ``combines``: how rows may be grouped before they come.
    """

    trigger: Mapping[str, Any]
    name: str | None = None
    watermarked: bool = False
    idles: bool = False
    sink: Sink | None = None
    listeners: tuple[Listener, ...] = ()
    epochs: int | None = None
    bounded: bool = False
    combines: Combined | None = None

    def __post_init__(self) -> None:
        if self.bounded and self.epochs is None:
            raise Invalid("bounded: say how many epochs there are, epochs=...")

    @property
    def last(self) -> int | None:
        """The epoch that ends the stream, if one does."""
        return self.epochs - 1 if self.bounded and self.epochs is not None else None


class StreamSource:
    """``log``: where Structured Streaming keeps its own. ``on_error``: the stream has ended by itself, with this; with
    None if it was to end. ``files``: of the store, for epochs that have no rows. ``token``: of the store's writer.
    ``head``: the newest epoch that the job has. ``pace``: returns when another epoch may come.
    """

    def __init__(
        self,
        streams: Mapping[str, DataFrame],
        log: str,
        edge: Edge,
        on_error: Callable[[HoldfastError | None], None],
        files: Files,
        token: Callable[[], int],
        head: Callable[[], int],
        pace: Callable[[], None],
    ) -> None:
        self._frame, self._columns = _one_stream(streams)
        self._log = log
        self._edge = edge
        self._on_error = on_error
        self._files, self._token, self._head, self._pace = files, token, head, pace
        self._batch: int | None = None
        """Spark's last batch; and by which watermark the last epoch went."""
        self._went_by: int | None = None
        self._turn = threading.Lock()
        self._offer: Callable[[int, object], None] | None = None
        self._released = -1
        self._closed = False
        self._error: HoldfastError | None = None
        self._changed = threading.Condition()
        self.query: StreamingQuery | None = None
        self.thread: threading.Thread | None = None

    def open(self, offer: Callable[[int, object], None]) -> None:
        self._offer = offer
        self._idle = IdleEpochs(self._files, self._token(), self._edge.idles)  # now that nobody else writes there
        self.thread = threading.Thread(target=self._attend, name="holdfast-stream", daemon=True)
        self.thread.start()

    def release(self, epoch: int) -> None:
        with self._changed:
            self._released = epoch
            self._changed.notify_all()

    def close(self, error: HoldfastError | None) -> None:
        with self._changed:
            self._error = self._error or error
            self._closed = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Until Spark's query is gone: another may be started upon its log, or under its name. Not for ever."""
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join(seconds)

    def process_all(self) -> None:
        """Until what there is to read now was read and answered."""
        with self._changed:
            self._changed.wait_for(lambda: self.query is not None or self._closed)
        if self.query is not None:
            self.query.processAllAvailable()
            self._idles()

    def _each(self, frame: DataFrame, batch: int) -> None:
        """On the stream's own thread: an epoch is over when it is released."""
        with self._changed:
            self._changed.wait_for(lambda: self.query is not None or self._closed)
            if self._closed:
                raise self._error or _Closed
        self._pace()
        with self._turn:
            epoch = self._idle.epoch_of(batch)
            if (before := self._idle.last()) is not None and before.batch < batch and before.epoch > self._head():
                self._offer_idle(before)
            watermark = self._watermark()
            plan = self._execution().executedPlan()
            last = epoch == self._edge.last
            self._give(epoch, Batch(frame, self._columns, last, watermark, plan, self._edge.combines))
            self._batch, self._went_by = batch, watermark

    def _give(self, epoch: int, batch: Batch) -> None:
        """Offered, and released."""
        assert self._offer is not None
        if not self._closed:
            self._offer(epoch, batch)
        with self._changed:
            self._changed.wait_for(lambda: self._released >= epoch or self._closed)
            if self._released < epoch:
                raise self._error or _Closed

    def _idles(self, over: bool = False) -> None:
        """The last batch is through, and there is no other: if it has moved the watermark, an epoch goes by that."""
        with self._turn:
            if not self._edge.idles or self._batch is None or self._went_by is None:
                return
            if not over and not self._nothing_there():
                return
            watermark = self._tracked()
            if watermark > self._went_by:
                with suppress(_Closed):
                    self._offer_idle(taken(partial(self._idle.add, self._batch, watermark), self._pause))

    def _pause(self, seconds: float) -> None:
        """Before the store is asked again; not when no more epochs are wanted."""
        with self._changed:
            if self._changed.wait_for(lambda: self._closed, seconds):
                raise self._error or _Closed

    def _offer_idle(self, each: IdleEpoch) -> None:
        empty = self._frame.sparkSession.createDataFrame([], self._frame.schema)
        self._give(each.epoch, Batch(empty, self._columns, False, each.watermark, combines=self._edge.combines))
        self._went_by = each.watermark

    def _tracked(self) -> int:
        """The watermark that Spark has for the batch to come, in microseconds."""
        query: Any = self.query
        return int(query._jsq.streamingQuery().watermarkTracker().currentWatermark()) * 1000

    def _nothing_there(self) -> bool:
        """Whether Spark has looked for rows, and found none, since the last batch."""
        query: Any = self.query
        return bool(query._jsq.streamingQuery().noNewData())

    def _watermark(self) -> int | None:
        """By this Structured Streaming would close windows in the batch at hand, and drop late rows of the next."""
        if not self._edge.watermarked:
            return None
        return int(self._execution().offsetSeqMetadata().batchWatermarkMs()) * 1000

    def _execution(self) -> Any:
        """How Spark runs the batch at hand."""
        query: Any = self.query
        return query._jsq.streamingQuery().lastExecution()

    def _attend(self) -> None:
        """Start the query and wait for its end: ours, or its own."""
        query: StreamingQuery | None = None
        try:
            writing = self._frame.writeStream.foreachBatch(self._each).option("checkpointLocation", self._log)
            if self._edge.name is not None:
                writing = writing.queryName(self._edge.name)
            if self._edge.trigger:
                writing = writing.trigger(**self._edge.trigger)
            if self._closed:
                return
            with renaming(self._frame.sparkSession, self._log):
                query = writing.start()
            token, begun = self._token(), self._head() >= 0
            taken(partial(belongs, self._files, token, str(query.id), self._log, begun), self._pause)
            with self._changed:
                self.query = query
                self._changed.notify_all()
            ends = not self._edge.trigger.keys().isdisjoint(("availableNow", "once"))
            while query.isActive:
                with self._changed:
                    if self._changed.wait_for(lambda: self._closed, ENDS if ends else GOES_ON):
                        break
                if self._went_by is not None and not ends:
                    self._idles()
            if self._closed:
                return
            failure = query.exception()
            if failure is None and ends:
                if "once" not in self._edge.trigger:
                    self._idles(True)
                self._on_error(None)
                return
            told = first_cause(failure) if failure is not None else "it was stopped from outside"
            self._on_error(StreamEnded(f"the stream ended: {told}"))
        except HoldfastError as error:
            if not self._closed:
                self._on_error(error)
                self.close(error)
        except Exception as error:  # py4j wraps whatever Spark throws
            if not self._closed:
                self._on_error(StreamEnded(f"the stream could not go on: {first_cause(error)}"))
        finally:
            if query is not None and query.isActive:
                query.stop()


def _one_stream(streams: Mapping[str, DataFrame]) -> tuple[DataFrame, dict[str, str | None]]:
    """One DataFrame for all sources: as it is, or a union in which each source's rows are a struct of their own."""
    if len(streams) == 1:
        ((name, frame),) = streams.items()
        return frame, {name: None}
    columns = {name: f"source_{number}" for number, name in enumerate(streams)}
    union: DataFrame | None = None
    for name, frame in streams.items():
        packed = F.struct(*[column_of(column) for column in frame.columns])
        selected = frame.select(
            *[
                packed.alias(columns[other])
                if other == name
                else F.lit(None).cast(streams[other].schema).alias(columns[other])
                for other in streams
            ]
        )
        union = selected if union is None else union.union(selected)
    assert union is not None
    return union, dict(columns)
