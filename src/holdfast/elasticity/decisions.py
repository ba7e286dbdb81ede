"""What the scaling policy can decide. Values with their reason in one line; the runtime carries them out."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.topology import Task


@dataclass(frozen=True, slots=True)
class ScaleOut:
    """Cut the state and the key range of this task into so many."""

    task: Task
    into: int
    why: str


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """Merge these two tasks of one operator, which own adjoining key ranges, in this order."""

    tasks: tuple[Task, Task]
    why: str


@dataclass(frozen=True, slots=True)
class CannotScale:
    """A bottleneck that stays one; said once, until it is over. Nothing is to be done, but somebody should know."""

    task: Task
    why: str


Decision = ScaleOut | ScaleIn | CannotScale


def operator_of(decision: Decision) -> str:
    return decision.tasks[0].operator if isinstance(decision, ScaleIn) else decision.task.operator
