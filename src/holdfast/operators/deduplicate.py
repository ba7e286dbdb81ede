"""Deduplicate: the first row of each key, for ever or within a span of event time, so that state stays bounded."""

from __future__ import annotations

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
from holdfast.operators.contract import DEFAULT_TABLE, FOUND, Operator, State
from holdfast.operators.description import Description
from holdfast.operators.timers import by_time
from holdfast.state import StateSchema

SEEN = "seen"
BY_SEEN = by_time(SEEN)


class Deduplicate(Operator):
    """The first row of each key, as it came; rows are compared by the key columns alone.

    Without ``within`` a key is remembered for ever. With it, once a row of time t has passed, rows of that key with a
    time before t + within are duplicates, and the key is forgotten when no such row can be in time any more. A row is
    late, dropped and counted, when its time + within is at or before the watermark that the epoch began with.
    """

    passes = True

    def __init__(self, by: Columns, *, time: str | None = None, within: Duration | None = None) -> None:
        self._keys = schema_of(by, "deduplicate")
        self._who = f"deduplicate by {', '.join(self._keys.names)}"
        if (time is None) != (within is None):
            raise Invalid(f"{self._who}: time and within belong together, got time={time!r} and within={within!r}")
        if SEEN in self._keys.names:
            raise Invalid(f"{self._who}: a key column cannot be called {SEEN!r}; rename it with op.map")
        self.by = tuple(self._keys.names)
        self._time = time
        self._horizon = duration(within, self._who) if within is not None else 0
        self.event_time = time is not None
        self.horizon = self._horizon if time is not None else None
        self.tables = {DEFAULT_TABLE: StateSchema(self._keys, pa.schema([pa.field(SEEN, WINDOW_TIME)]))}

    def describe(self) -> Description:
        return {"kind": "deduplicate", "by": list(self.by), "time": self._time, "within_us": self._horizon}

    def reads(self, stream: str) -> frozenset[str]:
        return frozenset(self.by if self._time is None else (*self.by, self._time))

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        # Within a span, whether a row passes depends on which rows before it did: only the receiver knows.
        if not batch.num_rows or self._time is not None:
            return batch
        keys = conformed_keys(batch, self._keys, f"{self._who}, input {stream}")
        return batch.take(pa.array(first_rows(keys)))

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        if self._time is not None:
            answer = self._within(batch, self._time, state) if batch.num_rows else batch
            self._forget(state)
            return answer
        if not batch.num_rows:
            return batch
        keys = conformed_keys(batch, self._keys, self._who)
        first = first_rows(keys)
        keys = keys.take(pa.array(first))
        fresh = ~state.lookup(keys).column(FOUND).to_numpy(zero_copy_only=False)
        kept = keys.filter(pa.array(fresh))
        state.update(kept.append_column(pa.field(SEEN, WINDOW_TIME), pa.nulls(kept.num_rows, WINDOW_TIME)))
        return batch.take(pa.array(first[fresh]))

    def _within(self, batch: pa.Table, time: str, state: State) -> pa.Table:
        keys = conformed_keys(batch, self._keys, self._who)
        times = microseconds(batch, time, self._who)
        untimed = np.asarray(times.is_null())
        micros = np.asarray(times.fill_null(0), np.int64)
        drop = untimed
        if untimed.any():
            state.count("untimed", int(untimed.sum()))
        if state.watermark_before is not None:
            late = ~untimed & (micros + self._horizon <= state.watermark_before)
            if late.any():
                state.count("late", int(late.sum()))
            drop = untimed | late
        left = np.flatnonzero(~drop)
        names = self._keys.names
        passed: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        # Each round passes at most one row of a key, then drops what that row makes a duplicate. The rounds are as many
        # as the rows that one key passes in this epoch: one, unless the epoch is longer than the horizon.
        while len(left):
            seen = contiguous(state.lookup(keys.take(pa.array(left))).column(SEEN)).cast(pa.int64())
            until = np.asarray(pc.add(seen, self._horizon).fill_null(np.iinfo(np.int64).min), np.int64)
            left = left[micros[left] >= until]
            first = left[first_rows(keys.take(pa.array(left)))]
            passed.append(first)
            mine = keys.take(pa.array(first)).select(names)
            state.update(mine.append_column(pa.field(SEEN, WINDOW_TIME), window_time(micros[first])))
            left = np.setdiff1d(left, first, assume_unique=True)
        return batch.take(pa.array(np.sort(np.concatenate(passed))))

    def _forget(self, state: State) -> None:
        """Rows before seen + horizon are late once the watermark has reached seen + two horizons."""
        if (now := state.watermark) is not None and now != state.watermark_before:
            state.delete(state.table(DEFAULT_TABLE).upto(BY_SEEN, now - 2 * self._horizon))


def first_rows(keys: pa.Table) -> NDArray[np.int64]:
    """The place of the first row of each key, ascending."""
    if not keys.num_rows:
        return np.empty(0, np.int64)
    numbered = keys.append_column("row.number", pa.array(np.arange(keys.num_rows)))
    grouped = numbered.group_by(keys.schema.names, use_threads=False).aggregate([("row.number", "min")])
    return np.sort(grouped.column("row.number_min").to_numpy())
