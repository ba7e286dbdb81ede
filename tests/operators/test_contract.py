"""The contract: what an operator sees of its state, how functions become operators, what a pipeline refuses."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators.contract import FunctionOperator, State, as_operator
from holdfast.state import StateSchema, TaskState
from holdfast.topology import Task

SCHEMA = StateSchema(pa.schema({"k": pa.string()}), pa.schema({"n": pa.int64()}))


def rows(**values: int | None) -> pa.Table:
    return pa.table({"k": list(values), "n": pa.array(values.values(), pa.int64())})


def state(**tables: StateSchema) -> State:
    return State(TaskState.empty(tables or {"state": SCHEMA}).tables, Task("o", 0), 1)


def test_an_operator_reads_its_own_writes_and_tells_absent_from_null() -> None:
    view = state()
    view.update(rows(a=1, b=None))
    view.update(rows(a=2))
    view.delete(pa.table({"k": ["c"]}))
    found = view.lookup(pa.table({"k": ["a", "b", "c"]}))
    assert found["n"].to_pylist() == [2, None, None]
    assert found["found"].to_pylist() == [True, True, False]
    view.delete(pa.table({"k": ["a"]}))
    assert view.scan().to_pylist() == [{"k": "b", "n": None}]


def test_the_changes_of_an_epoch_are_one_change() -> None:
    view = state().table("state")
    before = TaskState.empty({"state": SCHEMA})
    view.update(rows(a=1, b=2))
    view.delete(pa.table({"k": ["a"]}))
    view.update(rows(c=3))
    after = before.apply({"state": view.change}, 1)
    assert after["state"].to_table().equals(view.scan())
    assert len(state().table("state").change.upserts) == 0


def test_a_table_of_keys_alone_can_be_looked_up() -> None:
    view = state(state=StateSchema(pa.schema({"k": pa.string()}), pa.schema([])))
    view.update(pa.table({"k": ["a"]}))
    assert view.lookup(pa.table({"k": ["a", "b"]})).to_pylist() == [{"found": True}, {"found": False}]


def test_an_undeclared_table_is_named() -> None:
    with pytest.raises(Invalid, match="state table 'other': operator o declares no such table; it has: state"):
        state().table("other")


def test_counters_add_up() -> None:
    view = state()
    view.count("late", 2)
    view.count("late", 3)
    assert view.counters == {"late": 5}


def test_a_trial_says_that_an_epoch_is_tentative() -> None:
    def told(batch: pa.Table, view: State) -> pa.Table:
        return batch.append_column("careful", pa.array([view.tentative] * len(batch), pa.bool_()))

    operator = FunctionOperator(told, SCHEMA)
    trial = op.Trial(op.Pipeline(op.source("s"), op.step("o", operator, op.stream("s", key="k"), parallelism=2)))
    epochs = [trial.epoch(rows(a=1, b=2)), trial.epoch(rows(a=1, b=2), tentative=True), trial.epoch(rows(a=1, b=2))]
    assert [epoch.output["careful"].to_pylist() for epoch in epochs] == [[False] * 2, [True] * 2, [False] * 2]


def test_a_function_is_an_operator_with_or_without_state() -> None:
    def running(batch: pa.Table, view: State) -> pa.Table:
        old = view.lookup(batch.select(["k"]))["n"].fill_null(0)
        new = pa.table({"k": batch["k"], "n": pa.compute.add(old, batch["n"])})
        view.update(new)
        return new

    operator = FunctionOperator(running, SCHEMA)
    trial = op.Trial(op.Pipeline(op.source("s"), op.step("o", operator, op.stream("s", key="k"), parallelism=2)))
    trial.epoch(rows(a=1, b=2))
    assert sorted(trial.epoch(rows(a=5)).output.to_pylist(), key=str) == [{"k": "a", "n": 6}]
    twice = as_operator(lambda batch: pl.from_arrow(batch).select(pl.col("n") * 2))
    assert twice.process(rows(a=2), state())["n"].to_pylist() == [4]
    assert twice.process(pa.table({}), state()) is None


def test_an_operator_with_several_inputs_must_say_how_it_reads_them() -> None:
    both = op.Pipeline(op.source("a"), op.source("b"), op.step("o", lambda batch: batch, ["a", "b"]))
    with pytest.raises(Invalid, match=r"operator o has 2 inputs \(a, b\): write process_inputs"):
        op.Trial(both).epoch({"a": rows(x=1), "b": rows(x=1)})


class Both(op.Operator):
    def process_inputs(self, inputs: Mapping[str, pa.Table], state: State) -> pa.Table:
        return pa.table({"rows": [sum(table.num_rows for table in inputs.values())]})


def test_inputs_come_by_the_name_of_the_operator_upstream() -> None:
    both = op.Pipeline(op.source("a"), op.source("b"), op.step("o", Both(), ["a", "b"]))
    assert op.Trial(both).epoch({"a": rows(x=1, y=2), "b": rows(x=1)}).output.to_pylist() == [{"rows": 3}]


def test_grouping_operators_key_their_inputs_by_themselves() -> None:
    pipeline = op.Pipeline(op.source("s"), op.step("o", op.aggregate("k", n=op.count()), "s", parallelism=3))
    assert pipeline.by_name["o"].inputs[0].key == ("k",)
    assert pipeline.input("o", "s").partitioning == "full"
    tree = op.Pipeline(
        op.source("s", parallelism=4),
        op.step("o", op.aggregate("k", n=op.count()), op.stream("s", partitioning="merge"), parallelism=2),
    )
    assert tree.by_name["o"].inputs[0].key == ()


def test_a_signature_is_plain_data_and_tells_pipelines_apart() -> None:
    import json

    def of(kind: str) -> str:
        step = op.step("o", op.aggregate({"k": kind}, n=op.count()), "s")
        return json.dumps(op.Pipeline(op.source("s"), step).signature)

    assert of("string") == of("string") != of("int64")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: op.step("o", len, []), "operator o: name at least one input"),
        (lambda: op.step("o", 5, "s"), "an operator is a holdfast.Operator or a function"),
        (lambda: op.step("o", Both, "s"), "operator Both: pass an instance, Both(...), not the class"),
        (lambda: op.source("s", op.aggregate("k", n=op.count())), "source s: a source must be stateless"),
        (lambda: op.source("s", delay_seconds=-1), "source s: delay_seconds must be 0 or more, got -1"),
        (
            lambda: op.Pipeline(op.source("s"), op.step("o", Both(), "t")),
            "stream t -> o: unknown operator 't'; known: s, o",
        ),
        (
            lambda: op.Pipeline(
                op.source("s"), op.step("o", FunctionOperator(lambda b, s: b, SCHEMA), "s", parallelism=2)
            ),
            "stream s -> o: a stateful operator with 2 tasks needs a keyed stream",
        ),
        (
            lambda: op.Pipeline(
                op.source("s"),
                op.step("o", op.aggregate("k", n=op.count()), op.stream("s", key="other"), parallelism=2),
            ),
            "keyed by other, which would spread rows with equal k over tasks; key it by k",
        ),
        (
            lambda: op.Pipeline(op.source("s"), op.step("o", op.tumbling(1, "k", "t", n=op.count()), "s")),
            "operator o: it needs event time, but no source upstream of it names one",
        ),
    ],
)
def test_what_a_pipeline_refuses(make: Any, message: str) -> None:
    with pytest.raises(Invalid) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "operator",
    [
        op.map("k", n=pl.col("n") * 2),
        op.filter("n > 1"),
        op.flat_map(k=pl.col("k").str.split(" ")),
        op.aggregate("k", n=op.sum("n"), two=op.largest(2, "n")),
        op.combine("k", n=op.mean("n")),
        op.top_k(1, "n", "k"),
        op.deduplicate("k"),
    ],
)
def test_operators_travel_to_workers_unchanged(operator: op.Operator) -> None:
    there = pickle.loads(pickle.dumps(operator))
    answers = []
    for each in (operator, there):
        view = State(TaskState.empty(each.tables).tables, Task("o", 0), 1)
        answers.append(each.process(each.prepare("s", rows(a=1, b=2)), view))
    assert answers[0].equals(answers[1])


@pytest.mark.parametrize(
    ("tasks", "stream", "owners"),
    [
        (2, op.stream("s", key="k", weights=(0, 1)), [1, 1, 1, 1]),
        (2, op.stream("s", key="k"), None),
        (4, op.stream("s", key="k", partitioning="split"), None),
    ],
    ids=["weights", "even", "split"],
)
def test_a_trial_leads_rows_to_the_tasks_that_the_runtime_would(
    tasks: int, stream: op.Input, owners: list[int] | None
) -> None:
    from holdfast.runtime.worker.processing import route

    sources = 2 if stream.partitioning else 1
    pipeline = op.Pipeline(
        op.source("s", parallelism=sources),
        op.step("o", op.aggregate("k", n=op.count()), stream, parallelism=tasks),
    )
    batch = pa.table({"k": list("abcdabcd")})
    trial = op.Trial(pipeline)
    trial.epoch(batch)
    found = {
        key: {task.number for task, held in trial.states.items() if held.tables and key in keys_of(held)}
        for key in "abcd"
    }
    expected: dict[str, set[int]] = {key: set() for key in "abcd"}
    for sender in range(sources):
        share = batch.slice(8 // sources * sender, 8 // sources)
        for receiver, rows in route(pipeline, pipeline.input("o", "s"), Task("s", sender), share, None):
            for key in rows["k"].to_pylist():
                expected[key].add(receiver)
    assert found == expected
    assert owners is None or [found[key] for key in "abcd"] == [{owner} for owner in owners]


def keys_of(held: TaskState) -> set[str]:
    return set(held["state"].to_table()["k"].to_pylist())
