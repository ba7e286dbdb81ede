"""Scaling on Spark: a job that is scaled out and in, with nodes that die around it, answers as one that never was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_job import ROWS, counting, expected, finished, numbers, totals

from holdfast import operators as op
from holdfast.errors import Infeasible, Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.history import read_history
from holdfast.runtime.outputs import read_output
from holdfast.runtime.spark import Job, start
from holdfast.state import Store
from holdfast.state.verify import verify

pytestmark = pytest.mark.spark


def counts_only(parallelism: int = 2) -> Pipeline:
    """The scaled operator is the sink: its tasks' output files change names."""
    from test_job import keyed

    return Pipeline(
        op.source("rows", keyed, parallelism=2),
        op.step(
            "counts",
            op.aggregate({"key": pa.int64()}, count=op.count()),
            op.stream("rows", key="key"),
            parallelism=parallelism,
        ),
    )


def at_epochs(job: Job, actions: dict[int, Callable[[], None]]) -> None:
    """Let these happen, in a thread of their own, once the epochs are answered."""
    pending = dict(actions)

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "answered" and event["epoch"] in pending:
            threading.Thread(target=pending.pop(event["epoch"]), daemon=True).start()

    job.add_listener(hear)


def kinds(folder: Path) -> list[str]:
    return [event["kind"] for event in read_history(folder)]


def rows(folder: Path) -> list[tuple[int, int, int]]:
    table = read_output(folder, "final")
    return sorted(zip(*(table[name].to_pylist() for name in ("epoch", "key", "count")), strict=True))


def running_counts(epochs: int) -> list[tuple[int, int, int]]:
    counts: dict[int, int] = {}
    answers = []
    for epoch in range(epochs):
        changed = set()
        for value in range(epoch * ROWS, (epoch + 1) * ROWS):
            counts[value & 15] = counts.get(value & 15, 0) + 1
            changed.add(value & 15)
        answers += [(epoch, key, counts[key]) for key in changed]
    return sorted(answers)


def asks(job: Job, operator: str, to: int) -> Callable[[], None]:
    return lambda: job.shell.scale(operator, to, f"to-{to}")


def test_scaled_out_and_in_with_nodes_that_die_the_answers_stay(spark: Any, tmp_path: Path) -> None:
    job = start(numbers(spark), counts_only(), store=tmp_path, nodes=3, epochs=24, checkpoint_every=4, rejoin_after=0.5)
    at_epochs(
        job,
        {
            1: asks(job, "counts", 4),
            6: lambda: job.shell.cluster.kill("node-1"),
            9: asks(job, "counts", 1),
            10: lambda: job.shell.cluster.kill("node-0"),
            15: asks(job, "counts", 3),
        },
    )
    finished(job)
    assert rows(tmp_path) == running_counts(24)
    told = [event for event in read_history(tmp_path) if event["kind"] == "scaled"]
    assert [event["tasks"] for event in told] == [4, 1, 3]
    assert kinds(tmp_path).count("nodes lost") == 2
    assert verify(Store(tmp_path)).whole


def test_a_scaled_job_goes_on_in_its_shape_after_a_restart(spark: Any, tmp_path: Path) -> None:
    job = start(numbers(spark), counting(), store=tmp_path, nodes=2, epochs=6, checkpoint_every=2)
    at_epochs(job, {1: asks(job, "counts", 3)})
    finished(job)
    again = start(numbers(spark), counting(), store=tmp_path, nodes=2, epochs=10, checkpoint_every=2)
    assert again.status["tasks"]["counts"] == 3
    finished(again)
    assert totals(tmp_path) == expected(10)
    # Another parallelism in the code is meant: the store is migrated, from the shape it is in.
    last = finished(start(numbers(spark), counting(parallelism=4), store=tmp_path, nodes=2, epochs=12))
    assert last.status["tasks"]["counts"] == 4
    assert totals(tmp_path) == expected(12)


def test_what_cannot_be_scaled_is_said_at_once(spark: Any, tmp_path: Path) -> None:
    job = start(numbers(spark), counting(), store=tmp_path, epochs=3)
    with pytest.raises(Invalid, match="has no key, so its state cannot be cut"):
        job.scale("all", 2)
    with pytest.raises(Invalid, match="a source is read wherever"):
        job.scale("rows", 2)
    with pytest.raises(Invalid, match="unknown; operators: rows, counts, all"):
        job.scale("nobody", 2)
    with pytest.raises(Invalid, match="needs at least 1 task, got 0"):
        job.scale("counts", 0)
    finished(job)
    with pytest.raises(Infeasible, match="the job has ended"):
        job.scale("counts", 2)
