"""Values compared as Spark does: NaN is equal to itself and larger than all else; null with anything is null."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def equal(left: pa.Array, right: pa.Array) -> pa.Array:
    same = pc.equal(left, right)
    return pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right))) if _float(left) else same


def less(left: pa.Array, right: pa.Array) -> pa.Array:
    below = pc.less(left, right)
    return pc.or_(below, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right))) if _float(left) else below


def _float(array: pa.Array) -> bool:
    return bool(pa.types.is_floating(array.type))
