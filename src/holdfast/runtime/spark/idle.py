"""Epochs without rows: the source has nothing, but the watermark has moved, and windows are to close.

Structured Streaming gives such a batch a number. Here it has none of Spark's, so it is written down, durably and before
it is offered, behind which batch it comes: by that the numbers of later batches are moved on, after a restart too.
The name of the document has its writer's token, and each writer begins with one of its own: what a superseded one puts
down later is not the newest.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.state import cursor, fence
from holdfast.state.entries import document, read_document
from holdfast.state.files import Files

KEPT = 100
"""So many are told one by one; of those before, only how many there were. Spark asks for the last batch again alone."""


@dataclass(frozen=True, slots=True)
class IdleEpoch:
    """It comes behind this batch of Spark's; ``watermark`` in microseconds."""

    batch: int
    epoch: int
    watermark: int


class IdleEpochs:
    """Those of a store, for its writer ``token``, which has taken the fence. ``adds``: there may be more."""

    def __init__(self, files: Files, token: int, adds: bool = True) -> None:
        self._files, self._token = files, token
        self._before = 0
        self._listed: list[IdleEpoch] = []
        there = cursor.of_writers(files, "idle")
        if there:
            content = read_document(files, "idle", there[-1][1])
            self._before = int(content["before"])
            self._listed = [IdleEpoch(*map(int, each)) for each in content["epochs"]]
        if adds or there:
            self._put(self._before, self._listed)
            for of, name in there:
                if of < token:
                    files.delete(name)

    def epoch_of(self, batch: int) -> int:
        """The number that a batch of Spark's has as an epoch."""
        return batch + self._before + sum(each.batch < batch for each in self._listed)

    def last(self) -> IdleEpoch | None:
        return self._listed[-1] if self._listed else None

    def add(self, batch: int, watermark: int) -> IdleEpoch:
        """One more, behind this batch; Fenced if a newer writer has come."""
        made = IdleEpoch(batch, self.epoch_of(batch + 1), watermark)
        listed = [*self._listed, made]
        before, listed = self._before + len(listed[:-KEPT]), listed[-KEPT:]
        self._put(before, listed)
        self._before, self._listed = before, listed
        return made

    @property
    def _name(self) -> str:
        return f"{cursor.FOLDER}/idle-{self._token:010d}.json"

    def _put(self, before: int, listed: list[IdleEpoch]) -> None:
        fence.check(self._files, self._token)
        told = [[each.batch, each.epoch, each.watermark] for each in listed]
        self._files.put(self._name, document(self._files, "idle", {"before": before, "epochs": told}), True)
