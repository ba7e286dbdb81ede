"""What is due: rows of a state table whose event time the watermark has reached; and timers built upon that.

They are found by an order of the rows by time that every run of the table keeps (``holdfast.state.index``), so that an
epoch costs what is due in it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.operators.columns import (
    WINDOW_TIME,
    Columns,
    Duration,
    conformed_keys,
    contiguous,
    duration,
    microseconds,
    schema_of,
    window_time,
)
from holdfast.operators.contract import State
from holdfast.state import StateSchema
from holdfast.state.index import ByTime

TIME = "time"
LAST = 2**62
"""A time after all others, in microseconds: what a source says when it has ended."""


class Due:
    """Finds the rows of a state table by ``time``, one of its columns (timestamps in microseconds; null: never due).

    ``tables``: where earlier versions listed what falls due within a step; a store that has one fits as long as it is
    declared. It stays empty.
    """

    def __init__(self, table: str, schema: StateSchema, time: str, step: int) -> None:
        self._table, self._key, self._time = table, schema.key.names, time
        self._by = by_time(time)
        self._soon = f"{table}.due.{step}us"
        listed = pa.schema([each for each in schema.value if each.name == time])
        self.tables = {self._soon: StateSchema(schema.key, listed)}

    def take(self, state: State) -> pa.Table:
        """The rows whose time is at or before the watermark, by time; they leave the table."""
        main, now = state.table(self._table), state.watermark
        if now is None:
            return main.schema.arrow.empty_table()
        if len(soon := state.table(self._soon)):
            soon.delete(soon.scan())
        due = main.upto(self._by, now)
        main.delete(due.select(self._key))
        return due.take(pa.array(np.argsort(micros_of(due, self._time), kind="stable")))

    def news(self, state: State) -> pa.Table:
        """The same, but for rows whose time had come before this epoch: somebody else has said those already."""
        return self.news_of(self.take(state), state)

    def news_of(self, due: pa.Table, state: State) -> pa.Table:
        before = state.watermark_before
        return due if before is None else due.filter(pa.array(micros_of(due, self._time) > before))


class Timers:
    """One timer for each key, in event time: ``op.timers("sensor")``, for operators of one's own.

    Put ``timers.tables`` among the operator's tables and ask for the watermark (``event_time = True``). ``step`` is
    part of a table's name, as of stores of earlier versions; nothing else depends on it.
    """

    def __init__(self, by: Columns, *, name: str = "timers", step: Duration = "1 minute") -> None:
        self._keys = schema_of(by, name)
        self._name, self._who = name, f"{name} by {', '.join(self._keys.names)}"
        if TIME in self._keys.names:
            raise Invalid(f"{self._who}: a key column cannot be called {TIME!r}; rename it with op.map")
        schema = StateSchema(self._keys, pa.schema([pa.field(TIME, WINDOW_TIME)]))
        self._due = Due(name, schema, TIME, duration(step, self._who))
        self.tables = {name: schema, **self._due.tables}

    def set(self, state: State, rows: pa.Table, time: str = TIME) -> None:
        """Wake these keys at the time in column ``time``. It replaces an earlier timer; the last row of a key counts.

        A row without a time sets nothing.
        """
        keys = conformed_keys(rows, self._keys, self._who)
        if rows.num_rows:
            times = window_time(microseconds(rows, time, self._who))
            timers = keys.append_column(pa.field(TIME, WINDOW_TIME), times).filter(times.is_valid())
            state.table(self._name).update(timers)

    def cancel(self, state: State, keys: pa.Table) -> None:
        """These keys are not woken."""
        state.table(self._name).delete(conformed_keys(keys, self._keys, self._who))

    def due(self, state: State) -> pa.Table:
        """The keys whose time the watermark has reached, and their ``time``, in its order; each is told once."""
        return self._due.take(state)


def in_time(rows: pa.Table, state: State, times: Callable[[], pa.Array], sent: str | None = None) -> pa.Table:
    """Without the rows that are late, which are counted: each as many as its column ``sent`` says. Null is in time."""
    before = state.watermark_before
    if before is None or not rows.num_rows:
        return rows
    late = pc.less_equal(times(), before).fill_null(False)
    if not late.true_count:
        return rows
    dropped = late.true_count if sent is None else pc.sum(rows.column(sent).filter(late)).as_py()
    state.count("late", dropped)
    return rows.filter(pc.invert(late))


def by_time(time: str) -> ByTime:
    """The rows of a state table by a time column of it; those without a time come last."""
    return ByTime(time, partial(micros_of, time=time))


def micros_of(rows: pa.Table, time: str) -> NDArray[np.int64]:
    """A time column of a state table as numbers; a null comes after all others."""
    return np.asarray(contiguous(rows.column(time)).cast(pa.int64()).fill_null(LAST), np.int64)
