"""Text: characters are code points, as in Spark."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.queries.expressions.lanes import RIGHT, Lanes, Outcome, strict, together
from holdfast.queries.expressions.values import Call


def _case(fast: Callable[[pa.Array], pa.Array], slow: Callable[[str], str]) -> Callable[[Call, pa.Array], Outcome]:
    """Letters beyond ASCII may become several (ß is SS), which Arrow does not know of."""

    def changed(call: Call, values: pa.Array) -> Outcome:
        if pc.all(pc.string_is_ascii(values)).as_py() in (True, None):
            return fast(values), RIGHT
        return pa.array([None if each is None else slow(each) for each in values.to_pylist()], pa.string()), RIGHT

    return changed


def _length(call: Call, values: pa.Array) -> Outcome:
    return pc.utf8_length(values).cast(pa.int32()), RIGHT


def _concat(call: Call, arguments: list[Lanes]) -> Lanes:
    return Lanes(pc.binary_join_element_wise(*(each.values for each in arguments), ""), together(arguments))


def _substring(call: Call, values: pa.Array, begins: pa.Array, sizes: pa.Array) -> Outcome:
    given = zip(values.to_pylist(), begins.to_pylist(), sizes.to_pylist(), strict=True)
    return pa.array([None if None in each else _cut(*each) for each in given], pa.string()), RIGHT


def _cut(text: str, begin: int, size: int) -> str:
    """From a character counted from 1, or from behind if it is negative; what is outside of the text is not there."""
    start = begin - 1 if begin > 0 else len(text) + begin if begin < 0 else 0
    return text[max(start, 0) : max(start + size, 0)]


FUNCTIONS: dict[str, Callable[[Call, list[Lanes]], Lanes]] = {
    "upper": strict(_case(pc.ascii_upper, str.upper)),
    "lower": strict(_case(pc.ascii_lower, str.lower)),
    "length": strict(_length),
    "concat": _concat,
    "substring": strict(_substring),
}
