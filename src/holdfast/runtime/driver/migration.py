"""A store that another version of the pipeline wrote: the checkpoint that this one can go on from, and the shape.

Whether that may be is decided by ``fitting``. Here it is done: a checkpoint is written again in which operators that
begin anew or are new have empty states, resized ones are merged and cut, and those that are gone are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.driver.fitting import Fit, fit, journalled_otherwise
from holdfast.runtime.shape import Shape, check_scalable, declared_routing
from holdfast.runtime.worker.repartition import cut, united
from holdfast.state import Damaged, Store, TaskState, Writer, signature
from holdfast.state.checkpoint import Checkpoint
from holdfast.topology import Task


def resume(
    store: Store, writer: Writer, pipeline: Pipeline, journal_newest: int, allow_changed: Collection[str] = ()
) -> tuple[Checkpoint | None, Fit]:
    """The newest whole checkpoint, made to fit this pipeline, and what that took; then the pipeline is put down.

    ``journal_newest``: the newest epoch in the journal, -1 for none. Invalid names what does not fit.
    """
    found = newest(store)
    epoch = -1 if found is None else found.epoch
    last, notes = _started_last(store, pending=journal_newest > epoch)
    before: Mapping[str, Any] = pipeline.signature
    if found is not None:
        before = _written_by(store, found)
    elif last is not None and journal_newest >= 0:
        # Without a checkpoint all there is, is what the journal makes when it is replayed; without that, nothing.
        before = last.signature
    elif journal_newest >= 0:
        notes += [f"store {store.url} does not say which pipeline wrote its journal; it is taken to be this one"]
    fitted = fit(store.url, before, pipeline, allow_changed)
    if found is None:
        _check_journal(store, pipeline, before, epoch, journal_newest)
    else:
        found = migrate(store, writer, pipeline, fitted, found, journal_newest)
    written = last or signature.Started(before)
    since = journal_newest + 1 if journalled_otherwise(written.signature, pipeline) else written.since
    writer.check()
    started = signature.Started(pipeline.signature, since)
    signature.write(store.files, started, writer.token, 1, store.sync.checkpoints)
    writer.check()
    return found, replace(fitted, notes=(*notes, *fitted.notes))


def newest(store: Store) -> Checkpoint | None:
    """The checkpoint to go on from, by its manifest: who restores a state finds out whether that is whole.

    Where an older one would not do in its place, since the pipeline has changed in between, all of it is read now.
    """
    try:
        started = signature.read(store.files)
    except Damaged:
        return store.latest()
    since = 0 if started is None else started.since
    return store.latest(read=any(each.epoch + 1 < since for each in store.checkpoints()))


def _started_last(store: Store, pending: bool) -> tuple[signature.Started | None, list[str]]:
    """The pipeline that was started last, and what is to be said of it; where nothing is pending, it may be lost."""
    try:
        return signature.read(store.files), []
    except Damaged as error:
        if pending:
            raise
        return signature.Started({}), [f"{error}. No epoch is to be replayed, so it was not needed"]


def serves(store: Store, pipeline: Pipeline, found: Checkpoint) -> bool:
    """Whether a job of this pipeline, once resumed, can go on from an older checkpoint, should newer ones be lost."""
    started = signature.read(store.files)
    if started is not None and found.epoch + 1 < started.since:
        return False
    try:
        return not fit(store.url, _written_by(store, found), pipeline).migrates
    except Invalid:
        return False


def migrate(
    store: Store, writer: Writer, pipeline: Pipeline, fit: Fit, found: Checkpoint, journal_newest: int
) -> Checkpoint:
    """The checkpoint as this pipeline can go on from it: ``found`` itself, or a revision of it.

    Invalid if epochs that are still to be replayed were journalled for another pipeline.
    """
    before = _written_by(store, found)
    _check_journal(store, pipeline, before, found.epoch, journal_newest)
    if not fit.migrates:
        return found
    # The shape first: if we stop in between, the pipelines still differ and all of this is done again.
    writer.commit_shape(in_force(store, pipeline).without(fit.resized).to_json())
    gone = [name for name in before if name not in pipeline.by_name]
    saved = _shape_of(found).without([*fit.resized, *gone])
    entries = {}
    for name in pipeline.by_name:
        if pipeline.state_schemas(name):
            routing = saved.routings.get(name)
            count = pipeline.by_name[name].parallelism if routing is None else len(routing.owners)
            if name in fit.anew or name in fit.added:
                states = [pipeline.empty_state(name, found.epoch)] * count
            else:
                states = _restored(store, pipeline, found, before, name)
            if name in fit.resized and name not in fit.anew:
                states = _cut(pipeline, name, states)
            for number, state in enumerate(states):
                task = str(Task(name, number))
                entries[task] = store.write_task(task, found.epoch, state, token=writer.token)
    extra = {**found.extra, "signature": pipeline.signature, "shape": saved.to_json()}
    return writer.commit_checkpoint(found.epoch, entries, saved.routings, extra)


def _check_journal(store: Store, pipeline: Pipeline, before: Mapping[str, Any], checkpoint: int, newest: int) -> None:
    """Invalid if epochs after the checkpoint were journalled for another pipeline, in what their blocks depend on."""
    if newest <= checkpoint:
        return
    written = signature.read(store.files) or signature.Started(before)
    last = newest
    what = journalled_otherwise(written.signature, pipeline)
    if what is None and checkpoint + 1 < written.since:
        # The checkpoint that was begun from after the change is not whole any more, and this one is from before.
        what, last = "the pipeline", written.since - 1
    if what is not None:
        epochs = f"epoch {last} is" if last == checkpoint + 1 else f"epochs {checkpoint + 1} to {last} are"
        raise Invalid(
            f"store {store.url}: {what} changed, but {epochs} still to be replayed with the old one; start once with "
            f"the old one and stop it cleanly"
        )


def _written_by(store: Store, found: Checkpoint) -> Mapping[str, Any]:
    before = found.extra.get("signature")
    if not isinstance(before, Mapping):
        raise Invalid(f"store {store.url}: its checkpoint does not say which pipeline wrote it")
    return before


def _restored(
    store: Store, pipeline: Pipeline, found: Checkpoint, before: Mapping[str, Any], name: str
) -> list[TaskState]:
    """The states of an operator's tasks as the checkpoint has them."""
    scaled = found.routing.get(name)
    count = before[name]["parallelism"] if scaled is None else len(scaled.owners)
    schemas = pipeline.state_schemas(name)
    return [store.restore(str(Task(name, number)), found.epoch)[0].evolve(schemas) for number in range(count)]


def _cut(pipeline: Pipeline, name: str, states: list[TaskState]) -> list[TaskState]:
    """One operator's state over as many tasks as it has now: each row goes where its key's rows are routed to."""
    try:
        whole = united(states)
    except Invalid as error:
        raise Invalid(
            f"operator {name}: its state cannot be put together ({error}); its parallelism must stay"
        ) from None
    count = pipeline.by_name[name].parallelism
    if count == 1:
        return [whole]
    routing = declared_routing(pipeline.topology, name)
    parts = dict(zip(routing.owners, routing.ranges, strict=True))
    nothing = pipeline.empty_state(name, whole.epoch)
    return [cut(pipeline, name, whole, parts[number]) if number in parts else nothing for number in range(count)]


def shapes(store: Store, writer: Writer, pipeline: Pipeline, checkpoint: int) -> tuple[Shape, Shape]:
    """The shape in force, put down again by this writer, and the one that the checkpoint was written in."""
    shape = in_force(store, pipeline)
    for name in shape.routings:
        try:
            check_scalable(pipeline, name)
        except Invalid as error:
            raise Invalid(
                f"store {store.url}: {name} was scaled to {len(shape.routings[name].owners)} tasks; {error}"
            ) from None
    writer.commit_shape(shape.to_json())
    return shape, _shape_of(store.checkpoint(checkpoint)) if checkpoint >= 0 else Shape()


def _shape_of(found: Checkpoint) -> Shape:
    return Shape.from_json(found.extra["shape"]) if "shape" in found.extra else Shape()


def in_force(store: Store, pipeline: Pipeline) -> Shape:
    """The shape that the store has."""
    body = store.shape()
    shape = Shape() if body is None else Shape.from_json(body)
    return shape.without(name for name in shape.routings if name not in pipeline.by_name)
