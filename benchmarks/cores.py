"""What an executor's further cores give: one executor with two cores against two with one, on the same machine.

    .venv/bin/python benchmarks/cores.py                  # both works, three rounds, about six minutes
    .venv/bin/python benchmarks/cores.py --work python --rounds 1
    .venv/bin/python benchmarks/cores.py --jobs 2         # two jobs in one session

Layouts by turns, each measurement with a session of its own. ``python``: four tasks, each half a second of pure Python
an epoch, so that nothing but processes helps. ``count``: a million rows a batch counted by 100,000 keys in four tasks.
``local-cluster[1,1]`` stands beside them: what one core does. Seconds are Spark's own for a whole batch, the median of
those after the first ones.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from measuring import Record, spread, written
from throughput import apart, query_of

LAYOUTS = ("1,2", "2,1", "1,1")
"""Executors, and cores of each."""
SKIPPED = 4
BATCHES = 14
ROWS = {"python": 4_000, "count": 1_000_000}
KEYS = 100_000


def half_a_second(rows: Any) -> Any:
    """Pure Python for so long as this core takes for it; the rows as they came."""
    until = time.process_time() + 0.5
    while time.process_time() < until:
        sum(range(1_000))
    return rows


def pipeline(work: str) -> Any:
    from holdfast import operators as op

    if work == "python":
        last = op.step("slow", half_a_second, op.stream("keys", key="key"), parallelism=4)
    else:
        counting = op.aggregate({"key": pa.int64()}, count=op.count())
        last = op.step("counts", counting, op.stream("keys", key="key"), parallelism=4)
    return op.Pipeline(op.source("keys", parallelism=2), last)


def measure(layout: str, work: str, jobs: int) -> dict[str, Any]:
    """The median of a batch's seconds, over all jobs."""
    from holdfast.runtime.spark import spark_session, start

    spark = spark_session(f"local-cluster[{layout},1024]", settings={"spark.driver.memory": "2g"})
    folder = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS[work]).option("numPartitions", 2)
    stream = source.load().selectExpr(f"pmod(xxhash64(value), {KEYS}) AS key")
    started = [
        start(stream, pipeline(work), store=folder / str(number), epochs=BATCHES, outputs=False)
        for number in range(jobs)
    ]
    seconds: list[float] = []
    for job in started:
        job.awaitTermination()
        progress = [each for each in query_of(job).recentProgress if each["numInputRows"]]
        seconds += [each["durationMs"]["triggerExecution"] / 1000 for each in progress[SKIPPED:]]
    spark.stop()
    shutil.rmtree(folder, ignore_errors=True)
    return {"median": statistics.median(seconds), "most": max(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--work", choices=list(ROWS), action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="so many jobs at once in one session")
    parser.add_argument("--json", type=Path, help="write what was found here")
    parser.add_argument("--one", nargs=3, metavar=("LAYOUT", "WORK", "JOBS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rounds < 1 or given.jobs < 1:
        parser.error("--rounds and --jobs must be at least 1")
    if given.one:
        print(json.dumps(measure(given.one[0], given.one[1], int(given.one[2]))))
        return
    record, rows = Record("cores.py", sys.argv[1:]), []
    for work in given.work or list(ROWS):
        found: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
        for number in range(given.rounds):
            for layout in LAYOUTS:
                print(f"{work}: round {number + 1} of {given.rounds}, {layout}", file=sys.stderr, flush=True)
                record.pause()
                found[layout].append(apart(layout, work, str(given.jobs), script=__file__)["median"])
        print(f"{work}, {given.jobs} job{'s' * (given.jobs > 1)}: seconds of a batch, median (least to most)")
        for layout, medians in found.items():
            executors, cores = layout.split(",")
            middle = f"{statistics.median(medians):6.3f} ({min(medians):.3f} to {max(medians):.3f})"
            print(f"  {executors} executor{'s' * (executors != '1')} with {cores} core{'s' * (cores != '1')}: {middle}")
        ratios = [one / two for one, two in zip(found["1,2"], found["2,1"], strict=True)]
        print(f"  one with two against two with one: {statistics.median(ratios):.2f}x", end=" ")
        print(f"({min(ratios):.2f} to {max(ratios):.2f})", flush=True)
        layouts = {layout: spread(medians) for layout, medians in found.items()}
        told = {"work": work, "jobs": given.jobs, "turns": given.rounds, "layouts": layouts, "ratio": spread(ratios)}
        rows.append(told)
    written(given.json, record.to_json(rows))


if __name__ == "__main__":
    main()
