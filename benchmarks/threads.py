"""Which threads the CPU of a job goes to: ``throughput.py --threads`` prints it for each system."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

KINDS = {
    "JVM: compilers": r"C[12] Compiler.*|Sweeper.*|Code Cache.*",
    "JVM: collector": r"G1 .*|GC Thread.*|Parallel.*|VM Thread",
    "JVM: Spark's tasks": r"Executor task.*",
    "JVM: the stream's thread": r"stream executi.*",
    "JVM: scheduler and events": r"(dag-sched|task-res|dispatcher|spark-lis|block-man|heartbeat).*",
    "JVM: calls from Python": r"Thread-\d+.*",
}
"""The names of threads, of which the kernel keeps fifteen characters."""


def by_kind(root: int, processes: list[int]) -> Counter[str]:
    """CPU seconds of these processes by kinds of threads; ``root`` is the driver's Python."""
    found: Counter[str] = Counter()
    for number in processes:
        folder = Path(f"/proc/{number}")
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            whole = _seconds(folder / "stat")
            threads = _threads(folder / "task")
        except OSError:
            continue
        if "java" not in words.split(" ", 1)[0]:
            kind = "driver" if number == root else "workers" if "pyspark" in words or "daemon" in words else "others"
            found[f"Python: {kind}"] += whole
            continue
        for name, seconds in threads:
            found[_kind(name)] += seconds
        found["JVM: threads that ended"] += whole - sum(seconds for _, seconds in threads)
    return found


def _kind(name: str) -> str:
    """What a thread of the JVM is for; of others their names, without numbers."""
    known = next((kind for kind, form in KINDS.items() if re.fullmatch(form, name)), None)
    return known or f"JVM: {re.sub(r'[-#]?[0-9]+.*', '', name)}"


def _threads(folder: Path) -> list[tuple[str, float]]:
    """Name and CPU seconds of each thread that does not end while it is looked at."""
    found = []
    for each in folder.iterdir():
        with contextlib.suppress(OSError):
            found.append(((each / "comm").read_text().strip(), _seconds(each / "stat")))
    return found


def _seconds(stat: Path) -> float:
    return sum(map(int, stat.read_text().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def table(systems: Mapping[str, Mapping[str, float]]) -> str:
    """Milliseconds of CPU a batch, by kinds of threads, those of a millisecond and more."""
    kinds = sorted({kind for each in systems.values() for kind, spent in each.items() if spent >= 0.001})
    heads = "".join(f"{name:>14}" for name in systems)
    cells = ("".join(f"{1000 * each.get(kind, 0.0):>14.0f}" for each in systems.values()) for kind in kinds)
    return "\n".join(
        [f"    {'ms of CPU a batch':<32}{heads}", *(f"    {k:<32}{c}" for k, c in zip(kinds, cells, strict=True))]
    )
