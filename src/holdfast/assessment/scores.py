"""Output scores: from a table of outputs to a number, for the whole, for local sections, or for the rows affected."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.loading import loaded

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Score:
    """``total`` or ``mean`` of a column (nulls pass for 0 and for nothing), ``count`` of rows, or the user's function.

    The score of no rows is 0; a user's function is asked.
    """

    name: str
    column: str | None = None
    function: Callable[[pa.Table], Any] | None = None

    def of(self, rows: pa.Table) -> float:
        """The score of these rows."""
        if self.function is not None:
            return self._asked(rows)
        if self.name == "count":
            return float(rows.num_rows)
        if not rows.num_columns:
            return 0.0
        values = self._values(rows)
        return float(values.sum()) if self.name == "total" else float(values.mean()) if len(values) else 0.0

    def local(self, rows: pa.Table, section: NDArray[np.int64], sections: int) -> Floats:
        """The score of each section; ``section`` numbers that of every row."""
        if self.function is not None:
            # One sort instead of a filter for each section.
            order = np.argsort(section, kind="stable")
            ends = np.searchsorted(section[order], np.arange(sections + 1))
            arranged = rows.take(pa.array(order)) if rows.num_columns else rows
            return np.array([self._asked(arranged.slice(a, b - a)) for a, b in pairwise(ends)])
        counts = np.bincount(section, minlength=sections)[:sections].astype(np.float64)
        if self.name == "count" or not rows.num_columns:
            return counts
        filled = self._column(rows).fill_null(0.0).to_numpy()
        totals = np.bincount(section, filled, minlength=sections)[:sections]
        if self.name == "total":
            return np.asarray(totals)
        present = np.bincount(section, pc.is_valid(self._column(rows)).to_numpy(), minlength=sections)[:sections]
        return np.asarray(totals / np.maximum(present, 1))

    def check(self, schema: pa.Schema) -> None:
        """Invalid if the output has no such column."""
        if self.column is not None and self.function is None:
            self._column(schema.empty_table())

    def _values(self, rows: pa.Table) -> Floats:
        return np.asarray(self._column(rows).drop_null().to_numpy())

    def _column(self, rows: pa.Table) -> pa.ChunkedArray:
        found = ", ".join(f"{field.name} ({field.type})" for field in rows.schema)
        if self.column not in rows.column_names:
            raise Invalid(f"score {self}: the output has no column {self.column!r}; found: {found}")
        values = rows.column(self.column)
        kind = values.type
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise Invalid(f"score {self}: column {self.column!r} must be numbers, found {kind}")
        return pc.cast(values, pa.float64(), safe=False)

    def _asked(self, rows: pa.Table) -> float:
        assert self.function is not None
        answer = self.function(rows)
        try:
            number = float(answer)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise Invalid(f"score {self}: the function must give a finite number, got {answer!r:.60}")
        return number

    def __str__(self) -> str:
        return self.name if self.column is None else f"{self.name}:{self.column}"

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        """A function from a file is looked up anew in another process, which cannot import it by name."""
        if self.function is not None and self.name.partition(":")[0].endswith(".py"):
            return as_score, (self.name,)
        return Score, (self.name, self.column, self.function)


def as_score(written: str | Score | Callable[[pa.Table], Any]) -> Score:
    """``total:COLUMN``, ``mean:COLUMN``, ``count``, ``FILE.py:FUNCTION``, or a function from a table to a number."""
    if isinstance(written, Score):
        return written
    if not isinstance(written, str):
        if not callable(written):
            raise Invalid(f"score: total:COLUMN, mean:COLUMN, count or a function is needed, got {written!r:.60}")
        return Score(getattr(written, "__name__", "function"), function=written)
    name, colon, rest = written.strip().partition(":")
    if name.endswith(".py"):
        function = loaded(written, "score")
        if not callable(function):
            raise Invalid(f"score {written}: a function from a pyarrow.Table to a number is needed")
        return Score(written, function=function)
    if name == "count" and not colon:
        return Score("count")
    if name in ("total", "mean") and rest:
        return Score(name, rest)
    raise Invalid(f"score {written!r}: write total:COLUMN, mean:COLUMN, count or FILE.py:FUNCTION")


def affected(golden: pa.Table, golden_at: Floats, faulty: pa.Table, faulty_at: Floats) -> Floats:
    """The positions, ascending, at which the two outputs differ: rows lost, added or changed."""
    left, right = _hashed(golden), _hashed(faulty)
    return np.unique(np.concatenate([golden_at[_more(left, right)], faulty_at[_more(right, left)]]))


def _hashed(rows: pa.Table) -> NDArray[np.uint64]:
    if not rows.num_rows:
        return np.empty(0, np.uint64)
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame.hash_rows(0).to_numpy()


def _more(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Rows that are more often here than there."""
    values, inverse, here = np.unique(one, return_inverse=True, return_counts=True)
    theirs, there = np.unique(other, return_counts=True)
    place = np.minimum(np.searchsorted(theirs, values), max(len(theirs) - 1, 0))
    if not len(theirs):
        return np.ones(len(one), np.bool_)
    found = np.where(theirs[place] == values, there[place], 0)
    return np.asarray((here > found)[inverse])
