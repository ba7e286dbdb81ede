"""What others may know of a coordinator: one frozen value, taken between two events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.coordinator.promising import survive_of
from holdfast.runtime.shape import Shape
from holdfast.topology import Task


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``head``: the newest answered epoch; ``journalled``: the newest one that the journal holds, the next at most.

    ``pending``: the epoch at hand. ``behind``: so many primaries catch up.
    ``scaling``: the operator that is being scaled, and how often that was begun. ``homes`` and ``positions``: where
    each primary lives and which epoch it has committed; ``replicas``: where they live, and how many epochs they miss.
    ``floor``: what the next answer is worth at least if so many nodes (or a domain) are lost, as of the last epoch.
    ``silent``: nodes that hold the epoch at hand up. ``final``: every task has said its last word up to this epoch, and
    it is in its place; None while something is down or on its way.
    ``retain``: nodes keep what is younger; ``forks``: tentative branches that may still be asked for.
    """

    head: int
    journalled: int
    checkpoint: int
    pending: int | None
    nodes: tuple[str, ...]
    leaving: tuple[str, ...]
    down: tuple[Task, ...]
    behind: int
    idle: bool
    checkpoint_needed: bool
    tasks: Mapping[str, int]
    scaling: tuple[str, int] | None
    queued_scalings: int
    homes: Mapping[Task, str]
    positions: Mapping[Task, int]
    replicas: Mapping[Task, tuple[str, int]]
    retain: int
    forks: frozenset[int]
    shape: Shape
    floor: tuple[float, int | str] | None
    silent: tuple[str, ...]
    final: int | None

    @classmethod
    def of(cls, parts: Parts) -> Snapshot:
        answering, assignment, shadow = parts.answering, parts.assignment, parts.rescaling.shadow
        return cls(
            head=answering.head,
            journalled=answering.journalled,
            checkpoint=parts.checkpointing.durable,
            pending=answering.pending,
            nodes=tuple(sorted(parts.members.nodes)),
            leaving=tuple(sorted(parts.members.leaving)),
            down=assignment.down,
            behind=sum(copy.lane == "exact" for copy in assignment.behind(answering.head)),
            idle=parts.idle,
            checkpoint_needed=parts.checkpointing.needed(parts),
            tasks={operator.name: operator.parallelism for operator in assignment.topology.operators},
            scaling=(shadow.operator, shadow.tries) if shadow is not None else None,
            queued_scalings=len(parts.rescaling.queue),
            homes={task: copy.node for task, copy in assignment.primaries.items()},
            positions={task: copy.position for task, copy in assignment.primaries.items()},
            replicas={t: (copy.node, answering.head - copy.position) for t, copy in assignment.replicas.items()},
            retain=parts.retain,
            forks=parts.forks,
            shape=parts.rescaling.shape,
            floor=None if answering.floor is None else (answering.floor, survive_of(parts)),
            silent=tuple(sorted(parts.standing_in.silent(parts))),
            final=_final(parts),
        )


def _final(parts: Parts) -> int | None:
    answering, primaries = parts.answering, parts.assignment.primaries
    said_by = answering.output_tasks(parts.assignment.topology)
    if answering.finals_unplaced or not primaries.keys() >= said_by:
        return None
    return min((primaries[task].position for task in said_by), default=answering.head)
