"""Two thousand small epochs on Spark with a failure every fifty: is everything flat? Memory, files, time of an epoch.

    .venv/bin/python benchmarks/soak.py [--epochs 2000] [--every 50] [--plot soak.png]

Word counts on logical nodes in local mode. Every so many epochs two of four nodes are killed, and are back after a few
seconds. Prints a line for every part of the run: the median and the largest time of an epoch, memory of the driver's
Python, of the JVM and of all Python workers together, files in the store (its outputs aside, which are the job's
product) and on nodes. At the end the last quarter beside the second; the final output must be that of a plain loop.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import Invalid
from holdfast.report.chart import Chart, Series, check_plot_path, write_charts
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import spark_session, start
from holdfast.workloads import Options, workload
from kills import expected

NODES = 4
PARTS = 20


@dataclass(frozen=True)
class Sample:
    epoch: int
    seconds: list[float]
    driver_mb: float
    jvm_mb: float
    workers_mb: float
    store_files: int
    node_files: int

    @property
    def median_ms(self) -> float:
        return 1000 * statistics.median(self.seconds)


def processes(root: int) -> Iterator[tuple[str, float]]:
    """The name and resident megabytes of every process below one, and of itself."""
    children: dict[int, list[int]] = {}
    told: dict[int, tuple[str, float]] = {}
    page = os.sysconf("SC_PAGE_SIZE") / 2**20
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            name = (folder / "cmdline").read_text().replace("\0", " ")
            told[int(folder.name)] = (name, int((folder / "statm").read_text().split()[1]) * page)
            children.setdefault(int(fields[1]), []).append(int(folder.name))
        except (OSError, IndexError, ValueError):
            continue
    waiting = [root]
    while waiting:
        each = waiting.pop()
        waiting += children.get(each, [])
        if each in told:
            yield told[each]


def count(folder: Path, *, without: str = "") -> int:
    return sum(len(files) for path, _, files in os.walk(folder) if not without or without not in path)


def sampled(epoch: int, seconds: list[float], store: Path, nodes: Path) -> Sample:
    driver = jvm = workers = 0.0
    for name, size in processes(os.getpid()):
        if "java" in name.split(" ")[0]:
            jvm += size
        elif "daemon" in name or "pyspark.worker" in name:
            workers += size
        elif not driver:
            driver = size
    return Sample(epoch, seconds, driver, jvm, workers, count(store, without="/output/"), count(nodes))


def line(sample: Sample) -> str:
    return (
        f"{sample.epoch:6d}  {sample.median_ms:7.0f} ms  {1000 * max(sample.seconds):7.0f} ms  "
        f"{sample.driver_mb:7.0f} MB {sample.jvm_mb:7.0f} MB {sample.workers_mb:7.0f} MB  "
        f"{sample.store_files:6d} {sample.node_files:6d}"
    )


def run(epochs: int, every: int, rate: int, folder: Path) -> list[Sample]:
    spark = spark_session("local[2]", name="soak")
    options = Options(rate=rate, epochs=epochs, seed=1)
    script = [f"kill node-1,node-2 at epoch {epoch}" for epoch in range(every, epochs, every)]
    samples: list[Sample] = []
    times: list[float] = []
    part = max(1, epochs // PARTS)

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "answered":
            times.append(event["seconds"])
            if (event["epoch"] + 1) % part == 0:
                local = Path(job.driver.config.local)
                samples.append(sampled(event["epoch"] + 1, list(times), folder, local))
                times.clear()
                print(line(samples[-1]), flush=True)

    job = start(
        workload("word-count").stream(spark, options),
        workload("word-count").pipeline(parallelism=NODES),
        store=folder,
        nodes=NODES,
        epochs=epochs,
        faults=parse_faults("; ".join(script)) if script else (),
        rejoin_after=2.0,
        listeners=[hear],
    )
    job.awaitTermination()
    table = read_output(folder, "final")
    found = sorted(zip(*(table[name].to_pylist() for name in ("epoch", "key", "count")), strict=True))
    print(f"final output identical to a plain loop: {'yes' if found == sorted(expected(options)) else 'NO'}")
    return samples


def compared(samples: list[Sample]) -> None:
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter] or samples[:1], samples[-quarter:]
    for what, of in (
        ("median epoch, ms", lambda s: s.median_ms),
        ("driver, MB", lambda s: s.driver_mb),
        ("JVM, MB", lambda s: s.jvm_mb),
        ("workers, MB", lambda s: s.workers_mb),
        ("files of the store", lambda s: float(s.store_files)),
        ("files of nodes", lambda s: float(s.node_files)),
    ):
        before, after = (statistics.mean(map(of, each)) for each in (early, late))
        print(f"{what}: {before:.0f} in the second quarter, {after:.0f} in the last ({after / max(before, 1e-9):.2f}x)")


def plot(samples: list[Sample], path: Path) -> None:
    epochs = [sample.epoch for sample in samples]
    memory = [
        Series("driver", epochs, [s.driver_mb for s in samples]),
        Series("JVM", epochs, [s.jvm_mb for s in samples]),
        Series("workers", epochs, [s.workers_mb for s in samples]),
    ]
    files = [
        Series("store", epochs, [float(s.store_files) for s in samples]),
        Series("nodes", epochs, [float(s.node_files) for s in samples]),
    ]
    charts = [
        Chart("Time of an epoch", "epoch", "ms", (Series("median", epochs, [s.median_ms for s in samples]),)),
        Chart("Memory", "epoch", "MB", tuple(memory)),
        Chart("Files", "epoch", "files", tuple(files)),
    ]
    write_charts(charts, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--every", type=int, default=50, help="epochs between two failures")
    parser.add_argument("--rate", type=int, default=200, help="rows an epoch")
    parser.add_argument("--plot", type=Path, help="draw it here: .html, .png or .svg")
    asked = parser.parse_args()
    if asked.epochs < 1 or asked.every < 1 or asked.rate < 1:
        parser.error("--epochs, --every and --rate must be at least 1")
    if asked.plot is not None:
        try:
            check_plot_path(asked.plot)
        except Invalid as error:
            parser.error(str(error))
    folder = Path(tempfile.mkdtemp(prefix="holdfast-soak-"))
    print(" epoch      median     largest     driver        JVM    workers   store  nodes")
    began = time.monotonic()
    try:
        samples = run(asked.epochs, asked.every, asked.rate, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{asked.epochs} epochs in {time.monotonic() - began:.0f} s")
    compared(samples)
    if asked.plot is not None:
        plot(samples, asked.plot)
        print(f"curves in {asked.plot}")


if __name__ == "__main__":
    sys.exit(main())
