"""Epochs without rows: the source has nothing, but the watermark has moved, and windows are to close.

Structured Streaming gives such a batch a number. Here it has none of Spark's, so it is written down, durably and before
it is offered, behind which batch it comes: by that the numbers of later batches are moved on, after a restart too.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.state.entries import document, read_document
from holdfast.state.files import Files

NAME = "cursor/idle.json"
KEPT = 100
"""So many are told one by one; of those before, only how many there were. Spark asks for the last batch again alone."""


@dataclass(frozen=True, slots=True)
class IdleEpoch:
    """It comes behind this batch of Spark's; ``watermark`` in microseconds."""

    batch: int
    epoch: int
    watermark: int


class IdleEpochs:
    """Those of a store."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._before = 0
        self._listed: list[IdleEpoch] = []
        try:
            files.size(NAME)
        except FileNotFoundError:
            return
        content = read_document(files, "idle", NAME)
        self._before = int(content["before"])
        self._listed = [IdleEpoch(*map(int, each)) for each in content["epochs"]]

    def epoch_of(self, batch: int) -> int:
        """The number that a batch of Spark's has as an epoch."""
        return batch + self._before + sum(each.batch < batch for each in self._listed)

    def last(self) -> IdleEpoch | None:
        return self._listed[-1] if self._listed else None

    def add(self, batch: int, watermark: int) -> IdleEpoch:
        """One more, behind this batch."""
        made = IdleEpoch(batch, self.epoch_of(batch + 1), watermark)
        listed = [*self._listed, made]
        before, listed = self._before + len(listed[:-KEPT]), listed[-KEPT:]
        told = [[each.batch, each.epoch, each.watermark] for each in listed]
        self._files.put(NAME, document("idle", {"before": before, "epochs": told}), True)
        self._before, self._listed = before, listed
        return made
