"""Plain Python versions of the operators, row by row: what the vectorised ones must agree with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


def aggregate(rows: Iterable[Row], key: str, value: str) -> dict[Any, Row]:
    """count, count of values, sum, mean, min, max and the two largest, by key."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[key]].append(row)
    answers = {}
    for name, members in groups.items():
        values = [row[value] for row in members if row[value] is not None]
        answers[name] = {
            key: name,
            "rows": len(members),
            "values": len(values),
            "total": sum(values) if values else None,
            "mean": sum(values) / len(values) if values else None,
            "low": min(values) if values else None,
            "high": max(values) if values else None,
            "two": sorted(values, reverse=True)[:2],
        }
    return answers


class Lasting:
    """Counts by key, begun anew once the watermark has come ``ttl`` beyond the latest time of the key's rows."""

    def __init__(self, ttl: int) -> None:
        self.ttl = ttl
        self.held: dict[Any, tuple[int, int | None]] = {}

    def epoch(self, rows: Iterable[tuple[Any, int | None]], before: int | None, now: int | None) -> dict[Any, int]:
        """The keys that changed, and their counts."""
        self.held = {key: each for key, each in self.held.items() if not self.over(each[1], before)}
        groups: dict[Any, list[int | None]] = defaultdict(list)
        for key, time in rows:
            groups[key].append(time)
        for key, times in groups.items():
            rows_before, seen = self.held.get(key, (0, None))
            latest = [time for time in [seen, *(now if each is None else each for each in times)] if time is not None]
            self.held[key] = rows_before + len(times), max(latest) if latest else None
        return {key: self.held[key][0] for key in groups}

    def over(self, seen: int | None, watermark: int | None) -> bool:
        return seen is not None and watermark is not None and seen + self.ttl <= watermark


class Windows:
    """Counts by key and window, one row and one window at a time; microseconds throughout."""

    def __init__(self, size: int, every: int) -> None:
        self.size, self.every = size, every
        self.open: dict[tuple[int, Any], int] = defaultdict(int)
        self.changed: list[tuple[Any, int, int]] = []
        self.counters: dict[str, int] = defaultdict(int)

    def starts(self, time: int) -> list[int]:
        newest = time // self.every * self.every
        return [start for start in range(newest, newest - self.size, -self.every) if start <= time < start + self.size]

    def epoch(
        self, rows: Iterable[tuple[Any, int | None]], before: int | None, now: int | None
    ) -> list[tuple[Any, int, int]]:
        """(key, start, count) of the windows that close, by end and then by key; ``changed``: of those that changed."""
        changed = set()
        for key, time in rows:
            if time is None:
                self.counters["untimed"] += 1
                continue
            starts = self.starts(time)
            open_ = [start for start in starts if before is None or start + self.size > before]
            if not open_:
                self.counters["late"] += 1
            elif len(open_) < len(starts):
                self.counters["partly_late"] += 1
            for start in open_:
                self.open[start, key] += 1
                changed.add((start, key))
        self.changed = [(key, start, self.open[start, key]) for start, key in sorted(changed)]
        if now is None:
            return []
        done = sorted((start, key) for start, key in self.open if start + self.size <= now)
        return [(key, start, self.open.pop((start, key))) for start, key in done]


class Sessions:
    """Sessions by key as Structured Streaming merges them: rows and old sessions by start, one row at a time.

    A session is [start, end, rows, sum of values].
    """

    def __init__(self, forgets: bool) -> None:
        self.forgets = forgets
        self.open: dict[Any, list[list[int]]] = {}
        self.changed: set[tuple[Any, ...]] = set()
        self.gone: set[tuple[Any, int]] = set()
        self.late = 0

    def epoch(
        self, rows: Iterable[tuple[Any, int, int, int]], before: int | None, now: int | None
    ) -> set[tuple[Any, ...]]:
        """(key, start, end, rows, sum) of the sessions that close; ``changed`` and ``gone`` say what else there was."""
        self.changed, self.gone = set(), set()
        coming: dict[Any, list[list[int]]] = defaultdict(list)
        for key, start, end, value in rows:
            if self.forgets and before is not None and end <= before:
                self.late += 1
            else:
                coming[key].append([start, end, 1, value])
        for key, new in coming.items():
            old = self.open.get(key, [])
            merged: list[tuple[list[int], bool]] = []
            for each, fresh in sorted(
                [(s, False) for s in old] + [(s, True) for s in new], key=lambda item: item[0][0]
            ):
                if merged and each[0] <= merged[-1][0][1]:
                    last, was = merged[-1]
                    session = [last[0], max(last[1], each[1]), last[2] + each[2], last[3] + each[3]]
                    merged[-1] = session, was or fresh
                else:
                    merged.append((each, fresh))
            self.changed |= {(key, *session) for session, fresh in merged if fresh}
            self.gone |= {(key, session[0]) for session in old} - {(key, session[0]) for session, _ in merged}
            self.open[key] = [session for session, _ in merged]
        if not self.forgets or now is None:
            return set()
        closed = {(key, *each) for key, sessions in self.open.items() for each in sessions if each[1] <= now}
        self.open = {key: left for key, s in self.open.items() if (left := [each for each in s if each[1] > now])}
        return closed


class Deduplicate:
    """The first row of a key, then none until ``within`` has passed since the last that did."""

    def __init__(self, within: int) -> None:
        self.within = within
        self.seen: dict[Any, int] = {}
        self.late = 0

    def epoch(self, rows: Iterable[tuple[Any, int]], before: int | None) -> list[tuple[Any, int]]:
        passed = []
        for key, time in rows:
            if before is not None and time + self.within <= before:
                self.late += 1
            elif key not in self.seen or time >= self.seen[key] + self.within:
                self.seen[key] = time
                passed.append((key, time))
        return passed


def top(values: dict[Any, int], keep: int) -> list[tuple[int, Any, int]]:
    ranked = sorted(values.items(), key=lambda item: (-item[1], item[0]))[:keep]
    return [(place + 1, key, value) for place, (key, value) in enumerate(ranked)]


def join(
    left: Iterable[tuple[Any, int, int]], right: Iterable[tuple[Any, int, int]], size: int, every: int
) -> list[tuple[Any, int, int, int]]:
    """(key, start, x, y) for every pair in every window that holds both, of rows (key, time, value)."""
    windows = Windows(size, every)
    pairs = []
    for key, time, x in left:
        for other, when, y in right:
            if key == other and key is not None:
                both = set(windows.starts(time)) & set(windows.starts(when))
                pairs += [(key, start, x, y) for start in both]
    return pairs
