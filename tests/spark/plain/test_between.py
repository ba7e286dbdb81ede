"""What stands between two stateful nodes: each expression evaluated by Spark and in Arrow, row by row the same."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.errors import HoldfastError
from holdfast.queries import NotCovered
from holdfast.queries.between import Between, between, evaluate
from holdfast.queries.expressions.compiling import Compiler
from holdfast.queries.expressions.evaluation import Evaluation
from holdfast.queries.expressions.values import Expression, Struct
from holdfast.queries.plans import Plans, items, kind

pytestmark = pytest.mark.spark

ROWS = 60
TIMES = [
    "1883-11-18 16:59:59", "1970-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2018-11-04 02:30:00",
    "2018-11-04 03:00:00", "2024-03-10 06:59:59.999999", "2024-03-10 07:00:00", "2024-03-09 07:30:00",
    "2024-11-03 05:30:00", "2024-11-03 06:30:00", "2024-11-02 05:30:00.25", "2024-11-02 06:30:00", "2024-11-04 06:30:00",
    "2024-11-04 05:30:00", "2024-03-11 06:30:00", "2050-07-01 12:00:00.1", "2050-11-06 05:45:00", "9999-12-31 23:59:59",
    "0001-01-05 00:00:00", "2499-07-01 00:00:00",
]  # fmt: skip
VALUES: dict[str, tuple[str, list[str]]] = {
    "yes": ("boolean", ["true", "false"]),
    "b": ("tinyint", ["-128", "127", "0", "1", "-1", "5"]),
    "s": ("smallint", ["-32768", "32767", "0", "3", "-7"]),
    "i": ("int", ["-2147483648", "2147483647", "0", "1", "-1", "42", "-7"]),
    "j": ("int", ["0", "1", "-1", "3", "2147483647"]),
    "l": ("bigint", ["-9223372036854775808", "9223372036854775807", "0", "1", "-1", "-7", "3037000500", "9007199254740993"]),
    "m": ("bigint", ["0", "1", "-1", "2", "-3", "9223372036854775807"]),
    "f": ("float", ["NaN", "-0.0", "0.0", "1.5", "-2.25", "3.4e38", "-Infinity", "0.1"]),
    "d": ("double", ["NaN", "-0.0", "0.0", "1.5", "-2.7", "1e308", "Infinity", "-Infinity", "9.3e18", "2147483647.5", "0.1"]),
    "x": ("double", ["NaN", "-0.0", "3.0", "-1.1", "0.0"]),
    "e": ("decimal(10,2)", ["99999999.99", "-99999999.99", "0.00", "0.05", "-1.25", "7.50"]),
    "h": ("decimal(38,10)", ["9999999999999999999999999999.9999999999", "-0.0000000001", "3.1415926535", "0", "-12345678901234567890.5"]),
    "n": ("decimal(20,0)", ["99999999999999999999", "-1", "0", "3"]),
    "w": ("string", ["", "abc", "Straße", "ΟΔΟΣ", "naïve ☃ 𝄞", "Zebra", "a"]),
    "ts": ("timestamp", TIMES),
    "tt": ("timestamp", TIMES[:10]),
    "day": ("date", ["2024-03-10", "1970-01-01", "1969-12-31", "0001-01-01", "9999-12-31", "2018-11-04", "2050-07-01", "1883-11-18"]),
}  # fmt: skip
OF_TYPE = {type_: [name for name, (other, _) in VALUES.items() if other == type_] for type_, _ in VALUES.values()}
INTEGERS = ["tinyint", "smallint", "int", "bigint"]
DECIMALS = ["decimal(10,2)", "decimal(38,10)", "decimal(20,0)"]


@pytest.fixture(params=[True, False], ids=["ansi", "legacy"])
def ansi(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[bool]:
    with settings(spark, {"spark.sql.ansi.enabled": str(request.param).lower()}):
        yield request.param


class settings:
    """Settings of a session for a while."""

    def __init__(self, spark: SparkSession, changed: dict[str, str]) -> None:
        self.spark, self.changed = spark, changed

    def __enter__(self) -> None:
        self.before = {name: self.spark.conf.get(name) for name in self.changed}
        for name, value in self.changed.items():
            self.spark.conf.set(name, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self.before.items():
            self.spark.conf.set(name, value)


def rows_of(spark: SparkSession) -> DataFrame:
    """A table whose times are instants, whatever the zone: extremes, nulls, changes of clocks. The optimizer folds it."""
    draw = random.Random(5)
    rows = []
    for number in range(ROWS):
        cells = [str(number)]
        for type_, values in VALUES.values():
            value = draw.choice(values) + (" UTC" if type_ == "timestamp" else "")
            cells.append("null" if draw.random() < 0.1 else f"cast('{value}' as {type_})")
        rows.append(f"({', '.join(cells)})")
    return spark.sql(f"select * from values {', '.join(rows)} as t(id, {', '.join(VALUES)})")


def compiled(frame: DataFrame, *texts: str) -> list[Expression | Struct]:
    plans = Plans(frame.sparkSession)
    names = {
        int(each.exprId().id()): (str(each.name()),) for each in items(frame._jdf.queryExecution().analyzed().output())
    }
    project = plans.normal(frame.selectExpr(*texts)._jdf.queryExecution().analyzed())
    compiler = Compiler(plans)
    return [compiler.compiled(each, names) for each in items(project.projectList())]


def shown(values: Any) -> list[str]:
    """Bit by bit: -0.0 is not 0.0, but a NaN is a NaN; times as microseconds."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    if pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    return [repr(each) for each in values.to_pylist()]


def compared(frame: DataFrame, texts: list[str]) -> int:
    """Each expression by Spark and here, where it has no error; and Spark has one too where there is one here."""
    table, made = frame.toArrow(), compiled(frame, *texts)
    lanes = [Evaluation(table).lanes(pickle.loads(pickle.dumps(each))) for each in made]
    wrong = [
        [] if each.failed is None else [n for n, text in enumerate(each.failed.to_pylist()) if text is not None]
        for each in lanes
    ]
    asked = [
        f"case when id not in ({', '.join(map(str, rows))}) then {text} end" if rows else text
        for text, rows in zip(texts, wrong, strict=True)
    ]
    theirs = frame.selectExpr(*(f"{text} as c{n}" for n, text in enumerate(asked))).toArrow()
    for text, rows, each, column in zip(texts, wrong, lanes, theirs.columns, strict=True):
        assert column.type == each.values.type or pa.types.is_timestamp(column.type), text
        ours, there = shown(each.values), shown(column)
        different = [n for n in range(ROWS) if n not in rows and ours[n] != there[n]]
        detail = [(table.slice(n, 1).to_pylist()[0], ours[n], there[n]) for n in different[:2]]
        assert not different, f"{text}: {len(different)} rows differ, such as {detail}"
    failing = [(text, rows[0]) for text, rows in zip(texts, wrong, strict=True) if rows]
    for text, row in failing[:25]:
        with pytest.raises(Exception, match="overflow|OVERFLOW|DIVIDE_BY_ZERO|REMAINDER_BY_ZERO|OUT_OF_RANGE|CAST_"):
            frame.where(f"id = {row}").selectExpr(text).collect()
    return len(failing)


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
            f"({a} {self.draw.choice('+-')} interval {amount})", f"timestampadd({unit}, {self.draw.choice([-30, 1, 40])}, {a})",
            f"cast({self.of('date', depth)} as timestamp)", f"cast({self.of('int', depth)} as timestamp)",
        ])  # fmt: skip

    def date(self, type_: str, depth: int) -> str:
        return f"cast({self.of('timestamp', depth)} as date)"


ZONES = ["UTC", "America/New_York", "America/Sao_Paulo", "GMT+05:30"]


@pytest.mark.parametrize("zone", ZONES)
def test_expressions_give_what_spark_gives(spark: SparkSession, ansi: bool, zone: str) -> None:
    with settings(spark, {"spark.sql.session.timeZone": zone}):
        grammar = Grammar(ZONES.index(zone) * 2 + ansi, ansi)
        texts = [grammar.any(1 + n % 3) for n in range(120)]
        failing = compared(rows_of(spark), texts)
        assert bool(failing) == ansi
