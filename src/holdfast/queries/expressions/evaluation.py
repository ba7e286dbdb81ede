"""Compiled expressions over Arrow tables: what Spark would give, to the last bit, or its error."""

from __future__ import annotations

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.queries.expressions import arithmetic, casts, logic, strings
from holdfast.queries.expressions.lanes import Lanes
from holdfast.queries.expressions.values import Call, Column, Constant, Expression

FUNCTIONS = logic.FUNCTIONS | arithmetic.FUNCTIONS | casts.FUNCTIONS | strings.FUNCTIONS


class Evaluation:
    """Expressions over one table; what several of them have in common is evaluated once."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._known: dict[int, tuple[Expression, Lanes]] = {}

    def column(self, expression: Expression) -> pa.Array:
        """Its values; raises the error that a row of it has met."""
        lanes = self.lanes(expression)
        if lanes.failed is not None and lanes.failed.null_count < len(lanes.failed):
            found = lanes.failed.drop_null()
            rows = f" in {len(found)} of {len(lanes.failed)} rows"
            raise HoldfastError(f"{found[0]}{rows}, which is an error when spark.sql.ansi.enabled is true")
        return lanes.values

    def lanes(self, expression: Expression) -> Lanes:
        found = self._known.get(id(expression))
        if found is None:
            found = self._known[id(expression)] = (expression, self._made(expression))
        return found[1]

    def _made(self, expression: Expression) -> Lanes:
        match expression:
            case Column(name, type_):
                values = self._table.column(name).combine_chunks()
                return Lanes(values if values.type == type_ else values.cast(type_))
            case Constant():
                return Lanes(_repeated(expression, self._table.num_rows))
            case Call():
                arguments = [self.lanes(each) for each in expression.arguments]
                return FUNCTIONS[expression.function](expression, arguments)


def _repeated(constant: Constant, rows: int) -> pa.Array:
    if constant.value is None:
        return pa.nulls(rows, constant.type)
    floating = pa.types.is_floating(constant.type)
    value = float.fromhex(str(constant.value)) if floating else constant.value
    return pa.repeat(pa.scalar(value, constant.type), rows)
