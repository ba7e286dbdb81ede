"""Numbers as Java and Spark reckon: integers that wrap, remainders with the sign of what is divided, decimals."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.queries.expressions.lanes import RIGHT, Lanes, Outcome, lifted, some, strict
from holdfast.queries.expressions.values import Call

OVERFLOW, BY_ZERO = "overflow", "division by zero"
EXACT = Context(prec=160, rounding=ROUND_HALF_UP)
ROUNDED = Context(prec=39, rounding=ROUND_HALF_UP)
"""Spark multiplies and divides decimals to one digit more than it can keep, and then rounds to the type."""
SIGNED = Context(prec=34, rounding=ROUND_HALF_EVEN)
DECIMAL = {
    "add": EXACT.add,
    "subtract": EXACT.subtract,
    "multiply": ROUNDED.multiply,
    "divide": ROUNDED.divide,
    "remainder": EXACT.remainder,
}


def _sum(call: Call, left: pa.Array, right: pa.Array) -> Outcome:
    """Also a difference or a product."""
    if pa.types.is_floating(call.type):
        return getattr(pc, call.function)(left, right), RIGHT
    if pa.types.is_decimal(call.type):
        return _decimals(call, left, right)
    try:
        return getattr(pc, f"{call.function}_checked")(left, right), RIGHT
    except pa.ArrowInvalid:
        wide = pa.decimal256(20, 0)
        wrapped = getattr(pc, call.function)(left, right)
        exact = getattr(pc, call.function)(left.cast(wide), right.cast(wide))
        return wrapped, some(OVERFLOW, pc.not_equal(wrapped.cast(wide).cast(exact.type), exact))


def _decimals(call: Call, left: pa.Array, right: pa.Array) -> Outcome:
    if call.function in ("add", "subtract", "multiply") and _agreed(call, left.type, right.type):
        return getattr(pc, call.function)(left, right), RIGHT
    operation = DECIMAL[call.function]
    pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
    made = [None if a is None or b is None or (b == 0 and divides(call)) else operation(a, b) for a, b in pairs]
    return fitted(made, call.type)


def divides(call: Call) -> bool:
    return call.function in ("divide", "remainder", "integral_divide")


def _agreed(call: Call, left: pa.DataType, right: pa.DataType) -> bool:
    """Whether Arrow's type of the result is Spark's: then there is nothing to round, and nothing that overflows."""
    if call.function == "multiply":
        precision, scale = left.precision + right.precision + 1, left.scale + right.scale
    else:
        scale = max(left.scale, right.scale)
        precision = max(left.precision - left.scale, right.precision - right.scale) + scale + 1
    return (precision, scale) == (call.type.precision, call.type.scale)


def fitted(values: list[Decimal | None], type_: pa.DataType) -> Outcome:
    """Rounded half up to the type; null where it does not fit."""
    unit, limit = Decimal(1).scaleb(-type_.scale), Decimal(10) ** (type_.precision - type_.scale)
    rounded = [None if each is None else each.quantize(unit, context=EXACT) for each in values]
    large = [each is not None and each.copy_abs() >= limit for each in rounded]
    kept = [None if over else each for each, over in zip(rounded, large, strict=True)]
    return pa.array(kept, type_), some(OVERFLOW, pa.array(large, pa.bool_()))


def _quotient(call: Call, left: pa.Array, right: pa.Array) -> Outcome:
    """Also a remainder. Null (or an error) where the divisor is zero, floats included."""
    zero = pc.equal(right, pa.scalar(0, right.type))
    wrong = some(BY_ZERO, pc.and_(zero, left.is_valid()))
    over: dict[str, pa.Array] = RIGHT
    if pa.types.is_decimal(left.type):
        values, large = _decimals(call, left, right)
        return values, {**wrong, **large}
    if call.function == "divide":
        values = pc.divide(left, right)
    elif call.function == "remainder":
        values = lifted(np.fmod, left.type, left, pc.if_else(zero, pa.scalar(1, right.type), right))
    else:
        least = pc.and_(pc.equal(left, np.iinfo(np.int64).min), pc.equal(right, -1)).fill_null(False)
        over = some(OVERFLOW, least)
        values = pc.if_else(least, left, pc.divide(left, pc.if_else(pc.or_(zero, least), 1, right)))
    return pc.if_else(zero, pa.scalar(None, values.type), values), {**wrong, **over}


def _decimal_mean(call: Call, total: pa.Array, count: pa.Array) -> Outcome:
    """A sum that has overflowed is null, and so is its mean."""
    values, wrong = _quotient(Call("divide", call.arguments, call.type), total, count)
    return values, {**wrong, **some(OVERFLOW, total.is_null())}


def _sign(call: Call, values: pa.Array) -> Outcome:
    """The opposite, or the distance from zero. Of decimals with more digits Spark keeps 34, which may not fit then."""
    if pa.types.is_decimal(values.type) and values.type.precision > SIGNED.prec:
        made = [None if each is None else _signed(each, call.function == "negative") for each in values.to_pylist()]
        return fitted(made, call.type)
    made = pc.negate(values) if call.function == "negative" else pc.abs(values)
    return made, some(OVERFLOW, _least(values)) if pa.types.is_integer(values.type) else RIGHT


def _signed(value: Decimal, opposite: bool) -> Decimal:
    """As Spark has it: what needs no other sign keeps all of its digits."""
    return SIGNED.minus(value) if opposite or value < 0 else value


def _least(values: pa.Array) -> pa.Array:
    """The one integer that has no opposite."""
    return pc.equal(values, pa.scalar(-(2 ** (values.type.bit_width - 1)), values.type))


def _unscaled(call: Call, values: pa.Array) -> Outcome:
    """The digits of a decimal as a long."""
    digits = [None if each is None else int(each.scaleb(values.type.scale, EXACT)) for each in values.to_pylist()]
    return pa.array(digits, pa.int64()), RIGHT


def _root(call: Call, values: pa.Array) -> Outcome:
    return pc.sqrt(values), RIGHT


FUNCTIONS: dict[str, Callable[[Call, list[Lanes]], Lanes]] = {
    "add": strict(_sum),
    "subtract": strict(_sum),
    "multiply": strict(_sum),
    "divide": strict(_quotient, backwards=True),
    "integral_divide": strict(_quotient, backwards=True),
    "remainder": strict(_quotient, backwards=True),
    "decimal_mean": strict(_decimal_mean),
    "negative": strict(_sign),
    "absolute": strict(_sign),
    "unscaled": strict(_unscaled),
    "root": strict(_root),
}
