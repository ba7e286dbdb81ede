"""Rows held by key, several to a key, that are due at a time: what a join keeps of one of its inputs.

Rows of a key are numbered from 0, without gaps, so that all of them are found by their number. How many there are, and
when the first of them is due, stands in a second, slim table: what is due is found without looking at the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.operators.columns import contiguous
from holdfast.operators.contract import FOUND, State
from holdfast.operators.timers import by_time
from holdfast.state import StateSchema

Places = NDArray[np.int64]
NUMBER, HELD, DUE = "row.number", "rows.held", "row.due"
NEVER = np.iinfo(np.int64).max
BY_DUE = by_time(DUE)


class Shelf:
    """``name``: of its two tables. ``keys``: the key columns; ``rows``: the others.

    Tables that come in and go out have the columns of both and DUE, microseconds of event time, NEVER for never.
    """

    def __init__(self, name: str, keys: pa.Schema, rows: pa.Schema) -> None:
        self._rows, self._keys = name, f"{name}_keys"
        self._names = keys.names
        self.schema = pa.schema([*keys, *rows, pa.field(DUE, pa.int64())])
        due = pa.field(DUE, pa.int64())
        self.tables: Mapping[str, StateSchema] = {
            self._rows: StateSchema(pa.schema([*keys, pa.field(NUMBER, pa.int64())]), pa.schema([*rows, due])),
            self._keys: StateSchema(keys, pa.schema([pa.field(HELD, pa.int64()), due])),
        }

    def find(self, state: State, keys: pa.Table, after: int | None) -> pa.Table:
        """All rows of these keys, each once, that were not due by ``after``, with their NUMBER. Nulls match nothing."""
        (codes,) = encoded([keys.select(self._names)])
        first = first_of_each(codes)
        keys = keys.select(self._names).take(pa.array(first[codes[first] >= 0]))
        held = state.table(self._keys).lookup(keys)
        rows = self._all(state, keys, np.asarray(held.column(HELD).fill_null(0), np.int64))
        return rows if after is None else rows.filter(pc.greater(rows.column(DUE), after))

    def replace(self, state: State, rows: pa.Table) -> None:
        """Other values for rows that were found, by their NUMBER."""
        state.table(self._rows).update(rows)

    def add(self, state: State, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        (codes,) = encoded([rows.select(self._names)], nulls=True)
        first = first_of_each(codes)
        group = np.searchsorted(codes[first], codes)
        keys = rows.select(self._names).take(pa.array(first))
        old = state.table(self._keys).lookup(keys)
        held = np.asarray(old.column(HELD).fill_null(0), np.int64)
        due = np.array(old.column(DUE).fill_null(NEVER), np.int64)
        number, order = np.empty(len(codes), np.int64), np.argsort(codes, kind="stable")
        counts = np.bincount(group, minlength=len(first))
        number[order] = _numbers(counts)
        np.minimum.at(due, group, rows.column(DUE).to_numpy())
        state.table(self._rows).update(rows.append_column(NUMBER, pa.array(number + held[group])))
        state.table(self._keys).update(_described(keys, held + counts, due))

    def take_due(self, state: State, now: int) -> pa.Table:
        """The rows that are due by ``now``; they are gone from here."""
        known = state.table(self._keys).upto(BY_DUE, now)
        if not known.num_rows:
            return self.schema.empty_table()
        held, keys = known.column(HELD).to_numpy(), known.select(self._names)
        rows, group = self._all(state, keys, held), np.repeat(np.arange(len(held)), held)
        number, due = rows.column(NUMBER).to_numpy(), rows.column(DUE).to_numpy()
        over = due <= now
        stay = held - np.bincount(group[over], minlength=len(held))
        # The last of those that stay take the numbers of those that go.
        moved = rows.filter(pa.array(~over & (number >= stay[group])))
        gaps = pa.array(number[over & (number < stay[group])])
        state.table(self._rows).delete(rows.filter(pa.array(number >= stay[group])).select([*self._names, NUMBER]))
        state.table(self._rows).update(moved.set_column(moved.schema.get_field_index(NUMBER), NUMBER, gaps))
        least = np.full(len(held), NEVER, np.int64)
        np.minimum.at(least, group[~over], due[~over])
        left = pa.array(stay > 0)
        state.table(self._keys).delete(keys.filter(pc.invert(left)))
        state.table(self._keys).update(_described(keys, stay, least).filter(left))
        return rows.filter(pa.array(over)).select(self.schema.names)

    def _all(self, state: State, keys: pa.Table, held: Places) -> pa.Table:
        """The rows of these keys, of which there are so many, in the order of keys and numbers."""
        keys = keys.take(pa.array(np.repeat(np.arange(len(held)), held)))
        keys = keys.append_column(NUMBER, pa.array(_numbers(held)))
        rows = state.table(self._rows).lookup(keys).drop_columns([FOUND])
        return pa.table([*keys.columns, *rows.columns], names=[*keys.column_names, *rows.column_names])


def encoded(tables: Sequence[pa.Table], nulls: bool = False) -> list[Places]:
    """A number for each row, the same for equal rows of any of the tables; -1 where there is a null.

    Floats are in one form (``in_one_form``): they are compared by their bits.
    ``nulls``: a null is a value like others, equal to itself.
    """
    sizes = [table.num_rows for table in tables]
    code, some = np.zeros(sum(sizes), np.int64), np.ones(sum(sizes), np.bool_)
    for columns in zip(*(table.columns for table in tables), strict=True):
        values = contiguous(pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type))
        words = values.dictionary_encode(null_encoding="encode")
        if not nulls and values.null_count:
            some &= np.asarray(values.is_valid())
        code = code * len(words.dictionary) + np.asarray(words.indices, np.int64)
        if len(tables[0].columns) > 1:
            code = np.unique(code, return_inverse=True)[1]
    return np.split(np.where(some, code, -1), np.cumsum(sizes)[:-1])


def first_of_each(codes: Places) -> Places:
    """The place of the first of each code, in the order of codes."""
    return np.unique(codes, return_index=True)[1]


def matching(left: Places, right: Places) -> tuple[Places, Places]:
    """All pairs of places with equal codes, in the order of left and then of right places; -1 matches nothing."""
    order = np.argsort(right, kind="stable")
    among = right[order]
    first = np.searchsorted(among, left)
    counts = np.where(left >= 0, np.searchsorted(among, left, "right") - first, 0)
    mine = np.repeat(np.arange(len(left)), counts)
    return mine, order[np.repeat(first, counts) + _numbers(counts)]


def _numbers(counts: Places) -> Places:
    """0, 1, ... for each count, one after the other."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def _described(keys: pa.Table, held: Places, due: Places) -> pa.Table:
    return keys.append_column(HELD, pa.array(held)).append_column(DUE, pa.array(due))
