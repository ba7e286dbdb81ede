"""Catalyst's resolved expressions, seen through py4j, to values that are evaluated without a JVM.

What is not known here is refused by name. A list of what is known is never outdated in silence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
from py4j.java_gateway import JavaObject, get_field
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import CalendarIntervalType, DataType, DayTimeIntervalType, StringType, StructType

from holdfast.queries.expressions import casts, zones
from holdfast.queries.expressions.values import ANSI, LEGACY, Call, Column, Constant, Expression, Struct, Value, Zone
from holdfast.queries.plans import Plans, items, kind, type_of
from holdfast.queries.stateful import NotCovered

Environment: TypeAlias = Mapping[int, Value | tuple[str, ...]]
"""What attributes stand for, by expression id: a value, or the columns that it travels as.

These are one column; or those of a struct's fields in their order, with one before them that says where it is not null
unless it never is (a window). Structs within it always have such a column.
"""

ARITHMETIC = {
    "Add": "add", "Subtract": "subtract", "Multiply": "multiply",
    "Divide": "divide", "IntegralDivide": "integral_divide", "Remainder": "remainder",
}  # fmt: skip
SIGNS = {"UnaryMinus": "negative", "Abs": "absolute"}
COMPARISONS = {
    "EqualTo": "equal", "EqualNullSafe": "equal_null_safe", "LessThan": "less", "LessThanOrEqual": "less_equal",
    "GreaterThan": "greater", "GreaterThanOrEqual": "greater_equal",
    "In": "in", "Greatest": "greatest", "Least": "least",
}  # fmt: skip
LOGIC = {"And": "and", "Or": "or", "Not": "not", "IsNaN": "is_nan"}
CHOICES = {"If": "case", "CaseWhen": "case", "Coalesce": "coalesce"}
TEXT = {"Upper": "upper", "Lower": "lower", "Length": "length", "Concat": "concat", "Substring": "substring"}
NULLS = {"IsNull": "is_null", "IsNotNull": "is_not_null"}
UNARY = {
    "NormalizeNaNAndZero": ("float", "normal"),
    "UnscaledValue": ("decimal", "unscaled"),
    "Sqrt": ("float", "root"),
}
"""What they take, and what they are."""
WRAPPERS = {"Alias", "KnownNotNull", "KnownNullable", "KnownFloatingPointNormalized", "UnaryPositive"}
"""What says something about a value and leaves it as it is."""
FIXED = ARITHMETIC | SIGNS | COMPARISONS | LOGIC | CHOICES | TEXT | NULLS
FOLDED = {*FIXED, *WRAPPERS, "Literal", "Cast", "MakeInterval", "MakeDTInterval", "MultiplyDTInterval"}
"""What the driver may evaluate once for all if there is no column in it. The time of day, for one, may not be."""
NUMBERS = {"int", "float", "decimal"}
ORDERED = {*casts.FAMILIES}
UNITS = {
    "MICROSECOND": 1, "MILLISECOND": 1000, "SECOND": zones.SECOND, "MINUTE": 60 * zones.SECOND,
    "HOUR": 3600 * zones.SECOND, "DAY": zones.DAY, "WEEK": 7 * zones.DAY,
}  # fmt: skip


class Compiler:
    """Expressions of one session. Equal ones are compiled to the same object."""

    def __init__(self, plans: Plans) -> None:
        self._jvm = plans.jvm
        self._session_zone = str(plans.spark.conf.get("spark.sql.session.timeZone"))
        self._zone = functools.cache(lambda name: zones.zone_of(self._jvm, name))
        self._made: dict[tuple[Any, ...], Expression] = {}
        self._scope: Environment = {}
        self._seen: dict[int, list[tuple[Any, Value]]] = {}
        self._ways: dict[str, Callable[[Any, str, Environment], Value]] = {
            **dict.fromkeys(ARITHMETIC | SIGNS, self._arithmetic),
            **dict.fromkeys(COMPARISONS, self._compared),
            **dict.fromkeys(LOGIC | CHOICES | TEXT, self._plain),
            **dict.fromkeys(NULLS, self._null),
            "Cast": self._cast,
            "GetStructField": self._field,
            "CreateNamedStruct": self._struct,
            "With": self._with,
            "PreciseTimestampConversion": self._same_bits,
            **dict.fromkeys(UNARY, self._unary),
            "DecimalDivideWithOverflowCheck": self._mean,
            "TimestampAddInterval": self._interval,
            "TimestampAdd": self._units,
        }

    def compiled(self, expression: Any, environment: Environment) -> Value:
        """Refuses by name what is not covered: NotCovered."""
        name = kind(expression)
        if name == "AttributeReference":
            return self._attribute(expression, environment)
        if name == "Literal":
            return self._literal(expression)
        if name in WRAPPERS:
            return self.compiled(expression.child(), environment)
        if self._scope is not environment:
            self._scope, self._seen = environment, {}
        seen = self._seen.setdefault(int(expression.hashCode()), [])
        for other, value in seen:  # a window names its time a dozen times
            if other.equals(expression):
                return value
        value = self._compiled(expression, name, environment)
        seen.append((expression, value))
        return value

    def _compiled(self, expression: Any, name: str, environment: Environment) -> Value:
        if name == "CommonExpressionRef":
            known = environment[_common(expression)]
            assert not isinstance(known, tuple)
            return known
        if name in FOLDED and expression.foldable() and _folds(expression):
            try:
                return self._literal(expression)
            except (Py4JError, PySparkException):
                pass  # it has no value but an error, which the rows that ask for it shall meet
        if name not in self._ways:
            raise refused(expression)
        return self._ways[name](expression, name, environment)

    def _attribute(self, attribute: Any, environment: Environment) -> Value:
        found = environment.get(int(attribute.exprId().id()))
        if found is None:
            raise refused(attribute, "it is not among the answers of the lower node")
        if not isinstance(found, tuple):
            return found
        type_ = type_of(attribute)
        if len(found) == 1 or not isinstance(type_, StructType):
            return self._column(found[0], self._arrow(type_, attribute))
        if len(found) not in (_width(type_), _width(type_) - 1):
            raise refused(attribute, f"{_width(type_)} columns are needed, got {len(found)}")
        return self._joined(attribute, type_, list(found), len(found) == _width(type_))

    def _joined(self, attribute: Any, type_: DataType, columns: list[str], nullable: bool = True) -> Value:
        """A value from the first of the columns, which are taken away."""
        arrow = self._arrow(type_, attribute)
        if not isinstance(type_, StructType):
            return self._column(columns.pop(0), arrow)
        present = self._column(columns.pop(0), pa.bool_()) if nullable else None
        return Struct(tuple(self._joined(attribute, each.dataType, columns) for each in type_), arrow, present)

    def whole(self, value: Value) -> Expression:
        """A value in one column."""
        if not isinstance(value, Struct):
            return value
        present = self._constant(True, pa.bool_()) if value.present is None else value.present
        return self._interned("struct", [present, *map(self.whole, value.fields)], value.type)

    def _arguments(
        self, expression: Any, environment: Environment, families: set[str] | None = None
    ) -> list[Expression]:
        """Its children, of these families of types only."""
        found = []
        for child in items(expression.children()):
            value = self.whole(self.compiled(child, environment))
            if families is not None and casts.family(value.type) not in families:
                raise refused(expression, f"it is over {value.type}")
            found.append(value)
        return found

    def _arithmetic(self, expression: Any, name: str, environment: Environment) -> Value:
        arguments = self._arguments(expression, environment, NUMBERS)
        if name in SIGNS:
            strict = pa.types.is_decimal(arguments[0].type) or expression.failOnError()
            return self._call(expression, FIXED[name], arguments, ANSI if strict else LEGACY)
        if name == "IntegralDivide" and pa.types.is_decimal(arguments[0].type):
            raise refused(expression, "it is over decimals")
        return self._call(expression, FIXED[name], arguments, str(expression.evalMode().toString()))

    def _compared(self, expression: Any, name: str, environment: Environment) -> Value:
        return self._call(expression, FIXED[name], self._arguments(expression, environment, ORDERED))

    def _plain(self, expression: Any, name: str, environment: Environment) -> Value:
        families = {"string", "int"} if name in TEXT else {"float"} if name == "IsNaN" else None
        arguments = self._arguments(expression, environment, families)
        if name in TEXT and casts.family(arguments[0].type) != "string":
            raise refused(expression, f"it is over {arguments[0].type}")
        return self._call(expression, FIXED[name], arguments)

    def _null(self, expression: Any, name: str, environment: Environment) -> Value:
        value = self.compiled(expression.child(), environment)
        if not isinstance(value, Struct):
            return self._call(expression, FIXED[name], [value])
        if value.present is None:
            return self._constant(name == "IsNotNull", pa.bool_())
        return value.present if name == "IsNotNull" else self._interned("not", [value.present], pa.bool_())

    def _cast(self, cast: Any, name: str, environment: Environment) -> Value:
        (value,) = self._arguments(cast, environment)
        to = self._type(cast)
        if value.type == to:
            return value
        if not casts.covered(value.type, to):
            raise refused(cast, f"{value.type} to {to} is not exact here")
        way = casts.family(value.type), casts.family(to)
        zone = self._zone(str(cast.timeZoneId().get())) if way in casts.ZONED else None
        return self._call(cast, "cast", [value], str(cast.evalMode().toString()), zone)

    def _field(self, expression: Any, name: str, environment: Environment) -> Value:
        value, place = self.compiled(expression.child(), environment), int(expression.ordinal())
        if isinstance(value, Struct):
            return value.fields[place]
        return self._call(expression, "field", [value, self._constant(place, pa.int32())])

    def _struct(self, expression: Any, name: str, environment: Environment) -> Value:
        fields = tuple(self.compiled(each, environment) for each in items(expression.valExprs()))
        return Struct(fields, self._type(expression))

    def _with(self, expression: Any, name: str, environment: Environment) -> Value:
        known = dict(environment)
        for each in items(expression.defs()):
            known[_common(each)] = self.compiled(each.child(), known)
        return self.compiled(expression.child(), known)

    def _same_bits(self, expression: Any, name: str, environment: Environment) -> Value:
        return self._call(expression, "same_bits", self._arguments(expression, environment))

    def _unary(self, expression: Any, name: str, environment: Environment) -> Value:
        family, function = UNARY[name]
        return self._call(expression, function, self._arguments(expression, environment, {family}))

    def _mean(self, expression: Any, name: str, environment: Environment) -> Value:
        """How Spark finishes an average of decimals."""
        mode = LEGACY if expression.nullOnOverflow() else ANSI
        return self._call(expression, "decimal_mean", self._arguments(expression, environment), mode)

    def _interval(self, expression: Any, name: str, environment: Environment) -> Value:
        """A timestamp and an interval of days and less: days by the clock, the rest by the second."""
        instant, given = self.compiled(expression.left(), environment), expression.right()
        if isinstance(instant, Struct) or not (given.foldable() and _folds(given)):
            raise refused(expression, "its interval is not a constant")
        interval, type_ = given.eval(None), type_of(given)
        if isinstance(type_, DayTimeIntervalType) and interval is not None:
            days = abs(int(interval)) // zones.DAY * (1 if interval > 0 else -1)  # towards zero, as in Java
            return self._later(expression, instant, days, int(interval) - days * zones.DAY)
        if not isinstance(type_, CalendarIntervalType) or interval is None or get_field(interval, "months"):
            raise refused(expression, "its interval is not one of days and less")
        return self._later(
            expression, instant, int(get_field(interval, "days")), int(get_field(interval, "microseconds"))
        )

    def _units(self, expression: Any, name: str, environment: Environment) -> Value:
        quantity, instant = expression.quantity(), self.compiled(expression.timestamp(), environment)
        unit = str(expression.unit()).upper()
        if unit not in UNITS or isinstance(instant, Struct) or not (quantity.foldable() and _folds(quantity)):
            raise refused(expression, "only constant numbers of weeks, days and less are added")
        number = quantity.eval(None)
        if number is None:
            raise refused(expression, "only constant numbers of weeks, days and less are added")
        amount = int(number) * UNITS[unit]
        days = amount // zones.DAY if unit in ("DAY", "WEEK") else 0
        return self._later(expression, instant, days, amount - days * zones.DAY)

    def _later(self, expression: Any, instant: Expression, days: int, micros: int) -> Value:
        there = casts.family(instant.type)
        if there not in ("timestamp", "clock"):
            raise refused(expression, f"it is over {instant.type}")
        zoned = days != 0 and there == "timestamp"
        zone = self._zone(str(expression.timeZoneId().get())) if zoned else None
        amounts = [self._constant(days, pa.int64()), self._constant(micros, pa.int64())]
        return self._call(expression, "later", [instant, *amounts], ANSI, zone)

    def _literal(self, expression: Any) -> Expression:
        """What needs no row to be evaluated."""
        type_, value = self._type(expression), expression.eval(None)
        if isinstance(value, JavaObject):
            if casts.family(type_) not in ("string", "decimal"):
                raise refused(expression, f"it is {type_}")
            value = str(value.toString())
            value = Decimal(value) if pa.types.is_decimal(type_) else value
        if isinstance(value, float):
            value = value.hex()
        return self._constant(value, type_)

    def _call(
        self, expression: Any, function: str, arguments: list[Expression], mode: str = LEGACY, zone: Zone | None = None
    ) -> Expression:
        return self._interned(function, arguments, self._type(expression), mode, expression, zone)

    def _interned(
        self,
        function: str,
        arguments: list[Expression],
        type_: pa.DataType,
        mode: str = LEGACY,
        expression: Any = None,
        zone: Zone | None = None,
    ) -> Expression:
        sql = _shown(expression) if mode == ANSI else ""
        key = (function, *map(id, arguments), type_, mode, sql, zone.name if zone else "")
        return self._made.setdefault(key, Call(function, tuple(arguments), type_, mode, sql, zone))

    def _constant(self, value: Any, type_: pa.DataType) -> Expression:
        return self._made.setdefault((value, type(value), type_), Constant(value, type_))

    def _column(self, name: str, type_: pa.DataType) -> Expression:
        return self._made.setdefault((name, type_), Column(name, type_))

    def _type(self, expression: Any) -> pa.DataType:
        return self._arrow(type_of(expression), expression)

    def _arrow(self, type_: DataType, expression: Any) -> pa.DataType:
        if isinstance(type_, StringType) and not type_.isUTF8BinaryCollation():
            raise refused(expression, f"its collation is {type_.collation}")
        try:
            return to_arrow_type(type_, timezone=self._session_zone)
        except Exception as error:
            raise refused(expression, str(error)) from None


def refused(expression: Any, why: str = "") -> NotCovered:
    """What to raise for an expression that cannot be evaluated here."""
    return not_covered(kind(expression), f"{_shown(expression)}: {why}" if why else _shown(expression))


def not_covered(name: str, shown: str) -> NotCovered:
    """What to raise for a kind of expression, or of node; ``shown``: the one that was found."""
    return NotCovered(
        f"{name} between two stateful nodes is not covered: {shown}; do it below the first of them or above the last"
    )


def _shown(expression: Any) -> str:
    text = str(expression.sql())
    return text if len(text) <= 120 else f"{text[:117]}..."


def _common(expression: Any) -> int:
    """The id of what a With names once for all; other expressions have ids of zero and above."""
    return -1 - int(expression.id().id())


def _width(type_: DataType) -> int:
    """The columns that a value travels as, if each struct in it has one for itself."""
    return 1 + sum(_width(each.dataType) for each in type_) if isinstance(type_, StructType) else 1


def _folds(expression: Any) -> bool:
    return kind(expression) in FOLDED and all(_folds(child) for child in items(expression.children()))
