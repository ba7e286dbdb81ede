"""Clocks of a time zone, by the JVM's own table: Arrow's forgets daylight saving after 2037."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from holdfast.queries.expressions.values import Zone

SECOND = 1_000_000
DAY = 86_400 * SECOND
ROUND = 146_097 * 86_400
"""Seconds of 400 years, after which dates and weekdays repeat."""
UTC = Zone("UTC")
EPOCH = datetime(1970, 1, 1)


def offsets(zone: Zone, instants: Any) -> Any:
    """How far clocks are ahead of UTC, in microseconds, as instants are."""
    seconds = _folded(zone, instants // SECOND)
    return np.array(zone.offsets)[np.searchsorted(np.array(zone.starts), seconds, side="right")] * SECOND


def local(zone: Zone, instants: Any) -> Any:
    return instants + offsets(zone, instants)


def midnights(zone: Zone, days: Any) -> Any:
    """The instant at which a day begins; if clocks skip midnight, that at which they go on."""
    clocks = days.astype(np.int64) * DAY
    before, _, change = _around(zone, clocks)
    return np.where(clocks // SECOND >= change + before, (change + before) * SECOND, clocks) - before * SECOND


def days_later(zone: Zone, instants: Any, days: Any) -> Any:
    """The same clock some days later, as in java.time: a skipped hour is added, a double one keeps its offset."""
    moved = days != 0
    now = offsets(zone, instants)
    clocks = instants + now + days * DAY
    before, after, change = _around(zone, clocks)
    twice = (after < before) & (clocks // SECOND >= change + after) & (now == after * SECOND)
    return np.where(moved, clocks - np.where(twice, after, before) * SECOND, instants)


def _around(zone: Zone, clocks: Any) -> tuple[Any, Any, Any]:
    """The offsets before and after the next change that these clocks have not wholly passed, and when it is."""
    if not zone.starts:
        fixed = np.full(len(clocks), zone.offsets[0])
        return fixed, fixed, np.full(len(clocks), np.iinfo(np.int64).max // 2)
    starts, steps = np.array(zone.starts), np.array(zone.offsets)
    seconds = clocks // SECOND
    folded = _folded(zone, seconds)
    passed = starts + np.maximum(steps[:-1], steps[1:])
    place = np.searchsorted(passed, folded, side="right")
    following = np.minimum(place + 1, len(steps) - 1)
    never = np.iinfo(np.int64).max // 2
    change = np.where(place < len(starts), starts[np.minimum(place, len(starts) - 1)] + seconds - folded, never)
    return steps[place], steps[following], change


def _folded(zone: Zone, seconds: Any) -> Any:
    if zone.cycle is None:
        return seconds
    end = zone.cycle + ROUND
    return np.where(seconds >= end, zone.cycle + (seconds - zone.cycle) % ROUND, seconds)


def zone_of(jvm: Any, name: str) -> Zone:
    """The zone that Spark means by this name."""
    rules = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(name).getRules()
    beginning = int(rules.getOffset(jvm.java.time.Instant.ofEpochSecond(-(10**11))).getTotalSeconds())
    changes, cycle = _changes(str(rules.getTransitions().toString())), None
    yearly = [_rule(each) for each in rules.getTransitionRules()]
    if yearly:
        last = changes[-1][0] if changes else -(10**11)
        since = (EPOCH + timedelta(seconds=last)).year if changes else 1900
        made = sorted(_change(rule, year) for year in range(since, since + 402) for rule in yearly)
        changes += [each for each in made if each[0] > last]
        cycle = int((datetime(since + 1, 1, 1) - EPOCH).total_seconds())
    return Zone(name, tuple(at for at, _ in changes), (beginning, *(after for _, after in changes)), cycle)


def _changes(texts: str) -> list[tuple[int, int]]:
    """From java.time's words: ``Transition[Gap at 2007-03-11T02:00-05:00 to -04:00]``; the second, the offset after."""
    found = []
    for at, before, after in re.findall(r"at (\S+?)(Z|[+-][\d:]+) to (Z|[+-][\d:]+)\]", texts):
        clock = int((datetime.fromisoformat(at) - EPOCH).total_seconds())
        found.append((clock - _seconds(before), _seconds(after)))
    return found


def _seconds(offset: str) -> int:
    hours, minutes, seconds = map(int, (offset.replace("Z", "+00").lstrip("+-") + ":0:0").split(":")[:3])
    return (hours * 3600 + minutes * 60 + seconds) * (-1 if offset.startswith("-") else 1)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A change that comes every year: on a day of the month (from its end if negative), or the next such weekday."""

    month: int
    day: int
    weekday: int | None
    clock: int
    ahead: int
    after: int


def _rule(rule: Any) -> _Rule:
    weekday, clock = rule.getDayOfWeek(), int(rule.getLocalTime().toSecondOfDay())
    ahead = {
        "UTC": 0,
        "WALL": int(rule.getOffsetBefore().getTotalSeconds()),
        "STANDARD": int(rule.getStandardOffset().getTotalSeconds()),
    }[str(rule.getTimeDefinition().toString())]
    return _Rule(
        int(rule.getMonth().getValue()),
        int(rule.getDayOfMonthIndicator()),
        None if weekday is None else int(weekday.getValue()),
        86_400 if rule.isMidnightEndOfDay() else clock,
        ahead,
        int(rule.getOffsetAfter().getTotalSeconds()),
    )


def _change(rule: _Rule, year: int) -> tuple[int, int]:
    """The second of the change in this year, and the offset after it."""
    if rule.day < 0:
        day = datetime(year + rule.month // 12, rule.month % 12 + 1, 1) + timedelta(days=rule.day)
        days = 0 if rule.weekday is None else -((day.isoweekday() - rule.weekday) % 7)
    else:
        day = datetime(year, rule.month, rule.day)
        days = 0 if rule.weekday is None else (rule.weekday - day.isoweekday()) % 7
    return int((day + timedelta(days=days) - EPOCH).total_seconds()) + rule.clock - rule.ahead, rule.after
