"""A driver's host dies: how long until the driver that stands by gives the next answer?

    sudo .venv/bin/python benchmarks/supervise.py [--repeat 5] [--lease 6] [--cold]

Two supervisors of one job (word counts, an epoch about every half second), each in a process namespace of its own, so
that to each other they are different hosts: that the other's process is gone shows by its silence alone. The store is a
folder that both see. When the first has answered for a while its namespace is killed with everything in it at once:
supervisor, driver, JVM, Python workers. Prints for each run the seconds from that moment until the second claimed the
store and until it gave the next answer, then the spread. With --cold the second is started when the first dies, as a
scheduler would that starts a new process elsewhere. Needs root for the namespaces; says so and exits with 2 otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.runtime.history.history import read_history

JOB = """
import polars as pl
import holdfast
from holdfast import operators as op

def build():
    spark = holdfast.spark_session("local[2]")
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
    lines = numbers.selectExpr("concat('to be or not to be ', value % 10) AS value")
    pipeline = op.Pipeline(
        op.source("lines", op.flat_map(word=pl.col("value").str.split(" ")), parallelism=2),
        op.step("count", op.aggregate("word", count=op.count()), "lines", parallelism=2),
    )
    return holdfast.start(lines, pipeline, store={store!r}, trigger="500 milliseconds")
"""
DEADLINE = 180.0
BEFORE = 12
"""Epochs that the first answers before its host dies."""


@contextlib.contextmanager
def host(job: Path, lease: float, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A supervisor in a process namespace: whoever kills the process that is given kills everything in there."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "holdfast"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [*command, "supervise", f"{job}:build", "--lease", f"{lease:g}"], stdout=file, stderr=file
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def answered(store: Path) -> list[tuple[float, int]]:
    """When each answer was given."""
    if not (store / "history.jsonl").exists():
        return []
    return [(event["time"], event["epoch"]) for event in read_history(store) if event["kind"] == "answered"]


def started(store: Path) -> list[float]:
    return [event["time"] for event in read_history(store) if event["kind"] == "started"]


def awaited(store: Path, after: float, count: int, log: Path) -> list[tuple[float, int]]:
    until = time.monotonic() + DEADLINE
    while len(found := [each for each in answered(store) if each[0] > after]) < count:
        if time.monotonic() > until:
            raise SystemExit(f"no answer within {DEADLINE:.0f} s:\n{log.read_text()[-2000:]}")
        time.sleep(0.02)
    return found


def taken_over(folder: Path, lease: float, cold: bool) -> tuple[float, float]:
    """Seconds from the death of the first until the second began, and until it answered."""
    store, job = folder / "store", folder / "job.py"
    job.write_text(JOB.format(store=str(store)))
    with contextlib.ExitStack() as stack:
        log = folder / "second.log"
        first = stack.enter_context(host(job, lease, folder / "first.log"))
        awaited(store, 0.0, BEFORE, folder / "first.log")
        if not cold:
            stack.enter_context(host(job, lease, log))
            until = time.monotonic() + DEADLINE
            while "ready to take over" not in log.read_text():
                if time.monotonic() > until:
                    raise SystemExit(f"the second does not stand by:\n{log.read_text()[-2000:]}")
                time.sleep(0.02)
            awaited(store, time.time(), 3, folder / "first.log")
        first.send_signal(signal.SIGKILL)  # --kill-child: the namespace goes with it
        first.wait()
        died = time.time()
        if cold:
            stack.enter_context(host(job, lease, log))
        # An epoch that was answered when the host died may be told a moment later than that by nobody: it is gone.
        at, _ = awaited(store, died, 1, log)[0]
        began = next(each for each in started(store) if each > died)
    return began - died, at - died


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--lease", type=float, default=6.0)
    parser.add_argument("--cold", action="store_true")
    chosen = parser.parse_args()
    if subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "true"], check=False, capture_output=True
    ).returncode:
        print("process namespaces are not allowed here: run it as root", file=sys.stderr)
        raise SystemExit(2)
    silences = []
    print(f"lease {chosen.lease:g} s, {'cold' if chosen.cold else 'standing by'}, {os.cpu_count()} cores")
    for number in range(chosen.repeat):
        with tempfile.TemporaryDirectory(prefix="holdfast-supervise-") as folder:
            began, silent = taken_over(Path(folder), chosen.lease, chosen.cold)
        silences.append(silent)
        load = os.getloadavg()[0]
        print(
            f"{number + 1}: took over after {began:.1f} s, next answer after {silent:.1f} s (load {load:.1f})",
            flush=True,
        )
    print(
        f"next answer: median {statistics.median(silences):.1f} s, {min(silences):.1f} to {max(silences):.1f} s, "
        f"{sum(each <= 15 for each in silences)} of {len(silences)} within 15 s"
    )


if __name__ == "__main__":
    main()
