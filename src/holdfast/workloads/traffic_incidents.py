"""Traffic incidents: which of the incidents that drivers report slow their road down to a jam (paper 000, Q2).

Generated traffic: 100,000 users, each at home on one of 1,000 road segments (Zipf 0.5). About every two seconds an
incident begins somewhere, more often where more users are, and lasts 30 seconds. Every incident has a severity, which
slows the segment down; a row is a user's location with a speed or, now and then during an incident, a report of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.operators.columns import Duration, duration
from holdfast.operators.join import Join
from holdfast.workloads import generated
from holdfast.workloads.expressions import drawn, rank, time
from holdfast.workloads.files import InputFile
from holdfast.workloads.generated import Rows
from holdfast.workloads.picks import TIME, Pick, pick_integer, pick_text, pick_time
from holdfast.workloads.workload import Options, Workload

USERS, SEGMENTS, POWER = 100_000, 1_000, 2
LASTING, SHIFT = 30, 7
"""Seconds that an incident lasts; and by how much those of neighbouring segments begin apart."""
INTERVAL = 2.0
"""Mean number of seconds between the beginnings of two incidents."""
REPORTING = 0.05
"""The share of the rows of a segment with an incident that are reports of it."""
SLOW, FAST = 30, 60
"""Free speeds are from SLOW to SLOW + FAST km/h."""
JAM = 20.0
"""Below this mean speed, in km/h, a segment is jammed."""
SLOTS = 2**20
HOME, HAPPENS, SEVERITY = 101, 102, 103
LOCATION, REPORT = "location", "report"


class Jams(Join):
    """Incidents of a slice of time, joined with the speed of their segment then: those on a jammed one."""

    def __init__(self, limit: float, every: Duration) -> None:
        incidents = {"incident": "int64", "reports": "int64"}
        super().__init__(
            op.side("speed", {"speed": "float64"}, time="start"),
            op.side("incident", incidents, time="start"),
            on={"segment": "int64"},
            size=every,
        )
        self._limit = limit

    def process_inputs(self, inputs: Mapping[str, pa.Table], state: op.State) -> pa.Table:
        pairs = super().process_inputs(inputs, state)
        return pairs.filter(pc.less(pairs["speed"], self._limit))


def pipeline(
    parallelism: int = 4, window: Duration = "5 minutes", every: Duration = "10 seconds", limit: float = JAM
) -> Pipeline:
    """Speeds and distinct incidents of each slice of ``every``, joined by segment; jams of the last ``window``.

    Segments are spread over tasks alike for both sides of the join, so one task of each feeds one task of it.
    """
    who = "traffic-incidents"
    if duration(window, who) % duration(every, who):
        raise Invalid(f"{who}: the window must be a multiple of the step, got {window} and {every}")
    half = max(1, parallelism // 2)
    locations = op.chain(op.filter(pl.col("kind") == LOCATION), op.map("segment", "speed", "time"))
    reports = op.chain(op.filter(pl.col("kind") == REPORT), op.map("segment", "incident", "time"))
    speed = op.tumbling(every, by={"segment": "int64"}, time="time", speed=op.mean("speed", "int64"))
    by = {"segment": "int64", "incident": "int64"}
    incident = op.tumbling(every, by=by, time="time", reports=op.count())
    sides = [op.stream(side, key="segment", partitioning="one-to-one") for side in ("speed", "incident")]
    slowest = op.min("speed", "float64")
    total = op.sliding(window, every, by=by, time="start", slices=op.count(), speed=slowest, reports=op.sum("reports"))
    return Pipeline(
        op.source("events", parallelism=parallelism, event_time="time"),
        op.step("locations", locations, "events", parallelism=parallelism),
        op.step("reports", reports, "events", parallelism=half),
        op.step("speed", speed, op.stream("locations", key="segment"), parallelism=parallelism),
        op.step("incident", incident, op.stream("reports", key="segment"), parallelism=parallelism),
        op.step("jam", Jams(limit, every), sides, parallelism=parallelism, correlated=True),
        op.step("total", total, "jam"),
    )


def _chance(interval: float) -> float:
    """Times the difference of the roots of a segment's number and the next: how likely it is to have an incident."""
    return LASTING / interval / math.sqrt(SEGMENTS)


def _expressions(interval: float, options: Options) -> dict[str, str]:
    """The same as ``_rows``, in SQL; a row's home, incident and severity are draws by user and by incident."""
    home = drawn(options.seed, HOME, rank(0, USERS, 1))
    segment = f"least(cast(floor({home} * {home} * {float(SEGMENTS)!r}D) as bigint), {SEGMENTS - 1}L)"
    slot = f"((value + {segment} * {SHIFT * options.rate}L) div {LASTING * options.rate}L)"
    incident = f"({segment} * {SLOTS}L + {slot})"
    chance = f"(sqrt({segment} + 1D) - sqrt({segment} + 0D)) * {_chance(interval)!r}D"
    happens = f"({drawn(options.seed, HAPPENS, incident)} < {chance})"
    reported = f"({happens} and u1 < {REPORTING!r}D)"
    free = f"({SLOW}D + u2 * {FAST}D)"
    speed = f"cast(floor({free} * if({happens}, {drawn(options.seed, SEVERITY, incident)}, 1D)) as bigint)"
    return {
        "kind": f"if({reported}, '{REPORT}', '{LOCATION}')",
        "segment": segment,
        "speed": f"if({reported}, cast(null as bigint), {speed})",
        "incident": f"if({reported}, {incident}, cast(null as bigint))",
        "time": time(options.rate),
    }


def _rows(interval: float, rows: Rows, options: Options) -> pa.Table:
    users = generated.rank(generated.draw(rows, options.seed, 0), USERS, 1)
    segments = generated.rank(generated.draw(users, options.seed, HOME), SEGMENTS, POWER)
    slots = (rows + segments * (SHIFT * options.rate)) // (LASTING * options.rate)
    incidents = segments * SLOTS + slots
    chance = (np.sqrt(segments + 1.0) - np.sqrt(segments + 0.0)) * _chance(interval)
    happens = generated.draw(incidents, options.seed, HAPPENS) < chance
    reported = happens & (generated.draw(rows, options.seed, 1) < REPORTING)
    severity = np.where(happens, generated.draw(incidents, options.seed, SEVERITY), 1.0)
    speeds = np.floor((SLOW + generated.draw(rows, options.seed, 2) * FAST) * severity).astype(np.int64)
    return pa.table(
        {
            "kind": pa.array(np.where(reported, REPORT, LOCATION)),
            "segment": pa.array(segments),
            "speed": pa.array(speeds, mask=reported),
            "incident": pa.array(incidents, mask=~reported),
            "time": generated.times(rows, options.rate),
        }
    )


def _picks(file: InputFile, options: Options) -> tuple[Pick, ...]:
    if options.column is not None:
        raise Invalid(
            f"--column: traffic-incidents reads the columns kind, segment, speed and incident, got {options.column!r}"
        )
    numbers = (pick_integer(file, name) for name in ("segment", "speed", "incident"))
    return pick_text(file, "kind", "kind"), *numbers, pick_time(file, options.rate)


def traffic(interval: float = INTERVAL) -> Workload:
    """The workload with an incident every so many seconds; a busier city than the paper's gives more to count."""
    if not 0 < interval < math.inf:
        raise Invalid(f"traffic-incidents: the interval of incidents must be above 0 seconds, got {interval}")
    return Workload(
        name="traffic-incidents",
        pipeline=pipeline,
        columns=("segment", "incident", "start", "end", "slices", "speed", "reports"),
        input=pa.schema(
            {"kind": pa.string(), "segment": pa.int64(), "speed": pa.int64(), "incident": pa.int64(), "time": TIME}
        ),
        lanes=3,
        vocabulary=0,
        expressions=partial(_expressions, interval),
        rows=partial(_rows, interval),
        picks=_picks,
    )


TRAFFIC_INCIDENTS = traffic()
