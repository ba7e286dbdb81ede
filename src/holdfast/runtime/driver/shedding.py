"""What to do when input comes faster than it can be worked off and the source cannot wait: keep some, count the rest.

Pure. The policy: an epoch may take so many seconds. How many rows that is, the last epochs tell; of a larger batch each
part keeps an even sample, in order, so that all keys and all times lose alike. What is left out is never journalled: to
every later step, replay included, it did not come; its number is in the history, and fidelity says what it cost.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import pyarrow as pa

from holdfast.errors import Invalid

REMEMBERED = 5
"""Epochs by which the pace is judged: long enough to outlast one slow epoch, short enough to follow a lost node."""


class Shedder:
    """Judges from finished epochs how many rows the next may keep, to be done within ``seconds``."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise Invalid(f"shed_above must be more than 0 seconds, got {seconds:g}")
        self.seconds = seconds
        self._paces: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)

    def observe(self, rows: int, seconds: float) -> None:
        """An epoch with so many rows kept took so long."""
        if rows > 0 and seconds > 0:
            self._paces.append((rows, seconds))

    @property
    def allowed(self) -> int | None:
        """Rows that the next epoch may keep; None before anything was measured.

        By the pace of the largest epochs remembered, half of them: small ones say more about what an epoch costs
        without any rows.
        """
        if not self._paces:
            return None
        largest = sorted(self._paces, reverse=True)[: (len(self._paces) + 1) // 2]
        pace = sum(rows for rows, _ in largest) / sum(seconds for _, seconds in largest)
        return max(1, int(pace * self.seconds))


def sample(rows: pa.Table, keep: int) -> pa.Table:
    """So many of these rows, evenly spread over them and in their order; all of them if there are no more."""
    if rows.num_rows <= keep:
        return rows
    return rows.take(pa.array(np.arange(keep, dtype=np.int64) * rows.num_rows // keep))
