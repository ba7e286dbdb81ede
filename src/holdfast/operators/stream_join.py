"""Joins of two streams as Structured Streaming has them: pairs at once, rows without a match when they are forgotten.

Rows of both inputs come in one stream, keyed by what must be equal, with a column that tells them apart. Each row is
held until no row that is in time could match it; when that is, follows from its own time and the watermark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.operators.columns import Columns, conformed, contiguous, microseconds, schema_of
from holdfast.operators.comparing import equal, less
from holdfast.operators.contract import Operator, State
from holdfast.operators.description import Description
from holdfast.operators.shelf import DUE, NEVER, Places, Shelf, encoded, matching
from holdfast.operators.timers import in_time
from holdfast.state import StateSchema

Kind = Literal["inner", "left", "right", "full"]
Comparison = Literal["<", "<=", ">", ">=", "=", "!=", "<=>"]
SIDE = "side"
MATCHED = "row.matched"
LEFT, RIGHT = 0, 1


@dataclass(frozen=True, slots=True)
class Half:
    """One input of a join: ``columns`` are those that come, ``output`` those that are answered.

    ``time``: rows whose time there is at or before the watermark are late. ``over``: a column, here or of the key, and
    microseconds: a row is forgotten when the time there plus these has come to the watermark. ``passes``: a row
    matches nothing unless this column is true. None: no row is late, none is forgotten, each may match.
    """

    columns: pa.Schema
    output: tuple[str, ...]
    time: str | None = None
    over: tuple[str, int] | None = None
    passes: str | None = None

    def describe(self) -> Description:
        columns = {field.name: str(field.type) for field in self.columns}
        over = list(self.over) if self.over is not None else None
        return {
            "columns": columns, "output": list(self.output), "time": self.time, "over": over, "passes": self.passes
        }  # fmt: skip


class StreamJoin(Operator):
    """Pairs of a left and a right row with equal keys for which all conditions ``where`` hold, when the second comes.

    ``kind``: ``inner``; ``left``, ``right`` and ``full`` answer rows of that side (those sides) without a match too,
    with nulls for the other: when they are forgotten, or at once if they never match. A null key matches nothing.
    A row is late, dropped and counted, by the watermark that the epoch began with; rows are forgotten by the one that
    it ends with. ``meaning``: as of groups. Input: ``side``, 0 for left and 1 for right; the keys; the columns of both
    halves. Output: the left columns, then the right ones.
    """

    def __init__(
        self,
        by: Columns,
        left: Half,
        right: Half,
        kind: Kind = "inner",
        where: Sequence[tuple[str, Comparison, str]] = (),
        meaning: Mapping[str, str] | None = None,
    ) -> None:
        keys = schema_of(by, "stream join")
        self.by = tuple(keys.names)
        self._who = f"stream join by {', '.join(self.by)}"
        self._halves, self._kind, self._where = (left, right), kind, tuple(where)
        self._meaning = dict(meaning or {})
        self._check(keys)
        self._outer = (kind in ("left", "full"), kind in ("right", "full"))
        self.event_time = any(half.time is not None or half.over is not None for half in self._halves)
        self._lasts = max((half.over[1] for half in self._halves if half.over is not None), default=0)
        self.horizon = self._lasts if left.over is not None and right.over is not None and self._lasts > 0 else None
        self._arriving = pa.schema([pa.field(SIDE, pa.int8()), *keys, *left.columns, *right.columns])
        compared = ([each[0] for each in where], [each[2] for each in where])
        shelves = []
        for side, half in enumerate(self._halves):
            held = [field for field in half.columns if field.name in (*half.output, *compared[side])]
            held += [pa.field(MATCHED, pa.bool_())] if self._outer[side] else []
            shelves.append(Shelf(("left", "right")[side], keys, pa.schema(held)))
        self._shelves = tuple(shelves)
        self.tables: Mapping[str, StateSchema] = {**shelves[LEFT].tables, **shelves[RIGHT].tables}
        self._output = pa.schema([half.columns.field(name) for half in self._halves for name in half.output])

    def describe(self) -> Description:
        does = {
            "kind": "stream_join",
            "how": self._kind,
            "by": list(self.by),
            "where": [list(each) for each in self._where],
            "left": self._halves[LEFT].describe(),
            "right": self._halves[RIGHT].describe(),
        }
        return {**does, "meaning": self._meaning} if self._meaning else does

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        """Without rows that can match nothing, where nobody waits for those."""
        rows = conformed(batch, self._arriving, f"{self._who}, input {stream}", "declare the type it has", keys=self.by)
        if not rows.num_rows:
            return rows
        sides = _sides(rows)
        keep = np.ones(len(sides), np.bool_)
        for side, half in enumerate(self._halves):
            if not self._outer[side]:
                keep &= (sides != side) | (_keyed(rows, self.by) & _passing(rows, half))
        return rows if keep.all() else rows.filter(pa.array(keep))

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        rows = conformed(batch, self._arriving, self._who, keys=self.by)
        sides = _sides(rows)
        new, answers = [], []
        for side in (LEFT, RIGHT):
            came = self._in_time(side, rows.filter(pa.array(sides == side)), state)
            passing = pa.array(_passing(came, self._halves[side]))
            new.append(self._dated(side, came.filter(passing)))
            if self._outer[side]:
                answers.append(self._alone(side, came.filter(pc.invert(passing))))
        before = state.watermark_before
        held = [self._shelves[side].find(state, new[1 - side], before) for side in (LEFT, RIGHT)]
        pairs, matched = self._joined(new, held)
        for side in (LEFT, RIGHT):
            if self._outer[side]:
                old, fresh = matched[side]
                self._shelves[side].replace(state, _marked(held[side], old, only=True))
                new[side] = _marked(new[side], fresh)
            answers += self._settled(side, new[side], state)
        return pa.concat_tables([*pairs, *answers])

    def _check(self, keys: pa.Schema) -> None:
        left, right = self._halves
        if self._kind not in get_args(Kind):
            raise Invalid(f"{self._who}: the kind must be one of {', '.join(get_args(Kind))}, got {self._kind!r}")
        if nested := [field for field in keys if pa.types.is_nested(field.type)]:
            raise Invalid(f"{self._who}: key {nested[0].name!r} is {nested[0].type}; join by its fields")
        names = [SIDE, *keys.names, *left.columns.names, *right.columns.names]
        if twice := [name for name in names if names.count(name) > 1]:
            raise Invalid(f"{self._who}: column {twice[0]!r} would be there twice; rename it")
        for half in self._halves:
            used = [*half.output, *(name for name in (half.time, half.passes) if name is not None)]
            if unknown := [name for name in used if name not in half.columns.names]:
                raise Invalid(f"{self._who}: no column {unknown[0]!r} among {', '.join(half.columns.names)}")
            if half.over is not None and half.over[0] not in (*keys.names, *half.columns.names):
                raise Invalid(f"{self._who}: rows are over by {half.over[0]!r}, which is not among its columns")
        for one, comparison, two in self._where:
            if comparison not in get_args(Comparison):
                known = " ".join(get_args(Comparison))
                raise Invalid(f"{self._who}: a condition compares by {known}, got {comparison!r}")
            if one not in left.columns.names or two not in right.columns.names:
                raise Invalid(f"{self._who}: a condition compares a left column with a right one, got {one} and {two}")

    def _in_time(self, side: int, rows: pa.Table, state: State) -> pa.Table:
        time = self._halves[side].time
        return rows if time is None else in_time(rows, state, lambda: microseconds(rows, time, self._who))

    def _dated(self, side: int, rows: pa.Table) -> pa.Table:
        """As its shelf has them, none matched yet."""
        over = self._halves[side].over
        due = np.full(rows.num_rows, NEVER, np.int64)
        if over is not None:
            times = microseconds(rows, over[0], self._who)
            due = np.where(np.asarray(times.is_valid()), np.asarray(times.fill_null(0), np.int64) + over[1], NEVER)
        rows = rows.append_column(DUE, pa.array(due))
        if self._outer[side]:
            rows = rows.append_column(MATCHED, pa.array(np.zeros(rows.num_rows, np.bool_)))
        return rows.select(self._shelves[side].schema.names)

    def _joined(
        self, new: Sequence[pa.Table], held: Sequence[pa.Table]
    ) -> tuple[list[pa.Table], list[tuple[Places, Places]]]:
        """What new rows and held ones give, each pair once; and which held and new rows of each side have a match."""
        codes = encoded([table.select(list(self.by)) for table in (*new, *held)])
        pairs: list[pa.Table] = [self._output.empty_table()]
        matched: list[tuple[list[Places], list[Places]]] = [([], []), ([], [])]
        for one, two in ((0, 3), (0, 1), (2, 1)):
            tables, old = (*new, *held), (one == 2, two == 3)
            left, right = matching(codes[one], codes[two])
            holds = np.ones(len(left), np.bool_)
            for mine, comparison, theirs in self._where:
                holds &= _compared(_taken(tables[one], mine, left), comparison, _taken(tables[two], theirs, right))
            left, right = left[holds], right[holds]
            matched[LEFT][not old[LEFT]].append(left)
            matched[RIGHT][not old[RIGHT]].append(right)
            columns = [_taken(tables[one], name, left) for name in self._halves[LEFT].output]
            columns += [_taken(tables[two], name, right) for name in self._halves[RIGHT].output]
            pairs.append(pa.Table.from_arrays(columns, schema=self._output))
        return pairs, [(_union(old), _union(fresh)) for old, fresh in matched]

    def _settled(self, side: int, new: pa.Table, state: State) -> list[pa.Table]:
        """New rows are held, and old ones forgotten. The answer: rows that are forgotten without a match."""
        shelf, now, before = self._shelves[side], state.watermark, state.watermark_before
        if now is None or self._halves[side].over is None:
            shelf.add(state, new)
            return []
        over = pc.less_equal(new.column(DUE), now)
        shelf.add(state, new.filter(pc.invert(over)))
        gone = [new.filter(over)] + ([shelf.take_due(state, now)] if now != before else [])
        if not self._outer[side]:
            return []
        return [self._alone(side, rows.filter(pc.invert(rows.column(MATCHED)))) for rows in gone]

    def _alone(self, side: int, rows: pa.Table) -> pa.Table:
        """Rows of one side with nulls for the other."""
        mine = self._halves[side].output
        columns = [
            rows.column(field.name) if field.name in mine else pa.nulls(rows.num_rows, field.type)
            for field in self._output
        ]
        return pa.Table.from_arrays(columns, schema=self._output)


def _sides(rows: pa.Table) -> NDArray[np.int8]:
    return np.asarray(contiguous(rows.column(SIDE)), np.int8)


def _keyed(rows: pa.Table, keys: Sequence[str]) -> NDArray[np.bool_]:
    keyed = np.ones(rows.num_rows, np.bool_)
    for name in keys:
        keyed &= np.asarray(rows.column(name).is_valid(), np.bool_)
    return keyed


def _passing(rows: pa.Table, half: Half) -> NDArray[np.bool_]:
    if half.passes is None:
        return np.ones(rows.num_rows, np.bool_)
    return np.asarray(rows.column(half.passes).fill_null(False), np.bool_)


def _taken(rows: pa.Table, name: str, places: Places) -> pa.Array:
    return contiguous(rows.column(name)).take(pa.array(places))


def _union(places: Sequence[Places]) -> Places:
    return np.unique(np.concatenate(places))


def _marked(rows: pa.Table, places: Places, only: bool = False) -> pa.Table:
    """With those rows marked as matched; ``only``: just those that were not before."""
    marks = np.array(rows.column(MATCHED), np.bool_)
    fresh = places[~marks[places]]
    marks[places] = True
    rows = rows.set_column(rows.schema.get_field_index(MATCHED), MATCHED, pa.array(marks))
    return rows.take(pa.array(fresh)) if only else rows


def _compared(left: pa.Array, comparison: Comparison, right: pa.Array) -> NDArray[np.bool_]:
    """With a null nothing holds, but for <=>."""
    match comparison:
        case "=":
            holds = equal(left, right)
        case "!=":
            holds = pc.invert(equal(left, right))
        case "<=>":
            holds = pc.or_(equal(left, right).fill_null(False), pc.and_(left.is_null(), right.is_null()))
        case "<":
            holds = less(left, right)
        case "<=":
            holds = pc.invert(less(right, left))
        case ">":
            holds = less(right, left)
        case ">=":
            holds = pc.invert(less(left, right))
    return np.asarray(holds.fill_null(False), np.bool_)
