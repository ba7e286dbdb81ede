"""Checkpoints: when one is taken, upon which other, what of it is whole, and how often one may fail."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.runtime.coordinator.facts import CheckpointSaved, FellBack, Lost, Reshaped, Said, Told, Unsound, record
from holdfast.runtime.messages import (
    CancelCheckpoint,
    CheckpointBroken,
    CheckpointDurable,
    CheckpointLost,
    CheckpointWanted,
    Halt,
    TakeCheckpoint,
    TrimJournal,
)
from holdfast.runtime.shape import Shape
from holdfast.topology import Task

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts


@dataclass(frozen=True, slots=True)
class Taking:
    """The checkpoint under way. ``gone``: nodes that were lost since it began."""

    epoch: int
    since: int
    shape: Shape
    homes: Mapping[Task, str]
    gone: frozenset[str] = field(default_factory=frozenset)


class Checkpointing:
    """``durable``: the newest one's epoch, ``saved_shape``: the shape it was written in. ``failures``: in a row.

    ``misplaced``: so many in a row came to nothing since Spark asked the wrong nodes: longer pauses, but no end.
    ``wanted``: one is due whatever its age; ``whole_next``: the next one is built upon no other.
    """

    def __init__(self, durable: int, saved_shape: Shape) -> None:
        self.durable = durable
        self.saved_shape = saved_shape
        self.taking: Taking | None = None
        self.wanted = False
        self.whole_next = False
        self.failures = 0
        self.misplaced = 0

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case CheckpointWanted() | Reshaped():
                self.wanted = False
                self.want(parts)
            case CheckpointDurable() if self.taking is not None and self.taking.epoch == told.epoch:
                yield from self._durable(told, self.taking)
            case CheckpointBroken() if self.taking is not None and self.taking.epoch == told.epoch:
                yield from self._broken(told, self.taking, parts)
            case CheckpointLost(epoch, fallback) if epoch == self.durable != fallback:
                self.durable, self.whole_next, self.wanted = fallback, True, True
                yield record("checkpoint lost", epoch=epoch, fallback=fallback)
                yield FellBack(epoch, fallback)
            case Lost(nodes) if self.taking is not None:
                self.taking = replace(self.taking, gone=self.taking.gone | nodes)
                yield CancelCheckpoint()

    def want(self, parts: Parts) -> None:
        """One is due, unless there is nothing to save."""
        self.wanted |= self.needed(parts)

    def needed(self, parts: Parts) -> bool:
        return parts.answering.head > self.durable

    def _durable(self, event: CheckpointDurable, taking: Taking) -> Said:
        self.taking = None
        self.failures = self.misplaced = 0
        if taking.since not in (-1, self.durable):
            # It holds what changed since a checkpoint that turned out damaged meanwhile.
            yield record("checkpoint broken", epoch=event.epoch, reason="built upon a damaged one")
            return
        self.durable, self.saved_shape, self.whole_next = event.epoch, taking.shape, False
        yield record("checkpoint", epoch=event.epoch, bytes=event.bytes)
        yield CheckpointSaved(event.epoch)
        yield TrimJournal(event.epoch)

    def _broken(self, event: CheckpointBroken, taking: Taking, parts: Parts) -> Said:
        """It is made again, but not for ever; states that are not whole on their node are given up."""
        self.taking, self.wanted = None, True
        yield record("checkpoint broken", epoch=event.epoch, reason=event.reason)
        homes = {task: taking.homes[task] for task in event.missing if task in taking.homes}
        if unsound := {task: node for task, node in homes.items() if node not in taking.gone}:
            yield Unsound(unsound, event.reason)
        if taking.gone:
            return
        if event.misplaced:
            self.misplaced += 1
            return
        self.failures += 1
        if self.failures >= parts.settings.checkpoint_tries:
            yield Halt(
                f"{self.failures} checkpoints failed in a row, the last one of epoch {event.epoch}, with "
                f"{self.durable} the newest durable one: {event.reason}"
            )

    def take(self, parts: Parts) -> Said:
        """Take one if it is due and everything is up and at the head, and all that was said is in its place."""
        head, shadow, settings = parts.answering.head, parts.rescaling.shadow, parts.settings
        if self.taking is not None or parts.runs.of("epoch") is not None or not self.needed(parts):
            return
        age = head - self.durable
        recovered = parts.recovering.keeping and not parts.recovering.backup
        if not (age >= settings.oldest(head) or self.wanted or recovered):
            return
        primaries = parts.assignment.primaries
        if not parts.assignment.all_up or any(copy.position < head for copy in primaries.values()):
            return
        if parts.answering.finals_unplaced:
            return
        if shadow is not None and (shadow.near(head, settings.handover) or age < 2 * settings.checkpoint_every):
            return  # the switch is at hand, or may be soon, and all new tasks would begin anew from the checkpoint
        shape, since = parts.rescaling.shape, -1 if self.whole_next else self.durable
        homes = {task: copy.node for task, copy in primaries.items()}
        before = self.saved_shape.born
        whole = frozenset(task for task in homes if shape.born.get(task, 0) != before.get(task, 0))
        self.wanted, self.taking = False, Taking(head, since, shape, homes)
        yield TakeCheckpoint(head, since, homes, shape, whole, self.failures + self.misplaced)

    def check(self, parts: Parts) -> Iterable[str]:
        if self.durable > parts.answering.head:
            yield f"checkpoint {self.durable} is durable, beyond the head {parts.answering.head}"
        if self.taking is not None and not self.durable < self.taking.epoch <= parts.answering.head:
            yield f"checkpoint {self.taking.epoch} is taken after {self.durable}, the head is {parts.answering.head}"
        if self.failures > parts.settings.checkpoint_tries:
            yield f"{self.failures} checkpoints failed in a row"
