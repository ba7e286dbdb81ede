"""What an epoch costs an operator as its state grows: ``growth.py --keys``.

Each operator is filled with so many keys, then gets epochs of 1,000 changed rows, the same for every size. Told are
milliseconds of CPU of an epoch: the mean, which has its share of folding runs in it, and in brackets the longest; and
the exponent of the mean in the number of keys. 0: the cost follows what changed; 1: it follows the state. Beside it the
same with every question about times and ranks answered by looking through all rows.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast import operators as op
from holdfast.operators.contract import State, TableView
from holdfast.operators.trial import together
from holdfast.state import TaskState
from holdfast.topology import Task
from measuring import Record, written

CHANGED = 1_000
SIZES = (10_000, 100_000, 1_000_000)
SECOND = 1_000_000


@dataclass(frozen=True)
class Case:
    """``rows(keys, number, size)``: rows for these keys, the ``number``-th epoch; 0 fills the state."""

    name: str
    operator: Callable[[int], op.Operator]
    rows: Callable[[np.ndarray[Any, Any], int, int], pa.Table]


def plain(keys: Any, number: int, size: int) -> pa.Table:
    """Times so that in each epoch as many keys fall due as come: those of the first rows are spread over the epochs."""
    every = size // CHANGED
    at = keys % every if number == 0 else np.full(len(keys), every + number)
    return pa.table({"key": keys, "n": (keys * 7919 + number * 31) % 1_000_003, "time": at + 1})


def grouped(keys: Any, number: int, size: int) -> pa.Table:
    return plain(keys, number, size).append_column("group", pa.array(keys % (size // 10)))


def cases() -> list[Case]:
    key, group = {"key": "int64"}, {"group": "int64"}
    return [
        Case("aggregate", lambda _: op.aggregate(key, n=op.count()), plain),
        Case("aggregate, ttl", lambda n: op.aggregate(key, ttl=n // CHANGED, time="time", n=op.count()), plain),
        Case("deduplicate", lambda _: op.deduplicate(key), plain),
        Case("deduplicate within", lambda n: op.deduplicate(key, time="time", within=n // CHANGED // 2), plain),
        Case("tumbling windows", lambda _: op.tumbling(1, key, "time", n=op.count()), plain),
        Case("sliding windows", lambda _: op.sliding(3, 1, key, "time", n=op.count()), plain),
        Case("sessions", lambda _: op.session(1, key, "time", n=op.count()), plain),
        Case("top 100", lambda _: op.top_k(100, "n", key), plain),
        Case("top 3 within groups of 10", lambda _: op.top_k(3, "n", key, within=group), grouped),
        Case("top 100, rising", lambda _: op.top_k(100, "n", key, rising=True), plain),
        Case("top 10 of what closes", lambda _: op.top_k(10, "n", key, within={"time": "int64"}, closes="time"), plain),
    ]


def measured(case: Case, size: int, epochs: int) -> list[float]:
    """Milliseconds of CPU of each epoch."""
    operator, random = case.operator(size), np.random.default_rng(size)
    state, spent, every = TaskState.empty(operator.tables), [], size // CHANGED
    before: int | None = None
    for number in range(epochs + 1):
        keys = np.arange(size) if number == 0 else random.choice(size, CHANGED, replace=False)
        fresh = size + number * CHANGED + np.arange(CHANGED)
        keys = np.where(np.arange(len(keys)) % 2 == 0, fresh, keys) if number else keys  # half of them are new
        batch = together([operator.prepare("rows", case.rows(keys, number, size))])
        mark = number * SECOND if operator.event_time else None
        view = State(state.tables, Task("o", 0), number, mark, before)
        began = time.process_time()
        operator.process(batch, view)
        spent.append(1e3 * (time.process_time() - began))
        state, before = TaskState(number, {name: each.table for name, each in view.views.items()}), mark
        if number > every:
            break  # nothing of the first rows is left to fall due
    return spent[2:]  # the first asks for orders of all that is there


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    slope: float = np.polyfit([math.log(size) for size in sizes], [math.log(value) for value in values], 1)[0]
    return slope


def by_scan(view: TableView, by: Any, bound: Any, count: int | None = None) -> pa.Table:
    """The answer to either question from all rows; to one about ranks all of them are an answer."""
    rows = view.scan()
    return rows.filter(pa.array(by.times(rows) <= bound)) if hasattr(by, "times") else rows


def main(sizes: Sequence[int] = SIZES, epochs: int = 60, path: Path | None = None) -> None:
    record = Record("growth.py", sys.argv[1:])
    record.pause()
    print(f"ms of CPU of an epoch with {CHANGED:,} changed rows, mean (longest)")
    print(
        f"{'operator':<28}"
        + "".join(f"{size:>22,}" for size in sizes)
        + f"{'exponent':>10}{'by scan: largest':>18}{'exponent':>10}"
    )
    lines = []
    for case in cases():
        spent = [measured(case, size, epochs) for size in sizes]
        usual = [float(np.mean(each)) for each in spent]
        real = TableView.upto, TableView.best
        TableView.upto = TableView.best = by_scan  # type: ignore[assignment, method-assign]
        try:
            scanned = [float(np.mean(measured(case, size, 8))) for size in sizes]
        finally:
            TableView.upto, TableView.best = real  # type: ignore[method-assign]
        cells = "".join(f"{f'{mean:.1f} ({max(each):.1f})':>22}" for mean, each in zip(usual, spent, strict=True))
        slopes = exponent(sizes, usual), exponent(sizes, scanned)
        print(f"{case.name:<28}{cells}{slopes[0]:>10.2f}{scanned[-1]:>18.1f}{slopes[1]:>10.2f}", flush=True)
        lines.append({"turns": 1, "operator": case.name, "keys": list(sizes), "mean_ms": usual,
                      "longest_ms": list(map(max, spent)), "exponent": slopes[0], "by_scan_ms": scanned,
                      "by_scan_exponent": slopes[1]})  # fmt: skip
    record.pause()
    written(path, record.to_json(lines))
