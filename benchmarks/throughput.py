"""Rows per second against Spark Structured Streaming, side by side: the same stream, query, machine and batch size.

    .venv/bin/python benchmarks/throughput.py                      # everything, about ten minutes
    .venv/bin/python benchmarks/throughput.py --query keyed-count --rows 1000000
    .venv/bin/python benchmarks/throughput.py --plain --rows 1000000    # the query itself, through holdfast.writeStream

Each measurement has a process of its own. Structured Streaming runs with the RocksDB state store and changelog
checkpointing, as many shuffle partitions as cores, in update mode; both write what changed in a batch as Parquet
(``--sink none`` leaves that out on both sides). A batch's time is Spark's own ``triggerExecution``, offsets and commits
included; of a plain query, whose batches are handed over beside the next epoch, it is the time from one that is written
to the next. The first batches, which warm the JVM up, are left out: ``--skip`` says how many. Its compilers take a
fifth of a second of each batch for some forty more, in both systems; ``--skip 40 --batches 60`` shows them warm, and
``--threads`` which threads the CPU goes to. *Young* are the first thirty batches, whatever is skipped, but for the very
first, which starts processes.
``--checkpoints`` compares checkpoints on and off by turns of ``--batches`` epochs, ``--repeat`` times each, in one
process, and says how much longer the epochs behind one take. ``--idle`` times an epoch with next to no rows through
four levels, in one process and on two executors, beside a batch of as many rows that Spark hands to Python as Arrow,
and Structured Streaming's own count of them, which has one level; both while the job is young and, with ``--skip 200
--batches 240``, when its JVMs have compiled what they run. docs/runtime.md says where the time goes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import source_alone
import threads
from measuring import Record, shown, spread, spreads, written, young_speed

KEYS = 100_000
STRIDE = 7_919
"""Keys of ``stride-count``, which is keyed-count with keys that any system can compute: ``value * STRIDE % KEYS``."""
SKIPPED = 5
IDLE_ROWS, YOUNG = 100, 40
"""Rows of an idle epoch, and so many of them, after the first few, are those of a young job."""
WARM = 110
"""So many epochs warm the JVM up where small differences are to be seen."""


def session(master: str = "local[2]", **more: str) -> Any:
    from holdfast.runtime.spark import spark_session

    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    return spark_session(
        master,
        settings={
            "spark.driver.memory": "6g",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.streaming.stateStore.providerClass": rocks,
            "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
            "spark.sql.streaming.numRecentProgressUpdates": "500",
            **more,
        },
    )


def small_regions() -> dict[str, str]:
    """The driver's JVM with those regions of its heap that it would choose itself, and all else as it is."""
    from holdfast.runtime.spark.session import REGIONS, chosen_settings

    options = "spark.driver.extraJavaOptions"
    chosen = chosen_settings("local[2]", {"spark.driver.memory": "6g"})[options]
    return {options: chosen.replace(REGIONS, "-XX:G1HeapRegionSize=2m")}


def keyed_stream(spark: Any, rows: int, of: str = f"xxhash64(value), {KEYS}") -> Any:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2).load()
    return stream.selectExpr(f"pmod({of}) AS key")


def word_stream(spark: Any, rows: int) -> Any:
    from holdfast.workloads import Options, workload

    return workload("word-frequency").stream(spark, Options(rate=rows, seed=1))


def stream_of(spark: Any, query: str, rows: int) -> Any:
    if query == "stride-count":
        return keyed_stream(spark, rows, f"value * {STRIDE}, {KEYS}")
    if query.startswith("wide-count"):
        return wide_stream(spark, rows)
    return (keyed_stream if query == "keyed-count" else word_stream)(spark, rows)


def wide_stream(spark: Any, rows: int) -> Any:
    """Keys beside five numbers and five texts, as rows of an event log have them, that a count does not look at."""
    numbers = [f"key * {number} AS number{number}" for number in range(2, 7)]
    texts = [f"concat('some text of a row, ', {number}, ' of ', key) AS text{number}" for number in range(5)]
    return keyed_stream(spark, rows).selectExpr("key", *numbers, *texts)


def holdfast_pipeline(query: str) -> Any:
    import pyarrow as pa

    from holdfast import operators as op
    from holdfast.workloads import workload

    if query == "word-frequency":
        return workload("word-frequency").pipeline(parallelism=2)
    return op.Pipeline(
        op.source("keys", _same if query == "wide-count-all" else None, parallelism=2),
        op.step(
            "counts",
            op.aggregate({"key": pa.int64()}, count=op.count()),
            op.stream("keys", key="key"),
            parallelism=2,
        ),
    )


def structured(query: str, stream: Any) -> Any:
    from pyspark.sql import functions as F

    if query != "word-frequency":
        return stream.groupBy("key").count()
    words = stream.withWatermark("time", "0 seconds").select(
        "time", F.explode(F.split(F.trim("text"), " ")).alias("word")
    )
    return words.groupBy(F.window("time", "30 seconds", "5 seconds"), "word").count()


def measure(system: str, query: str, rows: int, batches: int, sink: str, every: int, skip: int) -> dict[str, Any]:
    """One system on one query: seconds of each batch, and the CPU that all its processes took for a million rows."""
    if system == "polars":
        import polars_alone

        return polars_alone.measure(query, rows, batches, skip, KEYS, STRIDE)
    small, system = system == "plain-small-regions", system.removesuffix("-small-regions")
    spark = session(**(small_regions() if small else {}))
    stream = stream_of(spark, query, rows)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    written: list[float] = []

    def write(frame: Any, epoch: int) -> None:
        if sink == "parquet":
            frame.write.mode("append").parquet(str(folder / "output"))
        else:
            frame.write.format("noop").mode("overwrite").save()
        written.append(time.monotonic())

    if system == "holdfast":
        from holdfast.runtime.spark import start

        job = start(
            stream, holdfast_pipeline(query), store=folder, nodes=2, epochs=batches, checkpoint_every=every,
            outputs=sink == "parquet",
        )  # fmt: skip
        running = query_of(job)
    elif system == "plain":
        import holdfast

        writer = holdfast.writeStream(structured(query, stream)).outputMode("update").foreachBatch(write)
        writer.resilience(nodes=2, parallelism=2, checkpoint_every=every)
        job = writer.option("checkpointLocation", str(folder / "store")).start()
        running = query_of(job)
    elif system in source_alone.WAYS:
        running = source_alone.start(stream, system, str(folder / "checkpoint"), rows)
    else:
        writing = structured(query, stream).writeStream.outputMode("update")
        writing = writing.foreachBatch(write) if sink == "parquet" else writing.format("noop")
        running = writing.option("checkpointLocation", str(folder / "checkpoint")).start()
    progress = written.__len__ if system == "plain" else partial(batches_done, running)
    me = os.getpid()
    marks = [
        (reached, tree_cpu(me), threads.by_kind(me, tree_of(me)))
        for reached in after(running, progress, [skip, batches])
    ]
    if system in source_alone.WAYS and (error := running.exception()) is not None:
        from holdfast.runtime.spark.shipping import first_cause

        sys.exit(f"{system}: {first_cause(error)}")
    if system == "holdfast":
        job.awaitTermination()
    elif system == "plain":
        job.stop()
    else:
        running.stop()
    times = [
        entry["durationMs"]["triggerExecution"] / 1000 for entry in running.recentProgress if entry["numInputRows"]
    ]
    if system == "plain":
        times = [later - earlier for earlier, later in pairwise([written[0], *written])]
    kept = times[skip:batches]
    spark.stop()
    shutil.rmtree(folder, ignore_errors=True)
    done = (marks[1][0] - marks[0][0]) * rows
    return {
        "rows": rows,
        **_long(times, skip, batches),
        "rows_per_second": rows * len(kept) / sum(kept),
        "young_rows_per_second": young_speed(times, rows),
        "cpu": (marks[1][1] - marks[0][1]) / done * 1e6,
        "threads": {kind: (spent - marks[0][2][kind]) / done * rows for kind, spent in marks[1][2].items()},
    }


def query_of(job: Any) -> Any:
    """The query that feeds a job, as soon as it has begun."""
    while job._source.query is None:
        time.sleep(0.02)
    return job._source.query


def batches_done(running: Any) -> int:
    """How many batches of a query have ended. ``recentProgress`` would read a report of each, again and again: where it
    was asked for this, that took a quarter of a core and more from whatever was measured."""
    last = running._jsq.lastProgress()
    return 0 if last is None else int(last.batchId()) + 1


def after(running: Any, progress: Callable[[], int], counts: list[int]) -> Iterator[int]:
    """Comes back whenever so many batches are done, with how many really are."""
    for count in counts:
        while (done := progress()) < count and running.isActive:
            time.sleep(0.02)
        yield done


def tree_cpu(root: int) -> float:
    """CPU seconds of a process and everything below it, ended children included."""
    seconds = _processes()[1]
    return sum(seconds.get(number, 0.0) for number in tree_of(root))


def tree_of(root: int) -> list[int]:
    """A process and everything below it, each before those below it."""
    parents, found = _processes()[0], [root]
    for number in found:
        found += [each for each, parent in parents.items() if parent == number]
    return found


def _processes() -> tuple[dict[int, int], dict[int, float]]:
    """Parents and CPU seconds of all processes."""
    parents, seconds = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(folder.name)
        parents[number] = int(fields[1])
        seconds[number] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return parents, seconds


def four_levels() -> Any:
    """Four levels of four tasks each, with state at the last."""
    import pyarrow as pa

    from holdfast import operators as op

    steps = [op.source("keys", parallelism=2)]
    for name, before in (("one", "keys"), ("two", "one"), ("three", "two")):
        steps.append(op.step(name, _same, op.stream(before, key="key"), parallelism=4))
    counts = op.aggregate({"key": pa.int64()}, count=op.count())
    steps.append(op.step("four", counts, op.stream("three", key="key"), parallelism=4))
    return op.Pipeline(*steps)


def idle(batches: int, executors: int = 0, skip: int = SKIPPED) -> dict[str, Any]:
    """An epoch of few rows through four levels, as Structured Streaming times the whole of it.

    ``executors``: so many, of one core each; else four logical nodes share one process.
    """
    from holdfast.runtime.spark import start

    spark = session(f"local-cluster[{executors},1,1024]" if executors else "local[2]")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    job = start(keyed_stream(spark, IDLE_ROWS), four_levels(), store=folder, nodes=executors or 4, epochs=batches)
    job.awaitTermination()
    progress = [entry for entry in query_of(job).recentProgress if entry["numInputRows"]]
    spark.stop()
    shutil.rmtree(folder, ignore_errors=True)
    return _long([entry["durationMs"]["triggerExecution"] / 1000 for entry in progress], skip, batches)


def _long(seconds: list[float], skip: int, batches: int) -> dict[str, float]:
    """How long batches took: those behind the ones that are left out, and the first ones."""
    kept, young = seconds[skip:batches], seconds[SKIPPED : SKIPPED + YOUNG]
    return {"median": statistics.median(kept), "most": max(kept), "young": statistics.median(young or kept)}


def _same(batch: Any) -> Any:
    return batch


def idle_by_turns(batches: int, skip: int, repeat: int, path: Path | None) -> None:
    """Holdfast through four levels, in one process and on executors, beside what Spark alone takes for so few rows."""
    small = ("keyed-count", str(IDLE_ROWS), str(batches), "parquet", "10", str(skip))
    ways = {
        "arrow": ("arrow", *small),
        "structured": ("structured", *small),
        "holdfast": ("idle", str(batches), "0", str(skip)),
        "executors": ("idle", str(batches), "2", str(skip)),
    }
    record, runs = Record("throughput.py", sys.argv[1:]), {way: list[dict[str, Any]]() for way in ways}
    for _ in range(repeat):
        for way, words in ways.items():
            record.pause()
            runs[way].append(found := apart(*words))
            told = (f"{name} {found[name]:.3f} s" for name in ("young", "median", "most"))
            print(f"idle, {way}: {', '.join(told)}", flush=True)
    rows = [{"way": way, "turns": repeat, **spreads(found, "young", "median", "most")} for way, found in runs.items()]
    written(path, record.to_json(rows))


def apart(*arguments: str, script: str = __file__) -> dict[str, Any]:
    """The same file, or another, in a process of its own; its last line is the answer."""
    done = subprocess.run([sys.executable, script, "--one", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--query", choices=["keyed-count", "word-frequency"], action="append")
    parser.add_argument("--rows", type=int, action="append")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--skip", type=int, default=SKIPPED, help="batches that are left out at first")
    parser.add_argument("--sink", choices=["parquet", "none"], default="parquet")
    parser.add_argument("--checkpoints", action="store_true", help="only: checkpoints on against off")
    parser.add_argument("--plain", action="store_true", help="the query through holdfast.writeStream, not a pipeline")
    parser.add_argument("--threads", action="store_true", help="also which threads the CPU of a batch goes to")
    parser.add_argument("--idle", action="store_true", help="only: an idle epoch through four levels")
    parser.add_argument("--repeat", type=int, default=1, help="of --idle, turns of --checkpoints")
    parser.add_argument("--json", type=Path, help="of --idle, --checkpoints: write what was found here")
    parser.add_argument("--one", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if not 0 <= asked.skip < asked.batches:
        parser.error(f"--skip must be below --batches ({asked.batches}), got {asked.skip}")
    if asked.repeat < 1:
        parser.error(f"--repeat must be at least 1, got {asked.repeat}")
    if asked.one:
        if asked.one[0] == "idle":
            print(json.dumps(idle(*map(int, asked.one[1:]))))
        elif asked.one[0] == "checkpoints":
            print(json.dumps(checkpoints_on_and_off(*map(int, asked.one[1:]))))
        else:
            system, query, rows, batches, sink, every, skip = asked.one
            print(json.dumps(measure(system, query, int(rows), int(batches), sink, int(every), int(skip))))
        return
    if asked.idle:
        idle_by_turns(asked.batches, asked.skip, asked.repeat, asked.json)
        return
    if asked.checkpoints:
        compare_checkpoints(asked.rows or [1_000_000], asked.batches + SKIPPED, asked.repeat, asked.json)
        return
    speeds = ("structured rows/s", "holdfast rows/s", "ratio", "structured young", "holdfast young", "ratio")
    heads = ("rows/batch", *speeds, "structured CPU", "holdfast CPU", "ratio")
    print(f"{'query':<16}" + "".join(f"{head:>18}" for head in heads) + "   (CPU: seconds for a million rows)")
    for query in asked.query or ["keyed-count", "word-frequency"]:
        for rows in asked.rows or [200_000, 1_000_000, 4_000_000]:
            fragments = rows // 20 if query == "word-frequency" else rows
            one, two = (
                apart(system, query, str(fragments), str(asked.batches), asked.sink, "10", str(asked.skip))
                for system in ("structured", "plain" if asked.plain else "holdfast")
            )
            cells = [
                f"{fragments:,}",
                f"{one['rows_per_second']:,.0f}",
                f"{two['rows_per_second']:,.0f}",
                f"{two['rows_per_second'] / one['rows_per_second']:.2f}",
                f"{one['young_rows_per_second']:,.0f}",
                f"{two['young_rows_per_second']:,.0f}",
                f"{two['young_rows_per_second'] / one['young_rows_per_second']:.2f}",
                f"{one['cpu']:.2f}",
                f"{two['cpu']:.2f}",
                f"{one['cpu'] / two['cpu']:.2f}",
            ]
            print(f"{query:<16}" + "".join(f"{cell:>18}" for cell in cells), flush=True)
            if asked.threads:
                print(threads.table({"structured": one["threads"], "holdfast": two["threads"]}), flush=True)


def checkpoints_on_and_off(rows: int, epochs: int, turns: int) -> dict[str, Any]:
    """The same job by turns without checkpoints and with one every ten epochs, in one warm JVM."""
    from holdfast.runtime.history.history import read_history
    from holdfast.runtime.spark import start

    spark = session()
    found: dict[str, list[Any]] = {"off": [], "on": [], "behind": [], "second": [], "off_cpu": [], "on_cpu": []}
    for number in range(-1, 2 * turns):
        # Off and on change places from turn to turn: what drifts meets both alike. The first job warms the JVM up.
        way = "off" if number % 4 in (0, 3) else "on"
        folder = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
        job = start(
            keyed_stream(spark, rows), holdfast_pipeline("keyed-count"), store=folder, nodes=2,
            epochs=max(epochs, WARM) if number < 0 else epochs, checkpoint_every=10 if way == "on" else 1_000_000,
        )  # fmt: skip
        running = query_of(job)
        ends = [SKIPPED, epochs]
        marks = [tree_cpu(os.getpid()) for _ in after(running, partial(batches_done, running), ends)]
        job.awaitTermination()
        spent = {
            entry["batchId"]: entry["durationMs"]["triggerExecution"] / 1000
            for entry in running.recentProgress
            if entry["numInputRows"] and entry["batchId"] >= SKIPPED
        }
        taken = [event["epoch"] for event in read_history(folder) if event["kind"] == "checkpoint"]
        shutil.rmtree(folder, ignore_errors=True)
        if number < 0:
            continue
        usual = statistics.median(spent.values())
        found[way].append(rows * len(spent) / sum(spent.values()))
        found[f"{way}_cpu"].append((marks[1] - marks[0]) / len(spent) / rows * 1e6)
        if way == "on":
            found["behind"] += [spent[epoch + 1] / usual for epoch in taken if epoch + 1 in spent]
            found["second"] += [spent[epoch + 2] / usual for epoch in taken if epoch + 2 in spent]
    spark.stop()
    return found


def compare_checkpoints(sizes: list[int], batches: int, turns: int, path: Path | None) -> None:
    """Price of checkpoints, on the clock and in CPU, and how much longer the epochs behind one take."""
    record, told = Record("throughput.py", sys.argv[1:]), []
    for rows in sizes:
        record.pause()
        found = apart("checkpoints", str(rows), str(batches), str(turns))
        words = ("keyed-count", str(rows), str(batches + WARM), "parquet", "10", str(WARM))
        limits = {limit: apart(limit, *words)["rows_per_second"] for limit in ("arrow", "polars")}
        off, on = (statistics.median(found[way]) for way in ("off", "on"))
        cpu = statistics.median(found["on_cpu"]) / statistics.median(found["off_cpu"]) - 1
        each = {name: spread(values) for name, values in found.items()}
        print(
            f"keyed-count, {rows:,} rows a batch, {turns} turns of {batches - SKIPPED} epochs: rows/s without "
            f"checkpoints {shown(each['off'])}, with one every 10 {shown(each['on'])}: price {1 - on / off:.1%}, "
            f"of CPU {cpu:.1%}; the epoch behind one takes {shown(each['behind'], '.2f')} times the median, the next "
            f"{shown(each['second'], '.2f')}",
            flush=True,
        )
        shares = (f"{on / speed:.0%} of {limit} alone" for limit, speed in limits.items())
        print(f"with checkpoints: {', '.join(shares)}", flush=True)
        prices = {"price": 1 - on / off, "cpu_price": cpu}
        bounds = {limit: spread([speed]) for limit, speed in limits.items()}
        told.append({"rows_a_batch": rows, "turns": turns, **prices, **each, "limits": bounds})
    written(path, record.to_json(told))


if __name__ == "__main__":
    main()
