"""What Linear Road's operators agree on: numbers for places, the columns between them, and the arithmetic of tolls.

A *road* is one direction of an expressway, ``2 * expressway + direction``: nothing that happens on one touches another,
so it is what segments are spread over tasks by. Rows between operators are of several kinds and share their columns.
"""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

POSITION, BALANCE, EXPENDITURE = 0, 2, 3
"""Types of tuples."""
ENTRY, EXIT = 0, 4
"""The lanes by which cars come and leave."""
STOPPED = 4
"""A car is stopped from so many equal reports on."""
AHEAD = 4
"""An accident is told so many segments before it."""
MINUTES = 5
"""LAV is over so many minutes."""
FREE_CARS, FREE_SPEED = 50, 40
"""With so few cars, or from this LAV on, there is no toll."""

SEGMENT_BITS, POSITION_BITS, LANE_BITS = 12, 28, 4
ROAD_BITS = 18
LIMITS = {
    "seg": 1 << SEGMENT_BITS,
    "pos": 1 << POSITION_BITS,
    "lane": 1 << LANE_BITS,
    "dir": 2,
    "xway": 1 << (ROAD_BITS - 1),
    "spd": 1 << 10,
}
"""Each of these is at least 0 and below its limit in a position report; reports beyond are passed over and counted."""

SHARES = lcm(*range(1, 25))
"""Mean speeds are counted in whole shares of a mile an hour, so that sums do not depend on their order.

Exact while a car reports at most 24 times a minute from one segment; beyond, right to nine digits. Sums
of up to 10,000 cars stay below 2**53.
"""

ENTERS, ADDS, STOPS, MOVES, LEAVES, ASKS = range(6)
"""Kinds of rows that the toll assessment sends.

ENTERS: a car enters a segment; ``number`` is 1 if it thereby pays for the one it was in. ADDS: to the ``number`` of
cars of a segment in the minute of ``time``, and to the ``amount`` of their speeds. STOPS, MOVES: a car stands at, or no
longer at, the place ``amount``. LEAVES: a car is on an exit lane; ``number`` is 1 if it pays. ASKS: a query of type
``seg`` with the identity ``number``, about the day ``amount``. ``rank`` orders the rows of a car within an epoch.
"""
EVENTS = pa.schema(
    {
        "kind": pa.int8(),
        "road": pa.int32(),
        "seg": pa.int32(),
        "time": pa.int32(),
        "vid": pa.int32(),
        "rank": pa.int32(),
        "number": pa.int32(),
        "amount": pa.int64(),
    }
)

KINDS = ("toll", "accident", "balance", "expenditure")
"""Kinds of answers, by number."""
ANSWERS = pa.schema(
    {
        "kind": pa.string(),
        "time": pa.int64(),
        "vid": pa.int64(),
        "segment": pa.int64(),
        "lav": pa.float64(),
        "toll": pa.int64(),
        "balance": pa.int64(),
        "query": pa.int64(),
    }
)


def minute(times: Ints) -> Ints:
    return times // 60 + 1


def share(speeds: Ints, reports: Ints) -> Ints:
    """A car's mean speed in shares; a function of both numbers alone, so that differences add up to it."""
    return speeds * SHARES // np.maximum(reports, 1)


def tolls(lav: NDArray[np.float64], cheap: Flags, cars: Ints) -> Ints:
    """The toll of each segment: none where traffic is free or unknown."""
    over = np.maximum(cars - FREE_CARS, 0)
    return np.where(cheap | np.isnan(lav), 0, 2 * over * over)


def is_free(totals: list[int], cars: list[int]) -> bool:
    """Whether LAV is at least 40, exactly: for averages so close to it that rounding might decide."""
    speeds = [Fraction(total, SHARES * count) for total, count in zip(totals, cars, strict=True)]
    return sum(speeds, Fraction(0)) >= FREE_SPEED * len(speeds)


def of_kind(batch: pa.Table, first: int, last: int) -> pa.Table:
    """The rows of kinds ``first`` to ``last``; a sender puts its rows in the order of their kinds."""
    kinds = batch.column("kind").to_numpy()
    start, stop = np.searchsorted(kinds, [first, last + 1])
    return batch.slice(int(start), int(stop - start))


def numbers(batch: pa.Table, name: str) -> Ints:
    """A column of whole numbers as int64."""
    values: Ints = batch.column(name).to_numpy().astype(np.int64, copy=False)
    return values
