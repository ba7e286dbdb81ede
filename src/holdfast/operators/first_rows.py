"""The first row of each key, as Structured Streaming drops duplicates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid
from holdfast.operators.columns import WINDOW_TIME, Columns, conformed_keys, microseconds, schema_of, window_time
from holdfast.operators.contract import DEFAULT_TABLE, FOUND, Operator, State
from holdfast.operators.deduplicate import first_rows
from holdfast.operators.description import Description
from holdfast.operators.grouped import STEP
from holdfast.operators.timers import Due, in_time
from holdfast.state import StateSchema

UNTIL = "until"


class FirstRows(Operator):
    """Rows whose key was not there before, with all their columns; a key that was is a duplicate whatever its time.

    ``time``: a row whose time is at or before the watermark that the epoch began with is late, dropped and counted.
    ``keeps``: microseconds after its row's time at which a key is forgotten; None: never. ``meaning``: what columns
    stand for, where their names do not tell.
    """

    def __init__(
        self, by: Columns, time: str | None = None, keeps: int | None = None, meaning: Mapping[str, str] | None = None
    ) -> None:
        self._keys = schema_of(by, "first rows")
        self.by = tuple(self._keys.names)
        self._who = f"first rows by {', '.join(self.by)}"
        if keeps is not None and time is None:
            raise Invalid(f"{self._who}: to forget keys, name the time of rows")
        self._time, self._keeps, self._meaning = time, keeps, dict(meaning or {})
        self.event_time, self.horizon = time is not None, keeps
        self.tables = {DEFAULT_TABLE: StateSchema(self._keys, pa.schema([pa.field(UNTIL, WINDOW_TIME)]))}
        self._due = Due(DEFAULT_TABLE, self.tables[DEFAULT_TABLE], UNTIL, keeps or STEP)
        if keeps is not None:
            self.tables |= self._due.tables

    def describe(self) -> Description:
        does = {"kind": "first rows", "by": list(self.by), "time": self._time, "keeps_us": self._keeps}
        return {**does, "meaning": self._meaning} if self._meaning else does

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        if (time := self._time) is not None:
            batch = in_time(batch, state, partial(microseconds, batch, time, self._who))
        if batch.num_rows:
            keys = conformed_keys(batch, self._keys, self._who)
            first = pa.array(first_rows(keys))
            batch, keys = batch.take(first), keys.take(first)
            new = pc.invert(state.lookup(keys).column(FOUND))
            batch, keys = batch.filter(new), keys.filter(new)
            kept = keys.append_column(pa.field(UNTIL, WINDOW_TIME), self._until(batch))
            state.update(kept)
        if self._keeps is not None:
            self._due.take(state)
        return batch

    def _until(self, rows: pa.Table) -> pa.Array:
        if self._keeps is None or self._time is None:
            return pa.nulls(rows.num_rows, WINDOW_TIME)
        times = microseconds(rows, self._time, self._who)
        if self._keeps:
            times = times.fill_null(0)  # as Structured Streaming takes a row without a time; a key that has none stays
        return window_time(pc.add(times, self._keeps))
