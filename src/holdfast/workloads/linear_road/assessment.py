"""The toll assessment: what each report of a car means, given the car's reports before it. Keyed by car.

It finds who enters a segment, leaves it, stops or moves on, and what a report adds to its segment's numbers of the
minute. All of that depends on the reports of one car in their order, so an epoch goes in rounds: the first report of
every car, then the second, and so on. An epoch shorter than 30 seconds has one round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.operators import Operator, State, StateSchema, TableView
from holdfast.workloads.linear_road.cars import (
    FORGET_EVERY,
    MOST_REPORTS,
    NONE,
    PERIOD,
    TABLES,
    Cars,
    by_hash,
    forget_cars,
    keep_cars,
    known_cars,
    lane_of,
    position_of,
    reports_of,
    road_of,
    segment_code,
    speeds_of,
    visit_of,
)
from holdfast.workloads.linear_road.rules import (
    ADDS,
    ASKS,
    ENTERS,
    ENTRY,
    EVENTS,
    EXIT,
    LEAVES,
    MOVES,
    POSITION,
    SEGMENT_BITS,
    STOPPED,
    STOPS,
    Flags,
    Ints,
    minute,
    numbers,
    share,
)

VISITS = "visits"
FEET, SPAN = 5_280, 44
"""Of a segment; and feet that a car makes between two reports for each mile an hour."""
_SEGMENT = (1 << SEGMENT_BITS) - 1


@dataclass(slots=True)
class Events:
    """Columns of EVENTS, piece by piece."""

    pieces: list[pa.Table]

    def add(self, kind: int, **columns: Ints | int) -> None:
        rows = max(len(each) for each in columns.values() if isinstance(each, np.ndarray))
        if not rows:
            return
        arrays = []
        for field in EVENTS:
            given: Ints | int = kind if field.name == "kind" else columns.get(field.name, 0)
            whole = given if isinstance(given, np.ndarray) else np.full(rows, given)
            arrays.append(pa.array(whole.astype(field.type.to_pandas_dtype(), copy=False)))
        self.pieces.append(pa.Table.from_arrays(arrays, schema=EVENTS))

    def table(self) -> pa.Table:
        """All rows, those of a kind together, kinds ascending."""
        order = sorted(self.pieces, key=lambda piece: piece.column("kind")[0].as_py())
        return pa.concat_tables(order) if order else EVENTS.empty_table()


class Assessment(Operator):
    """Rows of the forwarder in, EVENTS out."""

    by = ("vid",)

    def __init__(self) -> None:
        visit = pa.schema({"vid": pa.int32(), "segment": pa.int32(), "minute": pa.int32()})
        self.tables = {**TABLES, VISITS: StateSchema(visit, pa.schema({"reports": pa.int64(), "speeds": pa.int64()}))}

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        if not batch.num_rows:
            return EVENTS.empty_table()
        events = Events([])
        time = numbers(batch, "time")
        if (time[1:] < time[:-1]).any():
            batch = batch.take(pa.array(np.argsort(time, kind="stable")))
        kind = batch.column("type").to_numpy()
        asking = kind != POSITION
        if asking.any():
            rows = np.flatnonzero(asking)
            asked = batch.take(pa.array(rows))
            events.add(
                ASKS, rank=rows, time=numbers(asked, "time"), vid=numbers(asked, "vid"),
                seg=numbers(asked, "type"), number=numbers(asked, "place"), amount=numbers(asked, "segment"),
            )  # fmt: skip
            ranks = np.flatnonzero(~asking)
            batch = batch.take(pa.array(ranks))
        else:
            ranks = np.arange(batch.num_rows)
        if batch.num_rows:
            self._reports(batch, ranks, state, events)
        return events.table()

    def _reports(self, batch: pa.Table, ranks: Ints, state: State, events: Events) -> None:
        vid = numbers(batch, "vid")
        order = by_hash(vid)
        vid = vid[order]
        first = np.concatenate([[True], vid[1:] != vid[:-1]])
        starts = np.flatnonzero(first)
        columns = {name: numbers(batch, name)[order] for name in ("time", "spd", "place", "segment")}
        cars, home = known_cars(vid[starts], columns["time"][starts], state)
        rank = ranks[order]
        added: list[tuple[Ints, Ints, Ints, Ints]] = []
        sizes = np.diff(np.append(starts, len(vid)))
        for turn in range(int(sizes.max())):
            who = np.flatnonzero(sizes > turn) if turn or sizes.max() > 1 else slice(None)
            rows = starts[who] + turn
            whole = len(rows) == len(vid)
            now = columns if whole else {name: values[rows] for name, values in columns.items()}
            self._turn(
                cars, who, vid if whole else vid[rows], rank if whole else rank[rows], now, state, events, added
            )  # fmt: skip
        _add_up(added, events)
        _drop_old(state.table(VISITS), int(minute(columns["time"].min())))
        keep_cars(vid[starts], cars, home, state)
        if state.epoch % FORGET_EVERY == FORGET_EVERY - 1:
            forget_cars(state, int(columns["time"].max()))

    def _turn(
        self,
        cars: Cars,
        who: Ints | slice,
        vid: Ints,
        rank: Ints,
        now: dict[str, Ints],
        state: State,
        events: Events,
        added: list[tuple[Ints, Ints, Ints, Ints]],
    ) -> None:
        """One report of each of these cars."""
        place, segment, time = now["place"], now["segment"], now["time"]
        place_was, visit_was, stops_was = cars.place[who], cars.visit[who], cars.stops[who]
        known = visit_was >= 0
        same = known & (place == place_was)
        stops = np.where(same, np.minimum(stops_was + 1, STOPPED), 1)
        elsewhere = segment != segment_code(visit_was)
        leaving = lane_of(place) == EXIT
        left = lane_of(place_was) == EXIT
        pays = known & elsewhere & ~left
        enters = ~leaving & (elsewhere | left | ~known)
        if state.tentative:
            missed = ~known | (time - cars.time[who] > PERIOD)
            enters &= ~missed | (lane_of(place) == ENTRY) | ~_was_there(place, segment, now["spd"])

        at = np.flatnonzero(enters)
        events.add(
            ENTERS, road=segment[at] >> SEGMENT_BITS, seg=segment[at] & _SEGMENT, time=time[at], vid=vid[at],
            rank=rank[at], number=pays[at],
        )  # fmt: skip
        at = np.flatnonzero(leaving & known & ~left)
        events.add(LEAVES, time=time[at], vid=vid[at], rank=rank[at], number=pays[at])
        at = np.flatnonzero((stops_was == STOPPED) & ~same)
        if len(at):
            was = place_was[at]
            events.add(
                MOVES,
                road=road_of(was),
                seg=segment_code(visit_was[at]) & _SEGMENT,
                time=time[at],
                vid=vid[at],
                amount=was,
            )
        at = np.flatnonzero((stops == STOPPED) & (stops_was != STOPPED))
        events.add(
            STOPS, road=road_of(place[at]), seg=segment[at] & _SEGMENT, time=time[at], vid=vid[at], amount=place[at]
        )
        self._visits(cars, who, vid, now, known, state, added)
        cars.place[who], cars.time[who], cars.stops[who] = place, time, stops

    def _visits(
        self,
        cars: Cars,
        who: Ints | slice,
        vid: Ints,
        now: dict[str, Ints],
        known: Flags,
        state: State,
        added: list[tuple[Ints, Ints, Ints, Ints]],
    ) -> None:
        """What the reports add to the numbers of their segments in this minute."""
        segment, speed, minutes = now["segment"], now["spd"], minute(now["time"])
        visit, earlier = cars.visit[who], cars.earlier[who]
        open_ = known & (minutes == minute(cars.time[who]))
        again = open_ & (segment == segment_code(visit))
        back = open_ & ~again & (earlier >= 0) & (segment == segment_code(earlier))
        on = open_ & ~again & ~back
        held = np.where(again, visit, np.where(back, earlier, 0))
        reports, speeds = reports_of(held), speeds_of(held)
        third = np.flatnonzero(on & (earlier >= 0))
        visits = state.table(VISITS)
        if len(third) or len(visits):
            known_reports, known_speeds = _third(visits, vid, segment, minutes, np.flatnonzero(on))
            reports[on], speeds[on] = known_reports, known_speeds
            _put_aside(visits, vid[third], earlier[third], minutes[third])
        fits = reports < MOST_REPORTS
        more, faster = reports + fits, speeds + speed * fits
        added.append((segment, minutes, reports == 0, share(faster, more) - share(speeds, reports)))
        # ``visit`` may be the array itself and not a copy: it is the last to be written.
        cars.earlier[who] = np.where(again, earlier, np.where(open_, visit, NONE))
        cars.visit[who] = visit_of(segment, more, faster)


def _was_there(place: Ints, segment: Ints, speed: Ints) -> Flags:
    """Whether a car was in its segment one report ago, judged by its speed: what it said then may have been missed.

    Else every car that has come further since is taken to enter now, and is told a toll that it was told before.
    """
    back = position_of(place) - np.where((segment >> SEGMENT_BITS) & 1, -SPAN, SPAN) * speed
    there: Flags = back // FEET == segment & _SEGMENT
    return there


def _add_up(added: list[tuple[Ints, Ints, Ints, Ints]], events: Events) -> None:
    """One row for each segment and minute."""
    segment, minutes, cars, shares = (np.concatenate(each) for each in zip(*added, strict=True))
    road, seg = segment >> SEGMENT_BITS, segment & _SEGMENT
    first_minute, first_road, width = minutes.min(), road.min(), seg.max() + 1
    roads = road.max() - first_road + 1
    codes = ((minutes - first_minute) * roads + road - first_road) * width + seg
    if roads * width * (minutes.max() - first_minute + 1) > 16 * len(codes) + 65_536:
        there, codes = np.unique(codes, return_inverse=True)
    else:
        there = np.arange(codes.max() + 1)
    totals = np.bincount(codes, weights=shares)
    counts = np.bincount(codes, weights=cars)
    some = np.flatnonzero(np.bincount(codes))
    there, rest = there[some], there[some] // width
    events.add(
        ADDS,
        road=rest % roads + first_road,
        seg=there % width,
        time=(rest // roads + first_minute - 1) * 60,
        number=counts[some].astype(np.int64),
        amount=totals[some].astype(np.int64),
    )


def _third(visits: TableView, vid: Ints, segment: Ints, minutes: Ints, on: Ints) -> tuple[Ints, Ints]:
    """What cars reported before from a segment that they come back to after two others, all in one minute."""
    found = visits.lookup(_visit_keys(vid[on], segment[on], minutes[on]))
    reports, speeds = (found.column(name).fill_null(0).to_numpy() for name in ("reports", "speeds"))
    return reports, speeds


def _put_aside(visits: TableView, vid: Ints, earlier: Ints, minutes: Ints) -> None:
    """Keep what does not fit a car's row."""
    if len(minutes):
        keys = _visit_keys(vid, segment_code(earlier), minutes)
        rows = keys.append_column("reports", pa.array(reports_of(earlier)))
        visits.update(rows.append_column("speeds", pa.array(speeds_of(earlier))))


def _drop_old(visits: TableView, current: int) -> None:
    if len(visits):
        held = visits.scan()
        over = numbers(held, "minute") < current
        visits.delete(held.select(["vid", "segment", "minute"]).filter(pa.array(over)))


def _visit_keys(vid: Ints, segment: Ints, minutes: Ints) -> pa.Table:
    columns = {"vid": vid, "segment": segment, "minute": minutes}
    return pa.table({name: values.astype(np.int32) for name, values in columns.items()})
