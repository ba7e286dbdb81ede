"""Which columns of a file a workload reads, and how they become the columns of its stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid
from holdfast.operators.columns import microseconds
from holdfast.workloads.files import InputFile

Kind = Literal["text", "texts", "integer", "number", "time", "row-time"]
TIME = pa.timestamp("us", "UTC")
TYPES: dict[Kind, pa.DataType] = {
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "integer": pa.int64(),
    "number": pa.float64(),
    "time": TIME,
    "row-time": TIME,
}


@dataclass(frozen=True, slots=True)
class Pick:
    """One column of the stream: from which column of the file, and how. ``row-time``: row number over ``rate``."""

    name: str
    kind: Kind
    column: str = ""
    rate: int = 1


def pick_text(file: InputFile, name: str, wanted: str | None) -> Pick:
    """A column of text: the one asked for, or ``name``, or the only one there is."""
    there = [field.name for field in file.schema if _is_text(field.type)]
    return Pick(name, "text", _choice(file, name, wanted, there, "text"))


def pick_texts(file: InputFile, name: str, wanted: str | None) -> Pick:
    """A column of lists of text."""
    there = [f.name for f in file.schema if pa.types.is_list(f.type) and _is_text(f.type.value_type)]
    return Pick(name, "texts", _choice(file, name, wanted, there, "lists of text"))


def pick_integer(file: InputFile, name: str) -> Pick:
    """A column of whole numbers, by its name; nulls stay null."""
    there = [field.name for field in file.schema if pa.types.is_integer(field.type)]
    if name not in there:
        listed = ", ".join(f"{field.name} ({field.type})" for field in file.schema)
        raise Invalid(f"{file.path}: a column {name!r} of whole numbers is needed; found: {listed}")
    return Pick(name, "integer", name)


def pick_number(file: InputFile, name: str) -> Pick:
    """A column of numbers, whole or not, by its name; nulls stay null."""
    there = [f.name for f in file.schema if pa.types.is_integer(f.type) or pa.types.is_floating(f.type)]
    if name not in there:
        listed = ", ".join(f"{field.name} ({field.type})" for field in file.schema)
        raise Invalid(f"{file.path}: a column {name!r} of numbers is needed; found: {listed}")
    return Pick(name, "number", name)


def pick_time(file: InputFile, rate: int) -> Pick:
    """The column ``time`` if the file has one (a timestamp or seconds since 1970), else time by row number."""
    if "time" not in file.schema.names:
        return Pick("time", "row-time", rate=rate)
    kind = file.schema.field("time").type
    if not (pa.types.is_timestamp(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise Invalid(f"{file.path}: column 'time' must be a timestamp or seconds since 1970, found {kind}")
    return Pick("time", "time", "time")


def read_picked(file: InputFile, picks: Sequence[Pick], start: int, stop: int) -> pa.Table:
    """Rows [start, stop) of the file as columns of the stream."""
    names = list(dict.fromkeys(pick.column for pick in picks if pick.column))
    rows = file.read(names, start, stop)
    columns = [_made(pick, rows, start, file.path) for pick in picks]
    return pa.Table.from_arrays(columns, schema=schema_of(picks))


def schema_of(picks: Sequence[Pick]) -> pa.Schema:
    return pa.schema([pa.field(pick.name, TYPES[pick.kind]) for pick in picks])


def to_json(picks: Sequence[Pick]) -> str:
    return json.dumps([asdict(pick) for pick in picks])


def from_json(content: str) -> tuple[Pick, ...]:
    return tuple(Pick(**each) for each in json.loads(content))


def _made(pick: Pick, rows: pa.Table, start: int, path: str) -> pa.ChunkedArray | pa.Array:
    if pick.kind == "row-time":
        return pa.array((np.arange(rows.num_rows) + start) * 1_000_000 // pick.rate).cast(TIME)
    if pick.kind == "time":
        return microseconds(rows, pick.column, path).cast(TIME)
    return pc.cast(rows.column(pick.column), TYPES[pick.kind])


def _choice(file: InputFile, name: str, wanted: str | None, there: list[str], what: str) -> str:
    listed = ", ".join(f"{field.name} ({field.type})" for field in file.schema)
    if wanted is not None:
        if wanted not in file.schema.names:
            raise Invalid(f"--column: {file.path} has no column {wanted!r}; found: {listed}")
        if wanted not in there:
            raise Invalid(f"--column: {wanted!r} of {file.path} is not a column of {what}; found: {listed}")
        return wanted
    if name in there:
        return name
    if len(there) == 1:
        return there[0]
    how = f"name one with --column: {', '.join(there)}" if there else f"found: {listed}"
    raise Invalid(f"{file.path}: a column {name!r} of {what} is needed; {how}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind))
