"""What closes at the watermark is found by its time, without a look at all that is open."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.operators.contract import State
from holdfast.state import StateSchema

TIMES = "times"


class Closing:
    """Beside a table whose rows have a time: how many of them each time has, in a table of its own, ``TIMES``."""

    def __init__(self, column: str, type_: pa.DataType) -> None:
        self._column = column
        self.schema = StateSchema(pa.schema([pa.field(column, type_)]), pa.schema([("groups", pa.int64())]))

    def add(self, state: State, new: pa.Table) -> None:
        """These rows are new."""
        if new.num_rows:
            times = new.group_by(self._column, use_threads=False).aggregate([([], "count_all")])
            moments = times.select([self._column])
            held = state.table(TIMES).lookup(moments).column("groups").fill_null(0)
            state.table(TIMES).update(moments.append_column("groups", pc.add(held, times.column("count_all"))))

    def due(self, state: State) -> bool:
        """Whether the time of some rows has come with this epoch's watermark; their times are forgotten."""
        if state.watermark is None or state.watermark == state.watermark_before:
            return False
        times = state.table(TIMES).scan()
        over = until(times, self._column, state.watermark)
        state.table(TIMES).delete(times.filter(pa.array(over)).select([self._column]))
        return bool(over.any())


def until(rows: pa.Table, time: str, watermark: int) -> NDArray[np.bool_]:
    """Which rows have a time at or before the watermark; a null never has."""
    micros = rows.column(time).cast(pa.timestamp("us", rows.schema.field(time).type.tz)).cast(pa.int64())
    return np.asarray(pc.less_equal(micros, watermark).fill_null(False), np.bool_)
