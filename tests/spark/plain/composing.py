"""Queries composed from a grammar: rows, keys, windows, functions, what is above, and a mode. By a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

KEYS = ["k", "n % 3", "day", "yes", "cents", "x > 0", "upper(k)", "struct(k, day)", "n"]
FUNCTIONS = [
    "count(*)", "count({})", "sum(n)", "sum(cents)", "avg(n)", "avg(cents)", "avg(x)", "min({})", "max({})", "max(x)",
    "stddev(n)", "var_pop(cents)", "count_if(n > 3)", "bool_or(yes)", "approx_count_distinct({})", "min(struct(k, n))",
    "skewness(n)", "corr(n, x)", "percentile_approx(n, 0.5)", "sort_array(collect_set({}))", "sum(n * 2 - 1)",
    "try_avg(n)",
]  # fmt: skip
"""None whose answer depends on the order of rows."""
ROUNDED = ("avg", "stddev", "var_pop", "skewness", "corr", "try_avg")
"""The last digits of these depend on it; so nothing above looks at them."""
COLUMNS = ["k", "n", "day", "cents", "ts", "yes"]
FILTERS = ["n > 2", "k is not null", "yes", "x < 5", "cents > 20 or k = 'ann'"]
WINDOWS = ["tumbling", "sliding", "session", "moment"]


@dataclass(frozen=True)
class Composed:
    """``text`` says what it is."""

    frame: DataFrame
    mode: str
    text: str


def composed(events: DataFrame, seed: int) -> Composed:
    draw = random.Random(seed)
    rows, words = _rows(events, draw)
    kind = draw.choices(["groups", "windows", "duplicates", "twice"], [4, 5, 2, 1])[0]
    if kind == "duplicates":
        return _duplicates(rows, words, draw)
    if kind == "twice":
        return _twice(rows, words, draw)
    keys = draw.sample(KEYS, draw.choice([0, 1, 1, 2]))
    modes, window = ["update", "complete"], "no window"
    by: list[Column | str] = [F.expr(key).alias(f"key{number}") for number, key in enumerate(keys)]
    if kind == "windows":
        window = draw.choice(WINDOWS)
        if window == "session" and not keys:
            by, keys = [F.col("k")], ["k"]
        delay = draw.choice(["0 seconds", "10 minutes", "30 minutes"])
        rows = rows.withWatermark("ts", delay)
        at = draw.randrange(len(by) + 1)
        made, lasts = _window(window, draw)
        by.insert(at, made)
        modes = ["append", "complete"] if window == "session" else ["append", "append", "update", "complete"]
        window = f"{window} {lasts}, {delay} late at place {at}"
    functions = _functions(draw)
    frame = rows.groupBy(*by).agg(*(F.expr(each).alias(f"f{number}") for number, each in enumerate(functions)))
    words += [f"by {', '.join(keys) or 'nothing'}", window, ", ".join(functions)]
    exact = not functions[0].startswith(ROUNDED)
    if draw.random() < 0.4 and exact:
        above = draw.choice(["f0 is not null", "length(string(f0)) > 1", "hash(f0) % 3 <> 0"])
        frame, words = frame.where(above), [*words, f"where {above}"]
    if draw.random() < 0.3 and exact:
        frame, words = frame.selectExpr("*", "coalesce(string(f0), 'none') as text"), [*words, "and text"]
    mode = draw.choice(modes)
    return Composed(frame, mode, "; ".join([*words, mode]))


def _rows(events: DataFrame, draw: random.Random) -> tuple[DataFrame, list[str]]:
    rows, words = events, []
    if draw.random() < 0.3:
        chosen = draw.choice(FILTERS)
        rows, words = rows.where(chosen), [f"rows with {chosen}"]
    match draw.randrange(6):
        case 0:
            names = events.sparkSession.createDataFrame([("ann", 1), ("bob", 2)], "k string, team int")
            how = draw.choice(["inner", "left"])
            return rows.join(names, "k", how).drop("team"), [*words, f"{how} join with a table"]
        case 1:
            return rows.union(rows.where("n = 4")), [*words, "a union"]
    return rows, words


def _functions(draw: random.Random) -> list[str]:
    made = []
    for _ in range(draw.choice([1, 2, 3, 5])):
        function = draw.choice(FUNCTIONS).format(draw.choice(COLUMNS))
        if draw.random() < 0.25 and not function.startswith("sort_array"):
            function += f" filter (where {draw.choice(FILTERS)})"
        made.append(function)
    return made


def _window(window: str, draw: random.Random) -> tuple[Column | str, str]:
    """And how long it lasts."""
    match window:
        case "tumbling":
            lasts = draw.choice(["5 minutes", "17 minutes", "1 hour"])
            return F.window("ts", lasts), lasts
        case "sliding":
            slides = draw.choice([("10 minutes", "5 minutes"), ("12 minutes", "5 minutes", "1 minute")])
            return F.window("ts", *slides), ", ".join(slides)
        case "session":
            gap = draw.choice(["20 seconds", "3 minutes"])
            return F.session_window("ts", gap), gap
    return "ts", "of a row"


def _duplicates(rows: DataFrame, words: list[str], draw: random.Random) -> Composed:
    keys = draw.sample(["k", "n", "day", "yes"], draw.choice([1, 2, 3]))
    modes = ["append", "update"]
    match draw.randrange(3):
        case 0:
            frame, how = rows.select(*keys).dropDuplicates(), "duplicates"
        case 1:
            timed = rows.withWatermark("ts", "10 minutes").select("ts", *keys)
            frame, how = timed.dropDuplicates(["ts", *keys]), "duplicates by time, 10 minutes late,"
        case _:
            delay = draw.choice(["5 minutes", "1 hour"])
            timed = rows.withWatermark("ts", delay).select("ts", *keys)
            frame, how = timed.dropDuplicatesWithinWatermark(keys).select(*keys), f"duplicates within {delay}"
    mode = draw.choice(modes)
    return Composed(frame, mode, "; ".join([*words, f"{how} of {', '.join(keys)}", mode]))


def _twice(rows: DataFrame, words: list[str], draw: random.Random) -> Composed:
    delay = draw.choice(["0 seconds", "10 minutes"])
    timed = rows.withWatermark("ts", delay)
    small, large = draw.choice([("5 minutes", "20 minutes"), ("2 minutes", "10 minutes")])
    words += [f"tumbling {small}, {delay} late, by k"]
    first = timed.groupBy(F.window("ts", small), "k").agg(F.sum("n").alias("a"), F.count("*").alias("c"))
    if draw.random() < 0.5:
        words += ["where c > 1, a * 2 + c"]
        first = first.where("c > 1").withColumn("a", F.expr("a * 2 + c"))
    whole = draw.random() < 0.5
    again = F.window("window", large) if whole else F.window(F.window_time("window"), large)
    by = [again, *(["k"] if draw.random() < 0.5 else [])]
    words += [f"then tumbling {large} of {'window' if whole else 'its time'}{', k' if len(by) > 1 else ''}"]
    functions = draw.sample(["sum(a)", "max(c)", "avg(a)", "count(a)", "min(a + c)", "stddev(c)"], 2)
    frame = first.groupBy(*by).agg(*(F.expr(each).alias(f"f{number}") for number, each in enumerate(functions)))
    return Composed(frame, "append", "; ".join([*words, ", ".join(functions), "append"]))
