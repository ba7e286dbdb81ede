"""A count by millions of keys: throughput, checkpoints, restart, the loss of a node, and state beyond memory.

    .venv/bin/python benchmarks/large_state.py --keys 20000000 --json FILE
    .venv/bin/python benchmarks/large_state.py --keys 200000 --rows 100000      # whether all of it works

Beside it Structured Streaming with RocksDB and changelog checkpoints, on the same stream: at first every key once, in
order, then keys at random, ``--rows`` a batch, two cores. What is told as JSON, a line for each part as soon as it is
known, and at the end as a table:

- ``filled``: seconds until every key was there, the start of the first batch included;
- ``throughput``: rows a second of the batches after that, the median and the longest batch; the most memory that all
  processes had of their own, and of mapped files, looked at every few seconds from the start on;
- ``checkpoint`` (Holdfast): seconds from the answer of its epoch until one is durable, and its bytes; the first is that
  of nearly everything, later ones of what changed;
- ``restart``: seconds from the start of a stopped job until the answer of its next batch;
- ``failover`` (Holdfast): one of two nodes is lost: seconds until the next answer and until it is exact. Structured
  Streaming in one process has a restart for this;
- ``holdfast-limited``: all of it again with at most ``--memory-limit`` bytes of a table in memory, the rest mapped;
- ``structured-tuned``: Structured Streaming with a gigabyte of block cache for each of its two states, write buffers of
  64 MB, and without the count of its rows, for which every change of a key asks RocksDB whether it is new;
- ``polars``: the limit. One process has all counts in memory and adds those of a batch; nothing is durable, nothing is
  written.

The batches after the filling have ``--steady-seconds``, and a system has ``--limit`` in all: what it had not told by
then is missing, and a line says so. A system of which the file of ``--json`` has everything already, by the same sizes,
is not measured again.

Learned: what keys at random cost Structured Streaming is RocksDB's look-ups, two for every key (``jstack``: of six
looks at its tasks five were in ``RocksDB.get``). And a query that is stopped within a batch of ``foreachBatch`` may
hang for ever: Spark looks through the long message of the interrupted write by a regular expression that overflows the
stack of the query's thread (``StackOverflowError``). So the batch that is under way when we stop fails in few words.
"""

from __future__ import annotations

import argparse
import contextlib
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from measuring import Record, written
from throughput import batches_done, query_of, session, tree_of

Tell = Callable[..., None]
Line = dict[str, Any]
SYSTEMS = {
    "polars": "throughput", "holdfast": "failover", "holdfast-limited": "failover", "structured": "restart",
    "structured-tuned": "restart",
}  # fmt: skip
"""Each with the part that it tells last."""
ROCKS = "spark.sql.streaming.stateStore.rocksdb."
TUNED = {
    f"{ROCKS}blockCacheSizeMB": "1024",
    f"{ROCKS}writeBufferSizeMB": "64",
    f"{ROCKS}trackTotalNumberOfRows": "false",
}
GRACE = 30.0
"""Seconds that a system has to end when it has told all."""
LOOK_EVERY = 4.0
"""Seconds from one look at memory to the next; a look takes milliseconds."""


def stream_of(spark: Any, keys: int, rows: int) -> Any:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()
    return stream.selectExpr(f"CASE WHEN value < {keys} THEN value ELSE pmod(xxhash64(value), {keys}) END AS key")


def memory() -> tuple[int, int]:
    """Bytes of this process and all below it, what they share counted once: their own, and of files they map."""
    own = mapped = 0
    for number in tree_of(os.getpid()):
        try:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines[1:])}
        own += found["Pss_Anon"] + found["Pss_Shmem"]
        mapped += found["Pss_File"]
    return own, mapped


def steady(running: Any, filling: int, asked: argparse.Namespace, tell: Tell) -> None:
    """Waits for the batches that fill the state, and for those after them; says how long both took."""
    began = looked = time.monotonic()
    filled, (own, mapped) = None, memory()
    while (done := batches_done(running)) < filling + asked.batches and running.isActive:
        if filled is None and done >= filling:
            filled = time.monotonic()
            tell("filled", seconds=filled - began)
        if filled is not None and done > filling and time.monotonic() - filled > asked.steady_seconds:
            break
        if time.monotonic() - looked > LOOK_EVERY:
            now, looked = memory(), time.monotonic()
            own, mapped = max(own, now[0]), max(mapped, now[1])
        time.sleep(0.05)
    spent = [each["durationMs"]["triggerExecution"] / 1000 for each in running.recentProgress if each["numInputRows"]]
    kept = spent[filling : filling + asked.batches]
    rate, middle = asked.rows * len(kept) / sum(kept), statistics.median(kept)
    found = {"rows_per_second": rate, "median": middle, "longest": max(kept), "memory": own, "mapped": mapped}
    tell("throughput", counted=len(kept), **found)


def holdfast(asked: argparse.Namespace, limit: int | None, tell: Tell) -> None:
    import pyarrow as pa

    from holdfast import operators as op
    from holdfast.runtime.faults import parse_faults
    from holdfast.runtime.history.history import read_history
    from holdfast.runtime.history.narrative import recoveries
    from holdfast.runtime.spark import start

    spark, folder, filling = session(), asked.folder, -(-asked.keys // asked.rows)
    counts = op.aggregate({"key": pa.int64()}, count=op.count())
    pipeline = op.Pipeline(
        op.source("keys", parallelism=2), op.step("counts", counts, op.stream("keys", key="key"), parallelism=2)
    )
    common: dict[str, Any] = {"store": folder, "nodes": 2, "checkpoint_every": 10, "memory_limit": limit}
    try:
        job = start(stream_of(spark, asked.keys, asked.rows), pipeline, **common)
        steady(query_of(job), filling, asked, tell)
        job.stop()
        events = list(read_history(folder))
        answered = {event["epoch"]: event["time"] for event in events if event["kind"] == "answered"}
        taken = [event for event in events if event["kind"] == "checkpoint"]
        seconds = [event["time"] - answered[event["epoch"]] for event in taken]
        sizes = [event["bytes"] for event in taken]
        tell("checkpoint", seconds=seconds, bytes=sizes)
        before, began = max(answered), time.time()
        fault = parse_faults(f"kill node-1 at epoch {before + 4}")
        job = start(stream_of(spark, asked.keys, asked.rows), pipeline, **common, faults=fault)
        # The last epoch of the job before is said to be answered at once; what counts is a new one.
        first = after(folder, began, lambda events: any(is_answer(event, before) for event in events))
        tell("restart", seconds=first)
        after(folder, began, lambda events: any(each.exact_after is not None for each in recoveries(events)))
        found = recoveries(event for event in read_history(folder) if event["time"] > began)[0]
        fidelity = found.answered_fidelity
        tell("failover", answered=found.answered_after, fidelity=fidelity, exact=found.exact_after)
        job.stop()
    finally:
        spark.stop()


def is_answer(event: Any, before: int) -> bool:
    return bool(event["kind"] == "answered" and event["epoch"] > before)


def after(folder: Path, began: float, there: Callable[[list[Any]], bool]) -> float:
    """Seconds since then until the history has it."""
    from holdfast.runtime.history.history import read_history

    while not there([event for event in read_history(folder) if event["time"] > began]):
        time.sleep(0.1)
    return time.time() - began


def structured(asked: argparse.Namespace, settings: dict[str, str], tell: Tell) -> None:
    spark, folder = session(), asked.folder
    for name, value in settings.items():
        spark.conf.set(name, value)

    def write(frame: Any, epoch: int) -> None:
        try:
            frame.write.mode("append").parquet(str(folder / "output"))
        except Exception:
            raise RuntimeError("stopped") from None  # in few words: see above

    def started() -> Any:
        writing = stream_of(spark, asked.keys, asked.rows).groupBy("key").count().writeStream.outputMode("update")
        return writing.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint")).start()

    try:
        running = started()
        steady(running, -(-asked.keys // asked.rows), asked, tell)
        running.stop()
        began = time.monotonic()
        running = started()
        while not running.recentProgress and running.isActive:
            time.sleep(0.05)
        if not running.recentProgress:
            sys.exit(f"the query ended before its first batch: {running.exception()}")
        tell("restart", seconds=time.monotonic() - began)
        running.stop()
    finally:
        spark.stop()


def polars(asked: argparse.Namespace, tell: Tell) -> None:
    """All counts in one process. The batches that fill the state have each key once, and are not timed."""
    import polars as pl

    from polars_alone import keys_of

    filling = -(-asked.keys // asked.rows)
    totals = pl.DataFrame({"key": np.arange(asked.keys, dtype=np.int64), "count": np.ones(asked.keys, dtype=np.int64)})
    spent = []
    for number in range(filling, filling + asked.batches):
        rows = keys_of(asked.rows, number, asked.keys)
        began = time.perf_counter()
        counted = rows.lazy().group_by("key").agg(more=pl.len()).collect(engine="streaming")
        joined = totals.lazy().join(counted.lazy(), on="key", how="left", maintain_order="none")
        totals = joined.select("key", pl.col("count") + pl.col("more").fill_null(0)).collect()
        spent.append(time.perf_counter() - began)
    if int(totals["count"].sum()) != asked.keys + asked.rows * asked.batches:
        sys.exit(f"polars counted {totals['count'].sum()} rows")
    rate, middle = asked.rows * len(spent) / sum(spent), statistics.median(spent)
    own, mapped = memory()
    found = {"rows_per_second": rate, "median": middle, "longest": max(spent), "memory": own, "mapped": mapped}
    tell("throughput", counted=len(spent), **found)


def one(system: str, asked: argparse.Namespace) -> None:
    def tell(part: str, **found: Any) -> None:
        print(json.dumps({"system": system, "part": part, **sizes(asked), **_rounded(found)}), flush=True)

    if system == "polars":
        polars(asked, tell)
    elif system.startswith("structured"):
        structured(asked, TUNED if system == "structured-tuned" else {}, tell)
    else:
        holdfast(asked, asked.memory_limit if system == "holdfast-limited" else None, tell)


def sizes(asked: argparse.Namespace) -> dict[str, int]:
    return {name: getattr(asked, name) for name in ("keys", "rows", "batches", "steady_seconds", "memory_limit")}


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
    parser.add_argument(
        "--steady-seconds", type=int, default=240, help="for these batches: so many as end by then count"
    )
    parser.add_argument("--system", choices=list(SYSTEMS), action="append")
    parser.add_argument("--memory-limit", type=int, default=64 << 20, help="bytes of a table, of holdfast-limited")
    parser.add_argument("--limit", type=float, default=1500, help="seconds for each system")
    parser.add_argument("--json", type=Path, help="write what was found here, and go on with what is there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    for name in ("keys", "rows", "batches", "steady_seconds", "memory_limit", "limit"):
        if (value := getattr(asked, name)) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {value:g}")
    if asked.one:
        one(asked.one, asked)
        return
    record, told = Record("large_state.py", sys.argv[1:]), known(asked)
    for system in asked.system or SYSTEMS:
        if any(line["system"] == system and line["part"] == SYSTEMS[system] for line in told):
            continue
        record.pause()
        told = [line for line in told if line["system"] != system]
        for line in measured(system, asked):
            told.append({"turns": 1, **line})
            print(json.dumps(line), flush=True)
            written(asked.json, record.to_json(told))
    print(f"\n{table(told)}", flush=True)


def known(asked: argparse.Namespace) -> list[Line]:
    """What the file of ``--json`` has by the same sizes."""
    if asked.json is None or not asked.json.exists():
        return []
    lines: list[Line] = json.loads(asked.json.read_text(encoding="utf-8"))["rows"]
    return [line for line in lines if {name: line.get(name) for name in sizes(asked)} == sizes(asked)]


def measured(system: str, asked: argparse.Namespace) -> Iterator[Line]:
    """A system in a process of its own; what it tells, as it does."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-large-"))
    words = [f"--{name.replace('_', '-')}={value}" for name, value in sizes(asked).items()]
    process = subprocess.Popen(
        [sys.executable, __file__, "--one", system, "--folder", str(folder), *words],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    timer, whole = threading.Timer(asked.limit, ended, [process]), False
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                told = json.loads(line)
                if whole := told["part"] == SYSTEMS[system]:
                    timer.cancel()
                    timer = threading.Timer(GRACE, ended, [process])
                    timer.start()
                yield told
        if process.wait() and not whole:
            why = f"code {process.returncode}, limit {asked.limit:g} s"
            yield {"system": system, "part": "ended", **sizes(asked), "why": why}
    finally:
        timer.cancel()
        ended(process)
        shutil.rmtree(folder, ignore_errors=True)


def ended(process: subprocess.Popen[str]) -> None:
    """Its JVM goes with it, which may live on when its Python has ended: with RocksDB it did, in what closes that."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)


HEADS = (
    "system", "filled, s", "thousand rows/s (batches)", "batch, median (longest), s", "memory, GB (mapped)",
    "first checkpoint, s (MB)", "later ones", "restart, s", "next answer after a loss, s (fidelity)", "exact, s",
)  # fmt: skip


def table(told: list[Line]) -> str:
    """What was told, in Markdown: a row for each system, in cells what it told of each part."""
    rows = [HEADS, ("---",) + ("---:",) * (len(HEADS) - 1)]
    for system in dict.fromkeys(line["system"] for line in told):
        parts = {line["part"]: line for line in told if line["system"] == system}
        rows.append((system, *cells(parts)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def cells(parts: dict[str, Line]) -> tuple[str, ...]:
    def cell(part: str, form: Callable[[Line], str]) -> str:
        return form(parts[part]) if part in parts else "-"

    def later(line: Line) -> str:
        found = list(zip(line["seconds"][1:], line["bytes"][1:], strict=True))
        return ", ".join(f"{seconds:.1f} ({size / 1e6:,.0f})" for seconds, size in found) or "-"

    return (
        cell("filled", lambda line: f"{line['seconds']:.0f}"),
        cell("throughput", lambda line: f"{line['rows_per_second'] / 1000:,.0f} ({line['counted']})"),
        cell("throughput", lambda line: f"{line['median']:.2f} ({line['longest']:.2f})"),
        cell("throughput", lambda line: f"{line['memory'] / 1e9:.1f} ({line['mapped'] / 1e9:.1f})"),
        cell("checkpoint", lambda line: f"{line['seconds'][0]:.1f} ({line['bytes'][0] / 1e6:,.0f})"),
        cell("checkpoint", later),
        cell("restart", lambda line: f"{line['seconds']:.1f}"),
        cell("failover", lambda line: f"{line['answered']:.1f} ({line['fidelity']:.3f})"),
        cell("failover", lambda line: f"{line['exact']:.1f}"),
    )


if __name__ == "__main__":
    main()
