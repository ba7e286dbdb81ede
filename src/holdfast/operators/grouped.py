"""Groups as Structured Streaming keeps them: answered when they change, when they close, or all of them every time.

What a group is follows from its key columns alone, one of which may be a time (the end of a window, or an event time).
Such a group closes when the watermark has reached its time, and is forgotten; a row for a closed group is late: it is
dropped and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid
from holdfast.operators.aggregations import Aggregation, Aggregations, Partial, count
from holdfast.operators.columns import Columns, conformed, conformed_keys, contiguous, schema_of
from holdfast.operators.contract import DEFAULT_TABLE, Operator, State
from holdfast.operators.description import ANSWERS, Description
from holdfast.operators.timers import Due, in_time
from holdfast.state import StateSchema

Emit = Literal["update", "append", "complete"]
ROWS = "rows.sent"
STEP = 60_000_000
"""Groups that cover no span are looked through so often, in microseconds of event time."""


@dataclass(frozen=True, slots=True)
class Slides:
    """Sliding windows, from ``start`` to ``end``, of which rows have the newest that they are in, one of ``times``.

    The others begin ``step`` microseconds earlier each.
    """

    start: str
    end: str
    times: int
    step: int

    def windows(self, rows: pa.Table) -> pa.Table:
        """Each row once for every window that it is in."""
        places = np.tile(np.arange(rows.num_rows), self.times)
        back = pa.array(np.repeat(np.arange(self.times) * self.step, rows.num_rows))
        made = rows.take(pa.array(places))
        for name in (self.start, self.end):
            place, field = made.schema.get_field_index(name), made.schema.field(name)
            earlier = pc.subtract(contiguous(made.column(name)).cast(pa.int64()), back)
            made = made.set_column(place, field, earlier.cast(field.type))
        return made


class Grouped(Operator):
    """Aggregates by key. ``emit``: groups that changed (update), that closed (append), or every group (complete).

    ``time``: the key column by which groups close; without one they never do, and nothing can be appended. With
    ``complete`` every group stays and every row counts, whatever its time. ``horizon``: microseconds that groups cover.
    ``meaning``: what columns stand for, where their names do not tell; a store whose columns meant something else does
    not fit. ``slides``: of sliding windows rows come with one; what is sent and kept has them all. ``always``: there is
    one group, which is answered in every epoch, before its first row too.
    """

    def __init__(
        self,
        by: Columns,
        emit: Emit,
        time: str | None = None,
        horizon: int | None = None,
        meaning: Mapping[str, str] | None = None,
        slides: Slides | None = None,
        always: bool = False,
        **aggregations: Aggregation,
    ) -> None:
        self._keys = schema_of(by, "grouped")
        self.by = tuple(self._keys.names)
        self._who = f"grouped by {', '.join(self.by)}"
        if emit not in get_args(Emit):
            raise Invalid(f"{self._who}: emit must be update, append or complete, got {emit!r}")
        if time is not None and (time not in self.by or not pa.types.is_timestamp(self._keys.field(time).type)):
            raise Invalid(f"{self._who}: time must be a key column with timestamps, got {time!r}")
        if emit == "append" and time is None:
            raise Invalid(f"{self._who}: to append, groups must close: name their time")
        self._meaning, self.slides, self._always = dict(meaning or {}), slides, always
        self._emit, self._time = emit, time if emit != "complete" else None
        self.event_time, self.horizon = self._time is not None, horizon
        self._aggregations = Aggregations(aggregations, [*self.by, ROWS], self._who)
        self._sending = Aggregations({**aggregations, ROWS: count()}, self.by, self._who)
        self.tables = {DEFAULT_TABLE: StateSchema(self._keys, pa.schema(self._aggregations.stored))}
        if self._time is not None:
            self._due = Due(DEFAULT_TABLE, self.tables[DEFAULT_TABLE], self._time, horizon or STEP)
            self.tables |= self._due.tables
        self._travelling = pa.schema([*self._keys, *self._sending.stored])

    def describe(self) -> Description:
        """Groups of one kind of answer fit those of another, but for those that complete forgets nothing of."""
        does = {"kind": "grouped", "computes": self._aggregations.describe(), "by": list(self.by), "closes": self._time}
        does |= {"meaning": self._meaning} if self._meaning else {}
        return {**does, ANSWERS: {"emit": self._emit}}

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        if not batch.num_columns:
            return self._travelling.empty_table()
        if ROWS in batch.column_names:  # grouped already, by what ``partials`` says
            rows = conformed(batch, self._travelling, f"{self._who}, input {stream}", keys=self.by)
        else:
            keys = conformed_keys(batch, self._keys, f"{self._who}, input {stream}")
            rows = self._sending.begin(keys, batch)
        return rows if self.slides is None else self.slides.windows(rows)

    def _of_nothing(self) -> pa.Table:
        key = {field.name: pa.array([0]).cast(field.type) for field in self._keys}
        return self._aggregations.of_nothing(pa.table(key, schema=self._keys))

    @property
    def partials(self) -> list[Partial] | None:
        """What others may make of rows with the same key, so that fewer come here; None if they cannot."""
        return self._sending.partials()

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        names = list(self.by)
        rows = self._sending.fold(conformed(batch, self._travelling, self._who, keys=names), names)
        if (time := self._time) is not None:
            rows = in_time(rows, state, lambda: contiguous(rows.column(time)).cast(pa.int64()), ROWS)
        rows = rows.drop_columns([ROWS])
        if rows.num_rows:
            old = state.lookup(rows.select(names))
            rows = self._aggregations.with_old(rows, old)
            state.update(rows)
        closed = self._due.news(state) if self._time is not None else rows
        if self._emit == "complete":
            rows = state.scan()
        elif self._emit == "append":
            rows = closed
        if self._always and not rows.num_rows:
            held = state.scan()
            rows = held if held.num_rows else self._of_nothing()
        return self._aggregations.finish(rows, names)
