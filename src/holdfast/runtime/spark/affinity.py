"""Tasks of a level end in the order of their slots, so that each slot meets the process again that has its states.

Spark hands a task the Python process that has been idle longest. Where all of them share one machine, a slot would get
one or the other by chance, and a process that has not seen the last epoch of a state must first make it from files. A
task that is done early waits for those before it: the next level could not begin without them anyway. Where later
levels leave a process out, the first one ends in an order that brings all of them back to where they were.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.spark.exchange import Stage

PATIENCE = 0.25
"""Seconds after which a task no longer waits for one that may not even have begun."""
LONGER = 4
"""For one that has begun it waits up to so many times as long as it took itself: to make a large state anew from files
takes longer, and two processes would have it in memory."""
LOOK_EVERY, LOOKS = 0.0005, 50
"""Seconds between looks at first; later so many looks in the time waited so far."""


@dataclass(frozen=True)
class SlotAffinity:
    """A stage whose tasks end one after the other, beginning with ``first`` of ``of``. ``folder``: any that all
    processes share."""

    stage: Stage
    folder: str
    run: int
    level: int
    of: int
    first: int = 0

    def __call__(self, index: int, records: Iterable[bytes]) -> Iterator[bytes]:
        self._say(index, self._begun)
        began = time.monotonic()
        made = self.stage(index, records)
        if index != self.first:
            self._await((index - 1) % self.of, time.monotonic() - began)
        yield from made
        self._say(index, self._done)

    def _await(self, index: int, took: float) -> None:
        mark, since, patience = self._mark(index), time.monotonic(), PATIENCE
        while (waited := time.monotonic() - since) < patience:
            with contextlib.suppress(OSError):
                said = mark.read_text(encoding="ascii")
                if said == self._done:
                    return
                if said == self._begun:
                    patience = max(PATIENCE, LONGER * took)
            time.sleep(max(LOOK_EVERY, waited / LOOKS))

    @property
    def _begun(self) -> str:
        return f"{self.run} begun"

    @property
    def _done(self) -> str:
        return str(self.run)

    def _say(self, index: int, what: str) -> None:
        with contextlib.suppress(OSError):
            self._mark(index).write_text(what, encoding="ascii")

    def _mark(self, index: int) -> Path:
        return Path(self.folder) / f"turn-{self.level}-{index}"
