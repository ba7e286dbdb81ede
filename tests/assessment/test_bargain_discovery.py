"""Bargain discovery: rows against a plain reference, whatever the epochs and tasks; and the market it is fed with."""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import operators as op
from holdfast.assessment.placement import behaves_as, injection_targets
from holdfast.errors import Invalid
from holdfast.workloads import Options, workload

MARKET = workload("bargain-discovery")


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Row by row, in the order of keys: the five latest trades of each symbol, and every quote against them."""
    latest: dict[str, deque[tuple[int, float]]] = defaultdict(lambda: deque(maxlen=5))
    averages: dict[str, float] = {}
    found = []
    for row in rows:
        symbol = row["symbol"]
        if row["kind"] == "trade":
            latest[symbol].appendleft((row["size"], row["price"] * row["size"]))
            volume, amount = 0, 0.0
            for size, paid in latest[symbol]:
                volume, amount = volume + size, amount + paid
            averages[symbol] = amount / volume
        elif symbol in averages:
            gain = row["size"] * (averages[symbol] - row["price"])
            if gain > 0:
                own = {name: row[name] for name in ("key", "symbol", "price", "size")}
                found.append({**own, "average": averages[symbol], "gain": gain})
    return found


@pytest.mark.parametrize(("rate", "epochs", "parallelism"), [(6000, 1, 1), (1000, 6, 1), (37, 163, 1), (1500, 4, 3)])
def test_rows_are_those_of_the_plain_version(rate: int, epochs: int, parallelism: int) -> None:
    options = Options(rate=rate, epochs=epochs, seed=5)
    batches = [MARKET.batch(options, place) for place in range(epochs)]
    trial = op.Trial(MARKET.pipeline(parallelism=parallelism))
    got = pa.concat_tables([each.output for each in trial.run(batches)]).sort_by("key").to_pylist()
    assert got == plain(pa.concat_tables(batches).to_pylist())
    assert len(got) > 500
    assert set(got[0]) == set(MARKET.columns)


def test_the_market_is_as_busy_as_the_paper_says() -> None:
    rows = MARKET.batch(Options(rate=200_000, seed=3), 0)
    seconds = rows["time"].cast(pa.int64()).to_numpy() // 1_000_000
    counts = np.bincount(seconds)
    assert counts.max() == 2200
    assert rows.num_rows / len(counts) == 500
    assert np.diff(rows["time"].cast(pa.int64()).to_numpy()).min() >= 0
    quotes = np.asarray(rows["kind"].to_pylist()) == "quote"
    assert abs(quotes.mean() - 0.8) < 0.005


def test_activity_falls_like_one_over_the_rank() -> None:
    rows = MARKET.batch(Options(rate=400_000, seed=3), 0)
    symbols = np.array([int(name[1:]) for name in rows["symbol"].to_pylist()])
    assert len(np.unique(symbols)) == symbols.max() + 1 == 4095
    shares = np.bincount(np.floor(np.log2(symbols + 1)).astype(int)) / len(symbols)
    assert shares == pytest.approx([1 / 12] * 12, rel=0.02)  # each octave of ranks has the same share
    trades = symbols[np.asarray(rows["kind"].to_pylist()) == "trade"]
    assert np.median(np.bincount(trades, minlength=4095)) < 10  # most symbols hardly ever trade


def test_prices_drift() -> None:
    rows = MARKET.batch(Options(rate=300_000), 0)
    busiest = rows.filter(pa.compute.equal(rows["symbol"], "S0000"))
    trades = busiest.filter(pa.compute.equal(busiest["kind"], "trade"))["price"].to_numpy()
    steps = np.abs(np.diff(trades) / trades[:-1])
    assert np.median(steps) < 0.001  # from trade to trade hardly at all
    assert np.ptp(trades) / trades.mean() > 0.01  # but over time


def test_a_file_serves_as_a_market(tmp_path: Path) -> None:
    rows = MARKET.batch(Options(rate=2000, seed=9), 0)
    path = tmp_path / "market.parquet"
    pq.write_table(rows, path)
    options = Options(input=path, epochs=3)
    assert MARKET.check(options) == 2000
    assert pa.concat_tables([MARKET.batch(options, place) for place in range(3)]).equals(rows.combine_chunks())
    pq.write_table(rows.drop_columns("price"), path)
    with pytest.raises(Invalid, match="a column 'price' of numbers is needed"):
        MARKET.check(options)


def test_injection_targets_are_those_of_the_paper() -> None:
    topology = MARKET.pipeline().topology
    assert set(injection_targets(topology)) == {"Source", "TradeFilter", "QuoteFilter", "VWAP", "BargainIndex"}
    same = behaves_as(topology)
    assert same["TradeQuote"] == "Source"
    assert same["Aggregator"] == "TradeFilter"


def test_each_placement_rule_alone() -> None:
    state = op.aggregate("key", count=op.count())
    chain = op.Pipeline(op.source("a"), op.step("b", op.map("key"), "a"), op.step("c", op.map("key"), "b"))
    assert injection_targets(chain.topology) == ("a",)
    assert behaves_as(chain.topology) == {"a": "a", "b": "a", "c": "a"}
    fork = op.Pipeline(op.source("a"), op.step("b", op.map("key"), "a"), op.step("c", op.map("key"), "a"))
    assert injection_targets(fork.topology) == ("a", "b", "c")
    stateful = op.Pipeline(op.source("a"), op.step("b", state, "a"), op.step("c", op.map("key"), "b"))
    assert injection_targets(stateful.topology) == ("a", "c")
    join = op.Pipeline(op.source("a"), op.source("b"), op.step("c", op.map("key"), ["a", "b"]))
    assert injection_targets(join.topology) == ("a", "b", "c")
