"""Spark's own execution of a streaming query, through the gateway: the batch at hand, what it reads, its watermarks.

Each call costs a tenth of a millisecond and more, so what does not change is asked once.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from pyspark.sql.streaming.query import StreamingQuery

from holdfast.state.files import sync_folder
from holdfast.state.origin import Origin

_WATERMARK = re.compile(r"([0-9a-f-]{36}) -> (?:Some\((-?\d+)\)|None)")
_LOG_OFFSET = re.compile(r'^\{"logOffset":(\d+)\}$')


class StreamExecution:
    """The ``MicroBatchExecution`` behind a query."""

    def __init__(self, query: StreamingQuery) -> None:
        java: Any = query
        self._java = java._jsq.streamingQuery()
        self._sources: list[Any] | None = None
        self._operators: list[str] | None = None

    def last(self) -> Any:
        """How Spark runs the batch at hand."""
        return self._java.lastExecution()

    def nothing_there(self) -> bool:
        """Whether Spark has looked for rows, and found none, since the last batch."""
        return bool(self._java.noNewData())

    def committed(self, batch: int) -> bool:
        """Whether Spark's log says that this batch is done."""
        newest = self._java.commitLog().getLatestBatchId()
        return bool(newest.isDefined() and int(newest.get()) >= batch)

    # What a batch reads

    def planned(self, batch: int, last: Any, by: int | None) -> Origin:
        """The batch at hand, as Spark planned it."""
        return Origin(batch, tuple(self._offsets()), _digest(_files(last)), by=by)

    def _offsets(self) -> Iterator[str | None]:
        if self._sources is None:
            found = self._java.sources()
            self._sources = [found.apply(number) for number in range(found.size())]
        available = self._java.availableOffsets()
        for source in self._sources:
            offset = available.get(source)
            yield str(offset.get().json()) if offset.isDefined() else None

    # Watermarks, in milliseconds

    def went_by(self, last: Any) -> int:
        """The one by which Structured Streaming would close windows in the batch at hand."""
        return int(last.offsetSeqMetadata().batchWatermarkMs())

    def watermark(self) -> int:
        """The one that the next batch goes by."""
        return int(self._java.watermarkTracker().currentWatermark())

    def observe(self, last: Any, before: Sequence[int | None] = ()) -> tuple[int, tuple[int | None, ...]]:
        """The watermark behind a batch, and that of each operator, when all of the batch was run.

        ``before``: the watermarks of the operators behind the batch before. Spark keeps these in memory, so in a new
        process its operators continue from what is given here. To observe a batch twice changes nothing.
        """
        left, operators = self._updated(last)
        if len(before) == len(operators):
            carried = tuple(_later(*both) for both in zip(operators, before, strict=True))
            if carried != operators:
                self._carry(last, carried)
                left, _ = self._updated(last)
                operators = carried
        return left, operators

    def _updated(self, last: Any) -> tuple[int, tuple[int | None, ...]]:
        tracker = self._java.watermarkTracker()
        tracker.updateWatermark(last.executedPlan())
        known = {node: int(ms) if ms else None for node, ms in _WATERMARK.findall(str(tracker.watermarkMap()))}
        return int(tracker.currentWatermark()), tuple(known.get(node) for node in self._watermark_operators())

    def _carry(self, last: Any, operators: Sequence[int | None]) -> None:
        """Spark takes the newest event time of a batch from an accumulator of the operator, so it is added there.

        Spark may leave an operator out of a batch in which its stream has no row; then it continues in a later batch.
        """
        wanted = dict(zip(self._watermark_operators(), operators, strict=True))
        for each in _walk(last.executedPlan()):
            if each.nodeName() == "EventTimeWatermark" and (ms := wanted.get(str(each.nodeId()))) is not None:
                each.eventTimeStats().add(ms + int(each.delayMs()))

    def _watermark_operators(self) -> list[str]:
        """The ids of the watermark operators in the order of the query's plan; they are others in each process."""
        if self._operators is None:
            plan = _walk(self._java.logicalPlan())
            self._operators = list(dict.fromkeys(str(x.nodeId()) for x in plan if x.nodeName() == "EventTimeWatermark"))
        return self._operators


def read_all(last: Any) -> None:
    """Run a batch for what Spark itself keeps of it: event times, and the state of the query below."""
    last.toRdd().count()


def sync_log(log: str, origin: Origin) -> None:
    """Bring what Spark's log says of a batch to the platter, where the log is on a local disk.

    Spark renames files without that. A batch that is lost from the log after the journal has it would be planned again
    with other rows.
    """
    parts = urlparse(log)
    if parts.scheme not in ("", "file"):
        return
    folder = Path(unquote(parts.path))
    names = [folder / "offsets" / str(origin.batch), folder / "commits" / str(origin.batch - 1)]
    for number, offset in enumerate(origin.offsets):
        if offset is not None and (found := _LOG_OFFSET.match(offset)):
            source = folder / "sources" / str(number)
            names += [source / found[1], source / f"{found[1]}.compact"]
    for name in names:
        for path in (name, name.with_name(f".{name.name}.crc")):
            _sync_file(path)
    for parent in dict.fromkeys(name.parent for name in names):
        if parent.is_dir():
            sync_folder(parent)


def _sync_file(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files(last: Any) -> Iterator[str]:
    """The files that a batch reads, of sources that read files."""
    leaves = last.logical().collectLeaves()
    for leaf in (leaves.apply(number) for number in range(leaves.size())):
        if leaf.nodeName() == "LogicalRelation" and leaf.isStreaming():
            relation = leaf.relation()
            if relation.getClass().getSimpleName() == "HadoopFsRelation":
                yield from str(relation.location().rootPaths().mkString("\n")).split("\n")


def _digest(files: Iterator[str]) -> str:
    names = sorted(files)
    return f"{len(names)} {hashlib.sha256(chr(10).join(names).encode()).hexdigest()[:32]}" if names else ""


def _later(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _walk(plan: Any) -> Iterator[Any]:
    """A plan's nodes, each before its children."""
    yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _walk(children.apply(number))
