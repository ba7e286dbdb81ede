"""What one epoch costs in the ready operators: 1,000,000 rows over 100,000 keys, from two senders to one task.

    .venv/bin/python benchmarks/operators.py [--rows N] [--keys N]

For each operator the median of several epochs in milliseconds of CPU (all threads; so other load on the machine does
not count): ``prepare`` (senders, the hot path: every row passes), ``process`` (the receiver: fold, look-up, new state
version, answer), beside polars' own group-by of the same rows, which remembers nothing and uses all cores. Learned from
profiling: Arrow's group-by on one thread takes about half the time of polars' here, in the same order and with the same
float sums every time (polars on two threads gives sums that differ in the last bits from run to run; the last line
counts them). Counts by integer keys that lie close together go by array index, a tenth of that. In the windows'
``process`` more than half is the state table: look-up, new version, deletes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import polars as pl
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from holdfast import operators as op
from holdfast.operators.contract import State
from holdfast.operators.trial import together
from holdfast.state import TaskState
from holdfast.topology import Task

EPOCHS = 5


def batches(rows: int, keys: int, text: bool) -> list[pa.Table]:
    """An epoch's rows as two senders hold them."""
    rng = np.random.default_rng(7)
    numbers = rng.integers(0, keys, rows)
    names = pa.array([f"key-{number:06d}" for number in range(keys)])
    key = names.take(pa.array(numbers)) if text else pa.array(numbers)
    seconds = rng.integers(0, 20, rows) + 1_000_000
    table = pa.table({"key": key, "x": rng.integers(0, 1000, rows), "price": rng.random(rows), "time": seconds})
    return [table.slice(0, rows // 2), table.slice(rows // 2)]


def measure(operator: op.Operator, senders: list[pa.Table], step_seconds: int = 0) -> tuple[float, float, int]:
    """Median milliseconds of prepare and process, and the rows of the last answer; the first epoch is not counted."""
    state = TaskState.empty(operator.tables)
    prepare, process, rows = [], [], 0
    mark: int | None = None
    for epoch in range(1, EPOCHS + 2):
        shift = epoch * step_seconds
        moved = [_later(batch, shift) for batch in senders]
        began = time.process_time()
        prepared = [operator.prepare("senders", batch) for batch in moved]
        between = time.process_time()
        before, mark = mark, (1_000_000 + shift) * 1_000_000
        view = State(state.tables, Task("o", 0), epoch, mark, before)
        answer = operator.process(together(prepared), view)
        ended = time.process_time()
        state = TaskState(epoch, {name: each.table for name, each in view.views.items()})
        rows = answer.num_rows if answer is not None else 0
        prepare.append(between - began)
        process.append(ended - between)
    return 1e3 * statistics.median(prepare[1:]), 1e3 * statistics.median(process[1:]), rows


def _later(batch: pa.Table, seconds: int) -> pa.Table:
    times = pa.array(batch.column("time").to_numpy() + seconds)
    return batch.set_column(batch.schema.get_field_index("time"), "time", times)


def milliseconds(run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(EPOCHS):
        began = time.process_time()
        run()
        seconds.append(time.process_time() - began)
    return 1e3 * statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    given = parser.parse_args()
    table = Table(title=f"one epoch of {given.rows:,} rows over {given.keys:,} keys, in ms of CPU")
    for name in ("operator", "key", "prepare", "process", "rows out", "polars group-by"):
        table.add_column(name, justify="left" if name in ("operator", "key") else "right")
    for text in (False, True):
        kind = "string" if text else "int64"
        senders = batches(given.rows, given.keys, text)
        frame = pl.from_arrow(pa.concat_tables(senders))
        assert isinstance(frame, pl.DataFrame)
        by = {"key": kind}
        count = milliseconds(lambda frame=frame: frame.group_by("key").agg(pl.len()))  # type: ignore[misc]
        five = milliseconds(
            lambda frame=frame: frame.group_by("key").agg(  # type: ignore[misc]
                pl.len(),
                pl.col("x").sum(),
                pl.col("x").min().alias("a"),
                pl.col("x").max().alias("b"),
                pl.col("price").mean(),
            )
        )
        cases: list[tuple[str, op.Operator, int, float | None]] = [
            ("aggregate: count", op.aggregate(by, n=op.count()), 0, count),
            (
                "aggregate: count, sum, min, max, mean",
                op.aggregate(by, n=op.count(), s=op.sum("x"), a=op.min("x"), b=op.max("x"), m=op.mean("price")),
                0,
                five,
            ),
            ("aggregate: 3 largest", op.aggregate(by, top=op.largest(3, "x")), 0, None),
            ("combine: count", op.combine(by, n=op.count()), 0, count),
            ("tumbling 10 s: count", op.tumbling(10, by, "time", n=op.count()), 10, None),
            ("sliding 30 s by 10 s: count", op.sliding(30, 10, by, "time", n=op.count()), 10, None),
            ("deduplicate", op.deduplicate(by), 0, None),
            ("deduplicate within 60 s", op.deduplicate(by, time="time", within=60), 10, None),
            ("top 100 by x, rising", op.top_k(100, "x", by, rising=True), 0, None),
        ]
        for name, operator, step, beside in cases:
            prepare, process, rows = measure(operator, senders, step)
            shown = "" if beside is None else f"{beside:.1f}"
            table.add_row(name, kind, f"{prepare:.1f}", f"{process:.1f}", f"{rows:,}", shown)
    Console(width=110).print(table)
    few = pl.DataFrame({"g": np.arange(given.rows) % 7, "x": np.random.default_rng(1).random(given.rows)})
    sums = {tuple(few.group_by("g").agg(pl.col("x").sum()).sort("g")["x"]) for _ in range(20)}
    arrow = few.to_arrow()
    ours = {
        tuple(
            op.combine({"g": "int64"}, x=op.sum("x", "float64"))
            .process(arrow, State({}, Task("o", 0), 1))["x"]
            .to_pylist()
        )
        for _ in range(20)
    }
    print(f"different float sums in 20 runs over the same rows: polars group-by {len(sums)}, holdfast {len(ours)}")


if __name__ == "__main__":
    main()
