"""Top k: a ranking of keys by a value, kept up to date, or made once for each window when it closes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.operators.columns import Columns, Type, conformed, microseconds, schema_of, sequence_of, type_of
from holdfast.operators.contract import DEFAULT_TABLE, Operator, State
from holdfast.operators.description import ANSWERS, Description
from holdfast.operators.timers import in_time
from holdfast.state import StateSchema
from holdfast.state.index import ByRank, ByTime

RANK = "rank"
FIRST = -(2**62)
"""Before all times."""


class TopK(Operator):
    """The k keys with the largest values, in each group ``within`` (over all rows, without one); ties go by key.

    A later row of a key replaces the earlier one. Every key is remembered, since one outside the ranking may move up
    when another falls; with ``rising=True`` you promise that values never fall (running counts, maxima), and only k
    keys a group are remembered and sent. An epoch's output: the whole ranking of each group in which it changed.
    With ``closes`` (an event-time column that is the same for all rows of a group, such as a window's ``end``) a group
    is ranked once, when the watermark reaches that time, and then forgotten; later rows are dropped and counted.
    """

    passes = False

    def __init__(
        self,
        keep: int,
        value: str,
        key: Columns,
        *,
        type: Type = "int64",
        within: Columns = (),
        closes: str | None = None,
        rising: bool = False,
    ) -> None:
        who = f"top {keep} by {value}"
        if keep < 1:
            raise Invalid(f"{who}: keep at least 1 key, got {keep}")
        keys = schema_of(key, who)
        groups = schema_of(within, who) if within else pa.schema([])
        if closes is not None and closes not in groups.names:
            found = ", ".join(groups.names) or "none"
            raise Invalid(f"{who}: closes={closes!r} must be among the columns of within, found: {found}")
        names = [*groups.names, *keys.names, value]
        if len(set(names)) < len(names) or RANK in names:
            raise Invalid(
                f"{who}: within, key and value must be different columns and none {RANK!r}, got {', '.join(names)}"
            )
        self._keep, self._value, self._closes, self._rising = keep, value, closes, rising
        self._who, self._groups, self._keys = who, groups.names, keys.names
        self._schema = pa.schema([*groups, *keys, pa.field(value, type_of(type, who))])
        self.by = tuple(groups.names)
        self.event_time = closes is not None
        self.tables = {DEFAULT_TABLE: StateSchema(pa.schema([*groups, *keys]), pa.schema([self._schema.field(value)]))}
        by = ((value, "descending"), *((name, "ascending") for name in keys.names))
        self._by_rank = ByRank("rank", tuple(groups.names), by)
        self._by_close = ByTime("close", partial(_closing, closes=closes or "", who=who))
        self._output = pa.schema([*groups, pa.field(RANK, pa.int64()), *keys, self._schema.field(value)])

    def describe(self) -> Description:
        # Whoever remembers every key can give a longer ranking from what is there; rising, only k keys are there.
        keep = {"keep": self._keep}
        return {
            "kind": "top_k",
            "value": self._value,
            "key": self._keys,
            "within": self._groups,
            "closes": self._closes,
            "rising": self._rising,
            **(keep if self._rising else {ANSWERS: keep}),
        }

    def reads(self, stream: str) -> frozenset[str]:
        return frozenset(self._schema.names)

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        who = f"{self._who}, input {stream}"
        rows = conformed(batch, self._schema, who, "declare the type it has", keys=self._identity)
        rows = _latest(rows, self._identity)
        return rows if not self._rising else self._ranked(rows)[0].select(self._schema.names)

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        rows = _latest(conformed(batch, self._schema, self._who, keys=self._identity), self._identity)
        if self._closes is not None:
            return self._when_closed(self._in_time(rows, state), state)
        if not rows.num_rows:
            return self._output.empty_table()
        table, count = state.table(DEFAULT_TABLE), None if self._rising else self._keep
        groups = rows.select(self._groups)
        old, _ = self._ranked(table.best(self._by_rank, groups, count))
        table.update(rows)
        new, spare = self._ranked(table.best(self._by_rank, groups, count))
        if self._rising:
            state.delete(spare.select(self._identity))
        return self._changed(old, new)

    @property
    def _identity(self) -> list[str]:
        return [*self._groups, *self._keys]

    def _ranked(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """The ranking of each group, groups in order, and the rows that did not make it."""
        order = [(name, "ascending") for name in self._groups]
        order += [(self._value, "descending"), *((name, "ascending") for name in self._keys)]
        rows = rows.take(pc.sort_indices(rows, order))
        rank = _place_in_group(rows, self._groups) + 1
        ranked = rows.append_column(RANK, pa.array(rank)).select(self._output.names).cast(self._output)
        return ranked.filter(pa.array(rank <= self._keep)), rows.filter(pa.array(rank > self._keep))

    def _changed(self, old: pa.Table, new: pa.Table) -> pa.Table:
        if not self._groups:
            return self._output.empty_table() if new.equals(old) else new
        fresh = _not_in(new, old, self._output.names)
        moved = fresh.select(self._groups).group_by(self._groups, use_threads=False).aggregate([])
        return new.filter(_member(new.select(self._groups), moved))

    def _in_time(self, rows: pa.Table, state: State) -> pa.Table:
        """What has no time is late."""
        closes = self._closes
        if closes is None:
            return rows
        return in_time(rows, state, lambda: pa.array(_closing(rows, closes, self._who)))

    def _when_closed(self, rows: pa.Table, state: State) -> pa.Table:
        state.update(rows)
        if state.watermark is None or state.watermark == state.watermark_before or self._closes is None:
            return self._output.empty_table()
        done = state.table(DEFAULT_TABLE).upto(self._by_close, state.watermark)
        state.delete(done.select(self._identity))
        return self._ranked(done)[0]


def _closing(rows: pa.Table, closes: str, who: str) -> NDArray[np.int64]:
    return np.asarray(microseconds(rows, closes, who).fill_null(FIRST), np.int64)


def _latest(rows: pa.Table, keys: list[str]) -> pa.Table:
    """The last row of each key, in the order of those rows."""
    if rows.num_rows < 2:
        return rows
    numbered = rows.select(keys).append_column("row.number", pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by(keys, use_threads=False).aggregate([("row.number", "max")]).column("row.number_max")
    return rows if len(last) == rows.num_rows else rows.take(pc.take(last, pc.sort_indices(last)))


def _place_in_group(rows: pa.Table, groups: Iterable[str]) -> NDArray[np.int64]:
    """For rows sorted by group: how many of the group stand before each."""
    names = sequence_of(groups)
    if not rows.num_rows or not names:
        return np.arange(rows.num_rows)
    sizes = rows.select(list(names)).group_by(list(names), use_threads=False).aggregate([([], "count_all")])
    count: NDArray[np.int64] = sizes.column("count_all").to_numpy()
    return np.arange(rows.num_rows) - np.repeat(np.cumsum(count) - count, count)


def _member(rows: pa.Table, of: pa.Table) -> pa.Array:
    """Which rows are in ``of`` (no row twice there), all columns compared, nulls equal."""
    names = of.schema.names
    both = pa.concat_tables([of.select(names), rows.select(names)])
    both = both.append_column("from.other", pa.array(np.arange(both.num_rows) < of.num_rows))
    first = both.append_column("row.number", pa.array(np.arange(both.num_rows)))
    groups = first.group_by(names, use_threads=False).aggregate([("from.other", "max"), ("row.number", "list")])
    hit = groups.column("from.other_max").to_numpy(zero_copy_only=False)
    lists = groups.column("row.number_list").combine_chunks()
    marks = np.zeros(both.num_rows, np.bool_)
    marks[lists.flatten().to_numpy()] = hit[np.asarray(pc.list_parent_indices(lists))]
    return pa.array(marks[of.num_rows :])


def _not_in(rows: pa.Table, other: pa.Table, names: list[str]) -> pa.Table:
    return rows.filter(pc.invert(_member(rows.select(names), other.select(names))))
