"""Linear Road's traffic: every tuple a pure function of a seed and its number, in numpy and in Spark's SQL alike.

Tuples come in cycles of 30 seconds. A cycle has so many *slots*, more in each cycle until the peak after three hours;
a slot reports at the same second of every cycle, so the cars that follow one another in it report every 30 seconds.
Slots come in pairs: now and then the two cars of a pair drive together, stop at one place for a while, and go on: an
accident. One pair in a hundred asks instead of driving: for the balance and the expenditure of the cars next to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.workloads.generated import SPARK_SEED, Rows, xxhash64

CYCLE = 30
FIRST, MORE, PEAK = 15 * CYCLE, 141, 1_700 * CYCLE
"""Slots of an expressway in the first cycle, more in each further one, and at most."""
RAMP = 359
"""The first cycle with the full number of slots: three hours after the start."""
ASKING = 100
FEET, SEGMENT = 528_000, 5_280
SPAN = 44
"""Feet that a car makes in 30 seconds for each mile an hour."""
SHORTEST, LENGTHS = 30, 31
"""Reports of a trip: the fewest, and how many numbers there are to choose from."""
TRIPS = 4_096
CRASH = 2_047
"""One of 2,048 pairs of trips ends up in an accident."""
COLUMNS = ("type", "time", "vid", "spd", "xway", "lane", "dir", "seg", "pos", "qid", "day")
INPUT = pa.schema({name: pa.int32() for name in COLUMNS})

Column = Any
"""A numpy array, or SQL text: the formulas are written once for both."""


class Sql:
    """A formula as Spark SQL; numbers are bigint."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _with(self, sign: str, other: Column, swapped: bool = False) -> Sql:
        left, right = (_text(other), self.text) if swapped else (self.text, _text(other))
        return Sql(f"({left} {sign} {right})")

    def __add__(self, other: Column) -> Sql:
        return self._with("+", other)

    def __radd__(self, other: Column) -> Sql:
        return self._with("+", other, True)

    def __sub__(self, other: Column) -> Sql:
        return self._with("-", other)

    def __rsub__(self, other: Column) -> Sql:
        return self._with("-", other, True)

    def __mul__(self, other: Column) -> Sql:
        return self._with("*", other)

    def __floordiv__(self, other: Column) -> Sql:
        return self._with("div", other)

    def __mod__(self, other: Column) -> Sql:
        return self._with("%", other)

    def __lt__(self, other: Column) -> Sql:
        return self._with("<", other)

    def __le__(self, other: Column) -> Sql:
        return self._with("<=", other)

    def __gt__(self, other: Column) -> Sql:
        return self._with(">", other)

    def same(self, other: Column) -> Sql:
        return self._with("=", other)


class Numpy:
    """What the formulas need beyond arithmetic, for arrays. Nothing is negative, so // and % are those of SQL."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def choose(self, condition: Column, yes: Column, no: Column) -> Column:
        return np.where(condition, yes, no)

    def same(self, one: Column, other: Column) -> Column:
        return one == other

    def bits(self, drawn: Column, first: int, count: int) -> Column:
        return ((drawn >> np.uint64(first)) & np.uint64((1 << count) - 1)).astype(np.int64)

    def drawn(self, lane: int, number: Column) -> Column:
        return xxhash64(number ^ np.int64(_mask(self.seed, lane)), SPARK_SEED)

    def root(self, number: Column) -> Column:
        return np.floor(np.sqrt(number.astype(np.float64))).astype(np.int64)


class SparkSql:
    """The same as text."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def choose(self, condition: Column, yes: Column, no: Column) -> Column:
        return Sql(f"if({_text(condition)}, {_text(yes)}, {_text(no)})")

    def same(self, one: Column, other: Column) -> Column:
        return one.same(other)

    def bits(self, drawn: Column, first: int, count: int) -> Column:
        return Sql(f"(shiftrightunsigned({drawn.text}, {first}) & {(1 << count) - 1}L)")

    def drawn(self, lane: int, number: Column) -> Column:
        return Sql(f"xxhash64({number.text} ^ cast('{_mask(self.seed, lane)}' as bigint))")

    def root(self, number: Column) -> Column:
        return Sql(f"cast(floor(sqrt(cast({number.text} as double))) as bigint)")


def _mask(seed: int, lane: int) -> int:
    """Sets the draws of a seed and lane apart; hashing both with every number would take three times as long."""
    return int(xxhash64(lane, xxhash64(seed, SPARK_SEED)).view(np.int64)[0])


def _text(value: Column) -> str:
    return value.text if isinstance(value, Sql) else f"{int(value)}L"


def before(cycle: Column, expressways: int) -> Column:
    """How many tuples there are before a cycle of the first three hours."""
    return cycle * (FIRST * expressways) + cycle * (cycle - 1) // 2 * (MORE * expressways)


def peak_starts(expressways: int) -> int:
    """The number of the first tuple at the full rate."""
    return int(before(RAMP, expressways))


def layers(make: Numpy | SparkSql, expressways: int) -> list[Callable[[dict[str, Column]], dict[str, Column]]]:
    """The columns of a tuple from ``value``, its number: each layer from those of the layers before it."""
    ramp, full = peak_starts(expressways), PEAK * expressways

    def guess(c: dict[str, Column]) -> dict[str, Column]:
        # before(c) <= value, solved for c in units of a single expressway; right to one cycle.
        half = FIRST - MORE // 2
        inside = half * half + c["value"] // expressways * (2 * MORE)
        return {"guess": make.choose(c["value"] < ramp, (make.root(inside) - half) // MORE, RAMP)}

    def cycle(c: dict[str, Column]) -> dict[str, Column]:
        low = c["guess"] - make.choose(before(c["guess"], expressways) > c["value"], 1, 0)
        exact = low + make.choose(before(low + 1, expressways) <= c["value"], 1, 0)
        return {"cycle": make.choose(c["value"] < ramp, exact, RAMP + (c["value"] - ramp) // full)}

    def place(c: dict[str, Column]) -> dict[str, Column]:
        early = c["cycle"] < RAMP
        first = make.choose(early, before(c["cycle"], expressways), ramp + (c["cycle"] - RAMP) * full)
        slots = make.choose(early, (c["cycle"] * MORE + FIRST) * expressways, full)
        return {"at": c["value"] - first, "each": slots // CYCLE, "rest": slots % CYCLE}

    def second(c: dict[str, Column]) -> dict[str, Column]:
        longer = c["rest"] * (c["each"] + 1)
        inside = c["at"] < longer
        later = c["at"] - longer
        return {
            "second": make.choose(inside, c["at"] // (c["each"] + 1), c["rest"] + later // c["each"]),
            "slot": make.choose(inside, c["at"] % (c["each"] + 1), later % c["each"]),
        }

    def pair(c: dict[str, Column]) -> dict[str, Column]:
        # Shifted from second to second, so that there are some while slots are few; the first pair never asks.
        asks = make.choose(make.same((c["slot"] // 2 + c["second"] * 7) % ASKING, ASKING - 1), 1, 0)
        driving = c["slot"] // 2 - asks
        return {"asks": asks, "side": c["slot"] % 2, "driving": driving, "pair": driving * CYCLE + c["second"]}

    def trip(c: dict[str, Column]) -> dict[str, Column]:
        last = (c["driving"] * 2 + 1) * CYCLE + c["second"] - FIRST * expressways
        begins = make.choose(last < 0, 0, last // (MORE * expressways) + 1)
        drawn = make.drawn(0, c["pair"])
        length = make.bits(drawn, 0, 16) % LENGTHS + SHORTEST
        # A pair may begin a cycle later than its first slot: one trip more keeps everything from being negative.
        return {"length": length, "age": c["cycle"] - begins + make.bits(drawn, 16, 16) % length + length}

    def who(c: dict[str, Column]) -> dict[str, Column]:
        trip_number = c["age"] // c["length"]
        both = make.drawn(1, c["pair"] * TRIPS + trip_number)
        return {"trip": trip_number, "step": c["age"] % c["length"], "both": both}

    def draw(c: dict[str, Column]) -> dict[str, Column]:
        crash = make.choose(make.same(make.bits(c["both"], 0, 11), CRASH), 1, 0)
        driver = c["pair"] * 2 + make.choose(make.same(crash, 1), 0, c["side"])
        return {"crash": crash, "own": make.drawn(2, driver * TRIPS + c["trip"])}

    def road(c: dict[str, Column]) -> dict[str, Column]:
        xway = c["driving"] % expressways
        direction = make.bits(c["own"], 0, 1)
        zone = (xway * 2 + direction) * 16 + make.bits(c["own"], 33, 4)
        free = make.bits(make.drawn(3, zone), 0, 16) % 43 + 14
        return {
            "xway": xway,
            "dir": direction,
            "pace": free + make.bits(c["own"], 37, 3),
            "stop": make.bits(c["own"], 49, 3) + 4,
            "pause": make.bits(c["own"], 52, 3) + 8,
        }

    def move(c: dict[str, Column]) -> dict[str, Column]:
        over = c["step"] - c["stop"]
        paused = make.choose(over < 0, 0, make.choose(over < c["pause"], over, c["pause"])) * c["crash"]
        standing = make.choose(make.same(c["crash"], 1), over, 0)
        reach = (c["length"] - 1) * c["pace"] * SPAN
        entry = (FEET - 1 - reach) * make.bits(c["own"], 17, 20) // (1 << 20)
        return {
            "made": entry + (c["step"] - paused) * c["pace"] * SPAN,
            "spd": make.choose(standing > 0, make.choose(standing <= c["pause"], 0, c["pace"]), c["pace"]),
        }

    def tuple_(c: dict[str, Column]) -> dict[str, Column]:
        asks = make.same(c["asks"], 1)
        pos = make.choose(make.same(c["dir"], 0), c["made"], FEET - 1 - c["made"])
        last = make.same(c["step"], c["length"] - 1)
        lane = make.choose(
            make.same(c["step"], 0), 0, make.choose(last, 4, make.bits(c["own"], 1, 16) % 3 + 1)
        )  # fmt: skip
        day = make.choose(make.same(c["side"], 1), make.bits(c["both"], 11, 16) % 69 + 1, -1)
        asking = (c["slot"] // (2 * ASKING) * 2 + c["side"]) * CYCLE + c["second"]
        driving = {"spd": c["spd"], "lane": lane, "dir": c["dir"], "seg": pos // SEGMENT, "pos": pos}
        return {
            "type": make.choose(asks, c["side"] + 2, 0),
            "time": c["cycle"] * CYCLE + c["second"],
            "vid": c["trip"] * full + (c["driving"] * 2 + c["side"]) * CYCLE + c["second"],
            "xway": c["xway"],
            **{name: make.choose(asks, -1, value) for name, value in driving.items()},
            "qid": make.choose(asks, c["cycle"] * (1 << 19) + asking, -1),
            "day": make.choose(asks, day, -1),
        }

    return [guess, cycle, place, second, pair, trip, who, draw, road, move, tuple_]


def tuples(values: Rows, seed: int, expressways: int) -> pa.Table:
    """The tuples of these numbers."""
    columns: dict[str, Column] = {"value": values}
    for layer in layers(Numpy(seed), expressways):
        columns |= layer(columns)
    return pa.table({name: columns[name].astype(np.int32) for name in COLUMNS}, schema=INPUT)


def expressions(seed: int, expressways: int) -> list[dict[str, str]]:
    """SQL text for the columns of each layer; the last one has those of a tuple."""
    texts: list[dict[str, str]] = []
    known: dict[str, Column] = {"value": Sql("value")}
    for layer in layers(SparkSql(seed), expressways):
        made = layer(known)
        texts.append({name: _text(column) for name, column in made.items()})
        known |= {name: Sql(name) for name in made}
    texts[-1] = {name: f"cast({texts[-1][name]} as int)" for name in COLUMNS}
    return texts
