"""Who knows what tentative answers really lack: it has all rows, and follows every fork. By plain counting.

No ledger, no guesses: what the coordinator could know when an epoch was answered, worked out window by window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from holdfast.fidelity import arriving_losses
from holdfast.runtime.messages import Run, Work
from holdfast.topology import Task, Topology

if TYPE_CHECKING:
    from holdfast.operators import Pipeline
    from holdfast.runtime.simulation.cluster import SimulatedBatch


@dataclass(slots=True)
class Followed:
    """A fork: the exact epoch it began from, and how much of each later one came to it."""

    base: int
    got: dict[int, float] = field(default_factory=dict)

    def share(self, epoch: int) -> float:
        return 1.0 if epoch <= self.base else self.got.get(epoch, 0.0)


class Witness:
    def __init__(self, pipeline: Pipeline, batches: Sequence[SimulatedBatch]) -> None:
        self._horizons = pipeline.horizons
        self._rows = [sum(rows.num_rows for piece in batch.pieces for rows in piece.values()) for batch in batches]
        self._times = _times(pipeline, batches)
        """The newest event time of each epoch, less the delay; and up to when windows are closed in it."""
        self._closed = [batch.watermark_us for batch in batches] if batches[0].watermark is not None else self._times
        self._forks: dict[tuple[Task, int], Followed] = {}

    def forget(self) -> None:
        """A driver begins anew, and knows of no forks."""
        self._forks.clear()

    def followed(self, run: Run, topology: Topology, measured: Topology) -> Mapping[Task, float]:
        """A run is done, all of it: what its tentative answers are worth at most."""
        works = {work.task: work for work in run.works if work.lane == "tentative"}
        exact = {work.task for work in run.works if work.lane == "exact"}
        if not works or not works.keys() <= topology.index.keys():
            return {}
        worth: dict[Task, float] = {}
        loss = np.zeros((1, len(topology.tasks)))
        for operator in topology.operators:
            if not topology.inputs_of(operator.name):
                continue
            span = topology.span[operator.name]
            lacking = arriving_losses(measured, measured.operator[operator.name], loss)[0]
            for number, lacks in enumerate(lacking):
                task = topology.tasks[span.start + number]
                loss[0, span.start + number] = 0.0 if task in exact else 1.0
                if task in works:
                    worth[task] = self._worth(works[task], 1.0 - float(lacks), operator.stateful)
                    loss[0, span.start + number] = 1.0 - worth[task]
        return worth

    def _worth(self, work: Work, given: float, stateful: bool) -> float:
        fork = self._forks.setdefault((work.task, work.fork), Followed(work.start))
        fork.got[work.last] = given
        if not stateful:
            return given
        shares = [
            sum(self._rows[each] * fork.share(each) for each in inside) / rested
            for inside in self._windows(work.task.operator, work.last)
            if (rested := sum(self._rows[each] for each in inside))
        ]
        return float(min([given, *shares]))

    def _windows(self, operator: str, epoch: int) -> list[range]:
        """The epochs with rows of each window that this epoch may speak of: of times from the last epoch's to its own.

        All rows of an epoch count as of its newest time.
        """
        horizon, now = self._horizons.get(operator), self._closed[epoch]
        if horizon is None or now is None:
            return [range(epoch + 1)]
        before = self._closed[epoch - 1] if epoch else None
        timed = [time for time in self._times[: epoch + 1] if time is not None]
        untimed = epoch + 1 - len(timed)
        ends = {now, *(time + horizon for time in timed), *(time + horizon - 1 for time in timed)}
        if before is None:
            return [range(first, epoch + 1) for first in range(untimed + 1)]
        ends.add(before)
        firsts = {
            next((at for at, time in enumerate(timed) if time > end - horizon), len(timed))
            for end in ends
            if before <= end <= now
        }
        return [range(first + untimed if first else 0, epoch + 1) for first in sorted(firsts)]


def _times(pipeline: Pipeline, batches: Sequence[SimulatedBatch]) -> list[int | None]:
    """Up to when every source had come with each epoch, less its delay."""
    found: list[int | None] = []
    timed = [step for step in pipeline.sources if step.event_time]
    for batch in batches:
        newest: list[int | None] = []
        for step in timed:
            columns = [piece[step.name][step.event_time] for piece in batch.pieces if step.name in piece]
            latest = [pc.max(column).cast("int64").as_py() for column in columns if len(column)]
            newest.append(max(latest) - round(step.delay_seconds * 1_000_000) if latest else None)
        now = min((each for each in newest if each is not None), default=None) if None not in newest else None
        before = found[-1] if found else None
        found.append(before if now is None else now if before is None else max(before, now))
    return found
