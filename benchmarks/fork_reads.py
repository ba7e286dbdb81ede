"""How long a fork of a large state takes until it has answered an epoch: from all of it, and from what it touches.

    .venv/bin/python benchmarks/fork_reads.py [--keys 1000000 --keys 4000000] [--touched 1000] [--times 5]

A count and a sum by key, and a checkpoint of it in a folder. The real worker restores a fork from it and answers an
epoch of ``--touched`` random keys, as after the loss of a node: once from files that are read whole, once from their
pages. Of each the seconds on the clock and of the CPU (medians), the bytes read, and the bytes that the fork wrote on
its node. The answers are compared. Before each, the system is asked to forget what it has of the files. Last, what it
takes to write such a state durably, in pages and not, and to read all of it again with its checksum verified.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from holdfast import operators as op
from holdfast.runtime.messages import Work
from holdfast.runtime.worker.plan import RunPlan, Slot
from holdfast.runtime.worker.processing import outgoing, process, process_source
from holdfast.runtime.worker.worker import JobContext, Worker
from holdfast.state import Store, TaskState, checkpoint, pages
from holdfast.state.files import LocalFiles
from holdfast.topology import Task

SOURCE, COUNTS = Task("rows", 0), Task("counts", 0)
PIPELINE = op.Pipeline(
    op.source("rows"),
    op.step("counts", op.aggregate(by={"k": "int64"}, n=op.count(), total=op.sum("v")), "rows"),
)


class Measured(NamedTuple):
    """Of one fork. ``answer``: its rows."""

    wall: float
    cpu: float
    read: int
    wrote: int
    answer: pa.Table


def epoch_rows(keys: Any, epoch: int) -> Any:
    made = process_source(PIPELINE, SOURCE, pa.table({"k": keys, "v": keys % 1000}), epoch)
    return outgoing(PIPELINE, SOURCE, made, epoch, {})


def state_of(keys: int) -> TaskState:
    empty = PIPELINE.empty_state("counts")
    return process(PIPELINE, COUNTS, empty, epoch_rows(np.arange(keys), 0), 0).state


def forgotten(folder: Path) -> None:
    """Ask the system to have nothing of these files in memory."""
    for path in folder.rglob("*.arrow"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def counted() -> Iterator[list[int]]:
    """The bytes that are read of files."""
    seen, whole, parts = [0], LocalFiles.read, LocalFiles.read_parts

    def read(files: LocalFiles, name: str) -> pa.Buffer:
        data = whole(files, name)
        seen[0] += data.size
        return data

    def read_parts(files: LocalFiles, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[pa.Buffer]:
        seen[0] += sum(size for _, size in spans)
        return parts(files, name, spans)

    with mock.patch.object(LocalFiles, "read", read), mock.patch.object(LocalFiles, "read_parts", read_parts):
        yield seen


def fork(folder: Path, number: int, keys: Any, whole: bool) -> Measured:
    """Restore one on a node that has nothing and answer epoch 1."""
    node = f"node-{number}"
    context = JobContext("job", PIPELINE, str(folder / "store"), "", 1, str(folder), frozenset(["counts"]))
    slot = Slot("", (Work(COUNTS, node, "tentative", "checkpoint", 0, 1, 1, fork=number),))
    plan = RunPlan(number, ((slot,),), {}, {}, {1: 1}, {node: str(folder / node)}, -1, forks=frozenset([number]))
    blocks = epoch_rows(keys, 1)
    forgotten(folder)
    reading = checkpoint.read_run if whole else checkpoint.open_run
    with counted() as read, mock.patch.object(checkpoint, "open_run", reading):
        wall, cpu = time.perf_counter(), time.process_time()
        _, (report,) = Worker(context).work(plan, slot, blocks)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert report.status == "committed", report.message
    wrote = sum(path.stat().st_size for path in (folder / node).rglob("*.arrow"))
    rows = parquet.read_table(folder / "store" / report.outputs[1].path)
    return Measured(wall, cpu, read[0], wrote, rows.sort_by("k"))


def written(folder: Path, number: int, state: TaskState, large: int) -> tuple[float, ...]:
    """Seconds on the clock and of the CPU to bring a whole state to a store, and to read it from there."""
    store = Store(folder / f"written-{number}")
    with mock.patch.object(pages, "LARGE", large):
        wall, cpu = time.perf_counter(), time.process_time()
        entries = store.write_task("counts/0", 0, state, token=1)
        took = time.perf_counter() - wall, time.process_time() - cpu
    wall, cpu = time.perf_counter(), time.process_time()
    for entry in entries:
        checkpoint.read_run(store.files, "counts/0", entry)
    took = *took, time.perf_counter() - wall, time.process_time() - cpu
    for entry in entries:
        store.files.delete(entry.path)
    return took


def measure(keys: int, touched: int, times: int) -> None:
    with tempfile.TemporaryDirectory(prefix="holdfast-forks-") as name:
        folder, state = Path(name), state_of(keys)
        store = Store(folder / "store")
        with store.writer("benchmark") as writer:
            files = store.write_task("counts/0", 0, state, token=writer.token)
            writer.commit_checkpoint(0, {"counts/0": files})
        writes: dict[str, list[tuple[float, ...]]] = {"one batch": [], "pages": []}
        for number in range(times):
            writes["one batch"].append(written(folder, 2 * number, state, 1 << 62))
            writes["pages"].append(written(folder, 2 * number + 1, state, pages.LARGE))
        del state
        rng = np.random.default_rng(7)
        forks: dict[str, list[Measured]] = {"whole": [], "touched": []}
        for number in range(times):
            asked = rng.choice(keys, touched, replace=False)
            for kind, some in forks.items():
                some.append(fork(folder, 1 + 2 * number + (kind == "whole"), asked, kind == "whole"))
            assert forks["whole"][-1].answer.equals(forks["touched"][-1].answer)
        size = sum(entry.bytes for entry in files)
    print(f"{keys:,} keys, {size / 1e6:,.0f} MB, an epoch of {touched:,} of them")
    for kind, some in forks.items():
        wall, cpu = (statistics.median(getattr(each, what) for each in some) for what in ("wall", "cpu"))
        read, wrote = some[-1].read / 1e6, some[-1].wrote / 1e6
        print(f"  {kind:<10} {wall:7.3f} s, {cpu:7.3f} s of CPU, {read:9.1f} MB read, {wrote:9.3f} MB written")
    for kind, times_ in writes.items():
        wall, cpu, wall_read, cpu_read = (statistics.median(each[n] for each in times_) for n in range(4))
        shown = f"written {wall:7.3f} s, {cpu:7.3f} s of CPU; read {wall_read:7.3f} s, {cpu_read:7.3f} s of CPU"
        print(f"  {kind:<10} {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--keys", type=int, action="append", help="1, 4 and 16 million unless given")
    parser.add_argument("--touched", type=int, default=1000, help="keys of the epoch")
    parser.add_argument("--times", type=int, default=5)
    asked = parser.parse_args()
    sizes = asked.keys or [1_000_000, 4_000_000, 16_000_000]
    if asked.touched < 1 or asked.times < 1 or min(sizes) < asked.touched:
        parser.error("--touched and --times must be at least 1, and --keys at least --touched")
    for keys in sizes:
        measure(keys, asked.touched, asked.times)


if __name__ == "__main__":
    main()
