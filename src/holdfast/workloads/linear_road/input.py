"""Files in the benchmark's form, 15 columns of whole numbers, with a header or without; and their tuples in order.

Rules count tuples by (Time, arrival) and epochs are cut by row number, so a file is first put in that order: a Parquet
copy of the columns that the rules look at, made once, under the folder for temporary files.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from uuid import uuid4

import polars as pl

from holdfast.errors import Invalid
from holdfast.private import private_folder
from holdfast.workloads.files import InputFile, open_input
from holdfast.workloads.linear_road.traffic import COLUMNS
from holdfast.workloads.picks import Pick
from holdfast.workloads.workload import Options

NAMES = (
    "Type", "Time", "VID", "Spd", "XWay", "Lane", "Dir", "Seg", "Pos", "QID", "Sinit", "Send", "DOW", "TOD", "Day",
)  # fmt: skip
FORM = ",".join(NAMES)


def open_road(path: str | Path) -> InputFile:
    """The ordered copy of a file; Invalid says in one line what is wrong with the file."""
    source = Path(path)
    if not source.is_file():
        return open_input(path)  # which says why not
    stat = source.stat()
    name = hashlib.sha256(f"{source.absolute()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:24]
    copy = private_folder() / f"linear-road-{name}.parquet"
    if not copy.exists():
        tuples = _ordered(_read(source), str(path))
        partial = copy.with_suffix(f".{uuid4().hex}.part")
        tuples.write_parquet(partial, compression="lz4", statistics=False, row_group_size=262_144)
        partial.replace(copy)
    return open_input(copy)


def picks(file: InputFile, options: Options) -> tuple[Pick, ...]:
    if options.column is not None:
        raise Invalid(f"--column: linear-road reads the columns {FORM}, got {options.column!r}")
    return tuple(Pick(name, "integer", name) for name in COLUMNS)


def _read(source: Path) -> pl.DataFrame:
    if source.suffix.lower() != ".csv":
        file = open_input(source)
        found = pl.DataFrame(file.read(file.schema.names, 0, file.rows))
    else:
        try:
            with source.open(encoding="utf-8") as lines:
                first = lines.readline().strip().split(",")
            bare = all(cell.strip().lstrip("+-").isdigit() for cell in first)
            found = pl.read_csv(source, has_header=not bare, infer_schema_length=None)
        except (OSError, UnicodeDecodeError, pl.exceptions.PolarsError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise Invalid(f"{source}: it cannot be read as csv: {reason}") from None
        if bare:
            if len(first) != len(NAMES):
                raise Invalid(f"{source}: {len(NAMES)} columns are needed ({FORM}), the first row has {len(first)}")
            found.columns = list(NAMES)
    by_name = {column.strip().lower(): column for column in found.columns}
    if missing := [name for name in NAMES if name.lower() in COLUMNS and name.lower() not in by_name]:
        listed = ", ".join(found.columns)
        raise Invalid(f"{source}: column {missing[0]!r} is missing; needed: {FORM}; found: {listed}")
    return found.select(pl.col(by_name[name]).alias(name) for name in COLUMNS)


def _ordered(found: pl.DataFrame, path: str) -> pl.DataFrame:
    for column in found:
        if not (column.dtype.is_integer() or column.is_empty()):
            raise Invalid(f"{path}: column {column.name!r} must hold whole numbers, found {column.dtype}")
        if column.null_count():
            raise Invalid(f"{path}: column {column.name!r} has no value in row {column.is_null().arg_true()[0] + 1}")
    try:
        tuples = found.cast(pl.Int32)
    except pl.exceptions.PolarsError as error:
        raise Invalid(f"{path}: numbers of up to 32 bits are needed: {str(error).splitlines()[0]}") from None
    if (early := tuples["time"].filter(tuples["time"] < 0)).len():
        raise Invalid(f"{path}: Time must be 0 or more, found {early[0]}")
    return tuples.sort("time", maintain_order=True)
