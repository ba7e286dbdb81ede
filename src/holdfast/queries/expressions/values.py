"""What an expression is once it is compiled: frozen, picklable, and nothing of a JVM in it.

The compiler makes each only once, so equal parts of an expression are the same object; that survives pickling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeAlias

import pyarrow as pa

ANSI, LEGACY, TRY = "ANSI", "LEGACY", "TRY"
"""What happens where there is no right answer: an error; what Java would do, or null; null."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone as the JVM knows it: ``starts`` are the seconds at which its offset changes.

    ``offsets`` has one more, for the time before. From ``cycle`` on, if it is given, everything repeats every 400 years
    (as the calendar does), and ``starts`` ends with the first of these rounds.
    """

    name: str
    starts: tuple[int, ...] = ()
    offsets: tuple[int, ...] = (0,)
    cycle: int | None = None


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Constant:
    """Times are microseconds, dates days; floats are written in hexadecimal, so that -0.0 is not 0.0 and NaN is NaN."""

    value: bool | int | str | bytes | Decimal | None
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Call:
    """A function over other expressions. ``sql``: what to name when it fails; ``zone``: where it reads clocks."""

    function: str
    arguments: tuple[Expression, ...]
    type: pa.DataType
    mode: str = LEGACY
    sql: str = ""
    zone: Zone | None = None


Expression: TypeAlias = Column | Constant | Call


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct that the compiler knows by its fields; ``present``: where it is not null, None if it never is."""

    fields: tuple[Value, ...]
    type: pa.DataType
    present: Expression | None = None


Value: TypeAlias = Expression | Struct


def columns_of(expressions: Iterable[Expression]) -> set[str]:
    """The columns that are read by any of these."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = list(expressions)
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Column):
            found.add(each.name)
        elif isinstance(each, Call):
            waiting += each.arguments
    return found


def digest_of(expression: Expression, known: dict[int, str]) -> str:
    """The same for equal expressions, in any process. ``known`` are those already made, by identity."""
    if id(expression) not in known:
        if isinstance(expression, Call):
            inner = [digest_of(each, known) for each in expression.arguments]
            zone = expression.zone.name if expression.zone else ""
            words = [expression.function, *inner, str(expression.type), expression.mode, zone]
        else:
            words = [repr(expression)]
        known[id(expression)] = hashlib.sha256("\n".join(words).encode()).hexdigest()
    return known[id(expression)]
