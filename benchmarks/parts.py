"""CPU of the parts of a plain query, each before and after a change that is told in docs/performance.md, in one run.

    .venv/bin/python benchmarks/parts.py                          # three turns, about four minutes
    .venv/bin/python benchmarks/parts.py --repeat 1 --batches 12 --json parts.json

Seconds of CPU of all processes, for a million rows in one batch, median with the least and the most of the turns:
- the source alone: Spark makes the rows and throws them away;
- rows to Arrow in Python, from the copy that ``foreachBatch`` makes (before) and from the plan that Spark executes;
- 100,000 groups, what a batch changes, as a DataFrame that is written as Parquet: by ``createDataFrame``, which puts
  them into the plan (before), and as partitions of record batches;
- rows of eleven columns counted by one of them, as a pipeline: with a source that takes all columns, since it has a
  function that could look at any (before), and with one that reads what is looked at;
- the whole: a keyed count through ``holdfast.writeStream``, with regions of the JVM's garbage collector as it chooses
  them (before) and as ``holdfast.spark_session`` does, and what share of it the source is.
Parts are measured apart, each in a warm process of its own; they need not add up to the whole.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import throughput
from measuring import Record, check, say, shown, spread, written

ROWS = 1_000_000
PARTS = {
    "source": "the source alone",
    "copied": "rows to Arrow, from foreachBatch's copy (before)",
    "arrow": "rows to Arrow, from the executed plan",
    "created": "100,000 groups handed over by createDataFrame (before)",
    "partitions": "100,000 groups handed over as partitions",
    "wide": "rows of eleven columns counted by one, all columns read (before)",
    "narrow": "the same, one column read",
    "plain-small-regions": "the whole plain query, garbage collector with small regions (before)",
    "plain": "the whole plain query",
}


def handed_over(batches: int, skip: int) -> dict[str, float]:
    """CPU of each way to hand 100,000 groups over, by turns in one session."""
    import numpy as np
    import pyarrow as pa

    from holdfast.queries.frames import Frames

    spark, folder = throughput.session(), Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    frames = Frames(spark)
    keys = np.arange(throughput.KEYS, dtype=np.int64)
    spent = {"created": 0.0, "partitions": 0.0}
    for batch in range(batches):
        rows = pa.table({"key": keys, "count": keys + batch})
        for way, make in (("created", spark.createDataFrame), ("partitions", frames.of)):
            before = throughput.tree_cpu(os.getpid())
            make(rows).write.mode("append").parquet(str(folder / way))
            if batch >= skip:
                spent[way] += throughput.tree_cpu(os.getpid()) - before
    spark.stop()
    shutil.rmtree(folder, ignore_errors=True)
    return {way: seconds / (batches - skip) for way, seconds in spent.items()}


def turn(batches: int, skip: int, record: Record) -> dict[str, float]:
    found = {}
    for part in ("source", "copied", "arrow", "plain-small-regions", "plain"):
        record.pause()
        words = ("keyed-count", str(ROWS), str(batches), "parquet", "10", str(skip))
        found[part] = throughput.apart(part, *words)["cpu"]
        say(f"{PARTS[part]}: {found[part]:.3f} s")
    for part, query in (("wide", "wide-count-all"), ("narrow", "wide-count")):
        record.pause()
        words = (query, str(ROWS), str(batches), "parquet", "10", str(skip))
        found[part] = throughput.apart("holdfast", *words)["cpu"]
        say(f"{PARTS[part]}: {found[part]:.3f} s")
    record.pause()
    return {**found, **throughput.apart(str(batches), str(skip), script=__file__)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--skip", type=int, default=10, help="batches that are left out at first")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write what was found here")
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(handed_over(*asked.one)))
        return
    check(parser, asked, "skip", "batches")
    record = Record("parts.py", sys.argv[1:])
    turns: list[dict[str, Any]] = [turn(asked.batches, asked.skip, record) for _ in range(asked.repeat)]
    rows = [{"part": part, "turns": asked.repeat, "cpu": spread(each[part] for each in turns)} for part in PARTS]
    for row in rows:
        print(f"{PARTS[row['part']]:<72}{shown(row['cpu'], '.3f'):>24} s")
    share = spread(each["source"] / each["plain"] for each in turns)
    print(f"{'share of the source in the whole':<72}{shown(share, '.0%'):>24}")
    written(asked.json, record.to_json([*rows, {"part": "share", "turns": asked.repeat, "cpu": share}]))


if __name__ == "__main__":
    main()
