"""Variance and its kin: counts, means and central moments that merge.

T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
1979; for higher moments P. Pebay, SAND2008-6212. Here all parts of a group are merged at once: around their common
mean, which is known first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.operators.aggregations import Aggregation, Part
from holdfast.operators.columns import Type, type_of
from holdfast.operators.folds import Owners

Floats = NDArray[np.float64]


def variance(column: str, type: Type = "float64", *, population: bool = False) -> Aggregation:
    """The variance of a column, as float64: of a sample, null below two values, or of the whole population."""
    return _spread("variance", column, type, population)


def stddev(column: str, type: Type = "float64", *, population: bool = False) -> Aggregation:
    """The standard deviation of a column: the root of its variance."""
    return _spread("stddev", column, type, population)


def moments(column: str, order: int) -> Aggregation:
    """The count, the mean and the sums of powers of distances from it, up to ``order``: a struct n, avg, m2, m3, m4."""
    kind, fold = pa.float64(), Moments(order)
    return Aggregation("moments", (column,), (kind,), fold.type, (Part("", fold.type, fold),), given=(str(order),))


def comoments(column: str, other: str) -> Aggregation:
    """Of two columns of float64 the counts, means and sums of products of distances: n, xAvg, yAvg, ck, xMk, yMk.

    Rows where either is null do not count.
    """
    kinds, fold = (pa.float64(), pa.float64()), Comoments()
    return Aggregation("comoments", (column, other), kinds, fold.type, (Part("", fold.type, fold),))


@dataclass(frozen=True, slots=True)
class Moments:
    """Central moments up to the second, third or fourth."""

    order: int

    @property
    def type(self) -> pa.DataType:
        return _floats(("n", "avg", "m2", "m3", "m4")[: self.order + 1])

    def begin(self, owners: Owners, groups: int, inputs: Sequence[pa.Array]) -> pa.Array:
        valid = np.asarray(inputs[0].is_valid())
        values = np.asarray(inputs[0].drop_null().cast(pa.float64()), np.float64)
        none = np.zeros(len(values))
        return self._merged(owners[valid], groups, [np.ones(len(values)), values, *[none] * (self.order - 1)])

    def fold(self, owners: Owners, groups: int, stored: pa.Array) -> pa.Array:
        valid = np.asarray(stored.is_valid())
        return self._merged(owners[valid], groups, _columns(stored))

    def _merged(self, owners: Owners, groups: int, parts: Sequence[Floats]) -> pa.Array:
        n, avg, m2 = parts[:3]
        total, mean, far = _means(owners, groups, n, avg)
        with np.errstate(all="ignore"):
            sums = [m2 + n * far**2]
            if self.order > 2:
                sums.append(parts[3] + 3 * far * m2 + n * far**3)
            if self.order > 3:
                sums.append(parts[4] + 4 * far * parts[3] + 6 * far**2 * m2 + n * far**4)
        return _struct([total, mean, *(_summed(owners, groups, each) for each in sums)], self.type)


@dataclass(frozen=True, slots=True)
class Comoments:
    """Moments of pairs."""

    @property
    def type(self) -> pa.DataType:
        return _floats(("n", "xAvg", "yAvg", "ck", "xMk", "yMk"))

    def begin(self, owners: Owners, groups: int, inputs: Sequence[pa.Array]) -> pa.Array:
        valid = pc.and_(inputs[0].is_valid(), inputs[1].is_valid())
        x, y = (np.asarray(each.filter(valid), np.float64) for each in inputs)
        none = np.zeros(len(x))
        return self._merged(owners[np.asarray(valid)], groups, [np.ones(len(x)), x, y, none, none, none])

    def fold(self, owners: Owners, groups: int, stored: pa.Array) -> pa.Array:
        return self._merged(owners[np.asarray(stored.is_valid())], groups, _columns(stored))

    def _merged(self, owners: Owners, groups: int, parts: Sequence[Floats]) -> pa.Array:
        n, x, y, ck, xmk, ymk = parts
        total, x_mean, x_far = _means(owners, groups, n, x)
        _, y_mean, y_far = _means(owners, groups, n, y)
        with np.errstate(all="ignore"):
            sums = [ck + n * x_far * y_far, xmk + n * x_far**2, ymk + n * y_far**2]
        return _struct([total, x_mean, y_mean, *(_summed(owners, groups, each) for each in sums)], self.type)


@dataclass(frozen=True, slots=True)
class Spread:
    """Variance from moments, or its root."""

    root: bool
    population: bool

    def __call__(self, parts: Sequence[pa.Array]) -> pa.Array:
        n, _, m2 = _columns(parts[0])
        divisor = n - (0 if self.population else 1)
        with np.errstate(all="ignore"):
            values = m2 / divisor
            values = np.sqrt(values) if self.root else values
        return pa.array(values, mask=divisor <= 0)


def _spread(what: str, column: str, type: Type, population: bool) -> Aggregation:
    kind, fold = _numbers(type, f"{what} of {column}"), Moments(2)
    given = ("population",) if population else ()
    part = Part("", fold.type, fold)
    return Aggregation(what, (column,), (kind,), pa.float64(), (part,), Spread(what == "stddev", population), given)


def _numbers(type: Type, who: str) -> pa.DataType:
    kind = type_of(type, who)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise Invalid(f"{who}: only numbers can be added, got {kind}; use int64, float64 or decimal128(p, s)")
    return kind


def _means(owners: Owners, groups: int, n: Floats, avg: Floats) -> tuple[Floats, Floats, Floats]:
    """Of each group the count and the mean, and how far the mean of each part is from that."""
    total = _summed(owners, groups, n)
    with np.errstate(all="ignore"):
        mean = _summed(owners, groups, n * avg) / np.maximum(total, 1)
        return total, mean, np.where(n == 0, 0.0, avg - mean[owners])


def _summed(owners: Owners, groups: int, values: Floats) -> Floats:
    return np.bincount(owners, weights=values, minlength=groups).astype(np.float64)


def _columns(stored: pa.Array) -> list[Floats]:
    """The fields of the structs that are there."""
    return [np.asarray(each, np.float64) for each in stored.drop_null().flatten()]


def _struct(columns: Sequence[Floats], kind: pa.DataType) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array(each) for each in columns], fields=list(kind))


def _floats(names: Sequence[str]) -> pa.DataType:
    return pa.struct([(name, pa.float64()) for name in names])
