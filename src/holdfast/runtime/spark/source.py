"""A streaming query as the source of a job: each micro-batch is offered, and committed when it is released."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import HoldfastError, Invalid, StreamEnded
from holdfast.runtime.driver.durable import taken
from holdfast.runtime.driver.ports import Listener, Offer, Sink
from holdfast.runtime.raised import plain, where_of
from holdfast.runtime.spark.columns import column_of
from holdfast.runtime.spark.combining import Combined
from holdfast.runtime.spark.execution import StreamExecution, read_all, sync_log
from holdfast.runtime.spark.idle import IdleEpoch, IdleEpochs
from holdfast.runtime.spark.log import belongs, renaming
from holdfast.runtime.spark.narrowing import keeps_state
from holdfast.runtime.spark.shipping import first_cause
from holdfast.state import Store
from holdfast.state.origin import Origin

ENDS, GOES_ON = 0.05, 0.2
"""Seconds between two looks at a query that will end by itself, and at one that goes on: each is a call through the
gateway, and there may be a hundred queries.
"""
COMMITS = 10.0
"""Seconds that Spark has at the end to commit the last batch."""


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


@dataclass(slots=True)
class _AtHand:
    """The epoch that was offered, and its batch. ``plan``: Spark's, None if it has no rows. ``whole``: it is known what
    the batch reads."""

    epoch: int
    origin: Origin
    plan: Any
    whole: bool


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
    None if it was to end. ``store``: for epochs that have no rows. ``token``: of the store's writer.
    ``head``: the newest epoch that the job has. ``pace``: returns when another epoch may come.
    """

    def __init__(
        self,
        streams: Mapping[str, DataFrame],
        log: str,
        edge: Edge,
        on_error: Callable[[HoldfastError | None], None],
        store: Store,
        token: Callable[[], int],
        head: Callable[[], int],
        pace: Callable[[], None],
    ) -> None:
        self._frame, self._columns = _one_stream(streams)
        self._log = log
        self._edge = edge
        self._on_error = on_error
        self._files, self._sync = store.files, store.sync.journal
        self._token, self._head, self._pace = token, head, pace
        self._newest: Origin | None = None
        """The newest epoch that was journalled, here or by an earlier driver; the watermark continues from it."""
        self._at_hand: _AtHand | None = None
        self._journalled = -1
        """The newest epoch whose origin was asked for here: a run of this process has read it."""
        self._turn = threading.Lock()
        self._offer: Offer | None = None
        self._released = -1
        self._closed = False
        self._error: HoldfastError | None = None
        self._changed = threading.Condition()
        self.query: StreamingQuery | None = None
        self.execution: StreamExecution | None = None
        self.thread: threading.Thread | None = None

    def open(self, offer: Offer, newest: Origin | None) -> None:
        self._offer, self._newest = offer, newest
        self._idle = IdleEpochs(self._files, self._token(), self._edge.idles)  # now that nobody else writes there
        self.thread = threading.Thread(target=self._attend, name="holdfast-stream", daemon=True)
        self.thread.start()

    def origin(self, epoch: int, read: bool) -> Origin:
        with self._changed:
            at_hand = self._at_hand
            assert at_hand is not None and at_hand.epoch == epoch
            self._changed.wait_for(lambda: at_hand.whole or self._closed)
        if not at_hand.whole:
            raise self._error or StreamEnded("the stream was closed before an epoch was journalled")
        planned = at_hand.origin
        if self._edge.watermarked and not planned.idle:
            try:
                planned = self._with_watermark(planned, at_hand.plan, read)
            except Exception as error:  # py4j wraps whatever Spark throws
                raise StreamEnded(f"the stream ended: {first_cause(error)}") from None
        self._newest, self._journalled = planned, epoch
        return planned

    def _with_watermark(self, planned: Origin, plan: Any, read: bool) -> Origin:
        assert self.execution is not None
        if not read:
            read_all(plan)
        left, operators = self.execution.observe(plan, self._newest.operators if self._newest is not None else ())
        return replace(planned, left=left, operators=operators)

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
                raise self._closing()
        self._pace()
        with self._turn:
            epoch = self._idle.epoch_of(batch)
            if (before := self._idle.last()) is not None and before.batch < batch and before.epoch > self._head():
                self._offer_idle(before)
            assert self.execution is not None
            plan = self.execution.last()
            by = self.execution.went_by(plan) if self._edge.watermarked else None
            watermark = None if by is None else by * 1000
            last, own = epoch == self._edge.last, plan.executedPlan()
            self._give(epoch, Batch(frame, self._columns, last, watermark, own, self._edge.combines), batch, plan, by)
            if epoch > self._journalled:
                self._answered_before(frame, batch, plan, by)

    def _give(self, epoch: int, rows: Batch, batch: int, plan: Any, by: int | None) -> None:
        """Offered, and released. What a new batch reads is found out while it is run."""
        assert self._offer is not None and self.execution is not None
        if not self._closed:
            again = epoch <= self._head()
            planned = self.execution.planned(batch, plan, by) if again else Origin(batch, by=by)
            at_hand = self._at_hand = _AtHand(epoch, planned, plan, again)
            self._offer(epoch, rows, planned)
            if not again:
                planned = self.execution.planned(batch, plan, by)
                if self._sync:
                    sync_log(self._log, planned)
                with self._changed:
                    at_hand.origin, at_hand.whole = planned, True
                    self._changed.notify_all()
        self._until_released(epoch)

    def _until_released(self, epoch: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._released >= epoch or self._closed)
            if self._released < epoch:
                raise self._closing()

    def _closing(self) -> _Closed:
        """Ends Spark's query. Not the job's own error: py4j would leave its frames in that."""
        return _Closed(str(self._error or ""))

    def _answered_before(self, frame: DataFrame, batch: int, plan: Any, by: int | None) -> None:
        """An earlier driver answered this batch, so no run of this process has shown its rows to Spark's operators."""
        assert self.execution is not None
        known = self._newest is not None and self._newest.left is not None
        if keeps_state(frame) or (self._edge.watermarked and not known):
            read_all(plan)
        if self._edge.watermarked:
            self._newest = self._newest or Origin(batch, by=by)
            self.execution.observe(plan, self._newest.operators)

    def _idles(self, over: bool = False) -> None:
        """The last batch is through, and there is no other: if it has moved the watermark, an epoch goes by that."""
        with self._turn:
            newest = self._newest
            if not self._edge.idles or newest is None or newest.by is None or self.execution is None:
                return
            if not over and not self.execution.nothing_there():
                return
            with suppress(_Closed):
                if (put := self._idle.last()) is not None and put.epoch > self._head():
                    self._offer_idle(put)  # an earlier driver died before it was run
                elif (watermark := self.execution.watermark()) > newest.by:
                    self._offer_idle(taken(partial(self._idle.add, newest.batch, watermark * 1000), self._pause))

    def _pause(self, seconds: float) -> None:
        """Before the store is asked again; not when no more epochs are wanted."""
        with self._changed:
            if self._changed.wait_for(lambda: self._closed, seconds):
                raise self._closing()

    def _offer_idle(self, each: IdleEpoch) -> None:
        assert self._offer is not None
        empty = self._frame.sparkSession.createDataFrame([], self._frame.schema)
        before, by = self._newest or Origin(each.batch), each.watermark // 1000
        origin = replace(before, batch=each.batch, idle=True, by=by, left=by)
        self._at_hand = _AtHand(each.epoch, origin, None, True)
        if not self._closed:
            rows = Batch(empty, self._columns, False, each.watermark, combines=self._edge.combines)
            self._offer(each.epoch, rows, origin)
        self._until_released(each.epoch)

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
                self.query, self.execution = query, StreamExecution(query)
                self._changed.notify_all()
            ends = not self._edge.trigger.keys().isdisjoint(("availableNow", "once"))
            while query.isActive:
                with self._changed:
                    if self._changed.wait_for(lambda: self._closed, ENDS if ends else GOES_ON):
                        break
                if not ends:
                    self._idles()
            if self._closed:
                return
            failure = query.exception()
            if failure is None and ends:
                if "once" not in self._edge.trigger:
                    self._idles(True)
                self._on_error(None)
                return
            if failure is None:
                self._on_error(StreamEnded("the stream ended: it was stopped from outside"))
                return
            cause = plain(failure)
            ended = StreamEnded(f"the stream ended: {first_cause(failure)}{where_of(cause)}")
            ended.__cause__ = cause if cause is not failure else None
            self._on_error(ended)
        except HoldfastError as error:
            if not self._closed:
                self._on_error(error)
                self.close(error)
        except Exception as error:  # py4j wraps whatever Spark throws
            if not self._closed:
                self._on_error(StreamEnded(f"the stream could not go on: {first_cause(error)}"))
        finally:
            if query is not None and query.isActive:
                self._until_committed(query)
                query.stop()

    def _until_committed(self, query: StreamingQuery) -> None:
        """Spark commits a batch a moment after it was given back; to stop the query meanwhile breaks that off."""
        at_hand, execution = self._at_hand, self.execution
        if at_hand is None or execution is None or self._released < at_hand.epoch:
            return
        until = time.monotonic() + COMMITS
        with suppress(Exception):  # a query that fails now commits nothing more
            while query.isActive and not execution.committed(at_hand.origin.batch) and time.monotonic() < until:
                time.sleep(0.01)


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
