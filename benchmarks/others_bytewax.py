"""The queries of others.py in Bytewax, by the Python of an environment that has ``bytewax`` and ``numpy``.

One of two processes, as Bytewax is spread over cores; state is snapshotted every ten seconds. Rows are made before the
clock starts. Each process tells when it took its first row and when its last answer was out.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

AT_ONCE = 1_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
moments: list[float] = []
answer: Counter[str] = Counter()


class Part(StatefulSourcePartition[Any, int]):
    """Rows in memory, from where the last snapshot left off."""

    def __init__(self, rows: list[Any], start: int) -> None:
        self.rows, self.next = rows, start

    def next_batch(self) -> list[Any]:
        if not moments:
            moments.append(time.time())
        if self.next >= len(self.rows):
            raise StopIteration
        self.next += AT_ONCE
        return self.rows[self.next - AT_ONCE : self.next]

    def snapshot(self) -> int:
        return self.next


class Rows(FixedPartitionedSource[Any, int]):
    """A part for each process."""

    def __init__(self, parts: dict[str, list[Any]]) -> None:
        self.parts = parts

    def list_parts(self) -> list[str]:
        return list(self.parts)

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
        return Part(self.parts[for_part], resume_state or 0)


class Kept(StatelessSinkPartition[Any]):
    """The last count of each key or window, as a reader would have it."""

    def write_batch(self, items: list[Any]) -> None:
        for key, count in items:
            answer[key] = count
        moments[1:] = [time.time()]


class Answers(DynamicSink[Any]):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> Kept:
        return Kept()


def counted(before: int | None, _: Any) -> tuple[int, int]:
    return (before or 0) + 1, (before or 0) + 1


def keyed_count(parts: dict[str, list[Any]]) -> Dataflow:
    flow = Dataflow("keyed_count")
    keyed = op.key_on("key", op.input("rows", flow, Rows(parts)), str)
    op.output("answers", op.stateful_map("count", keyed, counted), Answers())
    return flow


def word_frequency(parts: dict[str, list[Any]]) -> Dataflow:
    flow = Dataflow("word_frequency")
    words = op.flat_map("split", op.input("rows", flow, Rows(parts)), lambda row: [(w, row[0]) for w in row[1].split()])
    # Two processes read at their own pace: a row may come that much of event time behind the newest.
    clock = win.EventClock(lambda row: row[1], wait_for_system_duration=timedelta(seconds=30))
    windows = win.SlidingWindower(timedelta(seconds=30), timedelta(seconds=5), EPOCH)
    found = win.count_window("count", words, clock, windows, lambda row: row[0])
    op.output(
        "answers", op.map("name", found.down, lambda each: (f"{each[1][0] * 5} {each[0]}", each[1][1])), Answers()
    )
    return flow


def main() -> None:
    query, folder, given = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    number, addresses = given["process"], given["addresses"]
    if query == "keyed-count":
        keys, stride, half = given["keys"], given["stride"], given["rows"] // 2
        parts = {str(each): [value * stride % keys for value in range(each * half, each * half + half)]
                 if each == number else [] for each in range(2)}  # fmt: skip
        flow = keyed_count(parts)
    else:
        parts = {"0": [], "1": []}
        for line in (folder / "texts" / f"{number}.csv").read_text().splitlines():
            row, text = line.split(",")
            parts[str(number)].append((EPOCH + timedelta(microseconds=int(row) * 1_000_000 // given["rate"]), text))
        flow = word_frequency(parts)
    snapshots = folder / "snapshots"
    if number == 0:
        snapshots.mkdir(exist_ok=True)
        init_db_dir(snapshots, 2)
        (folder / "ready").touch()
    while not (folder / "ready").exists():
        time.sleep(0.02)
    kept = RecoveryConfig(snapshots)
    cluster_main(flow, addresses, number, epoch_interval=timedelta(seconds=10), recovery_config=kept)
    print(json.dumps({"began": moments[0], "ended": moments[-1], "answer": dict(answer)}))


if __name__ == "__main__":
    main()
