"""What can be computed over the rows of a group: count, sum, mean, min, max, the largest few, and what others add.

Each is kept as *parts*: columns that fold together in any grouping, so that senders combine their rows before they
send, and a state table holds parts, not answers. Grouping is Arrow's on one thread: it keeps the order of rows, so
sums of floats come out the same on every replay (polars' group-by does not promise that; see benchmarks/operators.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid
from holdfast.operators.columns import Type, as_type, column, contiguous, type_of
from holdfast.operators.dense import dense_groups
from holdfast.operators.folds import Fold, Largest, parents

_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Part:
    """A stored column: how two of it fold into one. It begins from raw rows the same way, unless ``begin`` says how."""

    suffix: str
    type: pa.DataType
    fold: Literal["sum", "min", "max"] | Fold
    begin: Literal["count", "count_all"] | None = None


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One computed column; made by ``count``, ``sum`` and the like.

    ``inputs``: the types of ``columns``, None for any. ``ends``: makes the answer of the parts; without it the first of
    them is the answer. ``given``: what else there is to say of it in words.
    """

    what: str
    columns: tuple[str, ...]
    inputs: tuple[pa.DataType | None, ...]
    output: pa.DataType
    parts: tuple[Part, ...]
    ends: Callable[[Sequence[pa.Array]], pa.Array] | None = None
    given: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What is computed, such as ``sum(amount)``; types are told by what is stored."""
        return f"{self.what}({', '.join([*self.given, *self.columns])})"

    def finish(self, parts: Sequence[pa.Array]) -> pa.Array:
        return self.ends(parts) if self.ends is not None else parts[0]


ADDING = ("sum", "mean", "variance", "stddev")
"""What adds floats up rounds anyway: whole numbers beyond 2**53, which no float has, are rounded to begin with."""


@dataclass(frozen=True, slots=True)
class Partial:
    """A part as others may make it of raw rows: ``how`` is count_all, count, sum, min or max of a column in a type."""

    name: str
    how: str
    column: str | None
    type: pa.DataType | None


def count(column: str | None = None) -> Aggregation:
    """The number of rows; with a column, of those where it is not null."""
    if column is None:
        return Aggregation("count", (), (), pa.int64(), (Part("", pa.int64(), "sum", "count_all"),))
    return Aggregation("count", (column,), (None,), pa.int64(), (Part("", pa.int64(), "sum", "count"),))


def sum(column: str, type: Type = "int64") -> Aggregation:
    """The sum of a column, null until it had a value.

    Integers and ``decimal128(p, s)`` are summed exactly, and an overflow is reported. ``float64`` sums depend, in the
    last bits, on how rows are spread over senders; the same epoch replayed gives the same bits.
    """
    kind = type_of(type, f"sum of {column}")
    stored = _sum_type(kind, f"sum of {column}")
    return Aggregation("sum", (column,), (kind,), stored, (Part("", stored, "sum"),))


def mean(column: str, type: Type = "float64") -> Aggregation:
    """The mean of a column, as float64; null until it had a value. ``type`` is that of the sum it is made from."""
    kind = type_of(type, f"mean of {column}")
    parts = (
        Part(".sum", _sum_type(kind, f"mean of {column}"), "sum"),
        Part(".count", pa.int64(), "sum", "count"),
    )
    return Aggregation("mean", (column,), (kind,), pa.float64(), parts, _mean)


def min(column: str, type: Type = "int64") -> Aggregation:
    """The smallest value of a column, null until it had one. NaN counts only where there is nothing else."""
    kind = comparable(type_of(type, f"min of {column}"), f"min of {column}")
    return Aggregation("min", (column,), (kind,), kind, (Part("", kind, "min"),))


def max(column: str, type: Type = "int64") -> Aggregation:
    """The largest value of a column, null until it had one. NaN counts only where there is nothing else."""
    kind = comparable(type_of(type, f"max of {column}"), f"max of {column}")
    return Aggregation("max", (column,), (kind,), kind, (Part("", kind, "max"),))


def largest(keep: int, column: str, type: Type = "int64") -> Aggregation:
    """The ``keep`` largest values of a column, as a list from the largest down; equal values count each."""
    who = f"largest of {column}"
    if keep < 1:
        raise Invalid(f"{who}: keep at least 1 value, got {keep}")
    kind = type_of(type, who)
    stored = pa.list_(kind)
    return Aggregation("largest", (column,), (kind,), stored, (Part("", stored, Largest(keep)),), given=(str(keep),))


class Aggregations:
    """Several named aggregations over one grouping, with the arithmetic that operators share."""

    def __init__(self, named: Mapping[str, Aggregation], taken: Sequence[str], who: str) -> None:
        for name, each in named.items():
            if not isinstance(each, Aggregation):
                raise Invalid(f"{who}: {name} must be an aggregation such as op.count() or op.sum('x'), got {each!r}")
            if name in taken or name == "found" or name.startswith("__"):
                raise Invalid(f"{who}: {name!r} cannot name an aggregation: the name is taken; choose another")
        if not named:
            raise Invalid(f"{who}: name at least one aggregation, such as count=op.count()")
        self.named = dict(named)
        self.who = who
        self.parts = [(name + part.suffix, part) for name, each in named.items() for part in each.parts]

    def describe(self) -> dict[str, str]:
        """What is computed, by name."""
        return {name: str(each) for name, each in self.named.items()}

    @property
    def columns(self) -> frozenset[str]:
        """What is looked at in raw rows."""
        return frozenset(name for each in self.named.values() for name in each.columns)

    @property
    def stored(self) -> list[pa.Field]:
        return [pa.field(name, part.type) for name, part in self.parts]

    @property
    def output(self) -> list[pa.Field]:
        return [pa.field(name, each.output) for name, each in self.named.items()]

    def begin(self, keys: pa.Table, batch: pa.Table) -> pa.Table:
        """Raw rows to parts, one row a group; ``keys`` are the grouping columns of ``batch``, row for row."""
        if not keys.num_rows:
            return pa.schema([*keys.schema, *self.stored]).empty_table()
        wanted: list[Wanted] = []
        for name, each in self.named.items():
            inputs = [self._input(batch, each, place) for place in range(len(each.columns))]
            wanted += [(name + part.suffix, part, True, inputs) for part in each.parts]
        return _grouped(keys, wanted, self.who)

    def of_nothing(self, keys: pa.Table) -> pa.Table:
        """The parts of one group without a row: those of a row of nulls, which is not counted."""
        names = dict.fromkeys(column for each in self.named.values() for column in each.columns)
        types = {c: kind for each in self.named.values() for c, kind in zip(each.columns, each.inputs, strict=True)}
        nulls = pa.table({name: pa.nulls(1, types[name] or pa.int64()) for name in names})
        parts = self.begin(keys, nulls)
        for place, (_, part) in enumerate(self.parts, keys.num_columns):
            if part.begin == "count_all":
                parts = parts.set_column(place, parts.schema.field(place), pa.array([0], part.type))
        return parts

    def partials(self) -> list[Partial] | None:
        """What ``begin`` makes, for others to make it; None if there is something that only it can."""
        made = [
            Partial(name + part.suffix, part.begin or part.fold, *(given[0] if given else (None, None)))
            for name, each in self.named.items()
            for given in [list(zip(each.columns, each.inputs, strict=True))]
            for part in each.parts
            if isinstance(part.fold, str) and len(given) <= 1
        ]
        return made if len(made) == len(self.parts) else None

    def _input(self, batch: pa.Table, each: Aggregation, place: int) -> pa.ChunkedArray:
        name, kind = each.columns[place], each.inputs[place]
        values = column(batch, name, self.who)
        if kind is None:
            return values
        names, which = ", ".join(map(repr, each.columns)), "by_type=" if place else "type="
        written = repr(str(values.type).replace("double", "float64"))
        say = f"say op.{each.what}({names}, {which if len(each.columns) > 1 else ''}{written})"
        if each.what in ADDING and pa.types.is_integer(values.type) and pa.types.is_floating(kind):
            return values.cast(kind, safe=False)
        return as_type(values, pa.field(name, kind), self.who, say)

    def fold(self, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Parts to fewer parts: one row a group, groups in an order that follows from the rows alone."""
        if not rows.num_rows:
            return rows.select([*keys, *(name for name, _ in self.parts)])
        wanted: list[Wanted] = [(name, part, False, [rows.column(name)]) for name, part in self.parts]
        return _grouped(rows.select(list(keys)), wanted, self.who)

    def with_old(self, rows: pa.Table, old: pa.Table) -> pa.Table:
        """``rows`` with each part folded with that of ``old``, row for row; null in ``old`` stands for nothing yet."""
        for name, part in self.parts:
            folded = _pair(part, contiguous(old.column(name)), contiguous(rows.column(name)), f"{self.who}: {name}")
            rows = rows.set_column(rows.schema.get_field_index(name), pa.field(name, part.type), folded)
        return rows

    def finish(self, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
        """The key columns and the answers."""
        columns = [rows.column(key) for key in keys]
        fields = [rows.schema.field(key) for key in keys]
        for field, (name, each) in zip(self.output, self.named.items(), strict=True):
            columns.append(each.finish([contiguous(rows.column(name + part.suffix)) for part in each.parts]))
            fields.append(field)
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))


Wanted = tuple[str, Part, bool, list[pa.ChunkedArray]]
"""A column to make: its name, what it is, whether it is made from raw rows, and from which columns."""


def _grouped(keys: pa.Table, wanted: Sequence[Wanted], who: str) -> pa.Table:
    """One row a group and one column for each wanted part, by Arrow's group-by on one thread."""
    schema = pa.schema([*keys.schema, *(pa.field(name, part.type) for name, part, _, _ in wanted)])
    ways = [part.begin if raw and part.begin is not None else part.fold for _, part, raw, _ in wanted]
    if keys.num_columns == 1 and all(how in ("count_all", "sum") for how in ways):
        summed = [inputs[0] if how == "sum" else None for how, (_, _, _, inputs) in zip(ways, wanted, strict=True)]
        if (dense := dense_groups(keys.column(0), summed)) is not None:
            return pa.Table.from_arrays([pa.array(dense[0]), *map(pa.array, dense[1])], schema=schema)
    names = [f"k{place}" for place in range(keys.num_columns)]
    columns = dict(zip(names, keys.columns, strict=True))
    calls: list[tuple[str | list[str], str]] = []
    for place, (how, (_, part, _, inputs)) in enumerate(zip(ways, wanted, strict=True)):
        if how == "count_all":
            calls.append(([], how))
        elif isinstance(how, str):
            columns[f"v{place}"] = _wide(inputs[0], part) if how == "sum" else _plain(inputs[0])
            calls.append((f"v{place}", how))
    rows_too = len(calls) < len(wanted)
    if rows_too:  # which rows are in which group, for those that Arrow does not fold
        columns["row"] = pa.array(np.arange(keys.num_rows))
        calls.append(("row", "list"))
    grouped = pa.table(columns).group_by(names, use_threads=False).aggregate(calls)
    made = grouped.columns[: len(names)]
    owners = np.empty(keys.num_rows, np.int64)
    if rows_too:
        rows = contiguous(grouped.column("row_list"))
        owners[rows.flatten().to_numpy()] = parents(rows)
    folded = iter(grouped.columns[len(names) :])
    for how, (name, part, raw, inputs) in zip(ways, wanted, strict=True):
        if isinstance(how, str):
            made.append(_narrow(contiguous(next(folded)), part, f"{who}: {name}"))
        elif raw:
            made.append(how.begin(owners, grouped.num_rows, [contiguous(each) for each in inputs]).cast(part.type))
        else:
            made.append(how.fold(owners, grouped.num_rows, contiguous(inputs[0])).cast(part.type))
    return pa.Table.from_arrays(made, schema=schema)


def _mean(parts: Sequence[pa.Array]) -> pa.Array:
    total, rows = parts
    return pc.if_else(pc.equal(rows, 0), None, pc.divide(total.cast(pa.float64()), rows.cast(pa.float64())))


def _wide(values: pa.ChunkedArray, part: Part) -> pa.ChunkedArray:
    """Integers that might overflow when summed, as decimals that cannot; everything else as it is."""
    if part.type == pa.int64() and len(values):
        low, high = pc.min_max(values).values()
        if low.is_valid and _magnitude(low.as_py(), high.as_py()) * len(values) >= _INT64:
            return values.cast(pa.int64()).cast(pa.decimal128(38, 0))
    return values


def _plain(values: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """As numbers in the same order, where Arrow cannot compare two of a kind: zoned times, durations, booleans."""
    kind = values.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return values.cast(pa.int64())
    return values.cast(pa.uint8()) if pa.types.is_boolean(kind) else values


def comparable(kind: pa.DataType, who: str) -> pa.DataType:
    views = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    if pa.types.is_nested(kind) or pa.types.is_interval(kind) or pa.types.is_float16(kind) or views:
        raise Invalid(f"{who}: {kind} values cannot be compared here; use a number, text, a date or a time")
    return kind


def _magnitude(low: int, high: int) -> int:
    return -low if -low > high else high


def _narrow(result: pa.Array, part: Part, who: str) -> pa.Array:
    if result.type == part.type:
        return result
    try:
        return result.cast(part.type)
    except pa.ArrowInvalid:
        raise _overflow(part, who) from None


def _overflow(part: Part, who: str) -> Invalid:
    return Invalid(f"{who}: the sum does not fit {part.type}; sum it as decimal128(37, 0) or float64")


def _pair(part: Part, old: pa.Array, new: pa.Array, who: str) -> pa.Array:
    match part.fold:
        case "sum":
            try:
                both = pc.add_checked(old, new)
            except pa.ArrowInvalid:
                raise _overflow(part, who) from None
            return _narrow(pc.coalesce(both, new, old), part, who) if both.null_count else _narrow(both, part, who)
        case "min":
            return pc.min_element_wise(_plain(old), _plain(new)).cast(part.type)
        case "max":
            return pc.max_element_wise(_plain(old), _plain(new)).cast(part.type)
    rows = np.arange(len(new))
    return part.fold.fold(np.concatenate([rows, rows]), len(new), pa.concat_arrays([old, new])).cast(part.type)


def _sum_type(kind: pa.DataType, who: str) -> pa.DataType:
    if pa.types.is_integer(kind):
        return pa.int64()
    if pa.types.is_floating(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal128(37, kind.scale)  # one digit below Arrow's largest: adding two takes one more
    raise Invalid(f"{who}: only numbers can be added, got {kind}; use int64, float64 or decimal128(p, s)")
