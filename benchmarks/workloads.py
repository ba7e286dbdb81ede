"""How fast rows come: generated in numpy, generated on the JVM, and read from a Parquet file, for each workload.

    .venv/bin/python benchmarks/workloads.py [--rows N]

Thousands of rows a second: numpy by CPU time of one process; Spark (local[2], expressions over row numbers, result
thrown away) by the clock, so run it on a quiet machine. Learned from profiling: draws must be columns of their own, or
Spark computes each hash as often as it is used (four times a word); and words cut out of one string of bytes come
several times faster than words put together by lpad and translate.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from holdfast.runtime.spark.session import spark_session
from holdfast.workloads import WORKLOADS, Options

ROUNDS = 3


def seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    taken = []
    for _ in range(ROUNDS):
        began = clock()
        run()
        taken.append(clock() - began)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    rows = parser.parse_args().rows
    spark = spark_session("local[2]")
    numbers = spark.range(0, rows, 1, 2).withColumnRenamed("id", "value")
    table = Table(title=f"thousands of rows a second, {rows:,} rows")
    for name in ("workload", "numpy (CPU)", "Spark local[2]", "Parquet file (CPU)"):
        table.add_column(name, justify="left" if name == "workload" else "right")
    with tempfile.TemporaryDirectory() as folder:
        for name, each in WORKLOADS.items():
            options = Options(rate=rows, seed=1)
            made = each.generated(numbers, options)
            on_jvm = seconds(lambda made=made: made.write.format("noop").mode("overwrite").save(), time.perf_counter)  # type: ignore[misc]
            alone = seconds(lambda each=each, options=options: each.batch(options, 0), time.process_time)  # type: ignore[misc]
            path = Path(folder) / f"{name}.parquet"
            pq.write_table(each.batch(options, 0), path)
            stored = Options(input=path, epochs=4)
            read = seconds(
                lambda each=each, stored=stored: [each.batch(stored, place) for place in range(4)],  # type: ignore[misc]
                time.process_time,
            )
            table.add_row(name, *(f"{rows / taken / 1e3:,.0f}" for taken in (alone, on_jvm, read)))
    Console(width=90).print(table)
    spark.stop()


if __name__ == "__main__":
    main()
