"""A small epoch is one Spark task: it reads the batch and does all the rest, and the answers are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_scaling_job import lost
from total import Total

from holdfast import Drill, Replication
from holdfast import operators as op
from holdfast.operators import Pipeline
from holdfast.runtime.driver import running
from holdfast.runtime.driver.running import RunFailed
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.messages import EpochJournalled
from holdfast.runtime.spark import Job, runner, stages, start
from holdfast.runtime.spark.affinity import SlotAffinity
from holdfast.runtime.spark.exchange import Exchange, Stage
from holdfast.state import Store
from holdfast.state.journal import Journal
from waiting import DEADLINE

pytestmark = pytest.mark.spark

ROWS = 60
SETTLED = 3
"""Epochs that a job sees before it goes by them."""


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How each run was made, in order: by what was collected last. Whatever the clock says, epochs are small."""
    monkeypatch.setattr(running, "FEW", 1e6)
    monkeypatch.setattr(runner, "LITTLE", 1e6)
    seen: list[str] = []
    collect = Exchange.collect

    def noted(exchange: Exchange, level: Any, stage: Stage) -> list[bytes]:
        last = stage.stage if isinstance(stage, SlotAffinity) else stage
        if isinstance(last, (stages.Alone, stages.Level)):
            seen.append(type(last).__name__.lower())
        return collect(exchange, level, stage)

    monkeypatch.setattr(Exchange, "collect", noted)
    return seen


def numbers(spark: Any, partitions: int = 3) -> Any:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS)
    return stream.option("numPartitions", partitions).load().selectExpr("value", "value % 7 AS key")


def counting(function: Callable[[pa.Table], pa.Table] | None = None, middle: int = 2) -> Pipeline:
    return Pipeline(
        op.source("rows", function, parallelism=2),
        op.step(
            "counts",
            op.aggregate({"key": pa.int64()}, count=op.count()),
            op.stream("rows", key="key"),
            parallelism=middle,
        ),
        op.step("all", Total(), "counts"),
    )


def expected(epochs: int) -> list[tuple[int, int, int]]:
    """(epoch, keys, sum) of Total, worked out row by row."""
    counts = dict.fromkeys(range(7), 0)
    keys = total = 0
    answers = []
    for epoch in range(epochs):
        for value in range(epoch * ROWS, (epoch + 1) * ROWS):
            counts[value % 7] += 1
        keys, total = keys + 7, total + sum(counts.values())
        answers.append((epoch, keys, total))
    return answers


def totals(folder: Path) -> list[tuple[int, int, int]]:
    table = read_output(folder, "final")
    return list(zip(*(table[name].to_pylist() for name in ("epoch", "keys", "sum")), strict=True))


def finished(job: Job) -> Job:
    assert job.awaitTermination(DEADLINE), job.status
    return job


def journalled(folder: Path) -> dict[int, int]:
    """Into how many parts each epoch that is in the journal was cut."""
    store = Store(folder)
    newest = max((each.epoch for each in store.checkpoints()), default=-1)
    known = Journal.load(store, newest)
    return {each.epoch: len(each.pieces) for each in known.span(newest + 1, known.newest).epochs}


def test_once_epochs_are_known_to_be_small_each_is_one_task(spark: Any, tmp_path: Path, ways: list[str]) -> None:
    finished(start(numbers(spark), counting(), store=tmp_path, nodes=2, epochs=8, checkpoint_every=100))
    assert totals(tmp_path) == expected(8)
    assert ways == ["level"] * SETTLED + ["alone"] * 5
    assert [event["rows_in"] for event in read_history(tmp_path) if event["kind"] == "epoch"] == [ROWS] * 8


def test_what_one_task_journalled_is_replayed(spark: Any, tmp_path: Path, ways: list[str]) -> None:
    """Nodes die in the midst of small epochs: their states are made again from the journal, with replicas or not."""
    faults = parse_faults(["kill node-1 at epoch 6", "kill node-0,node-2 at epoch 9"])
    job = start(
        numbers(spark), counting(middle=3), Drill(faults, rejoin_after=0.5), Replication(replicas=["counts/1"]),
        store=tmp_path, nodes=3, epochs=14, checkpoint_every=4,
    )  # fmt: skip
    finished(job)
    assert totals(tmp_path) == expected(14)
    events = list(read_history(tmp_path))
    assert lost(events) == {"node-0", "node-1", "node-2"} and "recovery plan" in {event["kind"] for event in events}
    assert ways.count("alone") > 3, "before a node died, and when all was well again"


def test_a_job_that_was_stopped_goes_on_from_small_epochs(spark: Any, tmp_path: Path, ways: list[str]) -> None:
    for epochs in (6, 11):
        finished(start(numbers(spark), counting(), store=tmp_path, nodes=2, epochs=epochs))
        assert totals(tmp_path) == expected(epochs)
    assert ways.count("alone") == 3 + 2


def test_a_batch_that_took_long_to_read_is_read_by_several_for_a_while(
    spark: Any, tmp_path: Path, ways: list[str]
) -> None:
    job = start(numbers(spark), counting(), store=tmp_path, nodes=2, epochs=12, checkpoint_every=100)

    def watch(event: object, _: object) -> None:
        if isinstance(event, EpochJournalled) and event.epoch == 5:
            made: Any = job.driver._runner
            made._little.append(False)

    job.driver.clock.post(lambda: job.driver.watchers.append(watch))
    finished(job)
    assert totals(tmp_path) == expected(12)
    assert ways == ["level"] * 3 + ["alone"] * 3 + ["level"] * 3 + ["alone"] * 3


def test_parts_of_a_batch_that_go_to_tasks_of_their_own_stay_apart(spark: Any, tmp_path: Path, ways: list[str]) -> None:
    """A source's tasks may each have receivers of their own: then it matters which part of the batch a row is in."""
    pipeline = Pipeline(
        op.source("rows", parallelism=2),
        op.step("same", _same, op.stream("rows", partitioning="one-to-one"), parallelism=2),
        op.step("counts", op.aggregate({"key": pa.int64()}, count=op.count()), op.stream("same", key="key")),
        op.step("all", Total(), "counts"),
    )
    finished(start(numbers(spark), pipeline, store=tmp_path, nodes=2, epochs=6, checkpoint_every=100))
    assert totals(tmp_path) == expected(6) and set(ways) == {"level"}
    finished(start(numbers(spark, 1), pipeline, store=tmp_path / "one", nodes=2, epochs=6, checkpoint_every=100))
    assert totals(tmp_path / "one") == expected(6) and ways[-3:] == ["alone"] * 3, "one part is all of it"


def test_a_small_epoch_is_journalled_in_one_part(spark: Any, tmp_path: Path, ways: list[str]) -> None:
    job = start(numbers(spark), counting(), store=tmp_path, nodes=2, checkpoint_every=100)
    try:
        while len(job.recentProgress) < 6:
            assert not job.awaitTermination(0.05)
        assert journalled(tmp_path).items() >= {0: 3, 2: 3, 3: 1, 4: 1}.items()
    finally:
        job.stop()


def test_rows_keep_their_order(spark: Any, tmp_path: Path, ways: list[str]) -> None:
    """By part of the batch, then by position: some answers depend on it."""
    pipeline = Pipeline(op.source("rows", parallelism=2), op.step("seen", _InOrder(), "rows"))
    finished(start(numbers(spark), pipeline, store=tmp_path, nodes=2, epochs=6))
    told = read_output(tmp_path, "final")["values"].to_pylist()
    assert ways[-1] == "alone" and told[3:] == told[:3], "three epochs by several, three by one, relative to the first"


def test_a_source_that_raises_in_a_small_epoch_names_itself(spark: Any, tmp_path: Path, ways: list[str]) -> None:
    def fragile(batch: pa.Table) -> pa.Table:
        if ROWS * 5 + 3 in batch["value"].to_pylist():
            raise ValueError("cannot digest this")
        return batch

    with pytest.raises(RunFailed, match=r"task rows/0, epoch 5: ValueError: cannot digest this"):
        finished(start(numbers(spark), counting(fragile), store=tmp_path, nodes=2, epochs=8))
    assert totals(tmp_path) == expected(5) and ways[-1] == "alone"
    finished(start(numbers(spark), counting(_same), store=tmp_path, nodes=2, epochs=8))
    assert totals(tmp_path) == expected(8)


class _InOrder(op.Operator):
    """Says which rows it was given, in their order, counted from the first of the epoch."""

    def process(self, batch: pa.Table, state: op.State) -> pa.Table | None:
        values = batch["value"].to_pylist()
        return pa.table({"values": [[value - min(values) for value in values]]})


def _same(batch: pa.Table) -> pa.Table:
    return batch
