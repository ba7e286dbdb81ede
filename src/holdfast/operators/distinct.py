"""Rows with equal keys, whatever their types: Arrow's group-by knows no structs, and takes 0.0 and -0.0 for two keys.

Keys are equal here as they are in state tables: null equals null, NaN equals NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.operators.columns import contiguous
from holdfast.state.keys import equal_keys, hash64

Rows = NDArray[np.int64]


def distinct(table: pa.Table) -> tuple[Rows, Rows]:
    """For each row the number of its key, counted as they appear; and for each key its first row. Linear in rows."""
    columns = [contiguous(column) for column in table.columns]
    hashes = hash64(columns, table.num_rows)
    first = np.empty(table.num_rows, np.int64)
    left = np.arange(table.num_rows)
    # One round, unless different keys share a hash: those that differ from the first of their hash go once more.
    while len(left):
        codes = np.asarray(pa.array(hashes[left]).dictionary_encode().indices)
        places = np.empty(int(codes.max()) + 1, np.int64)
        places[codes[::-1]] = left[::-1]
        leader = places[codes]
        same = _equal(columns, left, leader)
        first[left[same]] = leader[same]
        left = left[~same]
    begins = first == np.arange(table.num_rows)
    return (np.cumsum(begins) - 1)[first], np.flatnonzero(begins)


def _equal(columns: Sequence[pa.Array], rows: Rows, others: Rows) -> NDArray[np.bool_]:
    same = np.ones(len(rows), np.bool_)
    moved = np.flatnonzero(rows != others)
    mine, theirs = pa.array(rows[moved]), pa.array(others[moved])
    for column in columns:
        same[moved] &= equal_keys(column.take(mine), column.take(theirs))
    return same
