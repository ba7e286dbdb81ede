"""A simulated source with a log of its own, as Spark's: it may lose the newest batch and plan it with other rows.

Its watermark comes from what was run in this life of the driver alone, unless the driver says where it stood.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.runtime.driver.ports import Offer
from holdfast.runtime.simulation.cluster import SimulatedBatch
from holdfast.runtime.simulation.disk import Disk, DiskFiles
from holdfast.runtime.simulation.loop import VirtualLoop
from holdfast.runtime.simulation.operators import joined_batches, newest_times
from holdfast.runtime.simulation.pipelines import DELAY_MS
from holdfast.state.origin import Origin

if TYPE_CHECKING:
    from holdfast.operators import Pipeline
    from holdfast.runtime.simulation.simulation import Simulation

OFFSETS, COMMITS = "offsets", "commits"


class SourceLog:
    """What outlives a driver: which chunks are in which batch, and which batches are done. Not synced, as Spark's."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self._files: DiskFiles = disk.files("source", "log")
        self._lost: dict[str, bytes] = {}

    def newest(self, kind: str) -> tuple[int, dict[str, Any]] | None:
        """What a crash of the machine has torn is not there."""
        for name in reversed(self._files.list(kind)):
            try:
                return int(name), json.loads(bytes(self._files.read(f"{kind}/{name}")))
            except ValueError:
                continue
        return None

    def put(self, kind: str, batch: int, content: dict[str, Any]) -> None:
        self._files.put(f"{kind}/{batch:06d}", json.dumps(content).encode(), False)

    def sync(self, batch: int) -> None:
        self._files.put(path := f"{OFFSETS}/{batch:06d}", bytes(self._files.read(path)), True)

    def lose_newest(self) -> None:
        """The newest batch is gone from the log."""
        if (found := self.newest(OFFSETS)) is not None:
            for kind in (OFFSETS, COMMITS):
                if f"{found[0]:06d}" in self._files.list(kind):
                    path = f"{kind}/{found[0]:06d}"
                    self._lost.setdefault(path, bytes(self._files.read(path)))
                    self._files.delete(path)

    @property
    def lost(self) -> bool:
        return bool(self._lost)

    def put_back(self) -> None:
        """Somebody puts the log back as it was."""
        for path, data in self._lost.items():
            self._files.put(path, data, True)
        self._lost.clear()


@dataclass(slots=True)
class _AtHand:
    number: int
    last: int
    batch: SimulatedBatch
    done: bool = False


class SimulatedSource:
    """Offers one chunk a batch. Where the log has lost a batch that was answered, more chunks have come meanwhile."""

    def __init__(self, host: Simulation, loop: VirtualLoop) -> None:
        self._host = host
        self._loop = loop
        self._log = host.source_log
        self._offer: Offer | None = None
        self._closed = False
        self._at_hand: _AtHand | None = None
        self._watermark = 0
        self._operators: list[int | None] = [None for _ in host.pipeline.sources]
        self._carried: tuple[int | None, ...] = ()

    def open(self, offer: Offer, newest: Origin | None) -> None:
        self._offer = offer
        self._carried = newest.operators if newest is not None else ()
        planned, done = self._log.newest(OFFSETS), self._log.newest(COMMITS)
        if done is not None:
            self._watermark = done[1]["left"]
        if planned is not None and (done is None or done[0] < planned[0]):
            self._watermark = planned[1]["by"]
            self._give(planned[0], planned[1]["first"], planned[1]["last"])
        else:
            self._fetch()

    def origin(self, epoch: int, read: bool) -> Origin:
        at_hand = self._at_hand
        assert at_hand is not None and at_hand.number == epoch
        self._log.sync(at_hand.number)
        self._host.answered_as[epoch] = at_hand.last
        batch = at_hand.batch
        if not read:
            batch.seen.update(range(len(batch.pieces)))
        if batch.watermark is None:
            return Origin(at_hand.number, (str(at_hand.last),))
        self._carry()
        self._observe(batch)
        by, operators = batch.watermark, tuple(self._operators)
        return Origin(at_hand.number, (str(at_hand.last),), by=by, left=self._watermark, operators=operators)

    def release(self, epoch: int) -> None:
        at_hand = self._at_hand
        assert at_hand is not None

        def commit() -> None:
            self._host.answered(epoch)
            if self._closed:
                return  # to stop a query breaks off the commit under way
            if at_hand.batch.watermark is not None:
                self._carry()
                self._observe(at_hand.batch)
            self._log.put(COMMITS, at_hand.number, {"left": self._watermark})
            self._host.committed = max(self._host.committed, epoch)
            at_hand.done = True
            self._fetch()

        self._loop.after(self._host.timing.report, commit)

    def close(self, error: HoldfastError | None) -> None:
        self._closed = True

    def _fetch(self) -> None:
        """The next batch, when its time has come and the last one was done."""
        host, planned = self._host, self._log.newest(OFFSETS)
        number, first = (planned[0] + 1, planned[1]["last"] + 1) if planned is not None else (0, 0)
        if first >= len(host.batches) or self._closed:
            return
        due = number * host.timing.interval
        if self._loop.now() < due:
            self._loop.after(due - self._loop.now(), self._fetch)
            return
        last = min(first + (number in host.answered_as), len(host.batches) - 1)
        host.arrived(number, due)
        self._log.put(OFFSETS, number, {"first": first, "last": last, "by": self._watermark})
        self._give(number, first, last)

    def _give(self, number: int, first: int, last: int) -> None:
        assert self._offer is not None
        batch = joined_batches(self._host.batches[first : last + 1])
        batch = replace(batch, seen=set(), watermark=None if batch.watermark is None else self._watermark)
        self._at_hand = _AtHand(number, last, batch)
        self._host.arrived(number, number * self._host.timing.interval)
        self._offer(number, batch, Origin(number, (str(last),), by=batch.watermark))

    def _carry(self) -> None:
        for number, had in enumerate(self._carried):
            self._operators[number] = _later(self._operators[number], had)

    def _observe(self, batch: SimulatedBatch) -> None:
        """As Spark does: the newest time of each stream in what was run, less the delay; of them the least."""
        seen = [batch.pieces[number] for number in sorted(batch.seen)]
        for number, time in enumerate(newest_times(self._host.pipeline, seen)):
            self._operators[number] = _later(self._operators[number], None if time is None else time - DELAY_MS)
        self._watermark = max(self._watermark, min(ms or 0 for ms in self._operators))


def watermarked(pipeline: Pipeline, batches: list[SimulatedBatch]) -> list[SimulatedBatch]:
    """The batches with the watermark that each goes by when nothing fails: the plain loop."""
    newest: list[int | None] = [None for _ in pipeline.sources]
    by, told = 0, []
    for batch in batches:
        told.append(replace(batch, watermark=by))
        times = newest_times(pipeline, batch.pieces)
        left = [None if time is None else time - DELAY_MS for time in times]
        newest = [_later(*both) for both in zip(newest, left, strict=True)]
        by = max(by, min(ms or 0 for ms in newest))
    return told


def _later(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
