"""Generated rows: every row a pure function of a seed and its number, the same in numpy as in Spark's SQL.

A draw is Spark's ``xxhash64(seed, lane, row)``; ranks and texts are made from draws with integer arithmetic and float
multiplication alone, which both sides round alike. So a simulation, a Spark job and a replay see the same rows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Hashes = NDArray[np.uint64]

SPARK_SEED = 42
LETTERS = "aeioulnrst"
WORD_LENGTH = 6
SCRAMBLE = 791_969
"""Has no factor in common with 10, so word numbers are spread over all words of six letters without meeting."""
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def xxhash64(values: Rows | int, seed: Hashes | int) -> Hashes:
    """XXH64 of one 64-bit integer, as Spark computes it for a bigint column."""
    with np.errstate(over="ignore"):
        words = np.atleast_1d(np.asarray(values, np.int64)).view(np.uint64)
        hashes = np.asarray(seed, np.uint64) + _P5 + np.uint64(8)
        hashes = hashes ^ (_rotated(words * _P2, 31) * _P1)
        hashes = _rotated(hashes, 27) * _P1 + _P4
        hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
        return np.asarray(hashes ^ (hashes >> np.uint64(32)))


def draw(rows: Rows, seed: int, lane: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each row; every lane is a stream of its own."""
    start = xxhash64(lane, xxhash64(seed, SPARK_SEED))
    return (xxhash64(rows, start) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def rank(drawn: NDArray[np.float64], count: int, power: int) -> Rows:
    """Ranks 0 .. count-1 whose frequency falls like rank ** -(1 - 1/power): Zipf 0.5 for 2, 0.75 for 4."""
    product = drawn
    for _ in range(power - 1):
        product = product * drawn
    return np.minimum(np.floor(product * float(count)).astype(np.int64), count - 1)


@lru_cache(maxsize=4)
def words(count: int) -> pa.Array:
    """The word of each rank."""
    table = str.maketrans("0123456789", LETTERS)
    spread = (number * SCRAMBLE % 10**WORD_LENGTH for number in range(count))
    return pa.array([f"{number:0{WORD_LENGTH}d}".translate(table) for number in spread])


def sentence(rows: Rows, seed: int, length: int, vocabulary: int, power: int) -> pa.Array:
    """Texts of ``length`` words, each with a space behind it."""
    spaced = pc.binary_join_element_wise(words(vocabulary), "", " ")
    made = [spaced.take(pa.array(rank(draw(rows, seed, lane), vocabulary, power))) for lane in range(length)]
    return pc.binary_join_element_wise(*made, "")


def times(rows: Rows, rate: int) -> pa.Array:
    """Event times from 1970 on: ``rate`` rows a second, in order."""
    return pa.array(rows * 1_000_000 // rate).cast(pa.timestamp("us", "UTC"))


def _rotated(words: Hashes, by: int) -> Hashes:
    return (words << np.uint64(by)) | (words >> np.uint64(64 - by))
