"""What parts of the coordinator tell one another: what an event comes to, as far as it concerns more than one of them.

An event is heard by every part in turn; facts that come of it are heard next, in the same way, before anything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.runtime.messages import Event, Instruction, NodeInfo, Record, Report, Run, Work
from holdfast.runtime.shape import Shape
from holdfast.topology import Task, Topology

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.lanes import Fork


@dataclass(frozen=True, slots=True)
class Copy:
    """Where a copy of a task lives and which epoch it has committed. ``fresh``: its state is still in the store."""

    node: str
    position: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """These nodes went, as one failure. ``promised``: the fidelity of the next answer, by what was known before.

    It counts all that went since the last answer.
    """

    nodes: frozenset[str]
    cause: str = ""
    answer_due: bool = False
    promised: float | None = None


@dataclass(frozen=True, slots=True)
class Joined:
    nodes: Mapping[str, NodeInfo]


@dataclass(frozen=True, slots=True)
class Released:
    """These nodes are given back; no primary is on them."""

    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class NobodyLeaves:
    """Nodes that were to be given back stay after all."""


@dataclass(frozen=True, slots=True)
class CopiesLost:
    """The primaries of ``tasks`` are gone: of those in ``promoted`` the replica took over, the others are ``down``.

    ``lost``: the loss of nodes that it came with, if it did; told even when no primary was on them.
    """

    tasks: tuple[Task, ...]
    down: tuple[Task, ...]
    promoted: tuple[Task, ...]
    lost: Lost | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """All of a run is committed. ``counted``: its works with their reports, but for those of nodes lost meanwhile.

    ``current``: the checkpoint is the one with which it began. ``forks``: those that there were when it began; a replay
    may have made them needless since.
    """

    run: Run
    reports: tuple[Report, ...]
    counted: tuple[tuple[Work, Report], ...]
    current: bool
    forks: Mapping[Task, Fork] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """Not all of a run is committed, so nothing of it counts. ``reports``: what went wrong on nodes that are there."""

    run: Run
    reports: tuple[Report, ...]

    @property
    def missing(self) -> list[Report]:
        return [report for report in self.reports if report.status == "missing"]

    @property
    def only_blocked(self) -> bool:
        return {report.status for report in self.reports} == {"blocked"}

    def of_fork(self, report: Report) -> bool:
        """Whether what was missing is a state of a fork's own, and not the exact one that it was to begin from."""
        return report.lane == "tentative" and any(
            (work.task, work.lane, work.origin) == (report.task, "tentative", "local") for work in self.run.works
        )


@dataclass(frozen=True, slots=True)
class StoodIn:
    """A stopgap has been carried out. ``time``: the newest event time that it has read, if it read the source."""

    run: Run
    reports: tuple[Report, ...]
    time: int | None = None


@dataclass(frozen=True, slots=True)
class Unsound:
    """The states of these primaries on these nodes are not whole."""

    copies: Mapping[Task, str]
    why: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The checkpoint of this epoch is durable, and the newest one."""

    epoch: int


@dataclass(frozen=True, slots=True)
class FellBack:
    """Checkpoint ``lost`` is damaged; the newest one is that of epoch ``to`` now."""

    lost: int
    to: int


@dataclass(frozen=True, slots=True)
class Reshaped:
    """Another shape is in force. ``operators``: those with other tasks; ``primaries``: such as are there already."""

    before: Shape
    shape: Shape
    topology: Topology
    operators: frozenset[str]
    primaries: Mapping[Task, Copy] = field(default_factory=dict)

    def untouched(self, task: Task) -> bool:
        """Whether this task has the same keys as before."""
        return task in self.topology.index and self.shape.born.get(task, 0) == self.before.born.get(task, 0)


Fact = (
    Lost
    | Joined
    | Released
    | NobodyLeaves
    | CopiesLost
    | Committed
    | Refused
    | StoodIn
    | Unsound
    | CheckpointSaved
    | FellBack
    | Reshaped
)
Told = Event | Fact
Said = Iterable[Instruction | Fact]


def record(kind: str, **fields: Any) -> Record:
    return Record(kind, fields)
