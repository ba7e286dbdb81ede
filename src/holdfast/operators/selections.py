"""Aggregations that keep values as they came: the first, the last, the best by another column, all, or all distinct.

What comes first is a matter of arrival: epochs in order, in an epoch the parts of the source in order, in a part its
rows in order. Nulls do not count.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.aggregations import Aggregation, Part, comparable
from holdfast.operators.columns import Type, contiguous, type_of
from holdfast.operators.folds import Best, Edge, Fold, Listed, Registers, distinct_type


def first(column: str, type: Type = "int64") -> Aggregation:
    """The first value of a column to arrive that is not null."""
    return _kept("first", column, type_of(type, f"first of {column}"), Edge("first"))


def last(column: str, type: Type = "int64") -> Aggregation:
    """The last value of a column to arrive that is not null."""
    return _kept("last", column, type_of(type, f"last of {column}"), Edge("last"))


def max_by(column: str, by: str, type: Type = "int64", by_type: Type = "int64") -> Aggregation:
    """The value of a column, null or not, in the row with the largest ``by``; of equal ones the last to arrive.

    Rows where ``by`` is null do not count; NaN is larger than any number.
    """
    return _best("max_by", column, by, type, by_type, Best("max"))


def min_by(column: str, by: str, type: Type = "int64", by_type: Type = "int64") -> Aggregation:
    """The value of a column, null or not, in the row with the smallest ``by``; of equal ones the last to arrive."""
    return _best("min_by", column, by, type, by_type, Best("min"))


def collect(column: str, type: Type = "int64") -> Aggregation:
    """Every value of a column that is not null, as a list in the order of arrival. State grows with the rows."""
    return _listed("collect", column, type_of(type, f"collect of {column}"), Listed("all"))


def collect_set(column: str, type: Type = "int64") -> Aggregation:
    """Every distinct value of a column that is not null, in the order of arrival. State grows with the values."""
    who = f"collect_set of {column}"
    return _listed("collect_set", column, distinct_type(type_of(type, who), who), Listed("distinct"))


def count_distinct(column: str, type: Type = "int64") -> Aggregation:
    """The number of distinct values of a column that are not null. State grows with the values.

    Exact. To floats 0.0 and -0.0 are two values here.
    """
    who = f"count_distinct of {column}"
    kind = distinct_type(type_of(type, who), who)
    part = Part("", pa.list_(kind), Listed("distinct"))
    return Aggregation("count_distinct", (column,), (kind,), pa.int64(), (part,), _lengths)


def registers(bits: int, column: str, hashed: str, type: Type) -> Aggregation:
    """The values of a column, at most 2**bits, that a HyperLogLog sketch over all of them is made by.

    ``hashed``: the column with the hash of each value, int64; where it is null the value does not count.
    """
    kind = type_of(type, f"registers of {column}")
    part = Part("", pa.list_(_pair(kind, pa.int64())), Registers(bits))
    kinds = (kind, pa.int64())
    return Aggregation("registers", (column, hashed), kinds, pa.list_(kind), (part,), _values_listed, (str(bits),))


def _kept(what: str, column: str, kind: pa.DataType, fold: Fold) -> Aggregation:
    return Aggregation(what, (column,), (kind,), kind, (Part("", kind, fold),))


def _listed(what: str, column: str, kind: pa.DataType, fold: Fold) -> Aggregation:
    return Aggregation(what, (column,), (kind,), pa.list_(kind), (Part("", pa.list_(kind), fold),))


def _best(what: str, column: str, by: str, type: Type, by_type: Type, fold: Fold) -> Aggregation:
    who = f"{what} of {column}"
    kind, ordering = type_of(type, who), comparable(type_of(by_type, who), who)
    return Aggregation(what, (column, by), (kind, ordering), kind, (Part("", _pair(kind, ordering), fold),), _values)


def _pair(value: pa.DataType, by: pa.DataType) -> pa.DataType:
    return pa.struct([("value", value), ("by", by)])


def _values(parts: Sequence[pa.Array]) -> pa.Array:
    return pc.struct_field(parts[0], "value")


def _values_listed(parts: Sequence[pa.Array]) -> pa.Array:
    stored = parts[0]
    values = contiguous(pc.struct_field(stored.flatten(), "value"))
    ends = pc.cumulative_sum(pc.list_value_length(stored))
    return pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends]), values)


def _lengths(parts: Sequence[pa.Array]) -> pa.Array:
    return pc.list_value_length(parts[0]).cast(pa.int64())
