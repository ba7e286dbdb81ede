"""What the toll assessment remembers of cars: the numbers that stand for places, and the tables that hold them.

A car reports every 30 seconds, so cars that report in the same seconds of a half minute do so together. They share a
table: an epoch of a second then looks into one small table and rewrites half of it, which costs a third less than
looking for the same cars among all others. A car that reports at another time is looked for everywhere, and moves.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from holdfast.operators import State, StateSchema
from holdfast.state.keys import hash64
from holdfast.workloads.linear_road.rules import EXIT, LANE_BITS, POSITION_BITS, Flags, Ints, numbers

NONE = -1
REPORT_BITS, SPEED_BITS = 11, 22
MOST_REPORTS = (1 << REPORT_BITS) - 1
PERIOD, GROUPS = 30, 15
"""Seconds between two reports of a car, and tables of cars: more of them save nothing. Fewer may become more."""
FORGET_EVERY, FORGET_AFTER = 512, 600
"""Every so many epochs, cars are forgotten that left by an exit lane so many seconds ago."""

KEY = pa.schema({"vid": pa.int32()})
VALUE = pa.schema(
    {"place": pa.int64(), "visit": pa.int64(), "earlier": pa.int64(), "time": pa.int32(), "stops": pa.int8()}
)
TABLES = {f"cars_{group}": StateSchema(KEY, VALUE) for group in range(GROUPS)}


@dataclass(slots=True)
class Cars:
    """What is known of some cars, row by row; everything is NONE for cars never seen.

    ``place``: where the last report came from, as ``place_of`` numbers it; ``stops``: how many reports in a row came
    from there, 4 for more. ``visit``: the last report's segment, with the number and the sum of the speeds that the
    car reported from there in that minute; ``earlier``: the same for another segment of that minute, or NONE.
    """

    place: Ints
    visit: Ints
    earlier: Ints
    time: Ints
    stops: Ints


def known_cars(vid: Ints, time: Ints, state: State) -> tuple[Cars, Ints]:
    """What is known of these cars, which now report at these times; and in which table it was, NONE for new cars."""
    near = group_of(time)
    groups = np.flatnonzero(np.bincount(near, minlength=GROUPS)).tolist()
    if len(groups) == 1:
        cars, there = _look(groups[0], vid, state)
        home = np.where(there, groups[0], NONE)
    else:
        cars = Cars(*(np.full(len(vid), NONE, np.int64) for _ in fields(Cars)))
        home = np.full(len(vid), NONE, np.int64)
        for group in groups:
            _take_over(cars, home, np.flatnonzero(near == group), group, vid, state)
    for group in range(GROUPS):
        missing = np.flatnonzero(home < 0)
        _take_over(cars, home, missing[near[missing] != group], group, vid, state)
    return cars, home


def keep_cars(vid: Ints, cars: Cars, home: Ints, state: State) -> None:
    """Put the cars where those that report at their time are, and away from where they were."""
    groups = group_of(cars.time)
    moved = np.flatnonzero((home != groups) & (home >= 0))
    for group in np.unique(home[moved]).tolist():
        gone = vid[moved[home[moved] == group]]
        state.table(f"cars_{group}").delete(_keys(gone))
    for group in np.flatnonzero(np.bincount(groups, minlength=GROUPS)).tolist():
        mine = np.flatnonzero(groups == group)
        chosen = slice(None) if len(mine) == len(vid) else mine
        columns = [pa.array(vid[chosen].astype(np.int32))]
        columns += [
            pa.array(getattr(cars, field.name)[chosen].astype(field.type.to_pandas_dtype(), copy=False))
            for field in VALUE
        ]
        state.table(f"cars_{group}").update(pa.Table.from_arrays(columns, schema=pa.schema([*KEY, *VALUE])))


def forget_cars(state: State, now: int) -> None:
    """A car that left by an exit lane and is silent since is gone: should it come back, it enters as a new one does."""
    for group in range(GROUPS):
        table = state.table(f"cars_{group}")
        held = table.scan()
        gone = (lane_of(numbers(held, "place")) == EXIT) & (numbers(held, "time") < now - FORGET_AFTER)
        table.delete(held.select(["vid"]).filter(pa.array(gone)))


def by_hash(vid: Ints) -> Ints:
    """An order that puts the reports of a car together, as they came, and cars in the order that state tables have.

    Looking cars up then goes from one end of a table to the other, which is several times faster than here and there.
    """
    hashes = hash64([pa.array(vid.astype(np.int32))], len(vid))
    # One sort of whole words is several times faster than a sort of places; few if any cars share the upper bits.
    low = np.uint64((1 << len(vid).bit_length()) - 1)
    words = np.sort((hashes & ~low) | np.arange(len(vid), dtype=np.uint64))
    order: Ints = (words & low).astype(np.int64)
    found = hashes[order]
    return order if (found[1:] >= found[:-1]).all() else np.argsort(hashes, kind="stable")


def group_of(time: Ints) -> Ints:
    return time % PERIOD // (PERIOD // GROUPS)


def _look(group: int, vid: Ints, state: State) -> tuple[Cars, Flags]:
    cars = _cars(state.table(f"cars_{group}").lookup(_keys(vid)))
    return cars, cars.visit >= 0


def _cars(known: pa.Table) -> Cars:
    return Cars(*(_filled(known.column(field.name)) for field in VALUE))


def _take_over(cars: Cars, home: Ints, rows: Ints, group: int, vid: Ints, state: State) -> None:
    table = state.table(f"cars_{group}")
    if not len(rows) or not len(table):
        return
    known = table.lookup(_keys(vid[rows]))
    there = known.column("found").to_numpy()
    if not there.any():
        return
    found = _cars(known)
    mine = rows[there]
    home[mine] = group
    for field in fields(Cars):
        getattr(cars, field.name)[mine] = getattr(found, field.name)[there]


def _keys(vid: Ints) -> pa.Table:
    return pa.table({"vid": pa.array(vid.astype(np.int32))})


def _filled(column: pa.ChunkedArray) -> Ints:
    whole = column.fill_null(NONE) if column.null_count else column
    return np.array(whole.to_numpy(), np.int64)


def place_of(road: Ints, lane: Ints, position: Ints) -> Ints:
    """A number for an expressway, direction, lane and position."""
    return (road << (LANE_BITS + POSITION_BITS)) | (lane << POSITION_BITS) | position


def road_of(place: Ints) -> Ints:
    return place >> (LANE_BITS + POSITION_BITS)


def position_of(place: Ints) -> Ints:
    return place & ((1 << POSITION_BITS) - 1)


def lane_of(place: Ints) -> Ints:
    return (place >> POSITION_BITS) & ((1 << LANE_BITS) - 1)


def visit_of(segment: Ints, reports: Ints, speeds: Ints) -> Ints:
    """A number for a segment code, how many reports came from it, and the sum of their speeds."""
    return (segment << (REPORT_BITS + SPEED_BITS)) | (reports << SPEED_BITS) | speeds


def segment_code(visit: Ints) -> Ints:
    return visit >> (REPORT_BITS + SPEED_BITS)


def reports_of(visit: Ints) -> Ints:
    return (visit >> SPEED_BITS) & MOST_REPORTS


def speeds_of(visit: Ints) -> Ints:
    return visit & ((1 << SPEED_BITS) - 1)
