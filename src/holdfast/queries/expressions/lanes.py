"""Values of an expression for each row, and the rows for which there is none but an error.

An error is not raised where it is met: ``if(n = 0, 0, x / n)`` divides in the rows that ask for it only. Here all rows
are divided, those that fail are marked, and the marks of branches not taken are dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.queries.expressions.values import ANSI, TRY, Call


@dataclass(frozen=True, slots=True)
class Lanes:
    """``failed``: what went wrong, null where nothing did; None if nothing did anywhere."""

    values: pa.Array
    failed: pa.Array | None = None


Outcome: TypeAlias = tuple[pa.Array, Mapping[str, pa.Array]]
"""Values as LEGACY has them, and the rows without a right answer, by what is wrong there."""
Strict: TypeAlias = Callable[..., Outcome]
"""A function of a call and of the values of its arguments; null where one of them is null, unless it says otherwise."""
RIGHT: dict[str, pa.Array] = {}


def strict(function: Strict, backwards: bool = False) -> Callable[[Call, list[Lanes]], Lanes]:
    """Arguments in Spark's order: one that is null keeps it from looking at (and failing in) the next ones."""

    def applied(call: Call, arguments: list[Lanes]) -> Lanes:
        failed: pa.Array | None = None
        for each in arguments if backwards else reversed(arguments):
            failed = either(each.failed, where(each.values.is_valid(), failed, None))
        values, wrong = function(call, *(each.values for each in arguments))
        for reason, rows in wrong.items():
            if call.mode == TRY:
                values = pc.if_else(rows, pa.scalar(None, values.type), values)
            elif call.mode == ANSI:
                failed = either(failed, pc.if_else(rows, f"{call.sql}: {reason}", pa.scalar(None, pa.string())))
        return Lanes(values, failed)

    return applied


def either(first: pa.Array | None, second: pa.Array | None) -> pa.Array | None:
    """Failures of both; where both failed, the first."""
    if first is None or second is None:
        return second if first is None else first
    return pc.coalesce(first, second)


def together(arguments: list[Lanes]) -> pa.Array | None:
    """Failures of all, for a function that looks at each of its arguments."""
    return functools.reduce(either, (each.failed for each in arguments), None)


def where(condition: pa.Array, then: pa.Array | None, otherwise: pa.Array | None) -> pa.Array | None:
    """Failures of the one or the other."""
    if then is None and otherwise is None:
        return None
    none = pa.scalar(None, pa.string())
    return pc.if_else(condition, none if then is None else then, none if otherwise is None else otherwise)


def some(reason: str, rows: pa.Array) -> dict[str, pa.Array]:
    """These rows are wrong; a null is not."""
    rows = rows.fill_null(False)
    return {reason: rows} if pc.any(rows).as_py() else {}


def lifted(function: Callable[..., Any], type_: pa.DataType, *arrays: pa.Array) -> pa.Array:
    """A function of numpy arrays (times as integers); null where one of the arguments is null."""
    nulls = functools.reduce(pc.or_, [each.is_null() for each in arrays])
    with np.errstate(all="ignore"):
        made = function(*(numbers(each) for each in arrays))
    if pa.types.is_temporal(type_):
        size = pa.int32() if pa.types.is_date32(type_) else pa.int64()
        return pa.array(made, size, mask=numbers(nulls)).cast(type_)
    return pa.array(made, type_, mask=numbers(nulls))


def numbers(array: pa.Array) -> Any:
    """As numpy has them, 0 for null."""
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    return array.fill_null(False if pa.types.is_boolean(array.type) else 0).to_numpy(zero_copy_only=False)
