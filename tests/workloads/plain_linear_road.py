"""Linear Road row by row, in plain Python with exact fractions: the rules as they are written, and nothing clever."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

Answer = tuple[str, int, int, int | None, float | None, int | None, int | None, int | None]


class PlainLinearRoad:
    """``answers`` takes all tuples there are and gives (kind, time, vid, segment, lav, toll, balance, query)."""

    def __init__(self, spent: Callable[[int, int], int]) -> None:
        self.spent = spent
        self.speeds: dict[Any, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.last: dict[int, dict[str, int]] = {}
        self.run: dict[int, int] = {}
        self.standing: dict[Any, set[int]] = defaultdict(set)
        self.segment_of: dict[Any, Any] = {}
        self.accidents_at_end: dict[int, set[Any]] = {}
        self.pending: dict[int, int] = {}
        self.balance: dict[int, int] = defaultdict(int)
        self.minute = 0

    def answers(self, rows: Iterable[dict[str, int]]) -> list[Answer]:
        found = []
        for row in sorted(rows, key=lambda row: row["time"]):
            self.end_minutes_before(row["time"] // 60 + 1)
            match row["type"]:
                case 0:
                    found += self.report(row)
                case 2:
                    paid = self.balance[row["vid"]]
                    found.append(("balance", row["time"], row["vid"], None, None, None, paid, row["qid"]))
                case 3:
                    spent = self.spent(row["vid"], row["day"])
                    found.append(("expenditure", row["time"], row["vid"], None, None, None, spent, row["qid"]))
        return found

    def end_minutes_before(self, minute: int) -> None:
        while self.minute < minute:
            in_effect = {self.segment_of[place] for place, cars in self.standing.items() if len(cars) >= 2}
            self.accidents_at_end[self.minute] = in_effect
            self.minute += 1

    def report(self, row: dict[str, int]) -> list[Answer]:
        vid, time, minute = row["vid"], row["time"], row["time"] // 60 + 1
        segment = (row["xway"], row["dir"], row["seg"])
        before = self.last.get(vid)
        self.last[vid] = row
        self.speeds[segment, minute][vid].append(row["spd"])
        self.stand_or_move(row, before)
        here_before = (before["xway"], before["dir"], before["seg"]) if before else None
        if here_before is not None and here_before != segment:
            self.balance[vid] += self.pending.pop(vid, 0)
        if row["lane"] == 4:
            self.pending.pop(vid, None)
            return []
        if before is not None and here_before == segment and before["lane"] != 4:
            return []
        return [self.enter(row, segment, minute, vid, time)]

    def stand_or_move(self, row: dict[str, int], before: dict[str, int] | None) -> None:
        vid, place = row["vid"], (row["xway"], row["lane"], row["dir"], row["pos"])
        was = (before["xway"], before["lane"], before["dir"], before["pos"]) if before else None
        self.run[vid] = self.run[vid] + 1 if place == was else 1
        if place != was:
            self.standing[was].discard(vid)
        if self.run[vid] >= 4:
            self.standing[place].add(vid)
            self.segment_of[place] = (row["xway"], row["dir"], row["seg"])

    def enter(self, row: dict[str, int], segment: tuple[int, int, int], minute: int, vid: int, time: int) -> Answer:
        xway, direction, number = segment
        for step in range(5):
            ahead = number + step if direction == 0 else number - step
            if (xway, direction, ahead) in self.accidents_at_end[minute - 1]:
                return ("accident", time, vid, ahead, None, None, None, None)
        lav, cars = self.lav(segment, minute), len(self.speeds.get((segment, minute - 1), ()))
        toll = 0 if lav is None or lav >= 40 or cars <= 50 else 2 * (cars - 50) ** 2
        self.pending[vid] = toll
        return ("toll", time, vid, number, None if lav is None else float(lav), toll, None, None)

    def lav(self, segment: tuple[int, int, int], minute: int) -> Fraction | None:
        speeds = []
        for each in range(minute - 5, minute):
            cars = self.speeds.get((segment, each))
            if cars:
                means = [Fraction(sum(reported), len(reported)) for reported in cars.values()]
                speeds.append(sum(means, Fraction(0)) / len(means))
        return sum(speeds, Fraction(0)) / len(speeds) if speeds else None
