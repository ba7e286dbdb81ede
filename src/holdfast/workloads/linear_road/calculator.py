"""The toll calculator: the numbers of segments, accidents, and what a car that enters is told. Keyed by road.

An answer in minute m depends on minutes up to m - 1 alone. Tuples come in the order of their time, so whatever came
before this epoch and with it is all there is of those minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.operators import Operator, State, StateSchema, TableView
from holdfast.workloads.linear_road.rules import (
    ADDS,
    AHEAD,
    ENTERS,
    FREE_SPEED,
    MINUTES,
    MOVES,
    SEGMENT_BITS,
    SHARES,
    STOPS,
    Ints,
    is_free,
    minute,
    numbers,
    of_kind,
    tolls,
)

SEGMENTS, PLACES = "segments", "places"
NEAR = 1e-6
"""Averages this close to the limit are compared exactly."""
TOLLS = pa.schema(
    {
        "kind": pa.int8(),
        "time": pa.int32(),
        "vid": pa.int32(),
        "segment": pa.int32(),
        "lav": pa.float64(),
        "toll": pa.int64(),
        "rank": pa.int32(),
        "pays": pa.int8(),
    }
)
"""Answers to cars that enter; ``rank`` and ``pays`` are for the balance account."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """Sums of closed and open minutes, ordered by minute and then by segment code (road, segment)."""

    minutes: Ints
    codes: Ints
    cars: Ints
    totals: Ints

    def of(self, wanted: int) -> tuple[Ints, Ints, Ints]:
        start, stop = np.searchsorted(self.minutes, [wanted, wanted + 1])
        return self.codes[start:stop], self.cars[start:stop], self.totals[start:stop]


class Calculator(Operator):
    """EVENTS of the toll assessment in, TOLLS out."""

    by = ("road",)

    def __init__(self) -> None:
        self.tables = {
            SEGMENTS: StateSchema(
                pa.schema({"road": pa.int32(), "seg": pa.int32(), "minute": pa.int32()}),
                pa.schema({"cars": pa.int64(), "total": pa.int64()}),
            ),
            PLACES: StateSchema(
                pa.schema({"road": pa.int32(), "place": pa.int64()}),
                pa.schema({"seg": pa.int32(), "cars": pa.int32(), "minute": pa.int32(), "before": pa.int32()}),
            ),
        }

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        return of_kind(batch, ENTERS, MOVES) if batch.num_columns else batch

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        if not batch.num_rows:
            return TOLLS.empty_table()
        kind = batch.column("kind").to_numpy()
        added = batch.filter(pa.array(kind == ADDS))
        if added.num_rows:
            _add(state.table(SEGMENTS), added)
        moved = batch.filter(pa.array((kind == STOPS) | (kind == MOVES)))
        entered = batch.filter(pa.array(kind == ENTERS))
        held = state.table(SEGMENTS).scan()
        answers = self._answers(entered, moved, held, state.table(PLACES))
        if added.num_rows:
            _forget(state.table(SEGMENTS), held, int(minute(numbers(added, "time").max())))
        return answers

    def _answers(self, entered: pa.Table, moved: pa.Table, held: pa.Table, places: TableView) -> pa.Table:
        """Minute by minute: who enters is answered by what was so when the minute before ended."""
        at, changed = minute(numbers(entered, "time")), minute(numbers(moved, "time"))
        segments = _numbers(held) if entered.num_rows else None
        answers = []
        for each in np.unique(np.concatenate([at, changed])).tolist():
            rows = np.flatnonzero(at == each)
            if len(rows) and segments is not None:
                now = entered if len(rows) == entered.num_rows else entered.take(pa.array(rows))
                answers.append(_answered(now, each, segments, _accidents(places, each)))
            mine = np.flatnonzero(changed == each)
            if len(mine):
                _move(places, moved.take(pa.array(mine)), each)
        return pa.concat_tables(answers) if answers else TOLLS.empty_table()


def _add(table: TableView, added: pa.Table) -> None:
    """Several senders may add to one segment."""
    codes = (minute(numbers(added, "time")) << 32) | (numbers(added, "road") << SEGMENT_BITS) | numbers(added, "seg")
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], codes[order][1:] != codes[order][:-1]]))
    cars = np.add.reduceat(numbers(added, "number")[order], starts)
    totals = np.add.reduceat(numbers(added, "amount")[order], starts)
    codes = codes[order][starts]
    keys = pa.table(
        {
            "road": ((codes & 0xFFFFFFFF) >> SEGMENT_BITS).astype(np.int32),
            "seg": (codes & ((1 << SEGMENT_BITS) - 1)).astype(np.int32),
            "minute": (codes >> 32).astype(np.int32),
        }
    )
    known = table.lookup(keys)
    cars = cars + known.column("cars").fill_null(0).to_numpy()
    totals = totals + known.column("total").fill_null(0).to_numpy()
    table.update(keys.append_column("cars", pa.array(cars)).append_column("total", pa.array(totals)))


def _forget(table: TableView, held: pa.Table, now: int) -> None:
    """Minutes that no answer from now on looks at, of all that the table holds."""
    over = numbers(held, "minute") < now - MINUTES
    if over.any():
        table.delete(held.select(table.schema.key.names).filter(pa.array(over)))


def _numbers(held: pa.Table) -> Numbers:
    minutes, codes = numbers(held, "minute"), (numbers(held, "road") << SEGMENT_BITS) | numbers(held, "seg")
    order = np.argsort((minutes << 32) | codes)
    return Numbers(minutes[order], codes[order], numbers(held, "cars")[order], numbers(held, "total")[order])


def _averages(asked: Ints, now: int, segments: Numbers) -> tuple[NDArray[np.float64], NDArray[np.bool_], Ints]:
    """For each segment code: LAV, NaN where there is none; whether that is at least 40; cars of the minute before."""
    sums, count = np.zeros(len(asked)), np.zeros(len(asked), np.int64)
    before = np.zeros(len(asked), np.int64)
    parts = []
    for each in range(now - MINUTES, now):
        codes, cars, totals = segments.of(each)
        place = np.searchsorted(codes, asked)
        inside = np.minimum(place, len(codes) - 1)
        there = (codes[inside] == asked) & (cars[inside] > 0) if len(codes) else np.zeros(len(asked), np.bool_)
        found = inside[there]
        sums[there] += totals[found] / (cars[found] * float(SHARES))
        count[there] += 1
        if each == now - 1:
            before[there] = cars[found]
        parts.append((there, inside, cars, totals))
    with np.errstate(invalid="ignore"):
        lav = sums / np.where(count, count, np.nan)
    free = lav >= FREE_SPEED
    for row in np.flatnonzero(np.abs(lav - FREE_SPEED) < NEAR).tolist():
        mine = [(totals[inside[row]], cars[inside[row]]) for there, inside, cars, totals in parts if there[row]]
        free[row] = is_free([int(total) for total, _ in mine], [int(cars) for _, cars in mine])
    return lav, free, before


def _answered(entered: pa.Table, now: int, segments: Numbers, accidents: Ints) -> pa.Table:
    codes = (numbers(entered, "road") << SEGMENT_BITS) | numbers(entered, "seg")
    asked, which = np.unique(codes, return_inverse=True)
    lav, free, before = _averages(asked, now, segments)
    toll = tolls(lav, free, before)
    near = _nearest(asked, accidents)
    stuck = near >= 0
    toll[stuck] = 0
    mask = stuck[which]
    return pa.Table.from_arrays(
        [
            pa.array(mask.astype(np.int8)),
            entered.column("time"),
            entered.column("vid"),
            pa.array(np.where(mask, near[which], codes & ((1 << SEGMENT_BITS) - 1)).astype(np.int32)),
            pa.array(lav[which], mask=mask | np.isnan(lav)[which]),
            pa.array(toll[which]),
            entered.column("rank"),
            entered.column("number").cast(pa.int8()),
        ],
        schema=TOLLS,
    )


def _nearest(asked: Ints, accidents: Ints) -> Ints:
    """The nearest segment ahead with an accident, for each segment code; -1 for none. Odd roads count down."""
    near = np.full(len(asked), -1, np.int64)
    if not len(accidents):
        return near
    seg = asked & ((1 << SEGMENT_BITS) - 1)
    ahead = np.where((asked >> SEGMENT_BITS) & 1, -1, 1)
    for step in range(AHEAD, -1, -1):
        there = seg + ahead * step
        inside = (there >= 0) & (there < 1 << SEGMENT_BITS)
        hit = inside & np.isin(asked + ahead * step, accidents)
        near[hit] = there[hit]
    return near


def _accidents(places: TableView, now: int) -> Ints:
    """Codes of the segments in which an accident was in effect when the minute before this one ended."""
    if not len(places):
        return np.empty(0, np.int64)
    held = places.scan()
    since = numbers(held, "minute")
    cars = np.where(since >= now, numbers(held, "before"), numbers(held, "cars"))
    return np.unique(((numbers(held, "road") << SEGMENT_BITS) | numbers(held, "seg"))[cars >= 2])


def _move(places: TableView, moved: pa.Table, now: int) -> None:
    """Count the cars that stand at each place after this minute's changes, and keep how many there were before it."""
    step = np.where(moved.column("kind").to_numpy() == STOPS, 1, -1)
    there, first, which = np.unique(numbers(moved, "amount"), return_index=True, return_inverse=True)
    change = np.bincount(which, weights=step).astype(np.int64)
    chosen = moved.take(pa.array(first))
    keys = pa.table({"road": chosen.column("road"), "place": pa.array(there)})
    known = places.lookup(keys)
    cars, since, before = (
        known.column(name).fill_null(0).to_numpy().astype(np.int64) for name in ("cars", "minute", "before")
    )
    same = known.column("found").to_numpy() & (since == now)
    rows = pa.table(
        {
            "road": keys.column("road"),
            "place": keys.column("place"),
            "seg": chosen.column("seg"),
            "cars": (cars + change).astype(np.int32),
            "minute": np.full(len(there), now, np.int32),
            "before": np.where(same, before, cars).astype(np.int32),
        }
    )
    places.update(rows)
    held = places.scan()
    over = (numbers(held, "cars") == 0) & ((numbers(held, "minute") < now) | (numbers(held, "before") == 0))
    places.delete(held.select(["road", "place"]).filter(pa.array(over)))
