"""Random expressions over a table of extremes: nulls, NaN, -0.0, the largest numbers, changes of clocks."""

from __future__ import annotations

import random
from collections.abc import Callable

TIMES = [
    "1883-11-18 16:59:59", "1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2018-11-04 02:30:00",
    "2018-11-04 03:00:00", "2024-03-10 06:59:59.999999", "2024-03-10 07:00:00", "2024-03-09 07:30:00",
    "2024-11-03 05:30:00", "2024-11-03 06:30:00", "2024-11-02 05:30:00.25", "2024-11-02 06:30:00",
    "2024-11-04 06:30:00",
    "2024-11-04 05:30:00", "2024-03-11 06:30:00", "2050-07-01 12:00:00.1", "2050-11-06 05:45:00", "9999-12-31 23:59:59",
    "0001-01-05 00:00:00", "2499-07-01 00:00:00",
]  # fmt: skip
VALUES: dict[str, tuple[str, list[str]]] = {
    "yes": ("boolean", ["true", "false"]),
    "b": ("tinyint", ["-128", "127", "0", "1", "-1", "5"]),
    "s": ("smallint", ["-32768", "32767", "0", "3", "-7"]),
    "i": ("int", ["-2147483648", "2147483647", "0", "1", "-1", "42", "-7"]),
    "j": ("int", ["0", "1", "-1", "3", "2147483647"]),
    "l": ("bigint", ["-9223372036854775808", "9223372036854775807", "0", "1", "-7", "3037000500", "9007199254740993"]),
    "m": ("bigint", ["0", "1", "-1", "2", "-3", "9223372036854775807"]),
    "f": ("float", ["NaN", "-0.0", "0.0", "1.5", "-2.25", "3.4e38", "-Infinity", "0.1"]),
    "d": (
        "double",
        ["NaN", "-0.0", "0.0", "1.5", "-2.7", "1e308", "Infinity", "-Infinity", "9.3e18", "2147483647.5", "0.1"],
    ),
    "x": ("double", ["NaN", "-0.0", "3.0", "-1.1", "0.0"]),
    "e": ("decimal(10,2)", ["99999999.99", "-99999999.99", "0.00", "0.05", "-1.25", "7.50"]),
    "h": (
        "decimal(38,10)",
        ["9999999999999999999999999999.9999999999", "-0.0000000001", "3.1415926535", "0", "-12345678901234567890.5"],
    ),
    "n": ("decimal(20,0)", ["99999999999999999999", "-1", "0", "3"]),
    "w": ("string", ["", "abc", "Straße", "ΟΔΟΣ", "naïve ☃ 𝄞", "Zebra", "a"]),
    "ts": ("timestamp", TIMES),
    "tt": ("timestamp", TIMES[:10]),
    "day": (
        "date",
        ["2024-03-10", "1970-01-01", "1969-12-31", "0001-01-01", "9999-12-31", "2018-11-04", "2050-07-01"],
    ),
}  # fmt: skip
OF_TYPE = {type_: [name for name, (other, _) in VALUES.items() if other == type_] for type_, _ in VALUES.values()}
INTEGERS = ["tinyint", "smallint", "int", "bigint"]
DECIMALS = ["decimal(10,2)", "decimal(38,10)", "decimal(20,0)"]


class Grammar:
    """Random expressions of a type, as SQL."""

    def __init__(self, seed: int, ansi: bool) -> None:
        self.draw, self.ansi = random.Random(seed), ansi

    def any(self, depth: int) -> str:
        return self.of(self.draw.choice([*OF_TYPE]), depth)

    def of(self, type_: str, depth: int) -> str:
        if depth == 0 or self.draw.random() < 0.1:
            return self.leaf(type_)
        return self.draw.choice([*self.rules(type_), self.chosen])(type_, depth - 1)

    def leaf(self, type_: str) -> str:
        if self.draw.random() < 0.7:
            return self.draw.choice(OF_TYPE[type_])
        value = self.draw.choice(next(values for other, values in VALUES.values() if other == type_))
        return f"cast('{value}' as {type_})"

    def rules(self, type_: str) -> list[Callable[[str, int], str]]:
        if type_ == "boolean":
            return [self.comparison, self.logic, self.nulls]
        if type_ in INTEGERS:
            return [
                self.arithmetic,
                self.arithmetic,
                self.sign,
                self.number,
                *([self.whole] if type_ == "bigint" else []),
            ]
        if type_ in ("float", "double"):
            return [self.arithmetic, self.sign, self.number, *([self.quotient] if type_ == "double" else [])]
        if type_ in DECIMALS:
            return [self.decimal, self.sign]
        return {"string": [self.text], "timestamp": [self.moment], "date": [self.date]}[type_]

    def chosen(self, type_: str, depth: int) -> str:
        a, b = self.of(type_, depth), self.of(type_, depth)
        if self.draw.random() < 0.3:
            return f"{self.draw.choice(['greatest', 'least', 'coalesce', 'nullif'])}({a}, {b})"
        condition = self.of("boolean", depth)
        if self.draw.random() < 0.5:
            return f"if({condition}, {a}, {b})"
        return f"case when {condition} then {a} when {self.of('boolean', depth)} then {b} end"

    def comparison(self, type_: str, depth: int) -> str:
        other = self.draw.choice([*OF_TYPE])
        a, b, c = (self.of(other, depth) for _ in range(3))
        sign = self.draw.choice(["=", "<>", "<", "<=", ">", ">=", "<=>", "in", "between"])
        return {"in": f"({a} in ({b}, {c}, null))", "between": f"({a} between {b} and {c})"}.get(
            sign, f"({a} {sign} {b})"
        )

    def logic(self, type_: str, depth: int) -> str:
        a, b = self.of("boolean", depth), self.of("boolean", depth)
        return self.draw.choice([f"({a} and {b})", f"({a} or {b})", f"(not {a})"])

    def nulls(self, type_: str, depth: int) -> str:
        return self.draw.choice(
            [f"isnull({self.any(depth)})", f"isnotnull({self.any(depth)})", f"isnan({self.of('double', depth)})"]
        )

    def arithmetic(self, type_: str, depth: int) -> str:
        a, b = self.of(type_, depth), self.of(type_, depth)
        return f"({a} {self.draw.choice('+-*%')} {b})"

    def sign(self, type_: str, depth: int) -> str:
        a = self.of(type_, depth)
        return self.draw.choice([f"(- {a})", f"abs({a})", f"(+ {a})"])

    def quotient(self, type_: str, depth: int) -> str:
        return f"({self.of('double', depth)} / {self.of(self.draw.choice(['double', 'bigint']), depth)})"

    def whole(self, type_: str, depth: int) -> str:
        made = [
            f"({self.of('bigint', depth)} div {self.of('bigint', depth)})",
            f"cast({self.of('timestamp', depth)} as bigint)",
        ]
        return self.draw.choice([*made, f"cast(length({self.of('string', depth)}) as bigint)"])

    def number(self, type_: str, depth: int) -> str:
        others = [*INTEGERS, "float", "double", "boolean", *(DECIMALS if type_ != "float" else []), "timestamp"]
        other = self.draw.choice(others)
        if self.ansi and type_ in ("tinyint", "smallint") and other == "timestamp":
            other = "bigint"
        return f"{self.caster()}({self.of(other, depth)} as {type_})"

    def caster(self) -> str:
        return self.draw.choice(["cast", "cast", "try_cast"])

    def decimal(self, type_: str, depth: int) -> str:
        a, b = self.of(self.draw.choice(DECIMALS), depth), self.of(self.draw.choice(DECIMALS), depth)
        made = [f"({a} {self.draw.choice('+-*/%')} {b})", self.of(self.draw.choice(INTEGERS), depth), a]
        return f"{self.caster()}({self.draw.choice(made)} as {type_})"

    def text(self, type_: str, depth: int) -> str:
        a, b = self.of("string", depth), self.of("string", depth)
        other = self.draw.choice([*INTEGERS, *DECIMALS, "boolean", "date", "timestamp"])
        place, size = self.draw.choice([-5, -2, 0, 1, 2, 9]), self.draw.choice([-1, 0, 2, 2147483647])
        return self.draw.choice([
            f"upper({a})", f"lower({a})", f"concat({a}, {b})", f"substring({a}, {place}, {size})",
            f"cast({self.of(other, depth)} as string)",
        ])  # fmt: skip

    def moment(self, type_: str, depth: int) -> str:
        a = self.of("timestamp", depth)
        amount = self.draw.choice(["1 day", "25 hours", "90 minutes", "1 second", "2 weeks", "0.000001 seconds"])
        unit = self.draw.choice(["hour", "day", "week", "minute", "microsecond"])
        return self.draw.choice([
            f"({a} {self.draw.choice('+-')} interval {amount})",
            f"timestampadd({unit}, {self.draw.choice([-30, 1, 40])}, {a})",
            f"cast({self.of('date', depth)} as timestamp)", f"cast({self.of('int', depth)} as timestamp)",
        ])  # fmt: skip

    def date(self, type_: str, depth: int) -> str:
        return f"cast({self.of('timestamp', depth)} as date)"
