"""One task, one epoch: what workers run gives what a plain trial of the pipeline gives."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from holdfast import operators as op
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.operators import cut_batches, undisturbed
from holdfast.runtime.simulation.pipelines import PIPELINES, drawn_batches
from holdfast.runtime.worker.blocks import Block
from holdfast.runtime.worker.processing import TaskFailed, outgoing, process, process_source, route
from holdfast.state import TaskState
from holdfast.topology import Task

EPOCHS = 12


def rows(table: pa.Table) -> list[tuple[tuple[str, Any], ...]]:
    return sorted((tuple(sorted(row.items())) for row in table.to_pylist()), key=repr)


def sent(pipeline: op.Pipeline, table: pa.Table) -> list[Block]:
    """What the only source sends on in epoch 0."""
    source = Task("rows", 0)
    return outgoing(pipeline, source, process_source(pipeline, source, table, 0), 0, {})


@pytest.mark.parametrize("name", PIPELINES)
def test_epochs_give_what_a_trial_of_the_pipeline_gives(name: str) -> None:
    pipeline = PIPELINES[name]()
    batches = drawn_batches(pipeline, EPOCHS, seed=4)
    topology = pipeline.coordinated
    said = undisturbed(pipeline, cut_batches(batches), Coordinator(topology, Settings()).outputs)
    trial = op.Trial(pipeline)
    total = 0
    for number, batch in enumerate(batches):
        expected = trial.epoch(batch).outputs
        for query, table in expected.items():
            tasks = [str(task) for task in topology.tasks if task.operator == query]
            mine = [said[number, task] for task in tasks if (number, task) in said]
            found = pa.concat_tables(mine) if mine else pa.table({})
            assert rows(found) == rows(table), f"{name}, epoch {number}, query {query}"
            total += table.num_rows
    assert total > 5, "a comparison of nothing with nothing"


def test_the_coordinator_sees_free_sources_and_watermarks_as_state() -> None:
    pipeline = op.Pipeline(
        op.source("one", event_time="time"),
        op.source("two", event_time="time"),
        op.step("both", op.map(lambda table: table), ["one", "two"]),
        op.step("windows", op.tumbling("3 s", by="word", time="time", n=op.count()), "both"),
    )
    seen = {operator.name: operator for operator in pipeline.coordinated.operators}
    assert seen["one"].costs == (0.0,)
    assert seen["both"].stateful and not pipeline.topology.operator["both"].stateful
    assert seen["windows"].stateful


def test_a_key_that_is_not_there_is_named() -> None:
    pipeline = op.Pipeline(
        op.source("rows", parallelism=1),
        op.step("counts", op.aggregate(by="word", n=op.count()), op.stream("rows", key="word"), parallelism=2),
    )
    stream = pipeline.input("counts", "rows")
    with pytest.raises(TaskFailed, match="the key column 'word' is not in the rows of rows; found letter"):
        route(pipeline, stream, Task("rows", 0), pa.table({"letter": ["a"]}), None)


def test_a_failing_function_is_told_with_its_row() -> None:
    def divide(batch: pa.Table) -> pa.Table:
        if 0 in batch["n"].to_pylist():
            raise ZeroDivisionError("n is 0")
        return batch

    pipeline = op.Pipeline(op.source("rows"), op.step("divide", divide, "rows"))
    blocks = sent(pipeline, pa.table({"n": [3, 5, 0, 7]}))
    with pytest.raises(TaskFailed, match=r"divide/0, epoch 0: ZeroDivisionError: n is 0") as caught:
        process(pipeline, Task("divide", 0), TaskState(-1), blocks, 0)
    assert str(caught.value).endswith(', in divide); sample row: {"n": 0}')
    raised = caught.value.raised()
    assert "ZeroDivisionError: n is 0" in raised["raised"] and not raised["may_pass"]


def test_a_function_that_fails_by_io_is_called_once_and_not_for_each_row() -> None:
    calls = []

    def look_up(batch: pa.Table) -> pa.Table:
        calls.append(batch.num_rows)
        raise ConnectionError("no route")

    pipeline = op.Pipeline(op.source("rows"), op.step("look", look_up, "rows"))
    with pytest.raises(TaskFailed, match=r"epoch 0: ConnectionError: no route \(.*, in look_up\)$") as caught:
        process(pipeline, Task("look", 0), TaskState(-1), sent(pipeline, pa.table({"n": [3, 5, 0]})), 0)
    assert calls == [3] and caught.value.raised()["may_pass"]


def test_an_answer_that_changes_is_refused_when_asked() -> None:
    answers = iter(range(100))
    pipeline = op.Pipeline(
        op.source("rows"), op.step("moody", lambda batch: pa.table({"n": [next(answers)] * batch.num_rows}), "rows")
    )
    blocks = sent(pipeline, pa.table({"n": [1]}))
    with pytest.raises(TaskFailed, match="the same epoch run twice gave different output"):
        process(pipeline, Task("moody", 0), TaskState(-1), blocks, 0, verify=True)
