"""Sixty and more queries that people write, by name: what each is, and the modes that Structured Streaming allows it.

Their rows: ``events`` with nulls and late rows, ``gaps`` whose batches are empty now and then, ``once`` that falls
silent after its first batch, ``views`` and ``clicks`` of advertisements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

EVENTS = "k string, n int, x double, cents decimal(10,2), ts timestamp, day date, yes boolean"
VIEWS = "ad string, page int, seen timestamp, tags array<string>, score double"
CLICKS = "ad string, user string, clicked timestamp, cost decimal(8,2), score double"
SCHEMAS = {"events": EVENTS, "gaps": EVENTS, "once": EVENTS, "views": VIEWS, "clicks": CLICKS}


@dataclass(frozen=True)
class Streams:
    """A file for each micro-batch, in a folder for each stream."""

    spark: SparkSession
    root: Path

    def read(self, name: str) -> DataFrame:
        stream = self.spark.readStream.schema(SCHEMAS[name]).option("maxFilesPerTrigger", 1)
        return stream.option("allowNonNumericNumbers", True).json(str(self.root / name))

    @property
    def e(self) -> DataFrame:
        return self.read("events")

    @property
    def timed(self) -> DataFrame:
        return self.e.withWatermark("ts", "10 minutes")

    @property
    def views(self) -> DataFrame:
        return self.read("views")

    @property
    def clicks(self) -> DataFrame:
        return self.read("clicks")

    def table(self, rows: list[tuple[object, ...]], schema: str) -> DataFrame:
        return self.spark.createDataFrame(rows, schema)

    def sql(self, text: str) -> DataFrame:
        self.timed.createOrReplaceTempView("events")
        self.views.withWatermark("seen", "5 minutes").createOrReplaceTempView("views")
        self.clicks.withWatermark("clicked", "8 minutes").createOrReplaceTempView("clicks")
        return self.spark.sql(text)

    def ranged(self, how: str, also: str = "true", whole: bool = False) -> DataFrame:
        """A click comes up to ten minutes after its view; ``whole``: without rows that have no ad."""
        views, clicks = self.views, self.clicks
        if whole:
            views, clicks = views.dropna(subset="ad"), clicks.dropna(subset="ad")
        left, right = views.withWatermark("seen", "5 minutes"), clicks.withWatermark("clicked", "8 minutes")
        soon = "v.ad = c.ad and clicked >= seen and clicked <= seen + interval 10 minutes"
        return left.alias("v").join(right.alias("c"), F.expr(f"{soon} and {also}"), how)

    def windowed(self, how: str) -> DataFrame:
        left = self.views.withWatermark("seen", "5 minutes").select(F.window("seen", "5 minutes"), "ad", "page")
        right = self.clicks.withWatermark("clicked", "8 minutes").select(F.window("clicked", "5 minutes"), "ad", "user")
        return left.join(right, ["window", "ad"], how)


def half(name: str) -> Column:
    return F.udf(lambda n: None if n is None else n / 2, "double")(name)


def size(name: str) -> Column:
    return F.udf(lambda cents: None if cents is None else "large" if cents > 50 else "small", "string")(name)


@dataclass(frozen=True)
class Named:
    """``modes``: all that are allowed."""

    make: Callable[[Streams], DataFrame]
    modes: tuple[str, ...]


ALL, GROUPS, ROWS, APPEND = ("append", "update", "complete"), ("update", "complete"), ("append", "update"), ("append",)

BY_KEY = {
    "functions": lambda s: s.e.groupBy("k").agg(
        F.count("*"), F.count("n"), F.sum("n"), F.avg("n"), F.min("x"), F.max("x"), F.sum("cents"), F.avg("cents"),
        F.max("ts"), F.min("day"), F.max("yes"), F.max("k"),
    ),
    "no keys": lambda s: s.e.agg(F.count("*"), F.sum("n"), F.max("x")),
    "above": lambda s: s.e.groupBy((F.col("n") % 3).alias("m"), "day").agg(
        (F.max("n") - F.min("n")).alias("range"), F.count("*").alias("c"), F.sum(half("n"))
    ).where("c > 20").selectExpr("upper(string(day)) as day", "m", "range + c as both"),
    "sql": lambda s: s.sql(
        "with e as (select *, length(k) l from events where n > 1) select l * 2 as l2, sum(n) / count(*) as mean, "
        "count_if(n > 3) big, count(*) filter (where yes) y from e group by l * 2 having max(n) > 2",
    ),
    "a static table, a union": lambda s: s.e.select("k", "n").union(s.e.select("k", "n")).join(
        s.table([("ann", "A"), ("bob", "B")], "k string, team string"), "k", "left"
    ).groupBy("team").agg(F.count("*"), F.avg("n")),
    "structs as keys": lambda s: s.e.groupBy(
        F.when(F.col("n") > 2, F.struct("k", F.struct("day"))).alias("s")
    ).agg(F.sum("n")),
    "by a date": lambda s: s.e.groupBy("day").agg(F.sum("cents").alias("income"), F.avg("cents"), F.max("cents")),
    "by a decimal": lambda s: s.e.groupBy(F.col("cents").cast("decimal(3,0)")).agg(F.count("*"), F.avg("x")),
    "by a boolean": lambda s: s.e.groupBy("yes").agg(F.min("ts"), F.max("day"), F.avg("n"), F.count("k")),
    "by a float": lambda s: s.e.groupBy(F.round("x").alias("x")).agg(F.count("*"), F.sum("n")),
    "by a moment": lambda s: s.e.groupBy(F.date_trunc("minute", "ts").alias("minute")).agg(F.count("*"), F.max("k")),
    "by bytes": lambda s: s.e.groupBy(F.col("k").cast("binary").alias("b")).agg(F.sum("n"), F.max("cents")),
    "by small and large numbers": lambda s: s.e.groupBy(
        F.col("n").cast("tinyint").alias("t"), (F.col("n").cast("bigint") * 3_000_000_000).alias("l")
    ).agg(F.sum(F.col("n").cast("smallint")), F.min(F.col("n").cast("float"))),
    "by many keys": lambda s: s.e.groupBy("k", "day", "yes", F.col("n") % 2).agg(F.count("*"), F.sum("cents")),
    "by a function of one's own": lambda s: s.e.groupBy(size("cents").alias("size"), "yes").agg(F.avg("cents")),
    "by a case": lambda s: s.e.groupBy(
        F.expr("case when n is null then 'none' when n > 4 then 'many' else 'few' end as how_many")
    ).agg(F.count("*"), F.expr("count(k) filter (where yes)")),
    "having what is not shown": lambda s: s.sql(
        "select k, max(cents) from events group by k having count(*) > 30 and min(n) is not null"
    ),
    "shares and labels": lambda s: s.e.groupBy("k").agg(
        F.sum("n").alias("n"), F.count("*").alias("c"), F.sum(F.col("yes").cast("int")).alias("y")
    ).selectExpr("coalesce(k, '?') as who", "round(100.0 * y / c, 1) as percent", "if(n > 300, 'busy', 'calm') as is"),
    "columns by value": lambda s: s.e.groupBy("day").agg(
        *(F.sum(F.when(F.col("k") == name, F.col("n"))).alias(name) for name in ("ann", "bob", "cy"))
    ),
    "cube": lambda s: s.e.cube("k", "yes").agg(F.count("*"), F.sum("cents")),
    "rollup in sql": lambda s: s.sql(
        "select day, k, grouping_id() as level, sum(n) from events group by rollup (day, k)"
    ),
    "exploded rows": lambda s: s.e.where("n is not null").select(
        "k", F.explode(F.sequence(F.lit(0), F.col("n") % 3)).alias("step")
    ).groupBy("step").agg(F.count("*"), F.max("k")),
    "parsed text": lambda s: s.e.select(
        F.from_json(F.to_json(F.struct("k", "n", "cents")), "k string, n int, cents decimal(10,2)").alias("j")
    ).groupBy("j.k").agg(F.sum("j.n"), F.max("j.cents")),
    "the latest of each": lambda s: s.e.groupBy("k").agg(F.max("ts"), F.max_by("cents", "ts"), F.min_by("n", "ts")),
    "the largest of all": lambda s: s.e.agg(F.max(F.struct("cents", "k", "n")).alias("m")).select("m.k", "m.cents"),
    "first and last": lambda s: s.e.groupBy("yes").agg(
        F.first("n"), F.last("n"), F.first("day", ignorenulls=True), F.last("cents", ignorenulls=True)
    ),
    "percentiles": lambda s: s.e.groupBy("day").agg(
        F.percentile_approx("n", [0.5, 0.9]), F.expr("percentile(x, 0.25) filter (where x < 5)")
    ),
    "lists and sets": lambda s: s.e.groupBy("k").agg(
        F.sort_array(F.collect_list("n")), F.sort_array(F.collect_set("day")), F.size(F.collect_list("cents"))
    ),
    "statistics": lambda s: s.e.groupBy("k").agg(
        F.stddev("n"), F.var_pop("cents"), F.skewness("n"), F.corr("n", "cents"), F.covar_samp("n", "cents")
    ),
    "how many different": lambda s: s.e.groupBy("yes").agg(
        F.approx_count_distinct("k"), F.approx_count_distinct("cents", 0.1)
    ),
    "two streams in one": lambda s: s.e.selectExpr("k as who", "n").union(
        s.clicks.selectExpr("user as who", "int(cost) as n")
    ).groupBy("who").agg(F.count("*"), F.sum("n")),
}  # fmt: skip

WINDOWS = {
    "tumbling": lambda s: s.timed.groupBy(F.window("ts", "10 minutes"), "k").agg(F.count("*").alias("c"), F.sum("n")),
    "sliding, window alone": lambda s: s.timed.where("n > 2").groupBy(
        F.window("ts", "10 minutes", "5 minutes")
    ).count().select("window.end", "count"),
    "event time as a key": lambda s: s.timed.groupBy("ts", "k").count(),
    "window alone": lambda s: s.timed.groupBy(F.window("ts", "1 hour")).agg(F.count("*"), F.sum("cents"), F.max("ts")),
    "sliding, begun late": lambda s: s.timed.groupBy(
        F.window("ts", "12 minutes", "5 minutes", "1 minute"), "day"
    ).agg(F.avg("n"), F.min("cents")),
    "sliding, late rows and batches without any": lambda s: s.read("gaps").withWatermark("ts", "5 minutes").select(
        F.window("ts", "20 minutes", "5 minutes", "2 minutes").alias("w"), "k", "n", "x", "cents", "ts"
    ).groupBy("k", "w").agg(
        F.count("*").alias("c"), F.avg("x"), F.sum("cents"), F.min("ts"), F.expr("max(n) filter (where k <> 'bob')")
    ).where("c > 1"),
    "sliding, in the order of arrival": lambda s: s.timed.groupBy(F.window("ts", "10 minutes", "5 minutes")).agg(
        F.sort_array(F.collect_list("n")), F.approx_count_distinct("k"), F.stddev("n")
    ),
    "sliding, the window looked at": lambda s: s.timed.withColumn("w", F.window("ts", "15 minutes", "5 minutes")).where(
        "minute(w.end) > 10"
    ).groupBy("w", "yes").agg(F.count("*"), F.max("w.start")),
    "windows in sql": lambda s: s.sql(
        "select window.start as begun, k, count(*) c, sum(cents) from events where k is not null "
        "group by window(ts, '10 minutes'), k having count(*) > 3"
    ),
    "nothing may be late": lambda s: s.e.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "5 minutes")).count(),
    "much may be late": lambda s: s.e.withWatermark("ts", "50 minutes").groupBy(F.window("ts", "30 minutes")).agg(
        F.count("*"), F.min("ts")
    ),
    "batches without rows": lambda s: s.read("gaps").withWatermark("ts", "5 minutes").groupBy(
        F.window("ts", "10 minutes"), "yes"
    ).agg(F.count("*"), F.avg("n")),
    "a source that falls silent": lambda s: s.timed.select("ts", "k").union(
        s.read("once").withWatermark("ts", "30 minutes").select("ts", "k")
    ).groupBy(F.window("ts", "10 minutes")).agg(F.count("*"), F.max("k")),
    "watermarks of two streams": lambda s: s.timed.selectExpr("ts as at", "k as who").union(
        s.clicks.withWatermark("clicked", "1 minute").selectExpr("clicked as at", "user as who")
    ).groupBy(F.window("at", "15 minutes"), "who").count(),
    "time from text": lambda s: s.e.selectExpr("to_timestamp(day || ' ' || substring(ts, 12, 8)) as at", "yes", "n")
    .withWatermark("at", "1 hour").groupBy(F.window("at", "6 hours"), "yes").agg(F.count("*"), F.sum("n")),
    "windows of teams": lambda s: s.timed.join(
        F.broadcast(s.table([("ann", 1), ("bob", 1), ("cy", 2)], "k string, team int")), "k"
    ).groupBy("team", F.window("ts", "20 minutes")).agg(F.approx_count_distinct("k"), F.sum("cents")),
    "rates": lambda s: s.timed.groupBy(F.window("ts", "10 minutes")).agg(
        F.expr("count(*) filter (where yes)").alias("y"), F.count("*").alias("c")
    ).selectExpr("window.start", "y / c as rate", "c * 60 / 600 as a_minute"),
    "structs, dates and decimals with a window": lambda s: s.timed.groupBy(
        F.struct("k", "day").alias("who"), F.window("ts", "30 minutes"), F.col("cents").cast("decimal(3,0)")
    ).agg(F.count("*")),
}  # fmt: skip

SESSIONS = {
    "sessions": lambda s: s.timed.groupBy(F.session_window("ts", "40 seconds"), "k").agg(
        F.count("*"), F.max("n")
    ).where("k is not null"),
    "sessions of their own length": lambda s: s.timed.groupBy(
        F.session_window("ts", F.when(F.col("k") == "ann", "10 seconds").otherwise("2 minutes")), "yes", "day"
    ).agg(F.sum("n"), F.avg("cents")),
    "visits and how long": lambda s: s.timed.where("k is not null").groupBy(
        F.session_window("ts", "3 minutes"), "k"
    ).agg(F.count("*").alias("steps"), F.min("ts").alias("first")).selectExpr(
        "k", "steps", "unix_timestamp(session_window.end) - unix_timestamp(first) as seconds"
    ),
    "sessions, cut by sliding windows": lambda s: s.e.select(
        "ts", "n", F.window("ts", "20 minutes", "5 minutes").alias("w")
    ).groupBy("w", F.session_window("ts", "3 minutes")).agg(F.count("*"), F.sum("n")),
}  # fmt: skip

IN_A_ROW = {
    "windows of windows": lambda s: s.timed.groupBy(F.window("ts", "5 minutes"), "k").agg(
        F.count("*").alias("c"), F.avg("n").alias("m")
    ).where("c > 1").groupBy(F.window(F.window_time("window"), "15 minutes", "5 minutes")).agg(
        F.sum("c"), F.max("m"), F.count(F.when(F.col("k") == "ann", 1))
    ),
    "windows of windows, sliding": lambda s: s.timed.groupBy(F.window("ts", "5 minutes"), "k").agg(
        F.count("*").alias("c"), F.sum("cents").alias("paid")
    ).where("c > 1").groupBy(F.window(F.window_time("window"), "15 minutes", "5 minutes"), "k").agg(
        F.sum("c"), F.sum("paid"), F.count("*")
    ).select("window.start", "k", "count(1)", "sum(c)", "sum(paid)"),
    "the busiest of each hour": lambda s: s.timed.groupBy(F.window("ts", "5 minutes"), "k").count().groupBy(
        F.window("window", "1 hour")
    ).agg(F.max(F.struct("count", "k")).alias("top")).select("window.start", "top.k", "top.count"),
    "visits of each half hour": lambda s: s.timed.groupBy(F.session_window("ts", "3 minutes"), "k").agg(
        F.count("*").alias("steps")
    ).groupBy(F.window(F.window_time("session_window"), "30 minutes")).agg(F.count("*"), F.avg("steps")),
    "duplicates, then windows": lambda s: s.timed.dropDuplicates(["ts", "k"]).groupBy(
        F.window("ts", "10 minutes")
    ).agg(F.count("*")),
    "duplicates within the watermark, then windows": lambda s: s.timed.dropDuplicatesWithinWatermark(
        ["k", "n"]
    ).groupBy(F.window("ts", "10 minutes"), "k").agg(F.count("*"), F.sum("n")),
    "inner, then windows": lambda s: s.ranged("inner", "(page > 1 or user = 'v')").groupBy(
        F.window("seen", "5 minutes"), "user"
    ).agg(F.count("*"), F.sum("cost"), F.max(F.col("page") + 1)),
    "left, then windows": lambda s: s.ranged("left", whole=True).groupBy(F.window("seen", "10 minutes")).agg(
        F.count("*"), F.count("user"), F.sum("cost")
    ),
    "windows joined, then counted": lambda s: s.windowed("inner").groupBy("window").agg(F.count("*"), F.max("page")),
    "inner, then duplicates": lambda s: s.ranged("inner").select("seen", "v.ad", "user").dropDuplicates(
        ["seen", "ad", "user"]
    ),
}  # fmt: skip

DUPLICATES = {
    "distinct": lambda s: s.e.select("k", "day").distinct(),
    "duplicates": lambda s: s.e.select("k", "n").dropDuplicates(),
    "duplicates by event time": lambda s: s.e.withColumn("ts", F.when(F.col("n") != 3, F.col("ts")))
    .withWatermark("ts", "10 minutes").select("ts", "k").dropDuplicates(["ts", "k"]).where("k is not null"),
    "duplicates within the watermark": lambda s: s.timed.selectExpr(
        "ts", "n % 4 as m", "upper(k) as k"
    ).dropDuplicatesWithinWatermark(["m", "k"]).select("m", "k"),
    "distinct in sql": lambda s: s.sql("select distinct k, cents > 50 as large, day from events where yes"),
    "duplicates of structs and decimals": lambda s: s.e.select(
        F.struct("k", "yes").alias("who"), F.col("cents").cast("decimal(3,0)").alias("c")
    ).dropDuplicates().selectExpr("who.k", "who.yes", "c * 2 as twice"),
    "duplicates of a union": lambda s: s.e.select("k").union(s.clicks.select("user")).dropDuplicates(),
}  # fmt: skip

JOINS = {
    "inner": lambda s: s.ranged("inner"),
    "left": lambda s: s.ranged("left"),
    "right": lambda s: s.ranged("right").select("v.ad", "user", "cost", "tags"),
    "full": lambda s: s.ranged("full", whole=True).where("page is null or page > 1"),
    "left, conditions on one side and on both": lambda s: s.ranged(
        "left", "page > 1 and user <> 'w' and v.score >= c.score and v.ad <> upper(user)"
    ),
    "joined in sql, conditions above": lambda s: s.sql(
        "select upper(v.ad) ad, page + 1 as page, user, cost * 2 twice from views v, clicks c where v.ad = c.ad and "
        "clicked between seen - interval 3 minutes and seen + interval 10 minutes and page > 1 and user <> 'u' "
        "and (page = 3 or user = 'v')"
    ),
    "windows, inner": lambda s: s.windowed("inner"),
    "windows, left": lambda s: s.windowed("left"),
    "windows, right": lambda s: s.windowed("right"),
    "windows, full": lambda s: s.windowed("full").where("ad is not null"),
    "floats are equal, a static table": lambda s: s.views.join(
        s.table([(1, "one")], "page int, name string"), "page"
    ).join(s.clicks.selectExpr("score", "user as u").where("u = 'u'"), "score"),
    "null safe": lambda s: s.views.select("ad", "page").join(
        s.clicks.withColumnRenamed("ad", "about"), F.expr("ad <=> about")
    ).where("user = 'v'"),
    "no time is read": lambda s: s.views.withWatermark("seen", "1 minute").join(
        s.clicks.withWatermark("clicked", "1 minute").selectExpr("ad", "user", "clicked"), "ad"
    ).select("ad", "page", "user"),
    "a watermark on one side": lambda s: s.views.withColumn("at", F.date_trunc("minute", "seen"))
    .withWatermark("at", "5 minutes").join(s.clicks.withColumn("at", F.date_trunc("minute", "clicked")), ["ad", "at"])
    .select("ad", "at", "page", "user"),
    "a stream with itself": lambda s: s.timed.select("ts", "k", "n").join(
        s.timed.selectExpr("ts as later", "k as who", "n as m"),
        F.expr("k = who and later > ts and later <= ts + interval 30 seconds"),
    ).selectExpr("k", "n - m as less"),
}  # fmt: skip

OTHERS = {
    "duplicates, then windows": ALL, "duplicates within the watermark, then windows": ALL, "distinct in sql": GROUPS,
    "inner, then windows": ROWS, "windows joined, then counted": ROWS, "inner, then duplicates": ROWS,
    **dict.fromkeys(("left", "right", "full", "windows, left", "windows, right", "windows, full"), APPEND),
    "left, conditions on one side and on both": APPEND, "sessions, cut by sliding windows": ("complete",),
}  # fmt: skip
"""Modes that are not those of its kind."""
KINDS = (
    (BY_KEY, GROUPS), (WINDOWS, ALL), (SESSIONS, ("append", "complete")), (IN_A_ROW, APPEND), (DUPLICATES, ROWS),
    (JOINS, ROWS),
)  # fmt: skip
NAMED = {name: Named(make, OTHERS.get(name, modes)) for kind, modes in KINDS for name, make in kind.items()}
KILLED = {
    "functions": "update", "no keys": "complete", "lists and sets": "update", "tumbling": "append",
    "sliding, window alone": "update", "sessions": "append", "windows of windows, sliding": "append",
    "duplicates within the watermark": "append", "left": "append", "inner, then windows": "append",
}  # fmt: skip
"""With these nodes die in the middle, in this mode."""
RESTARTED = {
    "structs as keys": "update", "by many keys": "complete", "the latest of each": "update", "tumbling": "update",
    "event time as a key": "append", "visits and how long": "append", "duplicates, then windows": "append",
    "duplicates": "update", "full": "append", "left, then windows": "append",
}  # fmt: skip
"""These are stopped and started again in the middle."""
