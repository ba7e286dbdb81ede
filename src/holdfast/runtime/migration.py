"""A store that another version of the pipeline wrote: what may have changed, and what then has to be done.

Grown or shrunk parallelism is migrated: the states of an operator are merged and cut anew. A new nullable column or
state table needs nothing but an empty start. Anything else is refused, and the message says what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.processing import WATERMARK, default_routing, state_schemas
from holdfast.state import StateSchema, StateTable, Store, TaskState, Writer, hash_keys, merge_states
from holdfast.state.checkpoint import Checkpoint
from holdfast.topology import Task


def migrate(store: Store, writer: Writer, pipeline: Pipeline) -> int:
    """The epoch of the newest whole checkpoint, made to fit this pipeline; -1 where there is none."""
    found = store.latest()
    if found is None:
        return -1
    before = found.extra.get("signature")
    if not isinstance(before, Mapping):
        raise Invalid(f"store {store.url}: its checkpoint does not say which pipeline wrote it")
    resized = changes(store.url, before, pipeline)
    if resized:
        newest = max(store.journal_epochs(), default=found.epoch)
        if newest > found.epoch:
            raise Invalid(
                f"store {store.url}: the parallelism of {', '.join(resized)} changed, but epochs {found.epoch + 1} to "
                f"{newest} are still to be replayed with the old one; start once with the old one and stop it cleanly"
            )
        _resize(store, writer, pipeline, found, before, resized)
    return found.epoch


def changes(url: str, before: Mapping[str, Any], pipeline: Pipeline) -> list[str]:
    """Operators whose parallelism is another one now; Invalid names the first change that cannot be made."""
    now = pipeline.signature
    for name in before:
        if name not in now and before[name]["tables"]:
            raise Invalid(
                f"store {url}: operator {name} has state there, but the pipeline has no such operator any more"
            )
    resized = []
    for name, step in now.items():
        old = before.get(name)
        if old is None:
            if step["tables"]:
                raise Invalid(
                    f"store {url}: operator {name} has state, but the pipeline that wrote the store had no {name}"
                )
            continue
        for table, schema in old["tables"].items():
            if table not in step["tables"]:
                raise Invalid(
                    f"store {url}: operator {name} has no state table {table!r} any more; only new ones are allowed"
                )
            try:
                StateSchema.from_json(schema).evolve(StateSchema.from_json(step["tables"][table]))
            except Invalid as error:
                raise Invalid(f"store {url}: operator {name}, table {table!r}: {error}") from None
        keys = [{source: given["key"] for source, given in each["inputs"].items()} for each in (old, step)]
        if keys[0] != keys[1] and step["tables"]:
            raise Invalid(
                f"store {url}: operator {name} was keyed by {keys[0]}, now it is {keys[1]}; its state cannot follow"
            )
        if old["parallelism"] != step["parallelism"]:
            resized.append(name)
    return resized


def _resize(
    store: Store,
    writer: Writer,
    pipeline: Pipeline,
    found: Checkpoint,
    before: Mapping[str, Any],
    resized: list[str],
) -> None:
    entries = {}
    for step in pipeline.steps:
        schemas = state_schemas(pipeline, step)
        if not schemas:
            continue
        olds = [str(Task(step.name, number)) for number in range(before[step.name]["parallelism"])]
        states = [store.restore(task, found.epoch)[0].evolve(schemas) for task in olds]
        if step.name in resized:
            states = _cut(pipeline, step.name, states)
        for number, state in enumerate(states):
            task = str(Task(step.name, number))
            entries[task] = store.write_task(task, found.epoch, state, token=writer.token)
    writer.commit_checkpoint(found.epoch, entries, extra={**found.extra, "signature": pipeline.signature})


def _cut(pipeline: Pipeline, name: str, states: list[TaskState]) -> list[TaskState]:
    """One operator's state over as many tasks as it has now: each row goes where its key's rows are routed to."""
    step, streams = pipeline.by_name[name], pipeline.topology.inputs_of(name)
    marks = states[0].tables.get(WATERMARK)
    whole = merge_states([TaskState(s.epoch, {n: t for n, t in s.tables.items() if n != WATERMARK}) for s in states])
    if step.parallelism == 1:
        parts = [whole]
    else:
        parts = [TaskState(whole.epoch, {}) for _ in range(step.parallelism)]
        for table, rows in whole.tables.items():
            owners = _owners(pipeline, name, table, rows)
            for number, part in enumerate(parts):
                mine = rows.to_table().filter(pa.array(owners == number))
                cut = StateTable.from_table(rows.schema, mine, rows.epoch)
                parts[number] = TaskState(part.epoch, {**part.tables, table: cut})
    if marks is None:
        return parts
    if any(stream.partitioning != "full" for stream in streams):
        raise Invalid(f"operator {name}: its tasks have watermarks of their own; its parallelism must stay")
    # Every task of an operator behind full streams has seen the same stamps, so any of them serves all.
    return [TaskState(part.epoch, {**part.tables, WATERMARK: marks}) for part in parts]


def _owners(pipeline: Pipeline, name: str, table: str, rows: StateTable) -> NDArray[np.int64]:
    """The task that owns each row, by the columns that a full stream of the operator is keyed by."""
    for given, stream in zip(pipeline.by_name[name].inputs, pipeline.topology.inputs_of(name), strict=True):
        if stream.partitioning == "full" and given.key and set(given.key) <= set(rows.schema.key.names):
            return default_routing(stream.weights).route(hash_keys(rows.to_table(), given.key))
    raise Invalid(
        f"operator {name}, table {table!r}: its key does not hold the key of a full stream, so its rows cannot be cut "
        f"anew; the parallelism must stay"
    )
