"""Bargain discovery: quotes that ask less than the symbol's recent average price (paper 001, section 6.1).

A market of trades and quotes, 80 % of them quotes, 500 a second on average and 2,200 at the peak. 4,095 symbols, whose
activity falls like 1 / rank (Zipf 1): a few are traded all the time, thousands hardly ever. Their prices drift. Rows
carry an ascending key from the source to the output. docs/assessment.md says how drift, spread and activity were chosen
and what other choices give.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from holdfast import operators as op
from holdfast.operators import Pipeline
from holdfast.operators.columns import conformed
from holdfast.workloads import generated
from holdfast.workloads.expressions import drawn
from holdfast.workloads.files import InputFile
from holdfast.workloads.generated import Rows
from holdfast.workloads.picks import TIME, Pick, pick_integer, pick_number, pick_text, pick_time
from holdfast.workloads.workload import Options, Workload

Floats = NDArray[np.float64]
LATEST = 5
"""How many trades of a symbol an average is taken over."""
OCTAVES = 12
SYMBOLS = 2**OCTAVES - 1
"""Ranks 1, 2-3, 4-7 ... 2,048-4,095 are twelve octaves, each with the same share of rows: Zipf's law, exponent 1."""
QUOTES = 0.8
TRADE, QUOTE = "trade", "quote"
KIND, SYMBOL, NOISE, SIZE = 0, 1, 2, 3
"""Lanes of the draws of a row."""
BASE, SLOW, FAST = 201, 202, 203
"""Lanes of the draws of a symbol: its base price, and the knots between which its price drifts."""
SLOW_ROWS, SLOW_DRIFT = 120_000, 0.03
FAST_ROWS, FAST_DRIFT = 30_000, 0.02
"""A drift: from one knot to the next in so many rows, each within this share of the base price."""
SPREAD, BELOW = 0.004, 0.3
"""Asks lie within SPREAD of the price, a share BELOW of them under it."""
TICK = 0.0005
"""Trades are made within this share of the price."""
BUSY_ROWS, BUSY_SECONDS = 11_000, 5
CYCLE_ROWS, CYCLE_SECONDS = 50_000, 100
"""Of every 100 seconds with 50,000 rows, the first five are busy: 2,200 rows a second."""

MARKET = pa.schema(
    {
        "key": pa.int64(),
        "time": TIME,
        "kind": pa.string(),
        "symbol": pa.string(),
        "price": pa.float64(),
        "size": pa.int64(),
    }
)
TRADES = pa.schema({"key": pa.int64(), "symbol": pa.string(), "price": pa.float64(), "size": pa.int64()})
AVERAGES = pa.schema({"key": pa.int64(), "symbol": pa.string(), "average": pa.float64()})
BARGAINS = pa.schema([*TRADES, pa.field("average", pa.float64()), pa.field("gain", pa.float64())])


class LatestTrades(op.Operator):
    """For every trade the volume and the amount of the symbol's five latest, itself included, by ascending key."""

    by = ("symbol",)

    def __init__(self) -> None:
        self._before = [f"{what}{back}" for back in range(1, LATEST) for what in ("key", "volume", "amount")]
        kinds = {"key": pa.int64(), "volume": pa.int64(), "amount": pa.float64()}
        value = pa.schema([(name, kinds[name.rstrip("1234")]) for name in self._before])
        self.tables = {"state": op.StateSchema(pa.schema({"symbol": pa.string()}), value)}

    def process(self, batch: pa.Table, state: op.State) -> pa.Table | None:
        trades = _frame(conformed(batch, TRADES, "latest trades"))
        if trades.is_empty():
            return None
        new = trades.select("symbol", "key", volume="size", amount=pl.col("price") * pl.col("size"))
        symbols = new.select(pl.col("symbol").unique(maintain_order=True))
        held = symbols.hstack(_frame(state.lookup(_arrow(symbols))).select(self._before))
        older = [
            held.select("symbol", key=f"key{back}", volume=f"volume{back}", amount=f"amount{back}")
            for back in range(LATEST - 1, 0, -1)
        ]
        old = pl.concat(older).drop_nulls("key")
        known = pl.concat([old.with_columns(new=pl.lit(False)), new.with_columns(new=pl.lit(True))])
        known = known.sort("symbol", "key", maintain_order=True)
        # Rows of a symbol stand together, so one further up is its own or another's: far cheaper than a window each.
        known = known.with_columns(
            pl.when(pl.col("symbol").eq_missing(pl.col("symbol").shift(back)))
            .then(pl.col("key", "volume", "amount").shift(back))
            .name.suffix(str(back))
            for back in range(1, LATEST)
        )
        last = known.group_by("symbol", maintain_order=True).last()
        shifted = {
            f"{what}{back}": f"{what}{back - 1}" if back > 1 else what
            for back in range(1, LATEST)
            for what in ("key", "volume", "amount")
        }
        state.update(_arrow(last.select("symbol", **shifted)))
        answer = known.filter("new").sort("key", maintain_order=True)
        return _arrow(answer.select("key", "symbol", volume=_summed("volume"), amount=_summed("amount")))


class BargainIndex(op.Operator):
    """Quotes that ask less than the latest average of their symbol, the last one with a smaller key; and the gain."""

    by = ("symbol",)

    def __init__(self, averages: str, quotes: str) -> None:
        self._averages, self._quotes = averages, quotes
        value = pa.schema({"key": pa.int64(), "average": pa.float64()})
        self.tables = {"state": op.StateSchema(pa.schema({"symbol": pa.string()}), value)}

    def process_inputs(self, inputs: Mapping[str, pa.Table], state: op.State) -> pa.Table | None:
        averages = _frame(conformed(inputs[self._averages], AVERAGES, "bargain index"))
        quotes = _frame(conformed(inputs[self._quotes], TRADES, "bargain index")).sort("key")
        symbols = pl.concat([averages.select("symbol"), quotes.select("symbol")]).unique(maintain_order=True)
        if symbols.is_empty():
            return BARGAINS.empty_table()
        held = symbols.hstack(_frame(state.lookup(_arrow(symbols))).select("key", "average")).drop_nulls("average")
        known = pl.concat([held.select("key", "symbol", "average"), averages]).sort("key")
        latest = known.group_by("symbol", maintain_order=True).last().select("symbol", "key", "average")
        state.update(_arrow(latest))
        joined = quotes.join_asof(known, on="key", by="symbol", strategy="backward", check_sortedness=False)
        gain = pl.col("size") * (pl.col("average") - pl.col("price"))
        bargains = joined.with_columns(gain=gain).filter(pl.col("gain") > 0)
        return _arrow(bargains.select(BARGAINS.names)).cast(BARGAINS)


def pipeline(parallelism: int = 1) -> Pipeline:
    """The paper's graph; its sink, which writes a file, is the output of the last operator here.

    ``parallelism``: tasks of the aggregator and of the index, which own a part of the symbols each.
    """
    columns = ["key", "kind", "symbol", "price", "size"]
    average = op.map("key", "symbol", average=pl.col("amount") / pl.col("volume"))
    return Pipeline(
        op.source("Source", event_time="time"),
        op.step("TradeQuote", op.map(*columns), "Source"),
        op.step("TradeFilter", op.filter(pl.col("kind") == TRADE), "TradeQuote"),
        op.step("QuoteFilter", op.filter(pl.col("kind") == QUOTE), "TradeQuote"),
        op.step("Aggregator", LatestTrades(), "TradeFilter", parallelism=parallelism),
        op.step("VWAP", average, "Aggregator", parallelism=parallelism),
        op.step(
            "BargainIndex",
            BargainIndex("VWAP", "QuoteFilter"),
            ["VWAP", "QuoteFilter"],
            parallelism=parallelism,
            correlated=True,
        ),
    )


def _summed(name: str) -> pl.Expr:
    """The newest first: the order of a sum of floats is part of its value."""
    total = pl.col(name)
    for back in range(1, LATEST):
        total = total + pl.col(f"{name}{back}").fill_null(0)
    return total


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _arrow(frame: pl.DataFrame) -> pa.Table:
    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def _expressions(options: Options) -> dict[str, str]:
    """Mirrors ``_rows``; operations come in the same order, so that both round alike."""
    octave = f"cast(floor(u{SYMBOL} * {float(OCTAVES)!r}D) as int)"
    within = f"(u{SYMBOL} * {float(OCTAVES)!r}D - cast({octave} as double))"
    symbol = f"(cast(floor(({within} + 1.0D) * cast(shiftleft(1L, {octave}) as double)) as bigint) - 1L)"
    drifts = [
        (SLOW, SLOW_ROWS, SLOW_DRIFT),
        (FAST, FAST_ROWS, FAST_DRIFT),
    ]
    level = " + ".join(["1.0D", *(_drift_expression(options.seed, symbol, *each) for each in drifts)])
    price = f"(({drawn(options.seed, BASE, symbol)} * 190.0D + 10.0D) * ({level}))"
    trade = f"({price} * ((u{NOISE} - 0.5D) * {TICK!r}D + 1.0D))"
    ask = f"({price} * ((u{NOISE} - {BELOW!r}D) * {SPREAD!r}D + 1.0D))"
    within = f"(value % {CYCLE_ROWS}L)"
    busy, rest = BUSY_SECONDS * 1_000_000, (CYCLE_SECONDS - BUSY_SECONDS) * 1_000_000
    micros = (
        f"(value div {CYCLE_ROWS}L) * {CYCLE_SECONDS * 1_000_000}L + CASE WHEN {within} < {BUSY_ROWS}L "
        f"THEN {within} * {busy}L div {BUSY_ROWS}L "
        f"ELSE {busy}L + ({within} - {BUSY_ROWS}L) * {rest}L div {CYCLE_ROWS - BUSY_ROWS}L END"
    )
    return {
        "key": "value",
        "time": f"timestamp_micros({micros})",
        "kind": f"CASE WHEN u{KIND} < {QUOTES!r}D THEN '{QUOTE}' ELSE '{TRADE}' END",
        "symbol": f"concat('S', lpad({symbol}, 4, '0'))",
        "price": f"CASE WHEN u{KIND} < {QUOTES!r}D THEN {ask} ELSE {trade} END",
        "size": f"(cast(floor(u{SIZE} * 10.0D) as bigint) + 1L) * 100L",
    }


def _drift_expression(seed: int, symbol: str, lane: int, rows: int, drift: float) -> str:
    knot = f"({symbol} * 1000000L + value div {rows}L)"
    here, there = drawn(seed, lane, knot), drawn(seed, lane, f"({knot} + 1L)")
    return f"((({there} - {here}) * (cast(value % {rows}L as double) / {rows}.0D) + {here}) - 0.5D) * {drift!r}D"


def _rows(rows: Rows, options: Options) -> pa.Table:
    draws = partial(generated.draw, seed=options.seed)
    symbol = _symbols(draws(rows, lane=SYMBOL))
    level = 1.0 + _drift(rows, symbol, options.seed, SLOW, SLOW_ROWS, SLOW_DRIFT)
    level = level + _drift(rows, symbol, options.seed, FAST, FAST_ROWS, FAST_DRIFT)
    price = (draws(symbol, lane=BASE) * 190.0 + 10.0) * level
    noise = draws(rows, lane=NOISE)
    quotes = draws(rows, lane=KIND) < QUOTES
    paid = price * ((noise - 0.5) * TICK + 1.0)
    asked = price * ((noise - BELOW) * SPREAD + 1.0)
    names = pa.array([f"S{number:04d}" for number in range(SYMBOLS)])
    return pa.table(
        {
            "key": rows,
            "time": pa.array(_micros(rows)).cast(TIME),
            "kind": pa.array([TRADE, QUOTE]).take(pa.array(quotes.astype(np.int64))),
            "symbol": names.take(pa.array(symbol)),
            "price": np.where(quotes, asked, paid),
            "size": (np.floor(draws(rows, lane=SIZE) * 10.0).astype(np.int64) + 1) * 100,
        }
    )


def _symbols(drawn: Floats) -> Rows:
    """An octave, and a symbol within it."""
    octave = np.floor(drawn * float(OCTAVES))
    within = drawn * float(OCTAVES) - octave
    return np.asarray(np.floor((within + 1.0) * np.exp2(octave)).astype(np.int64) - 1)


def _drift(rows: Rows, symbol: Rows, seed: int, lane: int, length: int, drift: float) -> Floats:
    knot = symbol * 1_000_000 + rows // length
    here, there = generated.draw(knot, seed, lane), generated.draw(knot + 1, seed, lane)
    return ((there - here) * ((rows % length).astype(np.float64) / float(length)) + here - 0.5) * drift


def _micros(rows: Rows) -> Rows:
    within = rows % CYCLE_ROWS
    busy, rest = BUSY_SECONDS * 1_000_000, (CYCLE_SECONDS - BUSY_SECONDS) * 1_000_000
    late = busy + (within - BUSY_ROWS) * rest // (CYCLE_ROWS - BUSY_ROWS)
    return rows // CYCLE_ROWS * (CYCLE_SECONDS * 1_000_000) + np.where(
        within < BUSY_ROWS, within * busy // BUSY_ROWS, late
    )


def _picks(file: InputFile, options: Options) -> tuple[Pick, ...]:
    return (
        pick_integer(file, "key"),
        pick_time(file, options.rate),
        pick_text(file, "kind", "kind"),
        pick_text(file, "symbol", "symbol"),
        pick_number(file, "price"),
        pick_integer(file, "size"),
    )


BARGAIN_DISCOVERY = Workload(
    name="bargain-discovery",
    pipeline=pipeline,
    columns=tuple(BARGAINS.names),
    input=MARKET,
    lanes=4,
    vocabulary=0,
    expressions=_expressions,
    rows=_rows,
    picks=_picks,
)
