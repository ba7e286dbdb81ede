"""What is due: rows of a state table whose event time the watermark has reached; and timers built upon that.

To look at every row in every epoch costs what the state costs. So the rows that fall due before the next multiple of a
step are listed in a table of their own. An epoch looks through that list, and through everything only when the
watermark has crossed a multiple. Both tables have the same key, so they are cut and joined alike when tasks change.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.operators.columns import (
    WINDOW_TIME,
    Columns,
    Duration,
    conformed,
    contiguous,
    duration,
    microseconds,
    schema_of,
    window_time,
)
from holdfast.operators.contract import FOUND, State
from holdfast.state import StateSchema

TIME = "time"
LAST = 2**62


class Due:
    """Finds the rows of a state table by ``time``, one of its columns (timestamps in microseconds; null: never due).

    Whoever puts rows into the table notes them here. The step is part of the list's name: with another one the list
    would lack rows, so a store does not fit.
    """

    def __init__(self, table: str, schema: StateSchema, time: str, step: int) -> None:
        self._table, self._key, self._time, self._step = table, schema.key.names, time, step
        self._soon = f"{table}.due.{step}us"
        self._listing = pa.schema([each for each in schema.value if each.name == time])
        self.tables = {self._soon: StateSchema(schema.key, self._listing)}

    def note(self, state: State, rows: pa.Table) -> None:
        """These rows are in the table now: key columns and time, others are passed over."""
        if state.watermark is not None and rows.num_rows:
            near = micros_of(rows, self._time) < (state.watermark // self._step + 1) * self._step
            state.table(self._soon).update(rows.select([*self._key, *self._listing.names]).filter(pa.array(near)))

    def take(self, state: State) -> pa.Table:
        """The rows whose time is at or before the watermark, by time; they leave the table."""
        main, now = state.table(self._table), state.watermark
        if now is None:
            return main.schema.arrow.empty_table()
        crosses = crossed(state.watermark_before, now, self._step)
        due = self._crossing(state, now) if crosses else self._listed(state, now)
        main.delete(due.select(self._key))
        return due.take(pa.array(np.argsort(micros_of(due, self._time), kind="stable")))

    def news(self, state: State) -> pa.Table:
        """The same, but for rows whose time had come before this epoch: somebody else has said those already."""
        return self.news_of(self.take(state), state)

    def news_of(self, due: pa.Table, state: State) -> pa.Table:
        before = state.watermark_before
        return due if before is None else due.filter(pa.array(micros_of(due, self._time) > before))

    def _crossing(self, state: State, now: int) -> pa.Table:
        soon = state.table(self._soon)
        soon.delete(soon.scan())
        rows = state.table(self._table).scan()
        over = micros_of(rows, self._time) <= now
        self.note(state, rows.filter(pa.array(~over)))
        return rows.filter(pa.array(over))

    def _listed(self, state: State, now: int) -> pa.Table:
        """From the list alone: what is in it may be gone since, or have another time."""
        main, soon = state.table(self._table), state.table(self._soon)
        if not len(soon):
            return main.schema.arrow.empty_table()
        listed = soon.scan()
        rows = listed.filter(pa.array(micros_of(listed, self._time) <= now)).select(self._key)
        soon.delete(rows)
        found = main.lookup(rows)
        for field in main.schema.value:
            rows = rows.append_column(field, found.column(field.name))
        rows = rows.filter(found.column(FOUND))
        return rows.filter(pa.array(micros_of(rows, self._time) <= now))


class Timers:
    """One timer for each key, in event time: ``op.timers("sensor")``, for operators of one's own.

    Put ``timers.tables`` among the operator's tables and ask for the watermark (``event_time = True``). ``step``: how
    far ahead timers are listed; a part of the state is looked through in every epoch, all of it once a step.
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
        keys = conformed(rows, self._keys, self._who, "give by= the type it has")
        if rows.num_rows:
            times = window_time(microseconds(rows, time, self._who))
            timers = keys.append_column(pa.field(TIME, WINDOW_TIME), times).filter(times.is_valid())
            state.table(self._name).update(timers)
            self._due.note(state, timers)

    def cancel(self, state: State, keys: pa.Table) -> None:
        """These keys are not woken."""
        state.table(self._name).delete(conformed(keys, self._keys, self._who, "give by= the type it has"))

    def due(self, state: State) -> pa.Table:
        """The keys whose time the watermark has reached, and their ``time``, in its order; each is told once."""
        return self._due.take(state)


def crossed(before: int | None, now: int, step: int) -> bool:
    """Whether the watermark has come to a multiple of the step: time for what need not be done in every epoch."""
    return before is None or before // step != now // step


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


def micros_of(rows: pa.Table, time: str) -> NDArray[np.int64]:
    """A time column of a state table as numbers; a null comes after all others."""
    return np.asarray(contiguous(rows.column(time)).cast(pa.int64()).fill_null(LAST), np.int64)
