"""State tables and the durable store, measured: ``.venv/bin/python benchmarks/state.py [--quick]``.

What it shows, one table each:
  hot      100,000 int64 keys, all changed every epoch: look up, apply, save on the node (the runtime's inner loop)
  large    1,000,000 keys, 1,000 changed an epoch: time and bytes must follow the change, not the state
  small    100 keys, 10 changed an epoch
  restore  1,000,000 keys from the durable store, whole and from a chain of incremental checkpoints
  polars   a running count by key against plain polars over the same rows: group-by of each epoch, and of all of them
  sync     what fsync costs a checkpoint, a journal epoch and an output

What profiling taught: (1) numpy's binary search of 100,000 random hashes takes 10 ms because each probe misses the
cache; hashes are spread evenly, so an array of bucket starts finds the place in one or two probes (2 ms). (2) Sorting
the hashes of a change (5 ms) is needless when its keys are in the table already: their places there give the order
(2 ms). (3) When every key changes, the new rows replace the old ones and share their hashes and index: no merge at all.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from holdfast.state import (
    Change,
    FileEntry,
    Journal,
    JournalEpoch,
    LocalState,
    StateSchema,
    StateTable,
    Store,
    Sync,
    TaskState,
)
from holdfast.state.files import open_files
from holdfast.state.journal import piece_name
from holdfast.state.output import place, stage

NUMBERS = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64()), ("w", pa.float64())]))
TEXTS = StateSchema(pa.schema([("k", pa.string())]), pa.schema([("v", pa.int64()), ("w", pa.float64())]))
NO_KEYS = pa.table({"k": pa.array([], pa.int64())})


def rows_for(keys: np.ndarray, rng: np.random.Generator, text: bool = False) -> pa.Table:
    column = pa.array([f"user-{k}" for k in keys.tolist()]) if text else pa.array(keys)
    return pa.table({"k": column, "v": rng.integers(0, 1000, len(keys)), "w": rng.random(len(keys))})


class Spent(NamedTuple):
    """Milliseconds on the clock, and of this process on any core: the second does not mind a busy machine."""

    wall: float
    cpu: float


def spent(work: Callable[[], object]) -> Spent:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Spent((time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000)


def line(name: str, times: Sequence[Spent], note: str = "") -> None:
    wall = [one.wall for one in times]
    cpu = float(np.mean([one.cpu for one in times]))
    spread = "  ".join(
        f"{word} {np.percentile(wall, at):7.2f}" for word, at in (("p50", 50), ("p99", 99), ("max", 100))
    )
    print(f"  {name:36s} cpu {cpu:7.2f}  wall: mean {np.mean(wall):7.2f}  {spread} ms  {note}")


def cycle(title: str, size: int, changed: int, epochs: int, directory: Path, text: bool = False) -> None:
    """Look up, apply and save each epoch, letting go of older versions as the runtime does."""
    rng = np.random.default_rng(1)
    schema = TEXTS if text else NUMBERS
    node = LocalState(directory / title)
    state = TaskState(0, {"t": StateTable.from_table(schema, rows_for(np.arange(size), rng, text), 0)})
    node.restore("O/0", state)
    parts: dict[str, list[Spent]] = {"look up": [], "apply": [], "save": [], "drop": [], "whole epoch": []}
    written = 0
    for epoch in range(1, epochs + 1):
        keys = rng.permutation(size) if changed == size else rng.choice(size, changed, replace=False)
        rows = rows_for(keys, rng, text)
        asked = rows.select(["k"])
        change = {"t": Change(rows, asked.slice(0, 0))}
        box = {}

        def save() -> None:
            box["bytes"] = node.save("O/0", epoch, change)  # noqa: B023

        def apply() -> None:
            box["state"] = state.apply(change, epoch)  # noqa: B023

        times = [spent(lambda: state["t"].find(asked)), spent(apply), spent(save)]  # noqa: B023
        times.append(spent(lambda: node.drop("O/0", epoch - 1)))  # noqa: B023
        state = box["state"]
        written += box["bytes"]
        if epoch > 3:
            whole = Spent(sum(one.wall for one in times), sum(one.cpu for one in times))
            for name, value in zip(parts, [*times, whole], strict=True):
                parts[name].append(value)
    print(f"{title}: {size:,} keys, {changed:,} changed an epoch, {epochs} epochs")
    for name, values in parts.items():
        line(name, values, f"{written / epochs:,.0f} bytes an epoch" if name == "save" else "")


def checkpoints(size: int, changed: int, epochs: int, directory: Path) -> None:
    rng = np.random.default_rng(2)
    store = Store(directory / "store")
    state = TaskState(0, {"t": StateTable.from_table(NUMBERS, rows_for(np.arange(size), rng), 0)})
    with store.writer("benchmark", fold_at=16) as writer:
        first = spent(lambda: writer.commit_checkpoint(0, {"O/0": store.write_task("O/0", 0, state, token=1)}))
        size_whole = store.checkpoint(0).nbytes
        times, sizes = [], []
        for epoch in range(1, epochs + 1):
            rows = rows_for(rng.choice(size, changed, replace=False), rng)
            change = {"t": Change(rows, NO_KEYS)}
            state = state.apply(change, epoch)
            files: list[FileEntry] = []

            def commit() -> None:
                files[:] = store.write_task("O/0", epoch, change, since=epoch - 1, token=writer.token)  # noqa: B023
                writer.commit_checkpoint(epoch, {"O/0": files})  # noqa: B023

            times.append(spent(commit))
            if writer.needs_folding:
                writer.compact(writer.fold_at)
            sizes.append(sum(entry.bytes for entry in files))
        chain = len(store.checkpoint(epochs).tasks["O/0"])
    changed_bytes = changed * 24
    print(f"incremental checkpoints: {size:,} keys, {changed:,} changed, {epochs} checkpoints, fsync on")
    print(f"  the first, whole one               {first.wall:8.1f} ms, {size_whole:,} bytes")
    line("task file + manifest", times, f"{np.mean(sizes):,.0f} bytes, {np.mean(sizes) / changed_bytes:.2f} x changed")
    found: list[TaskState] = []
    again = [spent(lambda: found.append(Store(directory / "store").restore("O/0")[0])) for _ in range(5)]
    assert found[-1]["t"] == state["t"]
    line(f"restore from {chain} files", again, f"{size:,} keys, {found[-1].nbytes:,} bytes, checksums verified")
    node = LocalState(open_files(str(directory / "restored")))

    def kept() -> None:
        node.forget("O/0")
        node.restore("O/0", found[-1], 1)

    line("kept on the node", [spent(kept) for _ in range(5)])


def ratio(ours: Sequence[Spent], theirs: Sequence[Spent]) -> float:
    return float(np.mean([one.cpu for one in ours]) / np.mean([one.cpu for one in theirs]))


def against_polars(keys: int, rows: int, epochs: int) -> None:
    """A running count and sum by key: state tables against polars that keeps its own result, and that starts over."""
    rng = np.random.default_rng(3)
    batches = [pl.DataFrame({"k": rng.integers(0, keys, rows), "w": rng.random(rows)}) for _ in range(epochs)]
    schema = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("n", pa.int64()), ("total", pa.float64())]))
    table = StateTable.empty(schema)
    ours, merged, plain = [], [], []
    kept = pl.DataFrame({"k": [], "n": [], "total": []}, schema={"k": pl.Int64, "n": pl.Int64, "total": pl.Float64})
    for epoch, batch in enumerate(batches, 1):

        def with_state() -> None:
            nonlocal table
            grouped = batch.group_by("k").agg(n=pl.len().cast(pl.Int64), total=pl.col("w").sum()).to_arrow()  # noqa: B023
            old, _ = table.find(grouped)
            new = pl.DataFrame(grouped).with_columns(
                n=pl.col("n") + pl.Series(old["n"]).fill_null(0),
                total=pl.col("total") + pl.Series(old["total"]).fill_null(0),
            )
            table = table.apply(Change(new.to_arrow()), epoch)  # noqa: B023

        def alone() -> None:
            batch.group_by("k").agg(n=pl.len().cast(pl.Int64), total=pl.col("w").sum())  # noqa: B023

        def by_concat() -> None:
            nonlocal kept
            grouped = batch.group_by("k").agg(n=pl.len().cast(pl.Int64), total=pl.col("w").sum())  # noqa: B023
            kept = pl.concat([kept, grouped]).group_by("k").agg(pl.col("n").sum(), pl.col("total").sum())

        ours.append(spent(with_state))
        plain.append(spent(alone))
        merged.append(spent(by_concat))
    everything = pl.concat(batches)
    over = [spent(lambda: everything.group_by("k").agg(pl.len(), pl.col("w").sum())) for _ in range(3)]
    assert table.to_table()["n"].to_numpy().sum() == rows * epochs == kept["n"].sum()
    print(f"polars: running count and sum, {rows:,} rows an epoch over {keys:,} keys, {epochs} epochs")
    line("state table (group, look up, apply)", ours)
    line("polars, group-by of the epoch alone", plain, f"we take {ratio(ours, plain):.2f} x its CPU")
    line("polars, own state by concat", merged, f"we take {ratio(ours, merged):.2f} x its CPU; no versions")
    line("polars, group-by of all rows anew", over, f"we take {ratio(ours, over):.2f} x its CPU")


def bare_sync(path: Path) -> None:
    with path.open("wb") as file:
        file.write(bytes(33_000))
        file.flush()
        os.fsync(file.fileno())


def syncing(directory: Path, times: int) -> None:
    print("fsync: one file of 10,000 rows (off survives a process's crash, on a machine's too)")
    rows = rows_for(np.arange(10_000), np.random.default_rng(4))
    block = Change(rows, NO_KEYS).encode()
    line(
        "for comparison: one bare fsync", [spent(lambda: bare_sync(directory / "bare")) for _ in range(times)], "33 KB"
    )
    for on in (False, True):
        store = Store(directory / f"sync-{on}", Sync(on, on, on))
        with store.writer("benchmark", fold_at=0) as writer:
            state = TaskState(1, {"t": StateTable.from_table(NUMBERS, rows, 1)})
            journal, output, checkpoint = [], [], []
            known = Journal.load(store, 0)
            for epoch in range(1, times + 1):

                def write() -> None:
                    piece = store.journal_write(epoch, piece_name(epoch, 0, 1), block, token=writer.token)  # noqa: B023
                    known.append(writer, JournalEpoch(epoch, (piece,), {}))  # noqa: B023

                def publish() -> None:
                    waiting = stage(store.files, "1-1", "final", epoch, "O/0", rows, 1.0, on)  # noqa: B023
                    place(store.files, [waiting], on)  # noqa: B023

                journal.append(spent(write))
                output.append(spent(publish))
                now = state.apply({}, epoch)

                def commit() -> None:
                    files = store.write_task("O/0", epoch, now, token=writer.token)  # noqa: B023
                    writer.commit_checkpoint(epoch, {"O/0": files})  # noqa: B023

                checkpoint.append(spent(commit))
            word = "on" if on else "off"
            line(f"journal epoch, fsync {word}", journal)
            line(f"output, fsync {word}", output)
            line(f"checkpoint, fsync {word}", checkpoint)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes, to see that it runs")
    tenth = 10 if parser.parse_args().quick else 1
    directory = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-"))
    try:
        cycle("hot", 100_000 // tenth, 100_000 // tenth, 40, directory)
        cycle("hot-text", 100_000 // tenth, 100_000 // tenth, 15, directory, text=True)
        cycle("large", 1_000_000 // tenth, 1000, 300, directory)
        cycle("small", 100, 10, 300, directory)
        checkpoints(1_000_000 // tenth, 1000, 60, directory)
        against_polars(100_000 // tenth, 1_000_000 // tenth, 10)
        syncing(directory, 20)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
