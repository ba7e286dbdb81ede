"""Shapes: who owns which keys after a scaling, and how topologies, states and journalled blocks follow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from driving import chain, task
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.operators.pipeline import WATERMARK
from holdfast.runtime.shape import (
    Shape,
    changed,
    check_scalable,
    declared_routing,
    grown,
    reshaped,
    reshaped_pipeline,
    resized,
    routing_of,
    scalable,
)
from holdfast.runtime.simulation.pipelines import joined, remembered, windows
from holdfast.runtime.worker.blocks import Block, encode
from holdfast.runtime.worker.processing import route
from holdfast.runtime.worker.repartition import assembled, recut, united
from holdfast.state import Routing, StateSchema, StateTable, TaskState, hash_keys
from holdfast.topology import Operator, Stream, Task, Topology

reproducible = settings(deadline=None, derandomize=True, max_examples=30)
sizes = st.lists(st.integers(1, 9), min_size=1, max_size=6)


def walk(start: int, steps: list[int]) -> list[Routing]:
    """An operator scaled to these numbers of tasks, one after another."""
    routings = [Routing.even(start)]
    for to in steps:
        routings.append(resized(routings[-1], to))
    return routings


@reproducible
@given(st.integers(1, 6), sizes)
def test_every_key_has_one_owner_and_tasks_whose_keys_stay_keep_their_numbers(start: int, steps: list[int]) -> None:
    for before, after in zip(walk(start, steps), walk(start, steps)[1:], strict=False):
        assert sorted(after.owners) == list(range(len(after.ranges)))
        anew = changed(before, after)
        same = dict(zip(before.ranges, before.owners, strict=True))
        for part, owner in zip(after.ranges, after.owners, strict=True):
            stays = same.get(part, len(after.ranges)) < len(after.ranges)
            assert (owner not in anew) == stays
            assert not stays or owner == same[part]


def test_splitting_one_task_changes_that_one_and_a_new_one_alone() -> None:
    before = Routing.even(3)
    after = resized(before, 4)
    assert len(changed(before, after)) == 2 and 3 in changed(before, after)
    assert changed(after, resized(after, 4)) == ()


@reproducible
@given(st.integers(1, 5), sizes)
def test_rates_and_costs_are_shared_out_and_streams_stay_whole(start: int, steps: list[int]) -> None:
    declared = Topology(
        (Operator("S", 2), Operator("A", start, costs=tuple(range(1, start + 1)), stateful=True), Operator("B", 2)),
        (Stream("S", "A", "full"), Stream("A", "B", "full")),
    )
    shape = Shape()
    for version, routing in enumerate(walk(start, steps)[1:], 1):
        shape = grown(declared, shape, "A", routing, version, {})
        now = reshaped(declared, shape)
        assert now.operator["A"].parallelism == len(routing.owners)
        assert sum(now.operator["A"].costs) == pytest.approx(sum(declared.operator["A"].costs))
        assert sum(now.operator["A"].rates) == pytest.approx(sum(declared.operator["A"].rates))
        assert {stream.partitioning for stream in now.streams} == {"full"}
    assert Shape.from_json(shape.to_json()) == shape


def test_marks_of_changed_tasks_are_new_and_those_of_others_stay() -> None:
    declared = chain(1, 2)
    first = resized(declared_routing(declared, "A"), 3)
    shape = grown(declared, Shape(), "A", first, 1, {task("A/0"): 7, task("A/1"): 5})
    (untouched,) = {0, 1, 2} - set(changed(Routing.even(2), first))
    assert Task("A", untouched) not in shape.born and set(shape.born.values()) == {1}
    (parent,) = {0, 1} - {untouched}
    assert set(shape.done.values()) == {{0: 7, 1: 5}[parent]}
    back = grown(declared, shape, "A", resized(first, 1), 2, dict.fromkeys(map(task, ("A/0", "A/1", "A/2")), 9))
    assert back.born == {task("A/0"): 2} and back.done == {task("A/0"): 9}
    assert back.without(["A"]).routings == {} and back.without(["A"]).born == {}


# What can be scaled


def summed(**inputs: object) -> Pipeline:
    return Pipeline(op.source("rows"), op.step("sums", op.aggregate(by="key", n=op.count()), "rows", **inputs))  # type: ignore[arg-type]


def test_an_operator_of_one_task_can_be_scaled_though_its_stream_is_one_to_one() -> None:
    pipeline = summed()
    assert pipeline.input("sums", "rows").partitioning == "one-to-one"
    assert scalable(pipeline) == {"sums"}
    shape = grown(pipeline.topology, Shape(), "sums", resized(Routing.even(1), 3), 1, {})
    assert reshaped_pipeline(pipeline, shape).by_name["sums"].parallelism == 3


def test_what_cannot_be_scaled_is_named() -> None:
    pipeline = remembered()
    assert scalable(pipeline) == {"total"}
    with pytest.raises(Invalid, match="operator chains: stream chains -> seen is merge"):
        check_scalable(pipeline, "chains")
    with pytest.raises(Invalid, match="operator lines: a source is read wherever Spark has room"):
        check_scalable(pipeline, "lines")
    with pytest.raises(Invalid, match="operator 'chain': unknown; operators: lines, chains, seen, total"):
        check_scalable(pipeline, "chain")
    plain = Pipeline(op.source("rows"), op.step("same", op.map(lambda table: table), "rows"))
    with pytest.raises(Invalid, match="stream rows -> same has no key, so rows that belong together would be parted"):
        check_scalable(plain, "same")
    schema = StateSchema(pa.schema([("other", pa.string())]), pa.schema([("n", pa.int64())]))
    apart = Pipeline(
        op.source("rows"),
        op.step("odd", op.FunctionOperator(lambda batch, state: None, schema), op.stream("rows", key="word")),
    )
    with pytest.raises(Invalid, match=r"table 'state': its key \(other\) does not hold the key of an input stream"):
        check_scalable(apart, "odd")


# State


def filled(pipeline: Pipeline, name: str, rows: dict[str, pa.Table], routing: Routing) -> dict[Task, TaskState]:
    """States of the tasks of an operator, cut row by row: the plain way."""
    schemas = pipeline.state_schemas(name)
    key = next(given.key for given in pipeline.by_name[name].inputs if given.key)
    states = {}
    for number in routing.owners:
        tables = {}
        for table, schema in schemas.items():
            whole = rows[table]
            if table != WATERMARK:
                owners = routing.route(hash_keys(whole, key))
                whole = whole.take(pa.array([at for at, owner in enumerate(owners) if owner == number], pa.int64()))
            tables[table] = StateTable.from_table(schema, whole, 4)
        states[Task(name, number)] = TaskState(4, tables)
    return states


def drawn_rows(schema: StateSchema, count: int, seed: int) -> pa.Table:
    draw = np.random.default_rng(seed)
    columns = []
    for each in schema.arrow:
        numbers = draw.integers(0, 10_000, count)
        columns.append(
            pa.array([str(n) for n in numbers] if pa.types.is_string(each.type) else numbers).cast(each.type)
        )
    return StateTable.from_table(schema, pa.table(columns, schema=schema.arrow), 4).to_table()


CASES = {"windows": windows, "pairs": joined, "sums": summed}


@pytest.mark.parametrize("name", sorted(CASES))
@reproducible
@given(steps=st.lists(st.integers(1, 6), min_size=2, max_size=2), seed=st.integers(0, 5))
def test_a_state_from_a_checkpoint_of_another_shape_is_that_of_a_cut_by_hand(
    name: str, steps: list[int], seed: int
) -> None:
    pipeline = CASES[name]()
    schemas = pipeline.state_schemas(name)
    rows = {
        table: pa.table({"input": ["a"], "stamp": [5]}, schema=schema.arrow)
        if table == WATERMARK
        else drawn_rows(schema, 60, seed)
        for table, schema in schemas.items()
    }
    start = declared_routing(pipeline.topology, name)
    before, after = resized(start, steps[0]), resized(resized(start, steps[0]), steps[1])
    there = filled(pipeline, name, rows, before)
    wanted = filled(pipeline, name, rows, after)
    for each, state in wanted.items():
        mine = after.owned(each.number)[0]
        olds = before.overlapping(mine)
        found = assembled(pipeline, name, mine, [keys for _, keys in olds], [there[Task(name, old)] for old, _ in olds])
        assert {table: found[table] for table in schemas} == dict(state.tables)
    whole = united(list(wanted.values()))
    assert all(len(whole[table]) == len(rows[table]) for table in schemas)


# The journal


@reproducible
@given(st.integers(1, 5), st.integers(1, 5), st.lists(st.integers(0, 30), max_size=40))
def test_a_journal_cut_in_another_shape_gives_each_task_its_rows_in_order(
    first: int, second: int, keys: list[int]
) -> None:
    pipeline = summed()
    declared = pipeline.topology
    one = grown(declared, Shape(), "sums", resized(Routing.even(1), first), 1, {})
    two = grown(declared, one, "sums", resized(routing_of(declared, one, "sums"), second), 2, {})
    rows = pa.table({"key": pa.array(keys, pa.int64()), "at": pa.array(range(len(keys)), pa.int64())})
    sender = Task("rows", 0)
    then = reshaped_pipeline(pipeline, one)
    blocks = [
        Block(3, sender, 1, Task("sums", number), 9, share.num_rows, encode(share))
        for number, share in route(then, then.input("sums", "rows"), sender, rows, one.routings["sums"])
    ]
    again = recut(pipeline, blocks, one, two)
    routing = routing_of(declared, two, "sums")
    assert sorted(block.receiver.number for block in again) == sorted(routing.owners)
    owners = routing.route(hash_keys(rows, ("key",)))
    for block in again:
        assert (block.epoch, block.sender, block.piece, block.stamp) == (3, sender, 1, 9)
        got = block.table().to_pylist()
        for key in set(keys):
            mine = [row["at"] for row in got if row["key"] == key]
            whole = [at for at, each in enumerate(keys) if each == key and owners[at] == block.receiver.number]
            assert mine == whole
    assert recut(pipeline, blocks, one, one) == blocks
