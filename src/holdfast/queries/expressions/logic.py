"""Comparisons, three-valued logic and choices. To Spark NaN equals NaN and is the largest number."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.operators.comparing import equal, less
from holdfast.queries.expressions.lanes import RIGHT, Lanes, Outcome, either, strict, together, where
from holdfast.queries.expressions.values import Call, Constant


def _null_safe(left: pa.Array, right: pa.Array) -> pa.Array:
    both = pc.and_(left.is_valid(), right.is_valid())
    return pc.if_else(both, equal(left, right), pc.and_(left.is_null(), right.is_null()))


def _and(call: Call, arguments: list[Lanes]) -> Lanes:
    left, right = arguments
    asked = left.values.fill_null(True)
    failed = either(left.failed, where(asked, right.failed, None))
    return Lanes(pc.and_kleene(left.values, right.values), failed)


def _or(call: Call, arguments: list[Lanes]) -> Lanes:
    left, right = arguments
    asked = pc.invert(left.values.fill_null(False))
    failed = either(left.failed, where(asked, right.failed, None))
    return Lanes(pc.or_kleene(left.values, right.values), failed)


def _in(call: Call, arguments: list[Lanes]) -> Lanes:
    """One of the others: each is looked at until one is equal, none if the value is null."""
    value, *others = arguments
    found = pc.if_else(value.values.is_valid(), False, pa.scalar(None, pa.bool_()))
    failed = value.failed
    for each in others:
        asked = pc.and_(value.values.is_valid(), pc.invert(found.fill_null(False)))
        failed = either(failed, where(asked, each.failed, None))
        found = pc.or_kleene(found, equal(value.values, each.values))
    return Lanes(found, failed)


def _case(call: Call, arguments: list[Lanes]) -> Lanes:
    """Condition, value, condition, value, ..., and perhaps the value if none of them holds."""
    pairs = list(zip(arguments[::2], arguments[1::2], strict=False))
    size = len(arguments[0].values)
    found = arguments[-1] if len(arguments) % 2 else Lanes(pa.nulls(size, call.type))
    for condition, value in reversed(pairs):
        holds = condition.values.fill_null(False)
        failed = either(condition.failed, where(holds, value.failed, found.failed))
        found = Lanes(pc.if_else(holds, value.values, found.values), failed)
    return found


def _coalesce(call: Call, arguments: list[Lanes]) -> Lanes:
    found = arguments[-1]
    for each in reversed(arguments[:-1]):
        there = each.values.is_valid()
        failed = either(each.failed, where(there, None, found.failed))
        found = Lanes(pc.if_else(there, each.values, found.values), failed)
    return found


def _extreme(better: Callable[[pa.Array, pa.Array], pa.Array]) -> Callable[[Call, list[Lanes]], Lanes]:
    """The best of those that are not null; the first of them if several are."""

    def found(call: Call, arguments: list[Lanes]) -> Lanes:
        best = arguments[0].values
        for each in arguments[1:]:
            taken = pc.or_(better(each.values, best).fill_null(False), best.is_null())
            best = pc.if_else(taken, each.values, best)
        return Lanes(best, together(arguments))

    return found


def _struct(call: Call, arguments: list[Lanes]) -> Lanes:
    """Where it is not null, and its fields."""
    present, *fields = (each.values for each in arguments)
    empty = pc.invert(present.fill_null(False))
    return Lanes(pa.StructArray.from_arrays(fields, fields=list(call.type), mask=empty), together(arguments))


def _field(call: Call, values: pa.Array, place: pa.Array) -> Outcome:
    constant = call.arguments[1]
    assert isinstance(constant, Constant) and isinstance(constant.value, int)
    return pc.struct_field(values, [constant.value]), RIGHT


def _plain(function: Callable[..., pa.Array]) -> Callable[[Call, list[Lanes]], Lanes]:
    """A function that always has an answer."""

    def applied(call: Call, *values: pa.Array) -> Outcome:
        return function(*values), RIGHT

    return strict(applied)


def _all(function: Callable[..., pa.Array]) -> Callable[[Call, list[Lanes]], Lanes]:
    """A function that looks at all of its arguments, nulls or not."""

    def applied(call: Call, arguments: list[Lanes]) -> Lanes:
        return Lanes(function(*(each.values for each in arguments)), together(arguments))

    return applied


def _normal(values: pa.Array) -> pa.Array:
    """-0.0 as 0.0, any NaN as the one."""
    return pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), pc.add(values, 0.0).cast(values.type))


FUNCTIONS: dict[str, Callable[[Call, list[Lanes]], Lanes]] = {
    "and": _and,
    "or": _or,
    "not": _plain(pc.invert),
    "in": _in,
    "case": _case,
    "coalesce": _coalesce,
    "greatest": _extreme(lambda each, best: less(best, each)),
    "least": _extreme(less),
    "equal": _plain(equal),
    "equal_null_safe": _all(_null_safe),
    "less": _plain(less),
    "greater": _plain(lambda left, right: less(right, left)),
    "less_equal": _plain(lambda left, right: pc.invert(less(right, left))),
    "greater_equal": _plain(lambda left, right: pc.invert(less(left, right))),
    "is_null": _plain(lambda values: values.is_null()),
    "is_not_null": _plain(lambda values: values.is_valid()),
    "is_nan": _plain(lambda values: pc.is_nan(values).fill_null(False)),
    "normal": _plain(_normal),
    "struct": _struct,
    "field": strict(_field),
}
