"""One task, one epoch: blocks and state in, blocks and state change out. Pure but for the user's function.

The same on Spark and in simulation.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import HoldfastError
from holdfast.operators import Pipeline, State, Step
from holdfast.operators.pipeline import WATERMARK
from holdfast.operators.timers import LAST
from holdfast.runtime.failures import may_pass
from holdfast.runtime.raised import line_of, text_of
from holdfast.runtime.worker.blocks import Block, encode
from holdfast.state import Change, Routing, TaskState, Unusable, hash_keys
from holdfast.state.pages import to_read
from holdfast.topology import Stream, Task


class TaskFailed(HoldfastError):
    """A user's function raised, or answered with something else than a table; the message tells the whole story.

    What it raised is the cause.
    """

    def raised(self) -> dict[str, Any]:
        """What a report has of the cause, if there is one."""
        cause = self.__cause__
        return {} if cause is None else {"raised": text_of(cause), "may_pass": may_pass(cause)}


@dataclass(frozen=True, slots=True)
class Processed:
    """What a task made of an epoch: its output rows, the next version of its state, and how it got there.

    ``changes`` has the tables that changed.
    """

    output: pa.Table | None
    changes: Mapping[str, Change]
    state: TaskState
    stamp: int | None
    rows_in: int
    seconds: float
    counters: Mapping[str, int] = field(default_factory=dict)
    touched: int = 0
    """Bytes of the state that a fork would have read for this epoch."""


def process(
    pipeline: Pipeline,
    task: Task,
    state: TaskState,
    blocks: Sequence[Block],
    epoch: int,
    verify: bool = False,
    schemas: Mapping[str, pa.Schema] | None = None,
    tentative: bool = False,
) -> Processed:
    """Process one epoch from these blocks, each once and in order. ``schemas``: of inputs from which no block came."""
    step = pipeline.by_name[task.operator]
    inputs = {
        given.source: _joined(task, epoch, given.source, blocks, (schemas or {}).get(given.source))
        for given in step.inputs
    }
    began = time.process_time()
    before, after, watermark_change = _watermarks(pipeline, step, state, blocks)
    with contextlib.suppress(HoldfastError):
        state.tell()  # whoever asked before has been told
    made = partial(State, state.tables, task, epoch, after, before, tentative)
    call = partial(_call, step, task, inputs, made, state.tell)
    answer, view = call()
    if verify:
        again, second = call()
        _same(task, epoch, answer, again, view, second)
    state.tell()
    changes = {name: each.change for name, each in view.views.items() if each.changed}
    tables = {name: each.table for name, each in view.views.items()}
    if watermark_change is not None:
        changes[WATERMARK] = watermark_change
        tables[WATERMARK] = state[WATERMARK].apply(watermark_change, epoch)
    following = TaskState(epoch, {name: table.at(epoch) for name, table in tables.items()})
    stamp = after if step.name in pipeline.timed else _newest(blocks)
    rows = sum(table.num_rows for table in inputs.values())
    touched = sum(to_read(each.table.nbytes, each.asked) for each in view.views.values())
    return Processed(answer, changes, following, stamp, rows, time.process_time() - began, view.counters, touched)


def process_source(
    pipeline: Pipeline, task: Task, rows: pa.Table, epoch: int, ends: bool = False, watermark: int | None = None
) -> Processed:
    """A source's task over its share of the batch: stateless; it stamps what it sends with its watermark.

    ``ends``: no row will ever follow, so every window closes. ``watermark``: the one of Spark, where that counts.
    """
    step = pipeline.by_name[task.operator]
    began = time.process_time()
    stamp = None
    if step.event_time:
        stamp = LAST if ends else watermark if watermark is not None else _event_time(step, rows)
    view = State({}, task, epoch)
    try:
        answer = step.operator.process_inputs({task.operator: rows}, view)
    except Exception as error:
        raise _failed(step, task, epoch, error, {task.operator: rows}, None) from error
    return Processed(answer, {}, TaskState(epoch), stamp, rows.num_rows, time.process_time() - began, view.counters)


def outgoing(
    pipeline: Pipeline,
    task: Task,
    made: Processed,
    epoch: int,
    routings: Mapping[str, Routing],
    piece: int = 0,
) -> list[Block]:
    """A block for every receiver of every output stream, with rows or without: the barrier."""
    blocks = []
    for stream in pipeline.topology.outputs_of(task.operator):
        target = pipeline.by_name[stream.target]
        rows = made.output if made.output is not None else pa.table({})
        if rows.num_columns:
            try:
                rows = target.operator.prepare(task.operator, rows)
            except Exception as error:
                raise _failed(target, task, epoch, error, {task.operator: rows}, None) from error
        for receiver, share in route(pipeline, stream, task, rows, routings.get(stream.target)):
            receiving = Task(stream.target, receiver)
            blocks.append(Block(epoch, task, piece, receiving, made.stamp, share.num_rows, encode(share)))
    return blocks


def route(
    pipeline: Pipeline, stream: Stream, sender: Task, rows: pa.Table, routing: Routing | None
) -> list[tuple[int, pa.Table]]:
    """Each receiver's share of these rows, in their order: by the hash of the key, or dealt in even runs."""
    receivers = pipeline.topology.receivers(stream, sender.number)
    if len(receivers) == 1:
        return [(receivers[0], rows)]
    given = next(each for each in pipeline.by_name[stream.target].inputs if each.source == stream.source)
    if not given.key or not rows.num_rows:
        cuts = [rows.num_rows * i // len(receivers) for i in range(len(receivers) + 1)]
        return [(r, rows.slice(a, b - a)) for r, a, b in zip(receivers, cuts, cuts[1:], strict=False)]
    missing = [name for name in given.key if name not in rows.column_names]
    if missing:
        raise TaskFailed(
            f"stream {stream}: the key column {missing[0]!r} is not in the rows of {stream.source}; "
            f"found {', '.join(rows.column_names)}"
        )
    if stream.partitioning == "full":
        owners = (routing or Routing.weighted(stream.weights)).route(hash_keys(rows, given.key))
    else:
        owners = Routing.even(len(receivers)).route(hash_keys(rows, given.key)) + receivers[0]
    # Small numbers are sorted by radix, in a tenth of the time.
    order = np.argsort(owners.astype(np.uint16) if receivers[-1] < 2**16 else owners, kind="stable")
    counts = np.bincount(owners - receivers[0], minlength=len(receivers))
    ends = np.cumsum(counts)
    sorted_rows = rows.take(pa.array(order))
    return [(r, sorted_rows.slice(int(e - n), int(n))) for r, n, e in zip(receivers, counts, ends, strict=True)]


def _joined(task: Task, epoch: int, name: str, blocks: Sequence[Block], schema: pa.Schema | None) -> pa.Table:
    mine = [block for block in blocks if block.sender.operator == name]
    try:
        return joined(mine, schema)
    except pa.ArrowException as error:
        schemas = {block.sender: block.table().schema for block in mine}
        told = "; ".join(f"{sender} sent {_columns(schema)}" for sender, schema in schemas.items())
        raise TaskFailed(
            f"stream {name} -> {task.operator}, task {task}, epoch {epoch}: its senders do not agree on the columns: "
            f"{told[:300]} ({error})"
        ) from error


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def joined(blocks: Sequence[Block], schema: pa.Schema | None) -> pa.Table:
    """The rows of these blocks, which come in order; with their columns even when there are none."""
    tables = [table for table in (block.table() for block in blocks) if table.num_columns]
    if not tables:
        return schema.empty_table() if schema is not None else pa.table({})
    return pa.concat_tables(tables, promote_options="permissive") if len(tables) > 1 else tables[0]


def _call(
    step: Step,
    task: Task,
    inputs: Mapping[str, pa.Table],
    made: Callable[[], State],
    tell: Callable[[], None],
) -> tuple[pa.Table | None, State]:
    """``tell`` raises what the store refused of the state: that goes before what the function made of it."""
    view = made()
    try:
        answer = step.operator.process_inputs(inputs, view)
    except Unusable:
        tell()
        raise  # by a disk or a store
    except Exception as error:
        tell()

        def fails(some: Mapping[str, pa.Table]) -> bool:
            try:
                step.operator.process_inputs(some, made())
            except Exception:
                return True
            return False

        raise _failed(step, task, view.epoch, error, inputs, fails) from error
    if answer is not None and not isinstance(answer, pa.Table):
        raise TaskFailed(
            f"operator {step.name}, task {task}, epoch {view.epoch}: process must answer with a pyarrow.Table or None, "
            f"got {type(answer).__name__}"
        )
    return answer, view


def _failed(
    step: Step,
    task: Task,
    epoch: int,
    error: Exception,
    inputs: Mapping[str, pa.Table],
    fails: Callable[[Mapping[str, pa.Table]], bool] | None,
) -> TaskFailed:
    """With the row that it failed at, if it was not an error of I/O."""
    what = f"operator {step.name}, task {task}, epoch {epoch}: {line_of(error)}"
    sample = "" if may_pass(error) else _sample(inputs, fails)
    return TaskFailed(f"{what}; sample row: {sample}" if sample else what)


def _sample(inputs: Mapping[str, pa.Table], fails: Callable[[Mapping[str, pa.Table]], bool] | None) -> str:
    """The first row at which the function fails, found by halving; the first row where that cannot be told."""
    name, table = max(inputs.items(), key=lambda item: item[1].num_rows, default=("", pa.table({})))
    if not table.num_rows:
        return ""
    low, high = 0, table.num_rows
    if fails is not None and fails({**inputs, name: table}):
        while high - low > 1:
            middle = (low + high) // 2
            if fails({**inputs, name: table.slice(0, middle)}):
                high = middle
            else:
                low = middle
        low = high - 1
    row = json.dumps(table.slice(low, 1).to_pylist()[0], default=str)
    return row if len(row) <= 300 else row[:297] + "..."


def _same(task: Task, epoch: int, one: pa.Table | None, two: pa.Table | None, first: State, second: State) -> None:
    """Refuse a function that answers the same epoch differently the second time."""
    what = f"operator {task.operator}, task {task}, epoch {epoch}: the same epoch run twice gave different"
    if (one is None) != (two is None) or (one is not None and not one.equals(two)):
        raise TaskFailed(f"{what} output; a process function must be deterministic (no clock, no random, no set order)")
    for name, view in first.views.items():
        if view.change.encode() != second.views[name].change.encode():
            raise TaskFailed(f"{what} changes of state table {name!r}; a process function must be deterministic")


def _watermarks(
    pipeline: Pipeline, step: Step, state: TaskState, blocks: Sequence[Block]
) -> tuple[int | None, int | None, Change | None]:
    """The watermark before and after this epoch: the least over inputs of what came by each.

    Parts of a batch say how new their rows are: the newest counts for all. Tasks that keep a watermark themselves say
    up to when they are complete: the least of theirs counts.
    """
    if step.name not in pipeline.timed:
        return None, None, None
    names = [given.source for given in step.inputs]
    known = state[WATERMARK].lookup(pa.table({"input": names}))["stamp"].to_pylist()
    stamps = dict(zip(names, known, strict=True))
    newer = dict(stamps)
    for name in names:
        came = [block for block in blocks if block.sender.operator == name]
        newest = _least({str(b.sender): b.stamp for b in came}) if name in pipeline.timed else _newest(came)
        if newest is not None:
            newer[name] = newest if stamps[name] is None else max(newest, stamps[name])
    changed = {name: stamp for name, stamp in newer.items() if stamp != stamps[name]}
    schema = state[WATERMARK].schema
    rows = pa.table({"input": list(changed), "stamp": pa.array(changed.values(), pa.int64())}, schema.arrow)
    change = Change(rows, schema.key.empty_table())
    return _least(stamps), _least(newer), change


def at_time(state: TaskState, time: int) -> TaskState:
    """A state that missed epochs, with the watermark that it would have: what was closed meanwhile stays closed."""
    if WATERMARK not in state.tables:
        return state
    table = state[WATERMARK]
    rows = table.to_table()
    stamps = rows["stamp"].to_pylist()
    if not any(stamp is not None and stamp < time for stamp in stamps):
        return state
    newer = [stamp if stamp is None or stamp >= time else time for stamp in stamps]
    change = Change(pa.table({"input": rows["input"], "stamp": pa.array(newer, pa.int64())}, table.schema.arrow),
                    table.schema.key.empty_table())  # fmt: skip
    return TaskState(state.epoch, {**state.tables, WATERMARK: table.apply(change, state.epoch)})


def _least(stamps: Mapping[str, int | None]) -> int | None:
    known = [stamp for stamp in stamps.values() if stamp is not None]
    return min(known) if known and len(known) == len(stamps) else None


def _newest(blocks: Sequence[Block]) -> int | None:
    return max((block.stamp for block in blocks if block.stamp is not None), default=None)


def _event_time(step: Step, rows: pa.Table) -> int | None:
    """The newest event time of these rows less the delay, in microseconds."""
    if not rows.num_rows:
        return None
    if step.event_time not in rows.column_names:
        raise TaskFailed(
            f"source {step.name}: the event time column {step.event_time!r} is not in the stream; "
            f"found {', '.join(rows.column_names)}"
        )
    newest: Any = pc.max(rows[step.event_time])
    if pa.types.is_timestamp(newest.type):
        newest = newest.cast(pa.timestamp("us", newest.type.tz), safe=False).cast(pa.int64()).as_py()
    else:
        newest = newest.as_py()
        newest = None if newest is None else round(newest * 1_000_000)
    return None if newest is None else newest - round(step.delay_seconds * 1_000_000)
