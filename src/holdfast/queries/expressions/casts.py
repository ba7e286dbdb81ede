"""One type as another, as Spark casts. What cannot be done to the last bit or letter is not here."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.queries.expressions import zones
from holdfast.queries.expressions.arithmetic import fitted
from holdfast.queries.expressions.lanes import RIGHT, Lanes, Outcome, lifted, some, strict
from holdfast.queries.expressions.values import ANSI, Call

UNFIT = "the value does not fit the type"
Caster: TypeAlias = Callable[[Call, pa.Array], Outcome]


def family(type_: pa.DataType) -> str:
    """What kind of type it is, among those that are known here; other types have names of their own."""
    for name, holds in FAMILIES.items():
        if holds(type_):
            return name
    return str(type_)


FAMILIES: dict[str, Callable[[pa.DataType], bool]] = {
    "bool": pa.types.is_boolean,
    "int": pa.types.is_integer,
    "float": pa.types.is_floating,
    "decimal": pa.types.is_decimal,
    "string": pa.types.is_string,
    "binary": pa.types.is_binary,
    "date": pa.types.is_date32,
    "timestamp": lambda type_: pa.types.is_timestamp(type_) and type_.tz is not None,
    "clock": pa.types.is_timestamp,
}


def covered(from_: pa.DataType, to: pa.DataType) -> bool:
    """Whether it can be cast exactly."""
    if from_ == to:
        return True
    if (family(from_), family(to)) == ("decimal", "float"):
        return bool(to.bit_width == 64)  # a float of 32 bits is rounded once from the decimal, here it would be twice
    return (family(from_), family(to)) in CASTS


def _cast(call: Call, values: pa.Array) -> Outcome:
    if values.type == call.type:
        return values, RIGHT
    return CASTS[family(values.type), family(call.type)](call, values)


def _integer(call: Call, values: pa.Array) -> Outcome:
    kind = call.type.to_pandas_dtype()
    made = lifted(lambda numbers: numbers.astype(kind), call.type, values)
    if call.type.bit_width >= values.type.bit_width:
        return made, RIGHT
    return made, some(UNFIT, pc.not_equal(made.cast(values.type), values))


def _number(call: Call, values: pa.Array) -> Outcome:
    """Integers and booleans to floats, booleans to integers, floats to floats: rounded to the nearest."""
    kind = call.type.to_pandas_dtype()
    return lifted(lambda numbers: numbers.astype(kind), call.type, values), RIGHT


def _truncated(call: Call, values: pa.Array) -> Outcome:
    """A float towards zero. Java's own way with the rest: NaN is 0, what is too large the largest of int or long."""
    size, wide = np.iinfo(call.type.to_pandas_dtype()), np.iinfo(np.int64 if call.type.bit_width == 64 else np.int32)
    low, high = float(wide.min), float(wide.max)

    def whole(numbers: np.ndarray) -> np.ndarray:
        numbers = np.nan_to_num(numbers.astype(np.float64), nan=0.0)
        inside = np.where((numbers > low) & (numbers < high), numbers, 0.0).astype(wide.dtype)
        made = np.where(numbers >= high, wide.max, np.where(numbers <= low, wide.min, inside))
        return made.astype(size.dtype)

    doubles = values.cast(pa.float64())
    fits = pc.and_(
        pc.less_equal(pc.floor(doubles), float(size.max)), pc.greater_equal(pc.ceil(doubles), float(size.min))
    )
    return lifted(whole, call.type, values), some(UNFIT, pc.invert(fits))


def _truth(call: Call, values: pa.Array) -> Outcome:
    return pc.not_equal(values, pa.scalar(0, values.type)), RIGHT


def _decimal(call: Call, values: pa.Array) -> Outcome:
    """Integers and decimals. Arrow widens, which is exact; digits are lost in Python."""
    whole = pa.types.is_integer(values.type)
    if not whole and values.type.scale <= call.type.scale:
        room = call.type.precision - call.type.scale - (values.type.precision - values.type.scale)
        if room >= 0:
            return values.cast(call.type), RIGHT
    made = values.to_pylist()
    return fitted([None if each is None else Decimal(each) for each in made], call.type)


def _whole_decimal(call: Call, values: pa.Array) -> Outcome:
    """Digits behind the point are dropped; Java keeps the last bits of what is too large."""
    bits = call.type.bit_width
    whole = [None if each is None else int(each) for each in values.to_pylist()]
    wrapped = [None if each is None else (each + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) for each in whole]
    wrong = [each != kept for each, kept in zip(whole, wrapped, strict=True)]
    return pa.array(wrapped, call.type), some(UNFIT, pa.array(wrong, pa.bool_()))


def _double_of_decimal(call: Call, values: pa.Array) -> Outcome:
    return pa.array([None if each is None else float(each) for each in values.to_pylist()], pa.float64()), RIGHT


def _text(call: Call, values: pa.Array) -> Outcome:
    return values.cast(pa.string()), RIGHT


def _text_of_decimal(call: Call, values: pa.Array) -> Outcome:
    form = "{:f}".format if call.mode == ANSI else str
    return pa.array([None if each is None else form(each) for each in values.to_pylist()], pa.string()), RIGHT


def _text_of_date(call: Call, values: pa.Array) -> Outcome:
    return _signed(values.cast(pa.string()), pc.year(values)), RIGHT


def _text_of_clock(call: Call, values: pa.Array) -> Outcome:
    """As the zone's clocks show it; a fraction of a second without zeros behind."""
    text = pc.replace_substring_regex(values.cast(pa.string()), r"\.?0+$", "")
    return _signed(text, pc.year(values)), RIGHT


def _text_of_timestamp(call: Call, values: pa.Array) -> Outcome:
    return _text_of_clock(call, _clocks(call, values))


def _clocks(call: Call, values: pa.Array) -> pa.Array:
    zone = call.zone or zones.UTC
    return lifted(lambda instants: zones.local(zone, instants), pa.timestamp("us"), values)


def _signed(text: pa.Array, years: pa.Array) -> pa.Array:
    """Years of five digits have a plus before them."""
    return pc.if_else(pc.greater(years, 9999), pc.binary_join_element_wise("+", text, ""), text)


def _date(call: Call, values: pa.Array) -> Outcome:
    return lifted(lambda clocks: clocks // zones.DAY, pa.date32(), _clocks(call, values)), RIGHT


def _date_of_clock(call: Call, values: pa.Array) -> Outcome:
    return lifted(lambda clocks: clocks // zones.DAY, pa.date32(), values), RIGHT


def _midnight(call: Call, values: pa.Array) -> Outcome:
    zone = call.zone or zones.UTC
    return lifted(lambda days: zones.midnights(zone, days), call.type, values), RIGHT


def _seconds(call: Call, values: pa.Array) -> Outcome:
    """A timestamp as whole seconds since 1970; null where they do not fit."""
    made, wrong = _integer(call, lifted(lambda instants: instants // zones.SECOND, pa.int64(), values))
    return pc.if_else(wrong[UNFIT], pa.scalar(None, made.type), made) if wrong else made, wrong


def _double_of_timestamp(call: Call, values: pa.Array) -> Outcome:
    kind = call.type.to_pandas_dtype()
    return lifted(lambda instants: (instants / float(zones.SECOND)).astype(kind), call.type, values), RIGHT


def _timestamp(call: Call, values: pa.Array) -> Outcome:
    """Seconds since 1970; too many are the last moment there is."""
    limit = np.iinfo(np.int64)
    most = limit.max // zones.SECOND

    def instants(seconds: np.ndarray) -> np.ndarray:
        seconds = seconds.astype(np.int64)
        made = np.clip(seconds, -most, most) * zones.SECOND
        return np.where(seconds > most, limit.max, np.where(seconds < -most, limit.min, made))

    return lifted(instants, call.type, values), RIGHT


CASTS: dict[tuple[str, str], Caster] = {
    ("int", "int"): _integer,
    ("int", "float"): _number,
    ("int", "bool"): _truth,
    ("int", "decimal"): _decimal,
    ("int", "string"): _text,
    ("int", "timestamp"): _timestamp,
    ("float", "int"): _truncated,
    ("float", "float"): _number,
    ("float", "bool"): _truth,
    ("decimal", "decimal"): _decimal,
    ("decimal", "int"): _whole_decimal,
    ("decimal", "float"): _double_of_decimal,
    ("decimal", "bool"): _truth,
    ("decimal", "string"): _text_of_decimal,
    ("bool", "int"): _number,
    ("bool", "float"): _number,
    ("bool", "string"): _text,
    ("date", "string"): _text_of_date,
    ("date", "timestamp"): _midnight,
    ("date", "clock"): _midnight,
    ("timestamp", "date"): _date,
    ("timestamp", "string"): _text_of_timestamp,
    ("timestamp", "int"): _seconds,
    ("timestamp", "float"): _double_of_timestamp,
    ("clock", "date"): _date_of_clock,
    ("clock", "string"): _text_of_clock,
}
ZONED = {("date", "timestamp"), ("timestamp", "date"), ("timestamp", "string")}
"""Casts that read the clocks of a zone."""


def _same_bits(call: Call, values: pa.Array) -> Outcome:
    """Microseconds as a timestamp, or back."""
    return values.cast(call.type), RIGHT


def _later(call: Call, values: pa.Array, days: pa.Array, micros: pa.Array) -> Outcome:
    zone = call.zone or zones.UTC
    moved = lifted(lambda instants, some_days: zones.days_later(zone, instants, some_days), pa.int64(), values, days)
    made = pc.add(moved, micros)
    over = pc.xor(pc.less(made, moved), pc.less(micros, 0))
    return made.cast(call.type), some("overflow", over)


FUNCTIONS: dict[str, Callable[[Call, list[Lanes]], Lanes]] = {
    "cast": strict(_cast),
    "same_bits": strict(_same_bits),
    "later": strict(_later),
}
