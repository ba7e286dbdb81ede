"""What of a checkpoint gives a task's state: files of the tasks that had its keys then, in whatever shape that was.

Pure. Who has the manifest at hand, as the driver does, tells it to those who restore: they read files of their own and
no manifest, which names those of all tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.shape import Shape, declared_routing, routing_of
from holdfast.state import Checkpoint, KeyRange
from holdfast.state.entries import FileEntry
from holdfast.topology import Task, Topology


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A task of a checkpoint: the keys that it had, and the chain of files that gives its state."""

    task: Task
    keys: KeyRange | None
    chain: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True)
class StoredState:
    """What gives a task's state at ``epoch``. ``keys``: those that the task has now.

    None, as of its one part, where nobody ever scaled it: whose keys it has may be nobody's business but its streams'.
    """

    epoch: int
    keys: KeyRange | None
    parts: tuple[StoredPart, ...]

    def to_json(self) -> dict[str, Any]:
        parts = [
            [part.task.operator, part.task.number, _ends(part.keys), [entry.to_json() for entry in part.chain]]
            for part in self.parts
        ]
        return {"epoch": self.epoch, "keys": _ends(self.keys), "parts": parts}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> StoredState:
        parts = tuple(
            StoredPart(Task(name, number), _keys(ends), tuple(map(FileEntry.from_json, chain)))
            for name, number, ends, chain in body["parts"]
        )
        return cls(body["epoch"], _keys(body["keys"]), parts)


def _ends(keys: KeyRange | None) -> list[int] | None:
    return None if keys is None else [keys.lo, keys.hi]


def _keys(ends: Sequence[int] | None) -> KeyRange | None:
    return None if ends is None else KeyRange(*ends)


def stored_states(
    declared: Topology, shape: Shape, checkpoint: Checkpoint, tasks: Iterable[Task]
) -> dict[Task, StoredState]:
    """For each of these tasks of a shape. Invalid if the checkpoint does not have all of them."""
    by_operator: dict[str, list[Task]] = {}
    for task in tasks:
        by_operator.setdefault(task.operator, []).append(task)

    def part(task: Task, keys: KeyRange | None) -> StoredPart:
        return StoredPart(task, keys, checkpoint.chain(str(task)))

    found: dict[Task, StoredState] = {}
    for name, some in by_operator.items():
        then = checkpoint.routing.get(name)
        if then is None and name not in shape.routings:
            found |= {task: StoredState(checkpoint.epoch, None, (part(task, None),)) for task in some}
            continue
        before, now = then or declared_routing(declared, name), routing_of(declared, shape, name)
        own = dict(zip(now.owners, now.ranges, strict=True))
        for task in some:
            olds = before.overlapping(own[task.number])
            parts = tuple(part(Task(name, old), keys) for old, keys in olds)
            found[task] = StoredState(checkpoint.epoch, own[task.number], parts)
    return found
