"""Input files by row number: what is in them, how many rows, and any range of rows without reading the rest.

Parquet, CSV with a header, JSON lines and plain text (one row a line, column ``text``). No Spark here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import Invalid

Format = Literal["parquet", "csv", "jsonl", "text"]
SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".log": "text",
}
TEXT = "text"
_CHUNK = 1 << 24
_STRIDE = 1024
_SAMPLE_ROWS = 1000


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file, its columns and its number of rows; made by ``open_input``."""

    path: str
    format: Format
    schema: pa.Schema
    rows: int
    size: int

    def read(self, columns: Sequence[str], start: int, stop: int) -> pa.Table:
        """Rows [start, stop) with these columns, in their order in the file."""
        wanted = pa.schema([self.schema.field(name) for name in columns])
        start, stop = max(start, 0), min(stop, self.rows)
        if start >= stop:
            return wanted.empty_table()
        if self.format == "parquet":
            frame = pl.scan_parquet(self.path).select(columns).slice(start, stop - start).collect()
            return _arrow(frame, wanted)
        data = self.bytes_between(start, stop)
        if self.format == "text":
            lines = data.decode("utf-8", errors="replace").split("\n")
            lines = lines[:-1] if lines[-1] == "" and len(lines) > stop - start else lines
            return pa.table({TEXT: pa.array([line.removesuffix("\r") for line in lines], pa.string())}, wanted)
        return _arrow(self._parsed(data).select(columns), wanted)

    def bytes_between(self, start: int, stop: int) -> bytes:
        """The lines of rows [start, stop); only those are read."""
        header = 1 if self.format == "csv" else 0
        index = _lines(self.path, self.size, Path(self.path).stat().st_mtime_ns)
        first = index.offset(start + header)
        with Path(self.path).open("rb") as file:
            file.seek(first)
            return file.read(index.offset(stop + header) - first)

    def _parsed(self, data: bytes) -> pl.DataFrame:
        types = {field.name: pl.from_arrow(pa.array([], field.type)).dtype for field in self.schema}  # type: ignore[union-attr]
        try:
            if self.format == "csv":
                return pl.read_csv(BytesIO(data), has_header=False, schema=types)
            return pl.read_ndjson(BytesIO(data), schema=types)
        except pl.exceptions.PolarsError as error:
            columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
            reason = str(error).splitlines()[0]
            raise Invalid(
                f"{self.path}: a row does not fit the columns of the first ones ({columns}): {reason}"
            ) from None


def open_input(path: str | Path) -> InputFile:
    """Look at a file: its format by its name, its columns and number of rows. Invalid says what is wrong with it."""
    file = Path(path)
    if not file.exists():
        raise Invalid(f"{path}: no such file")
    if not file.is_file():
        raise Invalid(f"{path}: a file is needed, this is a directory")
    form = SUFFIXES.get(file.suffix.lower())
    if form is None:
        known = ", ".join(SUFFIXES)
        raise Invalid(f"{path}: unknown kind of file {file.suffix!r}; known: {known}")
    try:
        size = file.stat().st_size
        stamp = file.stat().st_mtime_ns
        if form == "parquet":
            metadata = pq.read_metadata(file)
            return InputFile(str(file), form, _plain(pq.read_schema(file)), metadata.num_rows, size)
        lines = _lines(str(file), size, stamp).rows
        if form == "text":
            return InputFile(str(file), form, pa.schema({TEXT: pa.string()}), lines, size)
        if lines == 0:
            raise Invalid(f"{path}: the file is empty; its columns cannot be told")
        frame = _sampled(file, form)
    except (OSError, pa.ArrowException, pl.exceptions.PolarsError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Invalid(f"{path}: it cannot be read as {form}: {reason}") from None
    schema = _plain(frame.to_arrow(compat_level=pl.CompatLevel.oldest()).schema)
    return InputFile(str(file), form, schema, lines - (form == "csv"), size)


def cut(rows: int, epochs: int, place: int) -> tuple[int, int]:
    """The rows of epoch ``place`` (from 0) when ``rows`` are cut into ``epochs`` of nearly equal number."""
    return rows * place // epochs, rows * (place + 1) // epochs


@dataclass(frozen=True, slots=True)
class _LineIndex:
    """Where every 1,024th line begins; the lines between are found by reading on from there."""

    path: str
    size: int
    rows: int
    numbers: tuple[int, ...]
    offsets: tuple[int, ...]

    def offset(self, line: int) -> int:
        if line >= self.rows:
            return self.size
        place = bisect_right(self.numbers, line) - 1
        offset, missing = self.offsets[place], line - self.numbers[place]
        with Path(self.path).open("rb") as file:
            file.seek(offset)
            for _ in range(missing):
                offset += len(file.readline())
        return offset


@lru_cache(maxsize=16)
def _lines(path: str, size: int, modified: int) -> _LineIndex:
    """One pass over the file; ``size`` and ``modified`` are there to notice that it changed."""
    numbers, offsets = [0], [0]
    lines = at = 0
    last = b"\n"
    with Path(path).open("rb") as file:
        while chunk := file.read(_CHUNK):
            ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
            first = (-(lines + 1)) % _STRIDE
            numbers += (lines + 1 + np.arange(first, len(ends), _STRIDE)).tolist()
            offsets += (at + ends[first::_STRIDE] + 1).tolist()
            lines += len(ends)
            at += len(chunk)
            last = chunk[-1:]
    return _LineIndex(path, at, lines + (last != b"\n"), tuple(numbers), tuple(offsets))


def _sampled(file: Path, form: Format) -> pl.DataFrame:
    with file.open("rb") as lines:
        head = BytesIO(b"".join(lines.readline() for _ in range(_SAMPLE_ROWS)))
    if form == "csv":
        return pl.read_csv(head, infer_schema_length=_SAMPLE_ROWS, try_parse_dates=True)
    return pl.read_ndjson(head, infer_schema_length=_SAMPLE_ROWS)


def _arrow(frame: pl.DataFrame, schema: pa.Schema) -> pa.Table:
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema)


def _plain(schema: pa.Schema) -> pa.Schema:
    """The schema without metadata and with text of ordinary width, as Spark has it."""
    return pa.schema([pa.field(field.name, _narrow(field.type)) for field in schema])


def _narrow(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return _narrow(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_narrow(kind.value_type))
    return kind
