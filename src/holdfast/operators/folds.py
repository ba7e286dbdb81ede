"""Folds that Arrow's group-by has not: lists of values, sets, the first or the best of a group, moments.

Each takes rows that say which group they are of, and makes one row a group. Rows come in the order of arrival (senders
in order, the rows of each in order), what was known before comes first, and the answer follows from that order alone.
A null stands for nothing yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Invalid

Owners = NDArray[np.int64]
"""For each row the group that it is of, from 0."""


class Fold(Protocol):
    """How a stored column begins from raw rows, and how several of it become one."""

    def begin(self, owners: Owners, groups: int, inputs: Sequence[pa.Array]) -> pa.Array: ...

    def fold(self, owners: Owners, groups: int, stored: pa.Array) -> pa.Array: ...


@dataclass(frozen=True, slots=True)
class Listed:
    """Values of a group as a list, nulls left out: ``all`` of them, or each ``distinct`` one where it came first.

    Values are the same if their bytes are: 0.0 and -0.0 are two, as are two NaNs of different bits.
    """

    keep: Literal["all", "distinct"]

    def begin(self, owners: Owners, groups: int, inputs: Sequence[pa.Array]) -> pa.Array:
        (values,) = inputs
        valid = np.asarray(values.is_valid())
        return self._lists(owners[valid], groups, values.filter(pa.array(valid)))

    def fold(self, owners: Owners, groups: int, stored: pa.Array) -> pa.Array:
        return self._lists(owners[parents(stored)], groups, stored.flatten())

    def _lists(self, owners: Owners, groups: int, values: pa.Array) -> pa.Array:
        if self.keep == "distinct":
            first = _firsts([pa.array(owners), *_leaves(values)])
            owners, values = owners[first], values.take(pa.array(first))
        return lists(owners, groups, values)


@dataclass(frozen=True, slots=True)
class Largest:
    """The ``keep`` largest values of a group, as a list from the largest down."""

    keep: int

    def begin(self, owners: Owners, groups: int, inputs: Sequence[pa.Array]) -> pa.Array:
        return self._largest(owners, groups, inputs[0])

    def fold(self, owners: Owners, groups: int, stored: pa.Array) -> pa.Array:
        return self._largest(owners[parents(stored)], groups, stored.flatten())

    def _largest(self, owners: Owners, groups: int, values: pa.Array) -> pa.Array:
        valid = np.asarray(values.is_valid())
        table = pa.table({"owner": owners[valid], "value": values.filter(pa.array(valid))})
        order = pc.sort_indices(table, [("owner", "ascending"), ("value", "descending")])
        owner = np.asarray(table.column("owner"))[np.asarray(order)]
        kept = np.arange(len(owner)) - np.searchsorted(owner, owner) < self.keep
        values = table.column("value").combine_chunks().take(order.filter(pa.array(kept)))
        return lists(owner[kept], groups, values)


@dataclass(frozen=True, slots=True)
class Edge:
    """The first value of a group, or the last, nulls left out."""

    which: Literal["first", "last"]

    def begin(self, owners: Owners, groups: int, inputs: Sequence[pa.Array]) -> pa.Array:
        return self.fold(owners, groups, inputs[0])

    def fold(self, owners: Owners, groups: int, stored: pa.Array) -> pa.Array:
        places = np.flatnonzero(np.asarray(stored.is_valid()))
        return _chosen(owners, groups, stored, places if self.which == "last" else places[::-1])


@dataclass(frozen=True, slots=True)
class Best:
    """The value beside the largest (or smallest) ordering, as a struct of both; the later one of equal orderings.

    A row without an ordering does not count; NaN is larger than any number, as in Spark.
    """

    which: Literal["max", "min"]

    def begin(self, owners: Owners, groups: int, inputs: Sequence[pa.Array]) -> pa.Array:
        return self.fold(owners, groups, paired(*inputs))

    def fold(self, owners: Owners, groups: int, stored: pa.Array) -> pa.Array:
        places = np.flatnonzero(np.asarray(stored.is_valid()))
        ordering = pc.struct_field(stored, "by").take(pa.array(places))
        rank = np.asarray(pc.rank(ordering, "ascending", tiebreaker="dense"), np.int64)
        order = np.argsort(rank if self.which == "max" else -rank, kind="stable")
        return _chosen(owners, groups, stored, places[order])


@dataclass(frozen=True, slots=True)
class Registers:
    """The values that a HyperLogLog sketch of 2**bits registers is made by, as a list of structs with their hashes.

    Of the values whose hashes begin with the same bits the one with the smallest rest sets the register; no other
    value changes the sketch. So a sketch over these values is that over all values.
    """

    bits: int

    def begin(self, owners: Owners, groups: int, inputs: Sequence[pa.Array]) -> pa.Array:
        both = paired(*inputs)
        valid = np.asarray(both.is_valid())
        return self._witnesses(owners[valid], groups, both.filter(pa.array(valid)))

    def fold(self, owners: Owners, groups: int, stored: pa.Array) -> pa.Array:
        return self._witnesses(owners[parents(stored)], groups, stored.flatten())

    def _witnesses(self, owners: Owners, groups: int, values: pa.Array) -> pa.Array:
        hashes = np.asarray(pc.struct_field(values, "by"), np.int64).view(np.uint64)
        register, rest = hashes >> np.uint64(64 - self.bits), hashes << np.uint64(self.bits)
        order = np.lexsort((rest, register, owners))
        owner, place = owners[order], register[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (owner[1:] != owner[:-1]) | (place[1:] != place[:-1])
        return lists(owner[new], groups, values.take(pa.array(order[new])))


def paired(values: pa.Array, by: pa.Array) -> pa.Array:
    """A struct of both; null where there is nothing to go by."""
    return pa.StructArray.from_arrays([values, by], ["value", "by"], mask=by.is_null())


def parents(stored: pa.Array) -> NDArray[np.int64]:
    """For each value of these lists, laid end to end, the row that it comes from."""
    return np.asarray(pc.list_parent_indices(stored), np.int64)


def lists(owners: Owners, groups: int, values: pa.Array) -> pa.Array:
    """The values of each group, in their order; a group without any has an empty list."""
    if len(owners) and (owners[1:] < owners[:-1]).any():
        order = np.argsort(owners, kind="stable")
        owners, values = owners[order], values.take(pa.array(order))
    offsets = np.searchsorted(owners, np.arange(groups + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def distinct_type(kind: pa.DataType, who: str) -> pa.DataType:
    """Invalid unless two values of this type can be told apart here."""
    if pa.types.is_struct(kind):
        for field in kind:
            distinct_type(field.type, who)
    elif pa.types.is_nested(kind) or pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        raise Invalid(f"{who}: {kind} values cannot be told apart here; use numbers, text, dates, times or structs")
    return kind


def _chosen(owners: Owners, groups: int, stored: pa.Array, places: NDArray[np.int64]) -> pa.Array:
    """For each group the row that ``places`` names last; null where it names none."""
    chosen = np.full(groups, -1, np.int64)
    chosen[owners[places]] = places
    return stored.take(pa.array(chosen, mask=chosen < 0))


def _firsts(columns: list[pa.Array]) -> NDArray[np.int64]:
    """The first row of each combination of values, in the order of rows."""
    names = [f"c{place}" for place in range(len(columns))]
    table = pa.table([*columns, pa.array(np.arange(len(columns[0])))], [*names, "row"])
    first = table.group_by(names, use_threads=False).aggregate([("row", "min")]).column("row_min")
    return np.sort(np.asarray(first, np.int64))


def _leaves(values: pa.Array) -> list[pa.Array]:
    """What tells one value from another: itself, or the fields of a struct and whether it is there."""
    if not pa.types.is_struct(values.type):
        return [values]
    return [values.is_valid(), *(leaf for field in values.flatten() for leaf in _leaves(field))]
