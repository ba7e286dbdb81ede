"""From a row's arrival to its count in Python, one row at a time: Spark's real-time mode, micro-batches, Holdfast.

    .venv/bin/python benchmarks/latency.py                        # three turns, about four minutes
    .venv/bin/python benchmarks/latency.py --rows 20 --skip 5 --repeat 1 --json latency.json

The same count by key over the same source, in the same kind of session. Real-time mode takes its rows from Kafka; the
one other source that has it is the memory stream of Spark's own tests, which is what all three read here. A key is new
with every row, and a row is sent when the one before has come. Latency ends where Python has the row's count: collected
in ``foreachBatch``, and in ``foreach`` in real-time mode, which has no other sink for Python and no memory sink. What
real-time mode takes to a sink in the JVM, or to Kafka, is not measured. RocksDB and changelog checkpoints for Spark;
real-time mode commits when its batch ends, every five seconds, the other two with every answer.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import throughput
from measuring import Record, check, say, shown, spreads, written

SYSTEMS = {"real-time": "real-time mode", "structured": "micro-batches", "holdfast": "Holdfast"}
PATIENCE = 60.0
"""Seconds that a row may take."""


class Noted:
    """Writes each row down as it comes, into a file for each task and epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, partition: int, epoch: int) -> bool:
        self.file = (self.folder / f"{partition}-{epoch}").open("a", buffering=1)
        return True

    def process(self, row: Any) -> None:
        self.file.write(f"{row['value']}\n")

    def close(self, error: Exception | None) -> None:
        self.file.close()


def begun(system: str, totals: Any, folder: Path) -> tuple[Any, Callable[[], int]]:
    """The query, running, and a function that tells how many counts are out."""
    import holdfast

    notes, out = folder / "notes", []
    notes.mkdir()
    if system == "real-time":
        writing = totals.writeStream.outputMode("update").foreach(Noted(notes)).trigger(realTime="5 seconds")
        query = writing.option("checkpointLocation", str(folder / "checkpoint")).start()
        return query, lambda: len({line for file in notes.iterdir() for line in file.read_text().splitlines()})
    writing = holdfast.writeStream(totals) if system == "holdfast" else totals.writeStream
    writing = writing.outputMode("update").foreachBatch(lambda rows, _: out.extend(rows.collect()))
    if system == "holdfast":
        writing.resilience(nodes=2, parallelism=2, checkpoint_every=10)
    return writing.option("checkpointLocation", str(folder / "checkpoint")).start(), lambda: len(out)


def measure(system: str, rows: int, skip: int) -> dict[str, float]:
    """Seconds from each row to its count, those of the first ``skip`` left out."""
    from pyspark import cloudpickle
    from pyspark.sql import DataFrame

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not look into this folder
    spark, folder = throughput.session("local[6]"), Path(tempfile.mkdtemp(prefix="holdfast-latency-"))
    jvm: Any = spark.sparkContext._jvm
    memory = jvm.org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream
    source = memory.apply(spark._jsparkSession, 2, jvm.org.apache.spark.sql.Encoders.STRING())
    query, count = begun(system, DataFrame(source.toDF(), spark).groupBy("value").count(), folder)
    seconds = []
    for number in range(rows):
        listed = jvm.java.util.ArrayList()
        listed.add(f"key-{number}")
        sent = time.time()
        source.addData(jvm.scala.jdk.javaapi.CollectionConverters.asScala(listed))
        while count() <= number:
            if not query.isActive or time.time() > sent + PATIENCE:
                sys.exit(f"{system}: row {number} never came: {query.exception() or 'no answer'}")
            time.sleep(0.001)
        seconds.append(time.time() - sent)
    query.stop()
    spark.stop()
    shutil.rmtree(folder, ignore_errors=True)
    return {"median": median(seconds[skip:]), "most": max(seconds[skip:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--system", choices=list(SYSTEMS), action="append")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--skip", type=int, default=10, help="rows that are left out at first")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write what was found here")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one[0], int(asked.one[1]), int(asked.one[2]))))
        return
    check(parser, asked, "skip", "rows")
    record = Record("latency.py", sys.argv[1:])
    runs: dict[str, list[dict[str, Any]]] = {system: [] for system in asked.system or SYSTEMS}
    for turn in range(asked.repeat):
        for system, found in runs.items():
            record.pause()
            found.append(throughput.apart(system, str(asked.rows), str(asked.skip), script=__file__))
            say(f"turn {turn + 1}/{asked.repeat}: {SYSTEMS[system]} {found[-1]['median']:.3f} s")
    rows = [{"system": name, "turns": asked.repeat, **spreads(each, "median", "most")} for name, each in runs.items()]
    for row in rows:
        print(
            f"{SYSTEMS[row['system']]:<16} median {shown(row['median'], '.3f')} s, most {shown(row['most'], '.3f')} s"
        )
    written(asked.json, record.to_json(rows))


if __name__ == "__main__":
    main()
