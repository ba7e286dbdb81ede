"""Traffic in packs: one row of the stream stands for many tuples, as one message of a queue holds many.

Spark turns every row that it hands to Python into Arrow, cell by cell, which costs more than all operators together. A
pack is the number of its first tuple alone; the source makes the tuples, the same ones that Spark's SQL would.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from holdfast.operators import State
from holdfast.workloads.generated import Rows
from holdfast.workloads.linear_road.pipeline import Forwarder
from holdfast.workloads.linear_road.traffic import tuples

FIRST = "first"
"""The column of a pack: the number of its first tuple."""
_AT_ONCE = 65_536
"""Tuples made at a time: what they are made from then stays in the processor's cache, a third of the time."""


class Unpacking(Forwarder):
    """Packs of ``size`` tuples in, what the forwarder makes of the tuples out."""

    def __init__(self, size: int, seed: int, expressways: int) -> None:
        self.size, self.seed, self.expressways = size, seed, expressways

    def process(self, batch: pa.Table, state: State) -> pa.Table | None:
        firsts = batch.column(FIRST).to_numpy() if batch.num_rows else np.empty(0, np.int64)
        numbers: Rows = (firsts[:, np.newaxis] + np.arange(self.size)).ravel()
        made = [
            super(Unpacking, self).process(tuples(numbers[at : at + _AT_ONCE], self.seed, self.expressways), state)
            for at in range(0, len(numbers), _AT_ONCE)
        ]
        some = [table for table in made if table is not None]
        return pa.concat_tables(some).combine_chunks() if some else None
