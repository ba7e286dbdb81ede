"""A count by millions of keys: throughput, checkpoints, restart, the loss of a node, and state beyond memory.

    .venv/bin/python benchmarks/large_state.py --keys 20000000
    .venv/bin/python benchmarks/large_state.py --keys 200000 --rows 100000      # whether all of it works

Beside it Structured Streaming with RocksDB and changelog checkpoints, on the same stream: at first every key once, in
order, then keys at random, ``--rows`` a batch, two cores. What is told as JSON, a line for each part as soon as it is
known:

- ``filled``: seconds until every key was there;
- ``throughput``: rows a second of the batches after that, the median and the longest batch, memory of all processes;
- ``checkpoint`` (Holdfast): seconds from the answer of its epoch until one is durable, and its bytes; the first is that
  of nearly everything, later ones of what changed;
- ``restart``: seconds from the start of a stopped job until its next answer;
- ``failover`` (Holdfast): one of two nodes is lost: seconds until the next answer and until it is exact. Structured
  Streaming in one process has a restart for this;
- ``holdfast-limited``: all of it again with at most ``--memory-limit`` bytes of a table in memory, the rest mapped.

Each system has ``--limit`` seconds; what it had not told by then is missing, and a line says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from throughput import query_of, session, tree_of

Tell = Callable[..., None]
SYSTEMS = ("holdfast", "holdfast-limited", "structured")


def stream_of(spark: Any, keys: int, rows: int) -> Any:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()
    return stream.selectExpr(f"CASE WHEN value < {keys} THEN value ELSE pmod(xxhash64(value), {keys}) END AS key")


def memory() -> int:
    """Bytes of this process and all below it, what they share counted once."""
    total = 0
    for number in tree_of(os.getpid()):
        try:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def steady(running: Any, filling: int, rows: int, batches: int, tell: Tell) -> None:
    """Waits until so many batches have come after those that fill the state; says how long both took."""
    began = time.monotonic()
    filled = None
    while len(running.recentProgress) < filling + batches and running.isActive:
        if filled is None and len(running.recentProgress) >= filling:
            filled = time.monotonic() - began
            tell("filled", seconds=filled)
        time.sleep(0.05)
    spent = [each["durationMs"]["triggerExecution"] / 1000 for each in running.recentProgress if each["numInputRows"]]
    kept = spent[filling : filling + batches]
    rate = rows * len(kept) / sum(kept)
    tell("throughput", rows_per_second=rate, median=statistics.median(kept), longest=max(kept), memory=memory())


def holdfast(keys: int, rows: int, batches: int, limit: int | None, tell: Tell) -> None:
    import pyarrow as pa

    from holdfast import operators as op
    from holdfast.runtime.faults import parse_faults
    from holdfast.runtime.history.history import read_history
    from holdfast.runtime.history.narrative import recoveries
    from holdfast.runtime.spark import start

    spark, folder, filling = session(), Path(tempfile.mkdtemp(prefix="holdfast-large-")), -(-keys // rows)
    counts = op.aggregate({"key": pa.int64()}, count=op.count())
    pipeline = op.Pipeline(
        op.source("keys", parallelism=2), op.step("counts", counts, op.stream("keys", key="key"), parallelism=2)
    )
    common: dict[str, Any] = {"store": folder, "nodes": 2, "checkpoint_every": 10, "memory_limit": limit}
    lost = filling + batches + 4
    try:
        job = start(stream_of(spark, keys, rows), pipeline, **common)
        steady(query_of(job), filling, rows, batches, tell)
        job.stop()
        events = list(read_history(folder))
        answered = {event["epoch"]: event["time"] for event in events if event["kind"] == "answered"}
        taken = [event for event in events if event["kind"] == "checkpoint"]
        seconds = [event["time"] - answered[event["epoch"]] for event in taken]
        sizes = [event["bytes"] for event in taken]
        tell("checkpoint", seconds=seconds, bytes=sizes)
        began = time.time()
        fault = parse_faults(f"kill node-1 at epoch {lost}")
        job = start(stream_of(spark, keys, rows), pipeline, **common, faults=fault)
        first = after(folder, began, lambda events: any(event["kind"] == "answered" for event in events))
        tell("restart", seconds=first)
        done = after(folder, began, lambda events: any(each.exact_after is not None for each in recoveries(events)))
        found = recoveries(event for event in read_history(folder) if event["time"] > began)
        tell("failover", waited=done, answered=found[0].answered_after, exact=found[0].exact_after)
        job.stop()
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def after(folder: Path, began: float, there: Callable[[list[Any]], bool]) -> float:
    """Seconds since then until the history has it."""
    from holdfast.runtime.history.history import read_history

    while not there([event for event in read_history(folder) if event["time"] > began]):
        time.sleep(0.1)
    return time.time() - began


def structured(keys: int, rows: int, batches: int, tell: Tell) -> None:
    spark, folder = session(), Path(tempfile.mkdtemp(prefix="holdfast-large-"))

    def write(frame: Any, epoch: int) -> None:
        frame.write.mode("append").parquet(str(folder / "output"))

    def started() -> Any:
        writing = stream_of(spark, keys, rows).groupBy("key").count().writeStream.outputMode("update")
        return writing.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint")).start()

    try:
        running = started()
        steady(running, -(-keys // rows), rows, batches, tell)
        running.stop()
        began = time.monotonic()
        running = started()
        while not running.recentProgress and running.isActive:
            time.sleep(0.05)
        tell("restart", seconds=time.monotonic() - began)
        running.stop()
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def one(system: str, keys: int, rows: int, batches: int, memory_limit: int) -> None:
    def tell(part: str, **found: Any) -> None:
        print(json.dumps({"system": system, "part": part, "keys": keys, "rows": rows, **_rounded(found)}), flush=True)

    if system == "structured":
        structured(keys, rows, batches, tell)
    else:
        holdfast(keys, rows, batches, memory_limit if system == "holdfast-limited" else None, tell)


def _rounded(found: dict[str, Any]) -> dict[str, Any]:
    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(each) for each in value]
        return round(value, 3) if isinstance(value, float) else value

    return {name: short(value) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--rows", type=int, default=1_000_000, help="a batch")
    parser.add_argument("--batches", type=int, default=20, help="after every key is there")
    parser.add_argument("--system", choices=SYSTEMS, action="append")
    parser.add_argument("--memory-limit", type=int, default=64 << 20, help="bytes of a table, of holdfast-limited")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each system")
    parser.add_argument("--json", type=Path, help="add the lines to this file too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    for name in ("keys", "rows", "batches", "memory_limit", "limit"):
        if (value := getattr(asked, name)) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value:g}")
    if asked.one:
        one(asked.one, asked.keys, asked.rows, asked.batches, asked.memory_limit)
        return
    sizes = [
        f"--{name}={getattr(asked, name.replace('-', '_'))}" for name in ("keys", "rows", "batches", "memory-limit")
    ]
    for system in asked.system or SYSTEMS:
        process = subprocess.Popen(
            [sys.executable, __file__, "--one", system, *sizes], stdout=subprocess.PIPE, text=True
        )
        timer = threading.Timer(asked.limit, ended, [process])
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                kept(line, asked.json)
        timer.cancel()
        if process.wait():
            told = {"system": system, "part": "ended", "why": f"code {process.returncode}, limit {asked.limit:g} s"}
            kept(json.dumps(told) + "\n", asked.json)


def ended(process: subprocess.Popen[str]) -> None:
    for number in reversed(tree_of(process.pid)):
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:
            continue


def kept(line: str, path: Path | None) -> None:
    print(line, end="", flush=True)
    if path is not None:
        with path.open("a", encoding="utf-8") as file:
            file.write(line)


if __name__ == "__main__":
    main()
