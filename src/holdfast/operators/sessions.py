"""Sessions: spans of event time that grow as long as rows of a key come within a gap of one another.

A row is a span [start, end): its time and its time plus the gap, which may differ by row. Spans of one key that overlap
or touch (one begins where the other ends) are one session, as Structured Streaming merges them: from the earliest start
to the latest end. A row whose own span ends at or before the watermark that the epoch began with is late: it is dropped
and counted, even if it would touch a session that is still open. A session closes when the watermark reaches its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, get_args

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
    contiguous,
    duration,
    microseconds,
    schema_of,
)
from holdfast.operators.contract import DEFAULT_TABLE, FOUND, Operator, State
from holdfast.operators.description import ANSWERS, Description
from holdfast.operators.distinct import distinct
from holdfast.operators.grouped import ROWS, Emit
from holdfast.operators.timers import Due, micros_of
from holdfast.state import StateSchema

OPEN, STARTS = "open", "starts"
"""The table that says which sessions a key has: the starts by which they are found."""
NUMBER, EVERYTHING = "session.number", "all.rows"
STEP = "10 seconds"
"""How far ahead what closes is listed, where the gap is not known; else a quarter of the gap."""


class Sessions(Operator):
    """Aggregates by key and session. ``by``: key columns; ``start`` and ``end`` may be among them, to say their types.

    Without ``time`` rows carry ``start`` and ``end``, as rows of Spark's ``session_window`` do. With it they begin at
    that column's time and end a ``gap`` later. ``emit``: sessions that closed (append), that changed (update), or all
    of them, which are then never forgotten, and no row is late (complete). In mode update a session that went into one
    with another start is taken back: a row with its key and start whose other columns are null. ``late``: rows can be
    late in mode complete too, as they are in Structured Streaming. ``meaning``: what columns stand for, where their
    names do not tell.
    """

    passes = False

    def __init__(
        self,
        by: Columns | None,
        emit: Emit,
        start: str = "start",
        end: str = "end",
        *,
        time: str | None = None,
        gap: Duration | None = None,
        meaning: Mapping[str, str] | None = None,
        late: bool = False,
        **aggregations: Aggregation,
    ) -> None:
        given = schema_of(by, "sessions") if by else pa.schema([])
        keys = [field for field in given if field.name not in (start, end)]
        self.by, self.together = tuple(field.name for field in keys), not keys
        self._who = f"sessions by {', '.join(self.by)}" if keys else "sessions"
        if emit not in get_args(Emit):
            raise Invalid(f"{self._who}: emit must be update, append or complete, got {emit!r}")
        if time is not None and gap is None:
            raise Invalid(f"{self._who}: how long may a session be silent? Give the gap, such as '30 seconds'")
        self._emit, self._time, self._start, self._end = emit, time, start, end
        self._gap = None if gap is None else duration(gap, self._who)
        self._meaning = dict(meaning or {})
        self._closes = emit != "complete"
        self.event_time = self._closes or late
        spans = [_moment(given, name, self._who) for name in (start, end)]
        self._told = [*given.names, *(name for name in (start, end) if name not in given.names)]
        self._keys = pa.schema(keys or [pa.field(EVERYTHING, pa.int8())])
        self._span = pa.schema([*self._keys, *spans])
        self._aggregations = Aggregations(aggregations, [*self._span.names, ROWS, NUMBER], self._who)
        self._sending = Aggregations({**aggregations, ROWS: count()}, self._span.names, self._who)
        self._held = pa.schema([*self._span, *self._aggregations.stored])
        self._travelling = pa.schema([*self._span, *self._sending.stored])
        session = StateSchema(pa.schema([*self._keys, spans[0]]), pa.schema([spans[1], *self._aggregations.stored]))
        self.tables = {
            DEFAULT_TABLE: session,
            OPEN: StateSchema(self._keys, pa.schema([pa.field(STARTS, pa.list_(spans[0].type))])),
        }
        step = duration(STEP, self._who) if self._gap is None else max(self._gap // 4, 1)
        self._due = Due(DEFAULT_TABLE, session, end, step)
        if self._closes:
            self.tables |= self._due.tables

    def describe(self) -> Description:
        """Sessions of append and update fit one another; complete keeps what they have forgotten."""
        does: dict[str, object] = {"kind": "sessions", "computes": self._aggregations.describe(), "by": list(self.by)}
        does |= {
            "time": self._time,
            "start": self._start,
            "end": self._end,
            "gap_us": self._gap,
            "closes": self._closes,
            "late": self.event_time,
        }
        does |= {"meaning": self._meaning} if self._meaning else {}
        return {**does, ANSWERS: {"emit": self._emit}}

    def reads(self, stream: str) -> frozenset[str]:
        spans = (self._start, self._end) if self._time is None else (self._time,)
        return self._aggregations.columns.union(self.by, spans)

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        """Rows of one span are combined. Spans are not, unless none can be late: that is for each row to be judged."""
        if not batch.num_columns:
            return self._travelling.empty_table()
        spans = self._spans(batch, f"{self._who}, input {stream}")
        number, first = distinct(spans)
        parts = self._sending.begin(pa.table({NUMBER: pa.array(number)}), batch)
        rows = _beside(spans.take(pa.array(first)), parts, self._travelling)
        if self.event_time or not rows.num_rows:
            return rows
        timed = rows.column(self._start).is_valid()
        whole = rows.filter(timed)
        owners, _ = distinct(whole.select(self._keys.names))
        return pa.concat_tables([rows.filter(pc.invert(timed)), self._merged(whole, owners, self._sending).sessions])

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        rows = conformed(batch, self._travelling, self._who, keys=self._keys.names)
        rows = self._in_time(rows, state).drop_columns([ROWS])
        changed, gone = self._held.empty_table(), self._span.empty_table()
        if rows.num_rows:
            changed, gone = self._enter(rows, state)
        closed = self._close(state) if self._closes else changed
        match self._emit:
            case "append":
                return self._answer(closed)
            case "complete":
                return self._answer(state.scan())
            case _:
                answer = self._answer(changed)
                return pa.concat_tables([self._retracted(gone, answer.schema), answer])

    def _spans(self, batch: pa.Table, who: str) -> pa.Table:
        """The key and the span of each row; start and end are null where there is no time, or nothing between them."""
        if self.together:
            keys = pa.table({EVERYTHING: pa.repeat(pa.scalar(0, pa.int8()), batch.num_rows)})
        else:
            keys = conformed_keys(batch, self._keys, who)
        if self._time is not None and self._gap is not None:
            starts = microseconds(batch, self._time, who)
            ends = pc.add(starts, self._gap)
        else:
            starts, ends = microseconds(batch, self._start, who), microseconds(batch, self._end, who)
        whole = pc.greater(ends, starts).fill_null(False)
        none = pa.scalar(None, pa.int64())
        starts, ends = pc.if_else(whole, starts, none), pc.if_else(whole, ends, none)
        kinds = [self._span.field(name).type for name in (self._start, self._end)]
        return pa.Table.from_arrays([*keys.columns, starts.cast(kinds[0]), ends.cast(kinds[1])], schema=self._span)

    def _in_time(self, rows: pa.Table, state: State) -> pa.Table:
        sent = rows.column(ROWS).to_numpy()
        ends = contiguous(rows.column(self._end)).cast(pa.int64())
        untimed = np.asarray(ends.is_null())
        late = np.zeros(len(untimed), np.bool_)
        if self.event_time and state.watermark_before is not None:
            late = np.asarray(pc.less_equal(ends, state.watermark_before).fill_null(False))
        for what, which in (("untimed", untimed), ("late", late)):
            if which.any():
                state.count(what, int(sent[which].sum()))
        return rows.filter(pa.array(~(untimed | late)))

    def _enter(self, rows: pa.Table, state: State) -> tuple[pa.Table, pa.Table]:
        """Merge rows with the sessions of their keys: what is new or changed, and what is no session any more."""
        number, first = distinct(rows.select(self._keys.names))
        keys = rows.select(self._keys.names).take(pa.array(first))
        owners, old = self._sessions_of(keys, state)
        merged = self._merged(pa.concat_tables([old, rows]), np.concatenate([owners, number]), self._aggregations)
        touched = np.zeros(merged.sessions.num_rows, np.bool_)
        touched[merged.number[len(owners) :]] = True
        changed = merged.sessions.filter(pa.array(touched))
        went = merged.number[: len(owners)]
        lost = micros_of(old, self._start) != micros_of(merged.sessions, self._start)[went]
        gone = old.select(self._span.names).filter(pa.array(lost))
        state.delete(gone)
        state.update(changed)
        kept = np.zeros(merged.sessions.num_rows, np.bool_)
        kept[went[~lost]] = True
        others = np.concatenate([owners[lost], merged.owners[~kept]])
        self._list(keys, merged.owners, merged.sessions.column(self._start), np.unique(others), state)
        return changed, gone

    def _sessions_of(self, keys: pa.Table, state: State) -> tuple[NDArray[np.int64], pa.Table]:
        """The sessions that these keys have: whose they are, and the sessions."""
        lists = contiguous(state.table(OPEN).lookup(keys).column(STARTS))
        owners = np.asarray(pc.list_parent_indices(lists), np.int64)
        found = keys.take(pa.array(owners)).append_column(self._held.field(self._start), lists.flatten())
        held = state.lookup(found)
        there = held.column(FOUND)
        for field in state.table(DEFAULT_TABLE).schema.value:
            found = found.append_column(field, held.column(field.name))
        return owners[np.asarray(there)], found.filter(there)

    def _list(
        self,
        keys: pa.Table,
        owners: NDArray[np.int64],
        starts: pa.ChunkedArray,
        others: NDArray[np.int64],
        state: State,
    ) -> None:
        """Put down which sessions keys have, for those of the keys that have ``others`` now; ``owners`` ascend."""
        offsets = np.searchsorted(owners, np.arange(keys.num_rows + 1)).astype(np.int32)
        lists = pa.ListArray.from_arrays(pa.array(offsets), contiguous(starts))
        listed = keys.append_column(STARTS, lists).take(pa.array(others))
        some = pc.greater(pc.list_value_length(listed.column(STARTS)), 0)
        state.table(OPEN).delete(listed.filter(pc.invert(some)))
        state.table(OPEN).update(listed.filter(some))

    def _merged(self, rows: pa.Table, owners: NDArray[np.int64], aggregations: Aggregations) -> _Merged:
        """Spans of each owner that overlap or touch as one, sessions by owner and start."""
        starts, ends = micros_of(rows, self._start), micros_of(rows, self._end)
        order, number, first, until = joined_spans(owners, starts, ends)
        numbered = rows.take(pa.array(order)).append_column(NUMBER, pa.array(number))
        parts = aggregations.fold(numbered, [NUMBER])
        where = pa.array(order[first])
        fields = [rows.schema.field(name) for name in self._span.names]
        columns = [rows.column(field.name).take(where) for field in fields[:-1]]
        spans = pa.Table.from_arrays([*columns, pa.array(until).cast(fields[-1].type)], schema=pa.schema(fields))
        back = np.empty(len(order), np.int64)
        back[order] = number
        schema = pa.schema([*fields, *aggregations.stored])
        return _Merged(_beside(spans, parts, schema), back, owners[order[first]])

    def _close(self, state: State) -> pa.Table:
        """The sessions whose end the watermark has reached; they are forgotten."""
        closed = self._due.take(state).select(self._held.names)
        if closed.num_rows:
            _, first = distinct(closed.select(self._keys.names))
            keys = closed.select(self._keys.names).take(pa.array(first))
            owners, left = self._sessions_of(keys, state)
            self._list(keys, owners, left.column(self._start), np.arange(keys.num_rows), state)
        return self._due.news_of(closed, state)

    def _answer(self, rows: pa.Table) -> pa.Table:
        answer = self._aggregations.finish(rows, self._span.names)
        return answer.select([*self._told, *self._aggregations.named])

    def _retracted(self, gone: pa.Table, schema: pa.Schema) -> pa.Table:
        known = {*self.by, self._start}
        columns = [
            gone.column(field.name) if field.name in known else pa.nulls(gone.num_rows, field.type) for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)


class _Merged(NamedTuple):
    """Sessions; for each row the place of the one it is in; and for each session its owner."""

    sessions: pa.Table
    number: NDArray[np.int64]
    owners: NDArray[np.int64]


def joined_spans(
    owners: NDArray[np.int64], starts: Micros, ends: Micros
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Micros]:
    """Rows by owner and start, first come first among equals; in that order the number of each row's session.

    Then, for each session, the place of its first row in that order, and its latest end.
    """
    order = np.lexsort((starts, owners))
    owners, starts, ends = owners[order], starts[order], ends[order]
    rows = len(order)
    # The latest end so far of each owner: a running maximum over (owner, rank of the end) as one number.
    sorted_ends = np.sort(ends)
    latest = np.maximum.accumulate(owners * (rows + 1) + np.searchsorted(sorted_ends, ends))
    reached = sorted_ends[latest % (rows + 1)]
    begins = np.ones(rows, np.bool_)
    begins[1:] = (owners[1:] != owners[:-1]) | (starts[1:] > reached[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], rows)[: len(first)] - 1
    return order, np.cumsum(begins) - 1, first, reached[last]


def _beside(spans: pa.Table, parts: pa.Table, schema: pa.Schema) -> pa.Table:
    """Spans and the parts of what is computed for them, both by number."""
    names = schema.names[spans.num_columns :]
    return pa.Table.from_arrays([*spans.columns, *(parts.column(name) for name in names)], schema=schema)


def _moment(given: pa.Schema, name: str, who: str) -> pa.Field:
    field = given.field(name) if name in given.names else pa.field(name, WINDOW_TIME)
    if not pa.types.is_timestamp(field.type) or field.type.unit != "us":
        raise Invalid(f"{who}: {name!r} must be timestamps in microseconds, got {field.type}")
    return field
