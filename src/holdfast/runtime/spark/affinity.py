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
"""Seconds after which a task no longer waits: the one before it may not even have begun."""
LOOK_EVERY = 0.0005


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
        made = self.stage(index, records)
        if index != self.first:
            self._await((index - 1) % self.of)
        yield from made
        with contextlib.suppress(OSError):
            self._mark(index).write_text(str(self.run), encoding="ascii")

    def _await(self, index: int) -> None:
        mark, until = self._mark(index), time.monotonic() + PATIENCE
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                if mark.read_text(encoding="ascii") == str(self.run):
                    return
            time.sleep(LOOK_EVERY)

    def _mark(self, index: int) -> Path:
        return Path(self.folder) / f"turn-{self.level}-{index}"
