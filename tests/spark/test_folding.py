"""Long chains of checkpoint files are made shorter by executors: the driver reads no state for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import operators as op
from holdfast.errors import HoldfastError
from holdfast.operators import Pipeline
from holdfast.runtime.spark.runner import SparkRunner
from holdfast.runtime.spark.shipping import SparkFailed
from holdfast.runtime.worker.worker import JobContext
from holdfast.state import Change, StateSchema, Store, TaskState, Writer, compaction

pytestmark = pytest.mark.spark
SCHEMA = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))
TASKS = [f"O/{number}" for number in range(5)]


def empty(store: Store, writer: Writer) -> dict[str, TaskState]:
    states = {task: TaskState.empty({"t": SCHEMA}, 0) for task in TASKS}
    writer.commit_checkpoint(0, {task: store.write_task(task, 0, states[task], token=writer.token) for task in TASKS})
    return states


def change(store: Store, writer: Writer, states: dict[str, TaskState], epochs: range) -> None:
    """A checkpoint every epoch, each with what changed since the one before."""
    for epoch in epochs:
        entries = {}
        for number, task in enumerate(TASKS):
            changed = {"t": Change(pa.table({"k": [epoch % 3, number], "v": [epoch, number]}))}
            states[task] = states[task].apply(changed, epoch)
            entries[task] = store.write_task(task, epoch, changed, since=epoch - 1, token=writer.token)
        writer.commit_checkpoint(epoch, entries)


def test_chains_are_folded_on_executors_more_of_them_than_there_are_cores(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    pipeline = Pipeline(op.source("rows", lambda batch: batch))
    with store.writer("test", fold_at=4) as writer:
        states = empty(store, writer)
        change(store, writer, states, range(1, 9))
        context = JobContext("folds", pipeline, store.url, store.marker(), writer.token, str(tmp_path), frozenset())
        runner = SparkRunner(spark, context, writer, local=False)
        try:
            with monkeypatch.context() as here:

                def never(*_: object) -> None:
                    raise AssertionError("the driver reads a state")

                here.setattr(compaction.checkpoints, "read_run", never)
                assert writer.needs_folding and len(TASKS) > spark.sparkContext.defaultParallelism
                folded = writer.compact(writer.fold_at)
            assert set(folded) == set(TASKS) and all(after < before for before, after in folded.values())
            assert {task: store.restore(task) for task in TASKS} == {task: (states[task], 8) for task in TASKS}
            assert not writer.needs_folding
            # A file that cannot be read ends the folding with its name, and what there was stays.
            change(store, writer, states, range(9, 12))
            last = store.checkpoint(11).tasks["O/3"][-1]
            (tmp_path / "store" / last.path).write_bytes(b"")
            with pytest.raises(SparkFailed, match=last.path):
                writer.compact()
            assert store.restore("O/2") == (states["O/2"], 11)
        finally:
            runner.close()
        with pytest.raises(HoldfastError, match="the job has ended"):
            writer.compact()
