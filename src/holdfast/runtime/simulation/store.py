"""The simulated durable store: checkpoints with retention, the journal, outputs. It outlives nodes and driver."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.runtime.shape import Shape
from holdfast.runtime.simulation.endings import Unfinished
from holdfast.runtime.simulation.machine import Damaged, Engine
from holdfast.runtime.worker.blocks import Block
from holdfast.topology import Task

KEEP = 3
"""Checkpoints retained: the newest, and those to fall back on."""


@dataclass(slots=True)
class MemoryStore:
    """``checkpoints``: states by epoch; ``since``: the checkpoint each was built on; ``damaged``: not whole any more.

    A checkpoint that was built on a damaged one is damaged too: it holds what changed since.
    """

    checkpoints: dict[int, Mapping[Task, Any]] = field(default_factory=dict)
    since: dict[int, int] = field(default_factory=dict)
    damaged: set[int] = field(default_factory=set)
    journal: dict[int, list[list[Block]]] = field(default_factory=dict)
    shape: Shape = field(default_factory=Shape)
    saved_in: dict[int, Shape] = field(default_factory=dict)
    journalled_in: dict[int, Shape] = field(default_factory=dict)
    """The shape in force, and those in which each checkpoint and each epoch of the journal were written."""
    final: dict[tuple[int, Task], Any] = field(default_factory=dict)
    tentative: dict[tuple[int, Task], tuple[Any, float]] = field(default_factory=dict)

    def whole(self, epoch: int) -> bool:
        while epoch >= 0:
            if epoch in self.damaged:
                return False
            epoch = self.since.get(epoch, -1)
        return True

    def latest(self) -> int | None:
        """The newest whole checkpoint; -1 if the journal still goes back to the start; None if nothing helps."""
        for epoch in sorted(self.checkpoints, reverse=True):
            if self.whole(epoch):
                return epoch
        return -1 if not self.checkpoints or 0 in self.journal else None

    def restore(self, engine: Engine, task: Task, epoch: int) -> Any:
        if not self.whole(epoch) or epoch not in self.checkpoints:
            raise Damaged(f"task {task}: checkpoint {epoch} is not whole")
        before = self.saved_in[epoch].routings.get(task.operator)
        return engine.assembled(before, task, lambda old: self.checkpoints[epoch][old])

    def commit(
        self, epoch: int, since: int, states: Mapping[Task, Any], shape: Shape, whole: Collection[Task] = ()
    ) -> None:
        """``whole``: tasks of which all was brought; of the others what changed since then."""
        before = self.saved_in.get(since, Shape())
        for task in states if since >= 0 else ():
            if task not in whole and before.born.get(task, 0) != shape.born.get(task, 0):
                raise Unfinished(f"checkpoint {epoch}: changes of {task} follow {since}, where it had other keys")
        self.checkpoints[epoch] = states
        self.saved_in[epoch] = shape
        self.since[epoch] = since
        self.damaged.discard(epoch)
        for old in sorted(self.checkpoints)[:-KEEP]:
            del self.checkpoints[old]

    def trim(self, epoch: int) -> None:
        """Drop journal epochs that no retained checkpoint needs for replay."""
        limit = min(epoch, *self.checkpoints)
        for old in [each for each in self.journal if each <= limit]:
            del self.journal[old]

    def damage(self) -> None:
        """The newest checkpoint is not what was written any more."""
        if self.checkpoints:
            self.damaged.add(max(self.checkpoints))

    @property
    def head(self) -> int:
        return max([-1, *self.journal, *self.checkpoints])
