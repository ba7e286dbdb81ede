"""Where the CPU of Linear Road goes: by operator without Spark, and by process on Spark at a given load.

    .venv/bin/python benchmarks/linear_road.py operators            # half a minute
    .venv/bin/python benchmarks/linear_road.py spark --expressways 100 200
    .venv/bin/holdfast bench linear-road                            # the most expressways

CPU seconds for a million tuples. ``operators`` runs the runtime's own functions for a task's epoch in one process:
what the operator does, what it takes to route and encode its output, and to encode the changes of its state. ``spark``
runs the peak in real time as that does and reads what each process took from /proc.

Learned from profiling: the toll assessment is more than half of it, and most of that is finding a tuple's car among
millions and writing it back. So cars that report in the same seconds share a table (a third less), and are looked up in
the order of their hashes, which is that of the table (another third): from one end to the other, and what is written
back comes sorted. Sorting words that hold both key and row is several times faster than sorting rows by key. On Spark
most of the CPU was the JVM's, for making tuples and turning rows into Arrow, until tuples came in packs. A checkpoint
as a Spark job, and snapshots that nodes wrote within epochs, made the epochs beside them two to four times as long.
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

from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.history.history import read_history
from holdfast.runtime.messages import RunDone
from holdfast.runtime.worker.blocks import Block
from holdfast.runtime.worker.processing import outgoing, process, process_source
from holdfast.topology import Task
from holdfast.workloads.linear_road import LINEAR_ROAD
from holdfast.workloads.linear_road.peak import RATE, Load, began, run_peak
from holdfast.workloads.linear_road.traffic import peak_starts, tuples

SOURCE = "forwarder"
JAVA = {
    "JVM: compiling": ("C1 Compiler", "C2 Compiler"),
    "JVM: collecting garbage": ("GC Thread", "G1 ", "VM Thread"),
    "JVM: tasks": ("Executor task",),
}
"""Threads of a JVM by the beginnings of their names, of which Linux keeps 15 characters."""


class Measured:
    """The pipeline in this process, an epoch at a time, with the CPU time of every part of it."""

    def __init__(self, expressways: int, parallelism: int, seed: int) -> None:
        self.expressways, self.seed, self.pieces = expressways, seed, parallelism
        self.pipeline = LINEAR_ROAD.pipeline(parallelism=parallelism)
        topology = self.pipeline.topology
        self.tasks = [task for task in topology.tasks if topology.inputs_of(task.operator)]
        self.states = {t: self.pipeline.empty_state(t.operator) for t in self.tasks}
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


def processes() -> dict[int, tuple[str, int, float, float]]:
    """Every process: name, parent, its own CPU seconds and those of its children that have ended."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        own, ended = (sum(map(int, fields[at : at + 2])) / os.sysconf("SC_CLK_TCK") for at in (11, 13))
        found[int(folder.name)] = (stat[stat.index("(") + 1 : stat.rindex(")")], int(fields[1]), own, ended)
    return found


def java_threads(process: int) -> dict[str, float]:
    """CPU seconds of a JVM's threads: compilers, garbage collectors, tasks, and the others together."""
    spent: dict[str, float] = defaultdict(float)
    for folder in Path(f"/proc/{process}/task").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue
        name, fields = stat[stat.index("(") + 1 : stat.rindex(")")], stat.rpartition(")")[2].split()
        kind = next((told for told, names in JAVA.items() if name.startswith(names)), "JVM: the rest")
        spent[kind] += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return dict(spent)


def by_role() -> dict[str, float]:
    """CPU seconds of this process, of the JVM below it, of the workers below that, and of the rest below this one."""
    listed = processes()
    names = ("driver (Python)", *JAVA, "JVM: the rest", "workers (Python)", "checkpoints (Python)")
    spent = dict.fromkeys(names, 0.0)
    for number, (name, parent, own, ended) in listed.items():
        line, above = [name], parent
        while above in listed and above != os.getpid():
            line.append(listed[above][0])
            above = listed[above][1]
        if number == os.getpid():
            spent["driver (Python)"] += own
        elif above == os.getpid() and name == "java":
            for kind, cpu in java_threads(number).items():
                spent[kind] += cpu
            spent["workers (Python)"] += ended
        elif above == os.getpid():
            spent["workers (Python)" if "java" in line else "checkpoints (Python)"] += own + ended
    return spent


class Watched:
    """What workers report of each epoch, heard on its way to the coordinator, and the CPU of processes meanwhile."""

    def __init__(self) -> None:
        self.work: list[tuple[float, dict[str, float]]] = []
        self.roles: list[tuple[float, dict[str, float]]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watched:
        handle = Coordinator.handle

        def listening(coordinator: Coordinator, event: Any) -> Any:
            if isinstance(event, RunDone):
                spent: dict[str, float] = defaultdict(float)
                for report in event.reports:
                    spent[report.task.operator] += report.seconds
                self.work.append((time.time(), dict(spent)))
            return handle(coordinator, event)

        self._handle = handle
        Coordinator.handle = listening  # type: ignore[method-assign]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        Coordinator.handle = self._handle  # type: ignore[method-assign]
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            self.roles.append((time.time(), by_role()))


def on_spark(numbers: list[int], load: Load, master: str) -> None:
    from holdfast.runtime.spark import spark_session

    session = spark_session(master, settings={"spark.driver.memory": "4g"})
    try:
        for expressways in numbers:
            folder = Path(tempfile.mkdtemp(prefix="holdfast-linear-road-"))
            try:
                measure(session, expressways, load, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        session.stop()


def measure(session: Any, expressways: int, load: Load, folder: Path) -> None:
    with Watched() as watched:
        peak = run_peak(session, expressways, load, folder)
    history, first = list(read_history(folder)), began(folder) + load.warm_up
    late = f"given up {peak.behind:.1f} s behind" if peak.behind is not None else f"most {peak.most or 0:.2f} s"
    print(f"{expressways} expressways, {RATE * expressways:,} tuples/s, {load}")
    print(f"{peak.answers:,} answers, median {peak.p50 or 0:.2f} s, 99 % {peak.p99 or 0:.2f} s, {late}")
    ended = next((event["time"] for event in history if event["kind"] == "stopped"), first + load.seconds)
    seen = [(at, cpu) for at, cpu in watched.roles if at <= ended]
    counted = [(at, cpu) for at, cpu in seen if first <= at <= first + load.seconds]
    if len(counted) < 2:
        print("it was given up before the measured time: what follows is of all of it")
        counted = seen
    first, last = counted[0][0], counted[-1][0]
    million = RATE * expressways * (last - first) / 1e6
    spent = {role: counted[-1][1][role] - counted[0][1][role] for role in counted[0][1]}
    show("process", spent, million, last - first)
    work: dict[str, float] = defaultdict(float)
    for at, operators in watched.work:
        for name, seconds in operators.items():
            work[name] += seconds if first <= at <= last else 0.0
    show("of the workers: tasks of", work, million, last - first)
    times(history, first, last)


def show(what: str, spent: dict[str, float], million: float, seconds: float) -> None:
    table = Table()
    for name in (what, "CPU s a million tuples", "cores"):
        table.add_column(name, justify="left" if name == what else "right")
    for name, cpu in {**spent, "all": sum(spent.values())}.items():
        table.add_row(name, f"{cpu / million:.2f}", f"{cpu / seconds:.2f}")
    Console(width=90).print(table)


def times(history: list[dict[str, Any]], first: float, last: float) -> None:
    """How long epochs took, those during which a checkpoint ended apart, and what checkpoints wrote."""
    mine = [event for event in history if first <= event["time"] <= last]
    saved = [event for event in mine if event["kind"] == "checkpoint"]
    answered = [event for event in mine if event["kind"] == "answered"]
    runs = [event["seconds"] for event in mine if event["kind"] == "run" and event["of"] == "epoch"]
    beside = [e["seconds"] for e in answered if any(e["time"] - e["seconds"] <= c["time"] <= e["time"] for c in saved)]
    table = Table()
    for name in ("seconds of", "number", "median", "95 %", "most"):
        table.add_column(name, justify="left" if name == "seconds of" else "right")
    whole = [event["seconds"] for event in answered]
    parts = {"epochs": whole, "their Spark jobs": runs, "epochs in which a checkpoint ended": beside}
    for name, seconds in parts.items():
        found = np.percentile(seconds, (50, 95, 100)) if seconds else []
        table.add_row(name, str(len(seconds)), *(f"{each:.2f}" for each in found))
    Console(width=90).print(table)
    size = sum(event["bytes"] for event in saved) / max(1, len(saved)) / 1e6
    print(f"{len(saved)} checkpoints of {size:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["operators", "spark"])
    parser.add_argument("--expressways", type=int, nargs="+", help="of spark: one run after the other for each")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--warm-up", type=int, default=60)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", action="store_true", help="every tuple a row of Spark's instead of packs")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--checkpoint-every", type=int, default=Load().checkpoint_every)
    asked: Any = parser.parse_args()
    if asked.what == "operators":
        by_operator((asked.expressways or [40])[0], asked.seconds, asked.parallelism, asked.seed)
    else:
        load = Load(
            asked.seconds, asked.warm_up, 2, asked.parallelism, asked.parallelism, asked.checkpoint_every, asked.seed,
            packed=not asked.rows,
        )  # fmt: skip
        on_spark(asked.expressways or [50], load, asked.master)


if __name__ == "__main__":
    main()
