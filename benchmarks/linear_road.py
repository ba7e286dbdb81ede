"""Where the CPU of Linear Road goes: by operator without Spark, and by process on Spark at a given load.

    .venv/bin/python benchmarks/linear_road.py operators            # half a minute
    .venv/bin/python benchmarks/linear_road.py spark --expressways 100
    .venv/bin/holdfast bench linear-road                            # the rating itself

CPU seconds for a million tuples. ``operators`` runs the runtime's own functions for a task's epoch in one process:
what the operator does, what it takes to route and encode its output, and to encode the changes of its state. ``spark``
runs the peak in real time as the rating does and reads what each process took from /proc.

Learned from profiling: the toll assessment is more than half of it, and most of that is finding a tuple's car among
millions and writing it back, so cars that report in the same seconds share a table (a third less). Sorting words that
hold both key and row is several times faster than sorting rows by key. On Spark, by one-off
profiles, generating the traffic took ten times as long while the generated method was too large for HotSpot to compile.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from holdfast.runtime.blocks import Block
from holdfast.runtime.processing import empty_state, outgoing, process, process_source
from holdfast.topology import Task
from holdfast.workloads.linear_road import LINEAR_ROAD
from holdfast.workloads.linear_road.rating import RATE, Load, run_peak
from holdfast.workloads.linear_road.traffic import peak_starts, tuples

SOURCE = "forwarder"


class Measured:
    """The pipeline in this process, an epoch at a time, with the CPU time of every part of it."""

    def __init__(self, expressways: int, parallelism: int, seed: int) -> None:
        self.expressways, self.seed, self.pieces = expressways, seed, parallelism
        self.pipeline = LINEAR_ROAD.pipeline(parallelism=parallelism)
        topology = self.pipeline.topology
        self.tasks = [task for task in topology.tasks if topology.inputs_of(task.operator)]
        self.states = {t: empty_state(self.pipeline, self.pipeline.by_name[t.operator], -1) for t in self.tasks}
        self.cpu: dict[tuple[str, str], float] = defaultdict(float)
        self.next, self.number = peak_starts(expressways), 0

    def epoch(self, seconds: int) -> None:
        count = RATE * self.expressways * seconds
        rows = tuples(np.arange(self.next, self.next + count), self.seed, self.expressways)
        self.next += count
        came: dict[Task, list[Block]] = {task: [] for task in self.tasks}
        for piece in range(self.pieces):
            start, stop = count * piece // self.pieces, count * (piece + 1) // self.pieces
            task = Task(SOURCE, piece)
            clock = Clock(self.cpu, SOURCE)
            made = process_source(self.pipeline, task, rows.slice(start, stop - start), self.number)
            clock.lap("process")
            self.send(outgoing(self.pipeline, task, made, self.number, {}, piece), came)
            clock.lap("send")
        for task in self.tasks:
            clock = Clock(self.cpu, task.operator)
            made = process(self.pipeline, task, self.states[task], came[task], self.number)
            self.states[task] = made.state
            clock.lap("process")
            self.send(outgoing(self.pipeline, task, made, self.number, {}), came)
            clock.lap("send")
            for change in made.changes.values():
                change.encode()
            clock.lap("save")
        self.number += 1

    def send(self, blocks: list[Block], came: dict[Task, list[Block]]) -> None:
        for block in blocks:
            came[block.receiver].append(block)


class Clock:
    """CPU time from one lap to the next."""

    def __init__(self, spent: dict[tuple[str, str], float], operator: str) -> None:
        self.spent, self.operator, self.at = spent, operator, time.process_time()

    def lap(self, what: str) -> None:
        now = time.process_time()
        self.spent[self.operator, what] += now - self.at
        self.at = now


def by_operator(expressways: int, seconds: int, parallelism: int, seed: int) -> None:
    job = Measured(expressways, parallelism, seed)
    for _ in range(6):
        job.epoch(5)  # every car is known after 30 seconds
    job.cpu.clear()
    for _ in range(seconds):
        job.epoch(1)
    million = RATE * expressways * seconds / 1e6
    table = Table(title=f"CPU seconds for a million tuples, {expressways} expressways, epochs of 1 s")
    for name in ("operator", "process", "route and encode", "encode state", "all"):
        table.add_column(name, justify="left" if name == "operator" else "right")
    total = 0.0
    for operator in job.pipeline.topology.operators:
        parts = [job.cpu.get((operator.name, what), 0.0) / million for what in ("process", "send", "save")]
        table.add_row(operator.name, *(f"{part:.3f}" for part in [*parts, sum(parts)]))
        total += sum(parts)
    table.add_row("all", "", "", "", f"{total:.3f}")
    Console(width=110).print(table)


def processes() -> dict[int, tuple[str, int, float]]:
    """Every process: name, parent, CPU seconds."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        spent = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        found[int(folder.name)] = (stat[stat.index("(") + 1 : stat.rindex(")")], int(fields[1]), spent)
    return found


def by_role() -> dict[str, float]:
    """CPU seconds of this process, of the JVM below it, and of the Python workers below that."""
    listed, spent = processes(), defaultdict(float)
    for number, (name, parent, cpu) in listed.items():
        above = parent
        while above in listed and above != os.getpid():
            above = listed[above][1]
        if number == os.getpid():
            spent["driver (Python)"] += cpu
        elif above == os.getpid():
            spent["JVM" if name == "java" else "workers (Python)"] += cpu
    return dict(spent)


def on_spark(expressways: int, load: Load) -> None:
    from holdfast.runtime.spark import spark_session

    session = spark_session("local[2]", settings={"spark.driver.memory": "4g"})
    folder = Path(tempfile.mkdtemp(prefix="holdfast-linear-road-"))
    seen: list[tuple[float, dict[str, float]]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(2.0):
            seen.append((time.monotonic(), by_role()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        began = time.monotonic()
        peak = run_peak(session, expressways, load, folder)
    finally:
        ended.set()
        watcher.join()
        session.stop()
        shutil.rmtree(folder, ignore_errors=True)
    counted = [(at, cpu) for at, cpu in seen if at - began > load.warm_up][:-1]
    if len(counted) < 2:
        print(f"given up {peak.behind or 0:.1f} s behind, before the measured time")
        return
    (first, before), (last, after) = counted[0], counted[-1]
    million = RATE * expressways * (last - first) / 1e6
    told = {role: _shares(after[role] - before.get(role, 0.0), million, last - first) for role in after}
    table = Table(title=f"{expressways} expressways, {RATE * expressways:,} tuples/s, local[2]")
    for name in ("process", "CPU s a million tuples", "cores"):
        table.add_column(name, justify="left" if name == "process" else "right")
    for role, (cost, cores) in told.items():
        table.add_row(role, f"{cost:.2f}", f"{cores:.2f}")
    table.add_row("all", *(f"{sum(each[place] for each in told.values()):.2f}" for place in (0, 1)))
    Console(width=90).print(table)
    late = f"given up {peak.behind:.1f} s behind" if peak.behind is not None else f"most {peak.most or 0:.2f} s"
    print(f"{peak.answers:,} answers, median {peak.p50 or 0:.2f} s, 99 % {peak.p99 or 0:.2f} s, {late}")


def _shares(cpu: float, million: float, seconds: float) -> tuple[float, float]:
    return cpu / million, cpu / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["operators", "spark"])
    parser.add_argument("--expressways", type=int)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=60)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    asked: Any = parser.parse_args()
    if asked.what == "operators":
        by_operator(asked.expressways or 40, asked.seconds, asked.parallelism, asked.seed)
    else:
        load = Load(asked.seconds, asked.warm_up, 2, asked.parallelism, 2, seed=asked.seed)
        on_spark(asked.expressways or 50, load)


if __name__ == "__main__":
    main()
