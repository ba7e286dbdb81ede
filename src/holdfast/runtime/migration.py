"""A store that another version of the pipeline wrote: what may have changed, and what then has to be done.

Grown or shrunk parallelism is migrated: the states of an operator are merged and cut anew. A new nullable column or
state table needs nothing but an empty start. Anything else is refused, and the message says what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.processing import default_routing, state_schemas
from holdfast.state import StateSchema, Store, TaskState, Writer, merge_states
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
    """One operator's state over as many tasks as it has now, by the key ranges that its streams are routed by."""
    streams = pipeline.topology.inputs_of(name)
    if any(stream.partitioning not in ("full",) for stream in streams) and pipeline.by_name[name].parallelism > 1:
        raise Invalid(
            f"operator {name}: only state behind keyed full streams can be cut anew; its parallelism must stay"
        )
    marks = [state.tables.get("_watermark") for state in states]
    bare = [TaskState(state.epoch, {n: t for n, t in state.tables.items() if n != "_watermark"}) for state in states]
    whole = merge_states(bare)
    routing = default_routing(streams[0].weights)
    parts = whole.partition(routing.ranges)
    if marks[0] is None:
        return parts
    # Every task of an operator behind full streams has seen the same stamps, so any of them serves all.
    return [TaskState(part.epoch, {**part.tables, "_watermark": marks[0]}) for part in parts]
