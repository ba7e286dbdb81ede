"""Windowed join: rows of two streams that have the same key and fall into the same window of event time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.operators.columns import WINDOW_TIME, Columns, Duration, conformed, microseconds, schema_of, window_time
from holdfast.operators.contract import Operator, State, TableView
from holdfast.operators.description import ANSWERS, Description
from holdfast.operators.windows import BY_START, END, START, Panes
from holdfast.state import StateSchema

How = Literal["inner", "left", "outer"]
HOWS: Mapping[str, Literal["inner", "left", "full"]] = {"inner": "inner", "left": "left", "outer": "full"}
EPOCH, NUMBER = "epoch", "number"


@dataclass(frozen=True, slots=True)
class Side:
    """One input of a join: the upstream operator's name, its event-time column, and the columns taken from it."""

    stream: str
    time: str
    columns: pa.Schema

    def describe(self) -> Description:
        columns = {field.name: str(field.type) for field in self.columns}
        return {"stream": self.stream, "time": self.time, "columns": columns}


def side(stream: str, columns: Columns, *, time: str) -> Side:
    """An input of ``op.join``: ``op.side("speeds", {"speed": "float64"}, time="time")``."""
    return Side(stream, time, schema_of(columns, f"join, input {stream}"))


class Join(Operator):
    """Pairs of rows with equal keys in one window, emitted once, when the watermark reaches the window's end.

    ``how``: ``inner``; ``left`` keeps left rows without a match; ``outer`` keeps those of both sides. A null
    key matches nothing. With a step shorter than the window a pair appears in every window that holds both rows. Late
    rows: as for windows. Output: the key columns, ``start``, ``end``, the left columns, the right columns; ordered by
    window, key, and the order in which left and then right rows came.
    """

    event_time = True
    passes = False

    def __init__(
        self, left: Side, right: Side, *, on: Columns, size: Duration, every: Duration | None = None, how: How = "inner"
    ) -> None:
        who = f"join of {left.stream} and {right.stream}"
        if left.stream == right.stream:
            raise Invalid(f"{who}: the two inputs must be different operators")
        if how not in HOWS:
            raise Invalid(f"{who}: how must be one of {', '.join(HOWS)}, got {how!r}")
        keys = schema_of(on, who)
        names = [*keys.names, START, END, EPOCH, NUMBER, *left.columns.names, *right.columns.names]
        if twice := [name for name in names if names.count(name) > 1]:
            raise Invalid(f"{who}: column {twice[0]!r} would be there twice; rename it on one side with op.map")
        self._who, self._on, self._how = who, keys.names, HOWS[how]
        self.by = tuple(keys.names)
        self._panes = Panes(size, every if every is not None else size, who)
        self.horizon = self._panes.size
        self._sides = {left.stream: left, right.stream: right}
        self._left, self._right = left, right
        window = [pa.field(START, WINDOW_TIME)]
        place = [*window, pa.field(EPOCH, pa.int64()), pa.field(NUMBER, pa.int64())]
        self._schema = {each.stream: pa.schema([*keys, *window, *each.columns]) for each in (left, right)}
        self.tables = {
            "left": StateSchema(pa.schema([*keys, *place]), left.columns),
            "right": StateSchema(pa.schema([*keys, *place]), right.columns),
        }
        self._output = pa.schema([*keys, *window, pa.field(END, WINDOW_TIME), *left.columns, *right.columns])

    def describe(self) -> Description:
        return {
            "kind": "join",
            "left": self._left.describe(),
            "right": self._right.describe(),
            "by": list(self.by),
            **self._panes.describe(),
            ANSWERS: {"how": next(how for how, theirs in HOWS.items() if theirs == self._how)},
        }

    def reads(self, stream: str) -> frozenset[str]:
        mine = self._side(stream)
        return frozenset((*self.by, *mine.columns.names, mine.time))

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        """The columns that the join needs, and each row's pane instead of its time."""
        mine = self._side(stream)
        if not batch.num_columns:
            return self._schema[stream].empty_table()
        who = f"{self._who}, input {stream}"
        starts = window_time(self._panes.of(microseconds(batch, mine.time, who)))
        wanted = pa.schema([field for field in self._schema[stream] if field.name != START])
        rows = conformed(batch, wanted, who, "declare the type it has", keys=self._on)
        return rows.append_column(pa.field(START, WINDOW_TIME), starts).select(self._schema[stream].names)

    def process_inputs(self, inputs: Mapping[str, pa.Table], state: State) -> pa.Table:
        for stream in inputs:
            self._side(stream)
        for which, each in (("left", self._left), ("right", self._right)):
            came, schema = inputs.get(each.stream, pa.table({})), self._schema[each.stream]
            rows = conformed(came, schema, self._who, keys=self._on)
            self._hold(rows, state.table(which), state)
        now = state.watermark
        if now is None or not self._panes.closes(state.watermark_before, now):
            return self._output.empty_table()
        left, right = (self._closing(state.table(which), state, now) for which in ("left", "right"))
        return self._joined(left, right)

    def _side(self, stream: str) -> Side:
        if stream not in self._sides:
            raise Invalid(f"{self._who}: no input is called {stream!r}; expected {' and '.join(self._sides)}")
        return self._sides[stream]

    def _hold(self, rows: pa.Table, table: TableView, state: State) -> None:
        if not rows.num_rows:
            return
        panes = rows.column(START).cast(pa.int64()).combine_chunks()
        rows = rows.filter(pa.array(self._panes.in_time(state, panes, np.ones(rows.num_rows, np.int64))))
        epoch = pa.array(np.full(rows.num_rows, state.epoch, np.int64))
        rows = rows.append_column(EPOCH, epoch).append_column(NUMBER, pa.array(np.arange(rows.num_rows)))
        table.update(rows.select(table.schema.arrow.names))

    def _closing(self, table: TableView, state: State, now: int) -> pl.DataFrame:
        """Rows of the windows that close, once for each, in order; panes that no window needs any more are dropped."""
        held = table.upto(BY_START, self._panes.before_last_end(now))
        panes = np.asarray(held.column(START).cast(pa.int64()).combine_chunks(), np.int64)
        place, starts = self._panes.closing(panes, state.watermark_before, now)
        table.delete(held.select(table.schema.key.names).filter(pa.array(self._panes.last_end(panes) <= now)))
        rows = held.take(pa.array(place))
        rows = rows.set_column(len(self._on), pa.field(START, WINDOW_TIME), window_time(starts))
        rows = rows.sort_by([(name, "ascending") for name in (START, *self._on, EPOCH, NUMBER)])
        frame = pl.from_arrow(rows)
        assert isinstance(frame, pl.DataFrame)
        return frame.drop(EPOCH, NUMBER)

    def _joined(self, left: pl.DataFrame, right: pl.DataFrame) -> pa.Table:
        keys = [*self._on, START]
        answer = left.join(right, on=keys, how=self._how, coalesce=True, maintain_order="left_right")
        answer = answer.sort(START, *self._on, maintain_order=True, nulls_last=True)
        table = answer.to_arrow(compat_level=pl.CompatLevel.oldest())
        starts = np.asarray(table.column(START).cast(pa.int64()).combine_chunks(), np.int64)
        table = table.append_column(END, window_time(starts + self._panes.size))
        return table.select(self._output.names).cast(self._output)
