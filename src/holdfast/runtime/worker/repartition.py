"""State and journalled blocks across a change of shape: cut by key, joined, without a key lost or doubled.

One place for all who restore: a task's state at a checkpoint is what the tasks of that checkpoint's shape had of its
keys. Behind full streams every task has seen the same stamps, so the watermark of any of them serves all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from holdfast.elasticity import PARTS, tally
from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.operators.pipeline import WATERMARK
from holdfast.runtime.shape import Shape, reshaped_pipeline, routing_of, stream_key
from holdfast.runtime.worker.blocks import Block, encode
from holdfast.runtime.worker.processing import joined, route
from holdfast.runtime.worker.stored import StoredState, stored_states
from holdfast.state import (
    Damaged,
    KeyRange,
    Routing,
    StateSchema,
    StateTable,
    Store,
    TaskState,
    hash_keys,
    merge_states,
)
from holdfast.topology import Task


def restored(
    store: Store,
    declared: Pipeline,
    shape: Shape,
    task: Task,
    epoch: int,
    touched: bool = False,
    known: StoredState | None = None,
) -> TaskState:
    """A task's state at a checkpoint, whatever shape that was written in. ``touched``: see ``Store.restore``.

    ``known``: what gives it, by the manifest that somebody else has read. Where such a file is not whole, the manifest
    is read after all: the files may have been folded into others meanwhile.
    """
    if known is not None:
        with contextlib.suppress(Damaged):
            return _read(store, declared, task, known, touched)
    found = stored_states(declared.topology, shape, store.checkpoint(epoch), [task])
    return _read(store, declared, task, found[task], touched)


def _read(store: Store, declared: Pipeline, task: Task, stored: StoredState, touched: bool) -> TaskState:
    name, mine = task.operator, stored.keys
    schemas = declared.state_schemas(name)
    # What others have is cut off file by file, before the files are put together.
    cut_off = {} if mine is None else {t: mine for t, s in schemas.items() if _sorted_by_routing(declared, name, s)}
    states = [
        store.restore(str(part.task), stored.epoch, cut_off, touched=touched, chain=part.chain)[0].evolve(schemas)
        for part in stored.parts
    ]
    return assembled(declared, name, mine, [part.keys for part in stored.parts], states)


def _sorted_by_routing(declared: Pipeline, name: str, schema: StateSchema) -> bool:
    names: list[str] = schema.key.names
    return list(stream_key(declared, name, names) or ()) == names


def assembled(
    pipeline: Pipeline,
    name: str,
    mine: KeyRange | None,
    had: Sequence[KeyRange | None],
    states: Sequence[TaskState],
) -> TaskState:
    """What a task that owns some keys of an operator has of these states, of tasks that had others; None: all of it."""
    parts = [
        state if mine is None or keys is None or _within(keys, mine) else cut(pipeline, name, state, mine)
        for keys, state in zip(had, states, strict=True)
    ]
    return united(parts)


def cut(pipeline: Pipeline, name: str, state: TaskState, part: KeyRange) -> TaskState:
    """The rows of a state whose key lies in an interval of the ring; watermarks stay."""
    return TaskState(
        state.epoch,
        {
            table: rows if table == WATERMARK else _cut_table(pipeline, name, table, rows, part)
            for table, rows in state.tables.items()
        },
    )


def _cut_table(pipeline: Pipeline, name: str, table: str, rows: StateTable, part: KeyRange) -> StateTable:
    names = rows.schema.key.names
    key = stream_key(pipeline, name, names)
    if key is None:
        raise Invalid(
            f"operator {name}, table {table!r}: its key does not hold the key of a full stream, so its rows cannot be "
            f"cut anew; the parallelism must stay"
        )
    if list(key) == names:
        return rows.slice(part)  # the table is sorted by the very hash that routes
    whole = rows.to_table()
    mine = whole.filter(pa.array(part.contains(hash_keys(whole, key))))
    return StateTable.from_table(rows.schema, mine, rows.epoch)


def united(states: Sequence[TaskState]) -> TaskState:
    """Several tasks' states as one."""
    if len(states) == 1:
        return states[0]
    marks = states[0].tables.get(WATERMARK)
    bare = [TaskState(s.epoch, {n: t for n, t in s.tables.items() if n != WATERMARK}) for s in states]
    whole = merge_states(bare)
    return whole if marks is None else TaskState(whole.epoch, {**whole.tables, WATERMARK: marks})


def _range(routing: Routing, number: int) -> KeyRange:
    return routing.ranges[routing.owners.index(number)]


def _within(part: KeyRange, whole: KeyRange) -> bool:
    return whole.lo <= part.lo and part.hi <= whole.hi


def tallied(declared: Pipeline, shape: Shape, task: Task, blocks: Iterable[Block]) -> list[int]:
    """How many of the rows that came fell into each of some equal parts of a task's keys; nothing if it has no key."""
    routing = routing_of(declared.topology, shape, task.operator)
    keys = {given.source: given.key for given in declared.by_name[task.operator].inputs}
    if task.number not in routing.owners or not all(keys.values()):
        return []
    tables = [(block.table(), keys[block.sender.operator]) for block in blocks if block.rows]
    if not all(set(key) <= set(table.column_names) for table, key in tables):
        return []
    hashes = [hash_keys(table, key) for table, key in tables]
    counts = tally(_range(routing, task.number), np.concatenate(hashes)) if hashes else np.zeros(PARTS, np.int64)
    return [int(count) for count in counts]


def recut(declared: Pipeline, blocks: Iterable[Block], then: Shape, now: Shape) -> list[Block]:
    """Blocks that were cut in one shape, cut in another. The order of each key's rows stays.

    What one sender sent an operator in one piece is put together again and routed anew; receivers of operators that
    both shapes have alike keep their blocks as they are. Of an operator that is no longer there nothing is cut.
    """
    moved = {
        name
        for name in {*then.routings, *now.routings} & declared.by_name.keys()
        if routing_of(declared.topology, then, name) != routing_of(declared.topology, now, name)
    }
    result: list[Block] = []
    again: dict[tuple[int, Task, int, str], list[Block]] = {}
    for block in blocks:
        if block.receiver.operator in moved:
            again.setdefault((block.epoch, block.sender, block.piece, block.receiver.operator), []).append(block)
        else:
            result.append(block)
    if not again:
        return result
    pipeline = reshaped_pipeline(declared, now)
    for (epoch, sender, piece, name), parts in again.items():
        rows = joined(sorted(parts, key=lambda block: block.receiver.number), None)
        stream = pipeline.input(name, sender.operator)
        for receiver, share in route(pipeline, stream, sender, rows, now.routings.get(name)):
            stamp = parts[0].stamp
            result.append(Block(epoch, sender, piece, Task(name, receiver), stamp, share.num_rows, encode(share)))
    return result
