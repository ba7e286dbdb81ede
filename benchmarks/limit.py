"""How far from the limit: the queries of throughput.py in polars alone, through Spark and Arrow alone, and for real.

    .venv/bin/python benchmarks/limit.py                                   # all sizes, three turns; about half an hour
    .venv/bin/python benchmarks/limit.py --query keyed-count --rows 1000000 --repeat 1 --batches 10
    .venv/bin/python benchmarks/limit.py --json limit.json

Two limits, on the same rows: ``polars`` does the work in one process, on rows that are in memory, without Spark,
exchange, output or anything durable (polars_alone.py); ``arrow`` lets Spark's source make the rows and hands them to
Python as Holdfast's runner does, where they are counted by the batch and forgotten (source_alone.py). Then Structured
Streaming and Holdfast by both doors, as throughput.py measures them: ``holdfast`` is a pipeline of operators, ``plain``
Structured Streaming's own query through ``holdfast.writeStream``. They go by turns, each measurement in a process of
its own; the median of the turns is told, with the least and the most, and beside the ratios of the batches that are
counted those of the first thirty, *young*. Shares are of medians. A query that combines rows before they become Arrow
may come out above ``arrow``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import throughput
from measuring import Record, check, say, shown, spreads, written

SYSTEMS = ("polars", "arrow", "structured", "holdfast", "plain")
TOLD = ("rows_per_second", "young_rows_per_second", "cpu", "median")
TEXTS = 20
"""A text has twenty words: for word frequency a batch is that much smaller."""


def measured(
    query: str, rows: int, batches: int, skip: int, repeat: int, record: Record, systems: tuple[str, ...] = SYSTEMS
) -> dict[str, Any]:
    """One line: every system, by turns."""
    runs: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
    for turn in range(repeat):
        for system in systems:
            record.pause()
            found = throughput.apart(system, query, str(rows), str(batches), "parquet", "10", str(skip))
            runs[system].append(found)
            say(f"{query}, {rows:,} rows, turn {turn + 1}/{repeat}: {system} {found['rows_per_second']:,.0f} rows/s")
    return {
        "query": query,
        "rows": rows,
        "batches": batches - skip,
        "turns": repeat,
        "systems": {system: spreads(runs[system], *TOLD) for system in systems},
    }


def line(found: dict[str, Any]) -> str:
    speed = {system: each["rows_per_second"] for system, each in found["systems"].items()}
    middle = {system: each["median"] for system, each in speed.items()}
    young = {system: each["young_rows_per_second"]["median"] for system, each in found["systems"].items()}
    cells = [f"{found['rows']:,}", *(shown(speed[system]) for system in SYSTEMS)]
    shares = [f"{each[door] / each['structured']:.2f}" for each in (middle, young) for door in ("holdfast", "plain")]
    shares += [f"{middle['holdfast'] / middle[limit]:.1%}" for limit in ("arrow", "polars")]
    return (
        f"{found['query']:<16}{cells[0]:>10}"
        + "".join(f"{cell:>36}" for cell in cells[1:])
        + "".join(f"{cell:>12}" for cell in shares)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--query", choices=["keyed-count", "word-frequency"], action="append")
    parser.add_argument("--rows", type=int, action="append", help="rows a batch; words of a batch for word-frequency")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--skip", type=int, default=throughput.SKIPPED, help="batches that are left out at first")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write what was found here")
    asked = parser.parse_args()
    check(parser, asked, "skip", "batches")
    record, rows = Record("limit.py", sys.argv[1:]), []
    heads = "".join(f"{f'{system}, rows/s':>36}" for system in SYSTEMS)
    ratios = "".join(f"{head:>12}" for head in ("times", "plain", "young", "plain young", "of arrow", "of polars"))
    print(f"{'query':<16}{'rows':>10}{heads}{ratios}")
    for query in asked.query or ["keyed-count", "word-frequency"]:
        for size in asked.rows or [200_000, 1_000_000, 4_000_000]:
            each = size // TEXTS if query == "word-frequency" else size
            rows.append(measured(query, each, asked.batches, asked.skip, asked.repeat, record))
            print(line(rows[-1]), flush=True)
    written(asked.json, record.to_json(rows))


if __name__ == "__main__":
    main()
