"""Compaction of a task's chain of checkpoint files: neighbours of like size are folded, as runs are in memory.

A chain that is folded now and then has a logarithmic number of files, and each row is rewritten as often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.state import checkpoint as checkpoints
from holdfast.state.entries import FileEntry
from holdfast.state.run import SortedRun, overlay_all
from holdfast.state.schema import StateSchema

if TYPE_CHECKING:
    from holdfast.state.store import Store

FOLD_RATIO = 2


def folded_chain(store: Store, task: str, chain: Sequence[FileEntry], token: int) -> tuple[FileEntry, ...]:
    """A shorter chain for the same state; its new files are written but belong to no checkpoint yet."""
    steps = _steps(chain)
    # From the newest on: take in the next older step as long as it is not much larger than all newer ones together.
    first, taken = len(steps) - 1, _size(steps[-1])
    while first > 0 and _size(steps[first - 1]) <= FOLD_RATIO * taken:
        first -= 1
        taken += _size(steps[first])
    if first == len(steps) - 1:
        return tuple(chain)
    read: dict[str, list[tuple[StateSchema, SortedRun]]] = {}
    for step in steps[first:]:
        for entry in step:
            if (found := checkpoints.read_run(store.files, task, entry)) is not None:
                read.setdefault(entry.table, []).append(found)
    total = {
        name: (runs[-1][0], overlay_all([run.evolved(runs[-1][0].arrow) for _, run in runs]))
        for name, runs in read.items()
    }
    since, epoch = steps[first][0].since, steps[-1][0].epoch
    if since is None:
        total = {name: (schema, run.without_tombstones()) for name, (schema, run) in total.items()}
    new = checkpoints.write_runs(store.files, task, epoch, since, total, token=token, sync=store.sync.checkpoints)
    return (*(entry for step in steps[:first] for entry in step), *new)


def length(chain: Sequence[FileEntry]) -> int:
    """How many steps a chain has: files of one checkpoint, one a table, are one."""
    return len({(entry.epoch, entry.since) for entry in chain})


def _steps(chain: Sequence[FileEntry]) -> list[list[FileEntry]]:
    steps: dict[tuple[int, int | None], list[FileEntry]] = {}
    for entry in chain:
        steps.setdefault((entry.epoch, entry.since), []).append(entry)
    return list(steps.values())


def _size(step: Sequence[FileEntry]) -> int:
    return sum(entry.bytes for entry in step)
