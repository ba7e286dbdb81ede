"""A store that another version of the pipeline wrote: what may have changed, and what then has to be done.

Grown or shrunk parallelism is migrated: the states of an operator are merged and cut anew. A new nullable column or
state table needs nothing but an empty start. Anything else is refused, and the message says what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.operators.pipeline import WATERMARK
from holdfast.runtime.shape import Shape, check_scalable, declared_routing
from holdfast.runtime.worker.repartition import cut, united
from holdfast.state import StateSchema, Store, TaskState, Writer
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


def shapes(store: Store, writer: Writer, pipeline: Pipeline, checkpoint: int) -> tuple[Shape, Shape]:
    """The shape in force, put down again by this writer, and the one that the checkpoint was written in."""
    shape = _in_force(store, pipeline)
    for name in shape.routings:
        try:
            check_scalable(pipeline, name)
        except Invalid as error:
            raise Invalid(
                f"store {store.url}: {name} was scaled to {len(shape.routings[name].owners)} tasks; {error}"
            ) from None
    writer.commit_shape(shape.to_json())
    extra = store.checkpoint(checkpoint).extra if checkpoint >= 0 else {}
    return shape, Shape.from_json(extra["shape"]) if "shape" in extra else Shape()


def _in_force(store: Store, pipeline: Pipeline) -> Shape:
    body = store.shape()
    shape = Shape() if body is None else Shape.from_json(body)
    return shape.without(name for name in shape.routings if name not in pipeline.by_name)


def _resize(
    store: Store,
    writer: Writer,
    pipeline: Pipeline,
    found: Checkpoint,
    before: Mapping[str, Any],
    resized: list[str],
) -> None:
    # The shape first: if we stop in between, the parallelism still differs and all of this is done again.
    shape = _in_force(store, pipeline).without(resized)
    writer.commit_shape(shape.to_json())
    entries = {}
    for step in pipeline.steps:
        schemas = pipeline.state_schemas(step.name)
        if not schemas:
            continue
        scaled = found.routing.get(step.name)
        count = len(scaled.owners) if scaled is not None else before[step.name]["parallelism"]
        olds = [str(Task(step.name, number)) for number in range(count)]
        states = [store.restore(task, found.epoch)[0].evolve(schemas) for task in olds]
        if step.name in resized:
            states = _cut(pipeline, step.name, states)
        for number, state in enumerate(states):
            task = str(Task(step.name, number))
            entries[task] = store.write_task(task, found.epoch, state, token=writer.token)
    routing = {name: each for name, each in found.routing.items() if name not in resized}
    extra = {**found.extra, "signature": pipeline.signature, "shape": shape.to_json()}
    writer.commit_checkpoint(found.epoch, entries, routing, extra)


def _cut(pipeline: Pipeline, name: str, states: list[TaskState]) -> list[TaskState]:
    """One operator's state over as many tasks as it has now: each row goes where its key's rows are routed to."""
    if WATERMARK in states[0].tables and any(s.partitioning != "full" for s in pipeline.topology.inputs_of(name)):
        raise Invalid(f"operator {name}: its tasks have watermarks of their own; its parallelism must stay")
    step, whole = pipeline.by_name[name], united(states)
    if step.parallelism == 1:
        return [whole]
    routing = declared_routing(pipeline.topology, name)
    parts = dict(zip(routing.owners, routing.ranges, strict=True))
    nothing = pipeline.empty_state(name, whole.epoch)
    return [
        cut(pipeline, name, whole, parts[number]) if number in parts else nothing for number in range(step.parallelism)
    ]
