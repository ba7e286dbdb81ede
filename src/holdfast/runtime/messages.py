"""What the coordinator is told and what it asks for. Plain values: no clock, thread, file or Spark in them.

A *lane* is a timeline of a task's state. ``exact`` is the real one; ``replica`` is a second copy of it; ``tentative``
is a fork that goes on with incomplete input; ``side`` is a past that is computed again for somebody else's replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.runtime.shape import Shape
from holdfast.state import Routing
from holdfast.state.output import StagedOutput
from holdfast.topology import Task

Lane = Literal["exact", "replica", "tentative", "side"]
Origin = Literal["local", "checkpoint", "fork"]
"""Where a state comes from: the lane's own version on the node, the durable store, or the node's exact version."""
RunKind = Literal["epoch", "replay", "stopgap"]


@dataclass(frozen=True, slots=True)
class Work:
    """One task in one run: take state version ``start`` from ``origin``, process epochs ``first`` to ``last``.

    ``fidelity`` goes with what a tentative sink says. ``keep``: its outputs stay on the node, for replay.
    """

    task: Task
    node: str
    lane: Lane
    origin: Origin
    start: int
    first: int
    last: int
    keep: bool = False
    fidelity: float = 1.0
    given: float = 1.0
    """Of a tentative lane: how complete its input is in this epoch."""
    past: int | None = None
    """Of a fork that missed epochs: the event time up to which windows were closed meanwhile."""
    fork: int = 0
    """Of a tentative lane: which fork this is, by the run that began it; of a side: the checkpoint it began from."""
    born: int = 0
    """The version of the shape since which this task has the keys it has: another task may have had its number."""
    said: int = -1
    whole: frozenset[int] = frozenset()
    """Of an exact lane: its outputs up to ``said`` and those of the epochs ``whole`` are in their place already."""

    @property
    def epochs(self) -> range:
        return range(self.first, self.last + 1)

    def says(self, epoch: int) -> bool:
        """Whether what it makes of an epoch is to be staged."""
        return self.lane == "tentative" or (self.lane == "exact" and epoch > self.said and epoch not in self.whole)


# Instructions


@dataclass(frozen=True, slots=True)
class Run:
    """Process epochs, level by level. ``ingest``: the epoch to be read from the source; all others are journalled.

    ``epoch``: the one that this run answers, if it answers one. ``buffers``: senders whose kept outputs (node, first,
    last) are to be read instead of being computed. ``shape``: the one that its tasks are of; ``settled``: it is in
    force, and not one that is being prepared. ``attempt``: how often the like was tried before in vain.

    A *stopgap* answers tentatively what an epoch run is late with, beside it: it may read the source too, journals
    nothing, and keeps away from the nodes in ``avoid``.
    """

    number: int
    kind: RunKind
    works: tuple[Work, ...]
    ingest: int | None = None
    buffers: Mapping[Task, tuple[str, int, int]] = field(default_factory=dict)
    shape: Shape = field(default_factory=Shape)
    settled: bool = True
    attempt: int = 0
    epoch: int | None = None
    avoid: frozenset[str] = frozenset()

    @property
    def first(self) -> int:
        return min((work.first for work in self.works), default=self.epoch or 0)

    @property
    def last(self) -> int:
        return max((work.last for work in self.works), default=self.epoch or 0)


@dataclass(frozen=True, slots=True)
class CancelRun:
    """Nodes were lost: end this run soon. It is answered all the same, by ``RunDone`` or ``RunBroken``."""

    number: int


@dataclass(frozen=True, slots=True)
class Publish:
    """Make what these sink tasks wrote in this run visible, final or tentative, in the order of epochs.

    ``fidelity``: of the newest of these epochs, as far as it has been answered with this. ``stamps``: what tentative
    outputs of tasks are worth by what is known now; what was written is never less. Answered by ``Published`` once all
    of it is durable in its place.
    """

    run: int
    outputs: tuple[tuple[int, Task], ...]
    kind: Literal["final", "tentative"]
    fidelity: float = 1.0
    stamps: Mapping[Task, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Bring what changed in ``(since, epoch]`` of every task to the durable store, then put the manifest in place.

    ``whole``: tasks that the last checkpoint did not have as they are now, so all of their state goes there.
    ``attempt``: how many came to nothing in a row before this one.
    """

    epoch: int
    since: int
    homes: Mapping[Task, str]
    shape: Shape = field(default_factory=Shape)
    whole: frozenset[Task] = frozenset()
    attempt: int = 0

    def since_of(self, task: Task) -> int:
        return -1 if task in self.whole else self.since


@dataclass(frozen=True, slots=True)
class CancelCheckpoint:
    """Nodes were lost: end the checkpoint under way soon. It is answered all the same."""


@dataclass(frozen=True, slots=True)
class CommitShape:
    """Put this shape down durably and answer ``ShapeCommitted``: only then it is in force, and anything runs again."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class TrimJournal:
    """Nothing up to this epoch is needed for replay any more: journal, kept outputs and old local versions may go."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EpochDone:
    """Everything that this epoch could give for now has been given: the source may go on to the next."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Record:
    """Write this into the history."""

    kind: str
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReleaseNodes:
    """Nothing lives on these nodes any more: they can be given back."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """These nodes, by name and incarnation, are lost though they may be alive: nothing is expected of them.

    Who can work after all comes back as another incarnation.
    """

    nodes: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Halt:
    """The job cannot go on. ``message`` tells the whole story in one line; ``raised``: the traceback of the user's code
    that raised, if it did."""

    message: str
    raised: str = ""


Instruction = (
    Run
    | CancelRun
    | Publish
    | TakeCheckpoint
    | CancelCheckpoint
    | CommitShape
    | TrimJournal
    | EpochDone
    | ReleaseNodes
    | GiveUp
    | Record
    | Halt
)


# Events


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node that is there. ``incarnation``: another one under the same name has nothing of what was there before.

    ``domain``: what fails together with it; itself when empty. ``host``: whose disk it has. The coordinator reads
    these; ``folder``, ``place`` and ``cores``, how many works can be done there at once, are for those who carry its
    word out.
    """

    incarnation: str
    domain: str = ""
    host: str = ""
    folder: str = ""
    place: str = ""
    cores: int = 1


@dataclass(frozen=True, slots=True)
class NodesSeen:
    """Everybody who is there, never a difference: who is missing, or has another incarnation, was lost.

    ``cause``: why, if somebody was. ``answer_due``: an epoch will come any moment, so after a loss an answer first,
    recovery after it; see ``AnswerOverdue``.
    """

    nodes: Mapping[str, NodeInfo]
    cause: str = "executor lost"
    answer_due: bool = False


@dataclass(frozen=True, slots=True)
class AnswerOverdue:
    """The epoch that was to come any moment did not: recovery need not wait for it."""


@dataclass(frozen=True, slots=True)
class EpochArrived:
    """The source has an epoch: the one after the head, or after a restart the head again. Anything else is refused."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AnswerLate:
    """This epoch should have been answered by now. ``silent``: who holds it up; they may be lost, or only slow.

    ``seconds``: after it came. ``mute``: those of them that say nothing at all. ``within``: what it had. ``pace``:
    seconds in which those who are well answer a question now, and the driver itself.
    """

    epoch: int
    silent: frozenset[str]
    seconds: float = 0.0
    mute: frozenset[str] = frozenset()
    within: float = 0.0
    pace: float = 0.0


@dataclass(frozen=True, slots=True)
class EpochJournalled:
    """The journal holds all of this epoch. To be told before the run that ingested it is, whatever became of it.

    ``rows`` were read for it, if that is known; ``time``: its newest event time in microseconds.
    """

    epoch: int
    rows: int | None = None
    time: int | None = None


SHED = "shed"
"""The counter of rows that were left out before sources saw them."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of one work. ``reached``: the last epoch whose version is committed on the node.

    ``damaged``: the durable checkpoint it was to start from is not whole; ``CheckpointLost`` must be told first.
    ``unusable``: the store took nothing more; the run is to be repeated, after a while. ``unfit``: the node's own disk
    did not. ``misplaced``: it was run where the node's states are not, so it was not begun; the run is to be repeated.
    """

    task: Task
    lane: Lane
    node: str
    status: Literal["committed", "missing", "blocked", "damaged", "unusable", "unfit", "misplaced", "failed"]
    reached: int
    rows_in: int = 0
    rows_out: int = 0
    seconds: float = 0.0
    state_bytes: int = 0
    state_rows: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)
    outputs: Mapping[int, StagedOutput] = field(default_factory=dict)
    """By epoch; one without rows leaves no output."""
    message: str = ""
    keys: Sequence[int] = ()
    """Now and then: how many rows came for each of some equal parts of the task's keys."""
    time: int | None = None
    """Of a source: the newest event time of its rows, less the delay, in microseconds."""
    restored: float = 0.0
    """Seconds that it took to bring the state from the store; 0 where it was not needed."""
    took: float = 0.0
    """Seconds by the clock, waiting included; ``seconds`` are those of the CPU."""
    touched: int | None = None
    """Bytes of the state that a fork of it would have read for one of these epochs, at most; None: all of them."""
    raised: str = ""
    """Of what failed since code of the user's raised: its traceback."""
    may_pass: bool = False
    """Whether that was an error of I/O."""


@dataclass(frozen=True, slots=True)
class RunDone:
    """``time``: of a stopgap that read its epoch from the source, the newest event time in it."""

    run: int
    reports: tuple[Report, ...]
    time: int | None = None


@dataclass(frozen=True, slots=True)
class RunBroken:
    """A run did not finish: nodes went, or the driver gave up on it. Nothing of it counts but a journalled epoch.

    If nodes went, that is told first: runs that break for no such reason are repeated a few times only. ``failing``:
    nodes that are there, but by whom it broke.
    """

    run: int
    reason: str = ""
    failing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Published:
    """The outputs of that ``Publish`` are durable in their place."""

    run: int
    kind: Literal["final", "tentative"]


@dataclass(frozen=True, slots=True)
class ShapeCommitted:
    """The shape of that ``CommitShape`` is in the store."""

    version: int


@dataclass(frozen=True, slots=True)
class CheckpointDurable:
    epoch: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointBroken:
    """``missing``: tasks whose state on their node is not whole; those copies are given up and recovered.

    ``misplaced``: nodes were asked in another's place, so nothing is wrong with what they have.
    """

    epoch: int
    reason: str = ""
    missing: tuple[Task, ...] = ()
    misplaced: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointLost:
    """The durable checkpoint of this epoch turned out damaged; ``fallback`` is the newest whole one, -1 for none.

    The same epoch again: it was found whole after all. The journal must reach back to the fallback. To be told before
    the run that found it out is reported.
    """

    epoch: int
    fallback: int


@dataclass(frozen=True, slots=True)
class CheckpointWanted:
    """Somebody asks for a checkpoint now: the input has ended, or a person said so."""


@dataclass(frozen=True, slots=True)
class ReplicasPlanned:
    """From now on these tasks shall have replicas, and no others. ``why`` goes into the history.

    ``nodes``: where each is to live; wherever there is room, if it is not said.
    """

    tasks: tuple[Task, ...]
    why: str = ""
    nodes: Mapping[Task, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScaleWanted:
    """An operator shall have so many tasks, or this routing, which must be the next after the one in force."""

    operator: str
    to: int = 0
    routing: Routing | None = None
    why: str = ""
    request: str = ""
    """A name under which the history tells what became of it."""


@dataclass(frozen=True, slots=True)
class NodesUnneeded:
    """The job can do without these nodes: what is on them moves, and they are given back."""

    nodes: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True, slots=True)
class CapacityLifted:
    """Nobody else is coming: let the nodes that are there carry everything."""


Event = (
    NodesSeen
    | AnswerOverdue
    | EpochArrived
    | AnswerLate
    | EpochJournalled
    | RunDone
    | RunBroken
    | Published
    | ShapeCommitted
    | CheckpointDurable
    | CheckpointBroken
    | CheckpointLost
    | CheckpointWanted
    | ReplicasPlanned
    | ScaleWanted
    | NodesUnneeded
    | CapacityLifted
)
