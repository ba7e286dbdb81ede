"""Columns as operators ask for them: declared types, event times and durations, with errors that name what was found.

State tables need to know their columns before the first row arrives, so key columns have declared types: text unless
said otherwise. Another width or encoding of the same kind of value is converted, when no value is lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.state.keys import in_one_form

Type: TypeAlias = str | pa.DataType
Columns: TypeAlias = str | Sequence[str] | Mapping[str, Type]
"""Column names, which are then text, or a mapping from names to types: ``{"user": "int64"}``."""

Duration: TypeAlias = str | float | timedelta
"""``"30 seconds"``, ``"500ms"``, ``timedelta(minutes=5)`` or a number of seconds."""

Micros = NDArray[np.int64]
WINDOW_TIME = pa.timestamp("us", "UTC")
_UNITS = {
    "us": 1,
    "microsecond": 1,
    "ms": 1_000,
    "millisecond": 1_000,
    "s": 1_000_000,
    "sec": 1_000_000,
    "second": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "minute": 60_000_000,
    "h": 3_600_000_000,
    "hour": 3_600_000_000,
    "d": 86_400_000_000,
    "day": 86_400_000_000,
}
_DECIMAL = re.compile(r"decimal128\((\d+), *(\d+)\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), *tz=([\w/+:-]+)\]")
_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)


def type_of(written: Type, who: str) -> pa.DataType:
    """An Arrow type, or its name: ``int64``, ``float64``, ``string``, ``timestamp[us]``, ``decimal128(18, 2)``.

    A Spark timestamp is ``timestamp[us, tz=UTC]``, with the zone of the session.
    """
    if isinstance(written, pa.DataType):
        return written
    if decimal := _DECIMAL.fullmatch(str(written).strip()):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if zoned := _ZONED.fullmatch(str(written).strip()):
        return pa.timestamp(zoned[1], zoned[2])
    try:
        return pa.type_for_alias(written)
    except (ValueError, TypeError):
        raise Invalid(
            f"{who}: unknown type {written!r}; write an Arrow type or its name, such as int64, float64, string"
        ) from None


def schema_of(columns: Columns, who: str) -> pa.Schema:
    """The fields that ``columns`` declares."""
    if isinstance(columns, str):
        columns = [columns]
    if isinstance(columns, Mapping):
        fields = [pa.field(name, type_of(kind, who)) for name, kind in columns.items()]
    else:
        fields = [pa.field(name, pa.string()) for name in columns]
    if not fields:
        raise Invalid(f"{who}: name at least one column")
    names = [field.name for field in fields]
    for name in names:
        if not isinstance(name, str) or not name:
            raise Invalid(f"{who}: a column name is a non-empty string, got {name!r}")
        if names.count(name) > 1:
            raise Invalid(f"{who}: column {name!r} is named twice")
    return pa.schema(fields)


def column(batch: pa.Table, name: str, who: str) -> pa.ChunkedArray:
    if name not in batch.schema.names:
        found = ", ".join(batch.schema.names) or "no columns"
        raise Invalid(f"{who}: input has no column {name!r}; found: {found}")
    return batch.column(name)


def conformed(
    batch: pa.Table, schema: pa.Schema, who: str, say: str = "declare its type", *, keys: Sequence[str] = ()
) -> pa.Table:
    """The columns of ``schema`` alone, in its types; Invalid names the column, what it is and what was expected.

    ``keys``: those by which rows are grouped or matched; equal keys have equal bits in the answer.
    """
    if batch.num_rows == 0 and not batch.schema.names:
        return schema.empty_table()
    columns = [as_type(column(batch, field.name, who), field, who, say) for field in schema]
    return in_one_form(pa.Table.from_arrays(columns, schema=schema), keys)


def conformed_keys(batch: pa.Table, keys: pa.Schema, who: str, say: str = "give by= the type it has") -> pa.Table:
    """The key columns alone, in their types; equal keys have equal bits."""
    return conformed(batch, keys, who, say, keys=keys.names)


def as_type(values: pa.ChunkedArray, field: pa.Field, who: str, say: str) -> pa.ChunkedArray:
    if values.type == field.type:
        return values
    if not _same_kind(values.type, field.type):
        raise Invalid(f"{who}: column {field.name!r} must be {field.type}, found {values.type}; {say}")
    try:
        return values.cast(field.type)
    except pa.ArrowException as error:
        raise Invalid(f"{who}: column {field.name!r} does not fit {field.type}: {_one_line(error)}") from None


def microseconds(batch: pa.Table, name: str, who: str) -> pa.Array:
    """An event-time column as int64 microseconds since 1970 UTC; nulls stay null.

    Timestamps of any unit (without a time zone: taken as UTC), dates, and numbers, which are seconds. Finer times are
    rounded down.
    """
    times = column(batch, name, who)
    kind = times.type
    if pa.types.is_null(kind):
        return pa.nulls(len(times), pa.int64())
    if pa.types.is_timestamp(kind):
        micros = times.cast(pa.timestamp("us", kind.tz), safe=False)
        if kind.unit == "ns":
            micros = pc.floor_temporal(times, unit="microsecond").cast(pa.timestamp("us", kind.tz), safe=False)
        return contiguous(micros.cast(pa.int64()))
    if pa.types.is_date(kind):
        return contiguous(times.cast(pa.timestamp("us")).cast(pa.int64()))
    if pa.types.is_integer(kind):
        return contiguous(_checked(who, name, lambda: pc.multiply_checked(times.cast(pa.int64()), 1_000_000)))
    if pa.types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(times), times, pa.scalar(None, kind)).cast(pa.float64())
        return contiguous(_checked(who, name, lambda: pc.floor(pc.multiply(finite, 1e6)).cast(pa.int64())))
    raise Invalid(f"{who}: time column {name!r} must be a timestamp or a number of seconds, found {kind}")


def window_time(micros: Micros | pa.Array) -> pa.Array:
    """Microseconds as the timestamps that windows carry."""
    return pa.array(micros, pa.int64()).cast(WINDOW_TIME)


def duration(written: Duration, who: str) -> int:
    """A positive length of time in microseconds."""
    micros: float | None = None
    if isinstance(written, timedelta):
        micros = written // timedelta(microseconds=1)
    elif isinstance(written, (int, float)) and not isinstance(written, bool):
        micros = written * 1e6
    elif isinstance(written, str) and (parts := re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]+)\s*", written)):
        unit = parts[2].lower()
        scale = _UNITS.get(unit) or _UNITS.get(unit.removesuffix("s"))
        if scale and re.fullmatch(r"\d+\.?\d*|\.\d+", parts[1]):
            micros = float(parts[1]) * scale
    if micros is None or not np.isfinite(micros) or round(micros) < 1:
        raise Invalid(f"{who}: a length of time such as '30 seconds', '5 min' or '500ms' is needed, got {written!r}")
    return round(micros)


def sequence_of(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def contiguous(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One array, copied only if it is in several chunks."""
    if isinstance(values, pa.ChunkedArray):
        return (
            values.chunk(0)
            if values.num_chunks == 1
            else pa.concat_arrays(values.chunks or [pa.array([], values.type)])
        )
    return values


def _checked(who: str, name: str, convert: Callable[[], pa.ChunkedArray]) -> pa.ChunkedArray:
    try:
        return convert()
    except pa.ArrowInvalid:
        raise Invalid(f"{who}: time column {name!r} holds numbers too large to be seconds since 1970") from None


def _same_kind(found: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_dictionary(found) or pa.types.is_run_end_encoded(found):
        return _same_kind(found.value_type, wanted)
    if pa.types.is_null(found):
        return True
    for kinds in (_TEXT, _BYTES, (pa.types.is_integer,), (pa.types.is_floating,), (pa.types.is_timestamp,)):
        if any(kind(found) for kind in kinds) and any(kind(wanted) for kind in kinds):
            return True
    if pa.types.is_nested(found):
        return _same_fields(found, wanted)
    exact = pa.types.is_integer(found) or pa.types.is_decimal(found)
    return bool(
        exact and (pa.types.is_decimal(wanted) or (pa.types.is_floating(wanted) and pa.types.is_integer(found)))
    )


def _same_fields(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether two nested types differ only within, and there in nothing that matters."""
    if found.id != wanted.id or found.num_fields != wanted.num_fields:
        return False
    pairs = [(found.field(place), wanted.field(place)) for place in range(found.num_fields)]
    names = not pa.types.is_struct(found) or all(one.name == other.name for one, other in pairs)
    return names and all(one.type == other.type or _same_kind(one.type, other.type) for one, other in pairs)


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0]
