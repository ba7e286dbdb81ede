"""Holdfast's queries without Spark's streaming loop and executors: batches come from a script, stages run right here.

All else is what users have: ``holdfast.writeStream`` cuts the query, Spark runs what is below and above over each
batch, and the driver, its runs, the workers, the store, nodes that are killed and the delivery of batches are the
product's own. Two parts of its edge are taken out: ``Exchange``, which hands bundles from stage to stage, and of
``StreamSource`` what starts and watches Spark's query.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import DataFrame

from holdfast.errors import HoldfastError, StreamEnded
from holdfast.queries.plans import Plans, items, kind, scala_object
from holdfast.runtime.spark import exchange, source
from holdfast.runtime.spark.affinity import SlotAffinity
from holdfast.runtime.spark.java import java
from holdfast.state.origin import Origin

ZONE = "UTC"
_turn = threading.Lock()
"""A process of Spark's runs one task at a time, and workers count on that: epochs and replays have threads of their own
here, and so have other queries."""


@dataclass(frozen=True)
class Script:
    """The rows of micro-batches, ``first`` being the number of the first. ``watermarks``: Spark's for each of them, in
    microseconds, and at last the one for a batch to come."""

    batches: Sequence[DataFrame]
    first: int
    watermarks: Sequence[int]


class Scripts:
    """What stands for Spark while a test is at it: ``of`` has the script of a store's folder."""

    def __init__(self) -> None:
        self.of: dict[str, Script] = {}

    @contextmanager
    def put_in(self, monkeypatch: pytest.MonkeyPatch, small: bool = False) -> Iterator[None]:
        """``small``: from the second on all epochs count as small, whatever the clock says."""
        with monkeypatch.context() as patch:
            for name, value in (("LAST", 1), ("FEW", 1e6)) if small else ():
                patch.setattr(f"holdfast.runtime.driver.running.{name}", value)
            for name, value in (("LAST", 1), ("LITTLE", 1e6)) if small else ():
                patch.setattr(f"holdfast.runtime.spark.runner.{name}", value)
            patch.setattr("holdfast.runtime.spark.runner.Exchange", Exchange)
            patch.setattr("holdfast.runtime.spark.starting.StreamSource", self._source)
            yield

    def _source(self, streams: Any, log: str, *others: Any) -> Source:
        made = Source(streams, log, *others)
        made.script = self.of[log]
        return made


class Exchange(exchange.Exchange):
    """Bundles go from stage to stage in this process, a partition after the other."""

    def settings_of(self, frame: DataFrame) -> None:
        """They are for tasks of Spark, and few batches need any."""

    def batch(self, frame: Any, plan: Any = None, locations: Sequence[str] = ()) -> tuple[Any, int]:
        """Spark's rows in Arrow, as one partition. Rows that no join or union has made it computes without a job."""
        jvm = java(self._context)
        found = plan if plan is not None else frame._jdf.queryExecution().executedPlan()
        if kind(found) != "LocalTableScanExec":
            super().settings_of(frame)
        rows = jvm.scala.collection.mutable.ArraySeq.make(found.executeCollect()).iterator()
        arrow = scala_object(jvm.org.apache.spark.sql.execution.arrow, "ArrowConverters")
        made = arrow.toBatchIterator(rows, found.schema(), 10_000, ZONE, True, False, None)
        return [[bytes(made.next())] if made.hasNext() else []], 1

    def located(self, locations: Sequence[str | None]) -> Any:
        return [[b""] for _ in locations]

    def shuffle(self, level: Any, stage: exchange.Stage, partitions: int, locations: Sequence[str | None]) -> Any:
        """At once, and not when the last level is collected: there is nobody to be waited for."""
        sent = [_done(stage, index, came) for index, came in enumerate(level)]
        assert all(len(bundles) == len(locations) for bundles in sent)
        return [[bundles[slot] for bundles in sent] for slot in range(len(locations))]

    def collect(self, level: Any, stage: exchange.Stage) -> list[bytes]:
        return [part for index, came in enumerate(level) for part in _done(stage, index, came)]


def _done(stage: exchange.Stage, index: int, came: list[bytes]) -> list[bytes]:
    """A task, here; nobody has to wait for the process that has its state."""
    with _turn:
        return list((stage.stage if isinstance(stage, SlotAffinity) else stage)(index, iter(came)))


@dataclass(frozen=True)
class Tree:
    node: Any
    columns: Any = None
    children: Sequence[Tree] = ()


class Source(source.StreamSource):
    """Batches as the script has them, in place of those that Spark's query would make."""

    script: Script

    def _attend(self) -> None:
        script = self.script
        try:
            execution = Execution(script)
            with self._changed:
                self.query, self.execution = self, execution  # type: ignore[assignment]
                self._changed.notify_all()
            stream = Replaced(self._frame)
            for place, rows in enumerate(script.batches):
                execution.at, execution.now = place, stream.by(rows)
                self._each(execution.now, script.first + place)
            self._idles(True)
            self._on_error(None)
        except HoldfastError as error:
            self._on_error(error)
        except Exception as error:
            self._on_error(StreamEnded(f"the stream could not go on: {error!r}"))


class Execution:
    """What Spark's execution tells of the batches of a script."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.at = 0
        self.now: Any = None

    def last(self) -> Any:
        return self.now._jdf.queryExecution()

    def planned(self, batch: int, last: Any, by: int | None) -> Origin:
        return Origin(batch, (str(batch),), by=by)

    def went_by(self, last: Any) -> int:
        return self._script.watermarks[self.at] // 1000

    def watermark(self) -> int:
        return self._script.watermarks[-1] // 1000

    def observe(self, last: Any, before: Sequence[int | None]) -> tuple[int, tuple[int | None, ...]]:
        left = self._script.watermarks[self.at + 1] // 1000
        return left, (left,)


class Replaced:
    """A frame with other rows in place of its stream, as Spark makes a micro-batch of a streaming query."""

    def __init__(self, frame: DataFrame) -> None:
        made: Any = frame
        self._plans = Plans(frame.sparkSession)
        self._relation = self._plans.catalyst.plans.logical.LocalRelation
        self._nothing = self._plans.jvm.scala.Option.empty()
        self._tree = self._known(made._jdf.queryExecution().analyzed())

    def by(self, rows: DataFrame) -> DataFrame:
        given: Any = rows
        return self._plans.frame(self._put(self._tree, given._jdf.queryExecution().analyzed().data()))

    def _known(self, plan: Any) -> Tree:
        """Every node with what is below it; of streams their columns, and nothing of parts that read none."""
        if kind(plan) == "StreamingRelation":
            return Tree(plan, plan.output())
        if not plan.isStreaming():
            return Tree(plan)
        return Tree(plan, None, [self._known(child) for child in items(plan.children())])

    def _put(self, tree: Tree, rows: Any) -> Any:
        if tree.columns is not None:
            return self._relation(tree.columns, rows, False, self._nothing)
        if not tree.children:
            return tree.node
        return tree.node.withNewChildren(self._plans.seq([self._put(child, rows) for child in tree.children]))
