"""Outputs that a launch finds damaged: which of them are made again, and from which checkpoint.

All since the newest checkpoint are verified: replay makes them again. Of older ones only those that the sink has not
had yet: for their sake the job goes on from an older checkpoint, since nobody but the sink's next call would miss them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from holdfast.errors import Unrecoverable
from holdfast.operators import Pipeline
from holdfast.runtime.driver.migration import in_force, serves
from holdfast.runtime.driver.publishing import BACKLOG
from holdfast.runtime.shape import reshaped
from holdfast.state import Damaged, Store, cursor, output, sums
from holdfast.state.checkpoint import Checkpoint
from holdfast.state.journal import Journal
from holdfast.state.output import Kind
from holdfast.state.store import KEPT
from holdfast.topology import Task


def retained(every: int) -> int:
    """How many checkpoints are kept, one every so many epochs, for one to be older than what the sink may not have."""
    return max(KEPT, 2 + math.ceil((BACKLOG + 2) / every))


@dataclass(frozen=True, slots=True)
class Verified:
    """``found``: the checkpoint to go on from. ``remade``: from which epoch on a task's final outputs come again.

    ``newest``: up to which epoch each task's final output is there; epochs in which it said nothing leave no trace.
    ``whole``: epochs since the checkpoint of which a task's final output is there, whole; nobody needs it again.
    ``missing``: up to which epoch some of its outputs have to be made again.
    """

    found: Checkpoint | None
    remade: Mapping[str, int] = field(default_factory=dict)
    newest: Mapping[Task, int] = field(default_factory=dict)
    whole: Mapping[Task, frozenset[int]] = field(default_factory=dict)
    missing: Mapping[Task, int] = field(default_factory=dict)
    notes: Sequence[str] = ()


def verified(store: Store, journal: Journal, pipeline: Pipeline, found: Checkpoint | None, sink: bool) -> Verified:
    """Go on from ``found``, or from an older checkpoint; outputs that are not whole are deleted.

    ``sink``: somebody is given every output. Damaged, with what to do, if one that it has not had is past making again.
    """
    newest, files = -1 if found is None else found.epoch, store.files
    had = cursor.read(files) if sink else None
    known, there = sums.Sums(files), output.written(files, "final")

    def owed(kind: Kind, epoch: int, task: str) -> bool:
        return had is not None and not had.given(kind, task, epoch)

    def concerned(key: sums.Key) -> bool:
        return key[0] > newest or owed("final", *key)

    since = newest if had is None else min(newest, had.upto)
    absent = [key for key in known.list("final", since + 1) if key not in there and concerned(key)]
    lost = {key: (output.output_name("final", *key), "is missing") for key in absent}
    final, whole = output.checked(files, "final", filter(concerned, there), known)
    _refuse_past_making(store, pipeline, {**lost, **final})
    # Later ones were lost, or were about to be placed when the last driver died: they are made again in any case.
    final |= {key: told for key, told in lost.items() if key[0] <= newest}
    if final and (oldest := min(final))[0] <= newest:
        found = _before(store, journal, pipeline, oldest[0], *final[oldest])
    tentative: dict[tuple[int, str], tuple[str, str]] = {}
    if had is not None:
        missed = [key for key in output.written(files, "tentative") if owed("tentative", *key)]
        tentative, _ = output.checked(files, "tentative", missed, known)
    if wrong := [name for name, _ in (*final.values(), *tentative.values())]:
        files.delete_many(wrong)
    notes = [f"{name} {what}; it is made again from the journal" for name, what in final.values()]
    notes += [f"{name} {what}; the sink gets the final one only" for name, what in tentative.values()]
    remade: dict[str, int] = {}
    missing: dict[Task, int] = {}
    for epoch, name in (*final, *lost):
        remade[name] = min(epoch, remade.get(name, epoch))
        missing[named(name)] = max(epoch, missing.get(named(name), epoch))
    notes += [f"{told}; outputs of its epoch are taken as they can be read" for told in known.damaged.values()]
    # Of a task of which something is made again all that comes after it is given to the sink when it is placed again.
    kept: dict[Task, set[int]] = {}
    for epoch, name in whole:
        if newest < epoch < remade.get(name, math.inf):
            kept.setdefault(named(name), set()).add(epoch)
    if kept and store.sync.outputs:
        output.confirm(files, "final")
    last = {task: epoch for epoch, task in there if (epoch, task) not in final}
    epochs = {task: frozenset(each) for task, each in kept.items()}
    return Verified(found, remade, {named(task): epoch for task, epoch in last.items()}, epochs, missing, notes)


@lru_cache(maxsize=1 << 14)
def named(name: str) -> Task:
    """The task of an output."""
    operator, _, number = name.rpartition("/")
    return Task(operator, int(number))


def _refuse_past_making(store: Store, pipeline: Pipeline, missing: Mapping[tuple[int, str], tuple[str, str]]) -> None:
    """Damaged for an output of a task that was scaled after it: whoever has its keys now goes on from there."""
    shape = in_force(store, pipeline)
    now = set(reshaped(pipeline.coordinated, shape).tasks) if shape.routings else set()
    for (epoch, name), (path, what) in sorted(missing.items()):
        task = named(name)
        if task.operator in shape.routings and (task not in now or epoch <= shape.done.get(task, -1)):
            raise Damaged(
                f"store {store.url}: {path} {what}, and {task.operator} was scaled since, so that nothing can make it "
                f"again; {_put_back(path)}"
            )


def _put_back(path: str) -> str:
    proofs = f"{sums.folder('final')}/{path.rpartition('/')[2].partition('-')[0]}-*"
    return f"put it back from a copy, or delete it and {proofs}, the checksums of its epoch, to go on without it"


def _before(store: Store, journal: Journal, pipeline: Pipeline, epoch: int, name: str, what: str) -> Checkpoint | None:
    """The newest checkpoint from which this output, and all that came after it, can be made again."""

    def usable(older: int) -> bool:
        return older < epoch and journal.reaches(older) and serves(store, pipeline, store.checkpoint(older))

    try:
        return store.latest(usable)
    except Unrecoverable as error:
        raise Damaged(
            f"store {store.url}: {name} {what}, the sink has not had it yet, and no checkpoint from before it is left "
            f"to make it again; {_put_back(name)}"
        ) from error
