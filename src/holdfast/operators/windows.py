"""Tumbling and sliding windows of event time, closed by the watermark.

A window is [start, end), its start a multiple of the step since 1970 UTC. Rows are held as *panes*, the pieces of time
that windows have in common, so a row is stored once however many windows it is in. The rule for late rows: a window
whose end is at or before the watermark that an epoch began with is closed; a row whose windows are all closed is
dropped and counted as ``late``; one that misses only some of them counts in the others, and as ``partly_late``.
Without keys there is one window for all rows, in one task.
"""

from __future__ import annotations

from math import gcd
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.operators.aggregations import Aggregation, Aggregations, count
from holdfast.operators.columns import (
    WINDOW_TIME,
    Columns,
    Duration,
    Micros,
    conformed,
    conformed_keys,
    duration,
    microseconds,
    schema_of,
    window_time,
)
from holdfast.operators.contract import DEFAULT_TABLE, FOUND, Operator, State
from holdfast.operators.description import ANSWERS, Description
from holdfast.operators.grouped import ROWS
from holdfast.operators.timers import by_time
from holdfast.operators.top_k import RANK
from holdfast.state import StateSchema

START, END = "start", "end"
BY_START = by_time(START)
Answers = Literal["append", "update"]
"""When a window is told: once, when it closes; or in every epoch that changed it."""


class Panes:
    """The arithmetic of windows of one size and step, in microseconds; also that of the windowed join."""

    def __init__(self, size: Duration, every: Duration, who: str) -> None:
        self.size, self.every = duration(size, who), duration(every, who)
        if self.every > self.size:
            raise Invalid(
                f"{who}: the step ({every}) must not be longer than the window ({size}), or rows fall between"
            )
        self.length = gcd(self.size, self.every)

    @property
    def windows(self) -> int:
        """The largest number of windows that one pane is in."""
        return -(-self.size // self.every)

    def describe(self) -> Description:
        return {"size_us": self.size, "every_us": self.every}

    def of(self, micros: pa.Array) -> pa.Array:
        """The start of each time's pane; null for null."""
        times = np.asarray(micros.fill_null(0), np.int64)
        return pa.array(times // self.length * self.length, mask=np.asarray(micros.is_null()))

    def last_end(self, panes: Micros) -> Micros:
        return panes // self.every * self.every + self.size

    def first_end(self, panes: Micros) -> Micros:
        return -(-(panes + self.length - self.size) // self.every) * self.every + self.size

    def closes(self, before: int | None, now: int | None) -> bool:
        """Whether any window's end lies after ``before`` and at or before ``now``."""
        if now is None:
            return False
        return before is None or (now - self.size) // self.every > (before - self.size) // self.every

    def before_last_end(self, now: int) -> int:
        """The last time that lies in a window which has closed by then: panes that begin later are in none."""
        return (now - self.size) // self.every * self.every + self.size - 1

    def closing(self, panes: Micros, before: int | None, now: int | None) -> tuple[NDArray[np.int64], Micros]:
        """Places in ``panes`` and starts of windows that they are in and that close now: a row for each such pair.

        ``now`` None: also those that stay open.
        """
        rows, starts = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        newest = panes // self.every * self.every
        for step in range(self.windows - 1, -1, -1):
            start = newest - step * self.every
            end = start + self.size
            inside = panes + self.length <= end
            if now is not None:
                inside &= end <= now
            if before is not None:
                inside &= end > before
            rows.append(np.flatnonzero(inside))
            starts.append(start[inside])
        return np.concatenate(rows), np.concatenate(starts)

    def neighbours(self, panes: Micros) -> tuple[NDArray[np.int64], Micros]:
        """Places in ``panes`` and the panes that may share a window with each: a row for each such pair."""
        steps = np.arange(self.length - self.size, self.size, self.length)
        return np.repeat(np.arange(len(panes)), len(steps)), (panes[:, None] + steps).ravel()

    def in_time(self, state: State, panes: pa.Array, sent: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which panes still have an open window; the rows of the others are counted by what they are."""
        untimed = np.asarray(panes.is_null())
        starts = np.asarray(panes.fill_null(0), np.int64)
        if untimed.any():
            state.count("untimed", int(sent[untimed].sum()))
        before = state.watermark_before
        if before is None:
            return ~untimed
        late = ~untimed & (self.last_end(starts) <= before)
        partly = ~untimed & ~late & (self.first_end(starts) <= before)
        for what, which in (("late", late), ("partly_late", partly)):
            if which.any():
                state.count(what, int(sent[which].sum()))
        return ~(untimed | late)


class Windowed(Operator):
    """Aggregates by key and window. ``append``: a window is told once, when the watermark reaches its end.

    ``update``: every window that changed is told in every epoch, the last time when rows came for it before it closed.
    Output: the key columns, ``start`` and ``end`` (UTC), and the aggregates, ordered by end and then by key. With
    ``top=(k, column)`` only the k rows of each window with the largest values there, and their ``rank`` from 1.
    """

    event_time = True
    passes = False

    def __init__(
        self,
        what: str,
        size: Duration,
        every: Duration,
        by: Columns | None,
        time: str,
        *,
        emit: Answers = "append",
        top: tuple[int, str] | None = None,
        **aggregations: Aggregation,
    ) -> None:
        self._keys = schema_of(by, what) if by else pa.schema([])
        self._who = f"{what} by {', '.join(self._keys.names)}" if by else what
        for name in (START, END, RANK, ROWS):
            if name in self._keys.names:
                raise Invalid(f"{self._who}: a key column cannot be called {name!r}; rename it with op.map")
        self.by, self.together = tuple(self._keys.names), not by
        self._panes = Panes(size, every, self._who)
        self.horizon = self._panes.size
        self._time, self._emit = time, _checked_emit(emit, top, self._who)
        self._top = _checked_top(top, aggregations, self._who)
        taken = [*self._keys.names, START, END, RANK, ROWS]
        self._aggregations = Aggregations(aggregations, taken, self._who)
        self._sending = Aggregations({**aggregations, ROWS: count()}, self._keys.names, self._who)
        self._names = [*self._keys.names, START]
        self._key = pa.schema([*self._keys, pa.field(START, WINDOW_TIME)])
        self.tables = {DEFAULT_TABLE: StateSchema(self._key, pa.schema(self._aggregations.stored))}
        self._travelling = pa.schema([*self._key, *self._sending.stored])
        ranked = [pa.field(RANK, pa.int64())] if self._top else []
        self._output = pa.schema([*self._key, pa.field(END, WINDOW_TIME), *ranked, *self._aggregations.output])

    def describe(self) -> Description:
        return {
            "kind": "window",
            "computes": self._aggregations.describe(),
            "by": list(self.by),
            "time": self._time,
            **self._panes.describe(),
            ANSWERS: {"top": self._top, "emit": self._emit},
        }

    def reads(self, stream: str) -> frozenset[str]:
        return self._aggregations.columns.union(self.by, {self._time})

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        if not batch.num_columns:
            return self._travelling.empty_table()
        who = f"{self._who}, input {stream}"
        keys = conformed_keys(batch, self._keys, who)
        starts = window_time(self._panes.of(microseconds(batch, self._time, who)))
        return self._sending.begin(pa.Table.from_arrays([*keys.columns, starts], schema=self._key), batch)

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        rows = self._sending.fold(conformed(batch, self._travelling, self._who, keys=self.by), self._names)
        if rows.num_rows:
            sent = rows.column(ROWS).to_numpy()
            rows = rows.drop_columns([ROWS]).filter(pa.array(self._panes.in_time(state, _panes(rows), sent)))
        if rows.num_rows:
            rows = self._aggregations.with_old(rows, state.lookup(rows.select(self._names)))
            state.update(rows)
        answer = self._output.empty_table()
        if self._emit == "update" and rows.num_rows:
            answer = self._told(self._changed(rows, state))
        now = state.watermark
        if now is not None and self._panes.closes(state.watermark_before, now):
            held = state.table(DEFAULT_TABLE).upto(BY_START, self._panes.before_last_end(now))
            if self._emit == "append":
                answer = self._told(self._closed(held, state.watermark_before, now))
            over = self._panes.last_end(np.asarray(_panes(held), np.int64)) <= now
            state.delete(held.select(self._names).filter(pa.array(over)))
        return answer

    def _changed(self, rows: pa.Table, state: State) -> pa.Table:
        """The open windows that these panes are in, whole."""
        if self._panes.windows == 1:
            return rows
        place, panes = self._panes.neighbours(np.asarray(_panes(rows), np.int64))
        others = [*(rows.column(name).take(pa.array(place)) for name in self._keys.names), window_time(panes)]
        marks = pa.array(np.arange(rows.num_rows + len(panes)) < rows.num_rows).cast(pa.int64())
        around = pa.concat_tables([rows.select(self._names), pa.Table.from_arrays(others, schema=self._key)])
        around = around.append_column(ROWS, marks).group_by(self._names, use_threads=False).aggregate([(ROWS, "max")])
        around = around.rename_columns([*self._names, ROWS])
        found = state.lookup(around)
        for field in self._aggregations.stored:
            around = around.append_column(field, found.column(field.name))
        around = around.filter(found.column(FOUND))
        windows = self._sending.fold(self._in_windows(around, state.watermark_before, None), self._names)
        return windows.filter(pc.greater(windows.column(ROWS), 0))

    def _closed(self, held: pa.Table, before: int | None, now: int) -> pa.Table:
        windows = self._in_windows(held, before, now)
        return self._aggregations.fold(windows, self._names) if self._panes.windows > 1 else windows

    def _in_windows(self, panes: pa.Table, before: int | None, now: int | None) -> pa.Table:
        """A row for each pane and each window that it is in and that closes now, or stays open (``Panes.closing``)."""
        times = np.asarray(_panes(panes), np.int64)
        place, starts = self._panes.closing(times, before, now)
        early = np.argsort(times[place], kind="stable")  # what a window folds comes to it in the order of time
        place, starts = place[early], starts[early]
        windows = panes.take(pa.array(place))
        return windows.set_column(len(self._keys), pa.field(START, WINDOW_TIME), window_time(starts))

    def _told(self, windows: pa.Table) -> pa.Table:
        answer = self._aggregations.finish(windows, self._names)
        ends = window_time(np.asarray(_panes(answer), np.int64) + self._panes.size)
        answer = answer.append_column(pa.field(END, WINDOW_TIME), ends)
        order = [(END, "ascending")] + ([(self._top[1], "descending")] if self._top else [])
        answer = answer.take(pc.sort_indices(answer, [*order, *((name, "ascending") for name in self._keys.names)]))
        if self._top:
            answer = _ranked(answer, self._top[0])
        return answer.select(self._output.names).cast(self._output)


def _panes(rows: pa.Table) -> pa.Array:
    return rows.column(START).cast(pa.int64()).combine_chunks()


def _ranked(rows: pa.Table, keep: int) -> pa.Table:
    """Rows in the order of their windows, cut to the first ``keep`` of each, with a rank from 1."""
    ends = rows.column(END).cast(pa.int64()).to_numpy()
    rank = np.arange(len(ends)) - np.searchsorted(ends, ends) + 1
    return rows.append_column(RANK, pa.array(rank)).filter(pa.array(rank <= keep))


def _checked_emit(emit: Answers, top: tuple[int, str] | None, who: str) -> Answers:
    if emit not in get_args(Answers):
        raise Invalid(f"{who}: emit must be append or update, got {emit!r}")
    if emit == "update" and top is not None:
        raise Invalid(f"{who}: top ranks a window once, when it closes; to rank open ones, put op.top_k behind")
    return emit


def _checked_top(top: tuple[int, str] | None, aggregations: dict[str, Aggregation], who: str) -> tuple[int, str] | None:
    if top is None:
        return None
    keep, name = top
    if keep < 1 or name not in aggregations:
        known = ", ".join(aggregations)
        raise Invalid(f"{who}: top is (how many, which aggregate), such as (10, {known.split(', ')[0]!r}), got {top!r}")
    return keep, name
