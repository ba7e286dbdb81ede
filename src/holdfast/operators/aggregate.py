"""Keyed aggregates: running ones, which remember every key or those of late, and those of one epoch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid
from holdfast.operators.aggregations import Aggregation, Aggregations, max
from holdfast.operators.columns import (
    WINDOW_TIME,
    Columns,
    Duration,
    conformed,
    conformed_keys,
    contiguous,
    duration,
    microseconds,
    schema_of,
    window_time,
)
from holdfast.operators.contract import DEFAULT_TABLE, Operator, State
from holdfast.operators.description import Description
from holdfast.operators.timers import by_time
from holdfast.state import StateSchema

SEEN = "key.seen"
"""The latest time of a key's rows, beside what is computed, where keys are forgotten."""
UNTIMED = "key.untimed"
"""Whether a key has a row without a time: sent, not kept. Only the receiver knows the watermark that stands for it."""
BY_SEEN = by_time(SEEN)


class Aggregate(Operator):
    """Running aggregates by key. An epoch's output: the keys that changed, with their new values.

    Senders combine their rows before they send them, so a key travels once from each sender. The order of the output
    follows from the rows alone. A null key is a key like any other.

    With ``ttl`` a key is forgotten when the watermark has come that far beyond the latest ``time`` of its rows; if it
    comes back it begins anew. That is judged by the watermark that an epoch began with, so it never depends on rows of
    the epoch itself; and no row is dropped. A row without a time keeps its key as one that came at the watermark.
    """

    passes = False

    def __init__(
        self, by: Columns, *, ttl: Duration | None = None, time: str | None = None, **aggregations: Aggregation
    ) -> None:
        self._keys = schema_of(by, "aggregate")
        self._who = f"aggregate by {', '.join(self._keys.names)}"
        if (ttl is None) != (time is None):
            raise Invalid(f"{self._who}: ttl and time belong together, got ttl={ttl!r} and time={time!r}")
        self._time, self._ttl = time, duration(ttl, self._who) if ttl is not None else None
        self.event_time = ttl is not None
        self._aggregations = Aggregations(aggregations, [*self._keys.names, SEEN, UNTIMED], self._who)
        seen = {SEEN: max(SEEN, WINDOW_TIME)} if ttl is not None else {}
        sent = {**seen, UNTIMED: max(UNTIMED, pa.bool_())} if ttl is not None else {}
        self._kept = Aggregations({**aggregations, **seen}, self._keys.names, self._who)
        self._sending = Aggregations({**aggregations, **sent}, self._keys.names, self._who)
        self.by = tuple(self._keys.names)
        self.tables = {DEFAULT_TABLE: StateSchema(self._keys, pa.schema(self._kept.stored))}
        self._travelling = pa.schema([*self._keys, *self._sending.stored])

    def describe(self) -> Description:
        does = {"kind": "aggregate", "computes": self._aggregations.describe(), "by": list(self.by)}
        return does if self._ttl is None else {**does, "time": self._time, "ttl_us": self._ttl}

    def reads(self, stream: str) -> frozenset[str]:
        return self._aggregations.columns.union(self.by, {self._time} if self._time is not None else ())

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        who = f"{self._who}, input {stream}"
        keys = conformed_keys(batch, self._keys, who, _say(self._keys))
        if self._time is not None and batch.num_columns:
            seen = window_time(microseconds(batch, self._time, who))
            batch = batch.append_column(pa.field(SEEN, WINDOW_TIME), seen).append_column(UNTIMED, seen.is_null())
        return self._sending.begin(keys, batch)

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        names = self._keys.names
        if self._ttl is not None and batch.num_columns and UNTIMED not in batch.column_names:
            # Of the journal of an earlier version, which tells only of keys none of whose rows had a time.
            batch = batch.append_column(UNTIMED, batch.column(SEEN).is_null())
        rows = self._sending.fold(conformed(batch, self._travelling, self._who, keys=names), names)
        if self._ttl is not None:
            rows = _timed(rows, state.watermark)
        if rows.num_rows:
            old = state.lookup(rows.select(names))
            if self._ttl is not None:
                old = _alive(old, state.watermark_before, self._ttl)
            rows = self._kept.with_old(rows, old)
            state.update(rows)
        if self._ttl is not None:
            self._forget(state, self._ttl)
        return self._aggregations.finish(rows, names)

    def _forget(self, state: State, ttl: int) -> None:
        """Free the state of keys that are forgotten."""
        if (now := state.watermark) is not None and now != state.watermark_before:
            state.delete(state.table(DEFAULT_TABLE).upto(BY_SEEN, now - ttl))


class Combine(Operator):
    """Aggregates by key over the rows of one epoch alone: a smaller stream of the same totals, without state.

    It may stand in a source, or wherever less should travel. Columns that are not grouped by or computed are dropped.
    """

    passes = False

    def __init__(self, by: Columns, **aggregations: Aggregation) -> None:
        self._keys = schema_of(by, "combine")
        self._who = f"combine by {', '.join(self._keys.names)}"
        self._aggregations = Aggregations(aggregations, self._keys.names, self._who)

    def describe(self) -> Description:
        return {"kind": "combine", "computes": self._aggregations.describe(), "by": self._keys.names}

    def reads(self, stream: str) -> frozenset[str]:
        return self._aggregations.columns.union(self._keys.names)

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        keys = conformed_keys(batch, self._keys, self._who, _say(self._keys))
        return self._aggregations.finish(self._aggregations.begin(keys, batch), self._keys.names)


def _timed(rows: pa.Table, watermark: int | None) -> pa.Table:
    """With the latest time of each key, a row without one counting as at the watermark, once there is one."""
    seen, untimed = contiguous(rows.column(SEEN)), contiguous(rows.column(UNTIMED))
    rows = rows.drop_columns([UNTIMED])
    if watermark is None or not untimed.true_count:
        return rows
    now = pc.max_element_wise(seen.cast(pa.int64()), pa.scalar(watermark, pa.int64()))
    seen = pc.if_else(untimed, window_time(now), seen)
    return rows.set_column(rows.schema.get_field_index(SEEN), rows.schema.field(SEEN), seen)


def _alive(old: pa.Table, watermark: int | None, ttl: int) -> pa.Table:
    """What was looked up, null where it is forgotten."""
    if watermark is None:
        return old
    return old.take(pa.array(np.arange(old.num_rows), mask=np.asarray(_over(old, watermark, ttl))))


def _over(rows: pa.Table, watermark: int, ttl: int) -> pa.ChunkedArray:
    return pc.less_equal(rows.column(SEEN).cast(pa.int64()), watermark - ttl).fill_null(False)


def _say(keys: pa.Schema) -> str:
    declared = ", ".join(f"{field.name!r}: {str(field.type)!r}" for field in keys)
    return f"keys are declared as {{{declared}}}; give by= the type it has"
