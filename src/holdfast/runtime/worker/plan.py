"""How a run is laid out: levels of slots, each slot a bundle of works at one place, and where every block must go.

Pure. Few, full slots, as many as a place has cores: a Spark task in Python costs ten milliseconds before it does
anything. And few levels: where all that the works of a level need is made in their own slot, they go on there, and what
they are sent never leaves the process. Which epochs a run may read, and from which files, comes from one place alone:
the ``JournalSpan`` that the journal gave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.runtime.messages import NodeInfo, Run, RunKind, Work
from holdfast.runtime.shape import Shape
from holdfast.runtime.worker.blocks import Block
from holdfast.runtime.worker.stored import StoredState
from holdfast.state.journal import JournalEpoch, JournalSpan
from holdfast.topology import Stream, Task, Topology


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """Outputs of a sender that its node has kept, to be read there instead of being computed."""

    task: Task
    node: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Slot:
    """What one Spark task does at one place: these works, one after the other, and these kept outputs to be read.

    ``core``: the slots of a level at one place are numbered, and the works of a task keep to a number while the place
    has the same tasks, so that they can meet the process again that has its state.
    """

    place: str
    works: tuple[Work, ...] = ()
    kept: tuple[KeptOutput, ...] = ()
    core: int = 0


@dataclass(frozen=True)
class RunPlan:
    """A run as workers see it. ``levels``: the slots of each level, sources not included. ``present``: whose blocks an
    epoch will see. ``pieces``: into how many parts each epoch's batch was cut. ``journal``: the epochs to be read back.

    ``folders``: each node's own folder. ``retain``: older epochs are not needed. ``forks``: those that are alive.
    ``settled``: its shape is in force, so what other shapes left on a node may go.
    """

    run: int
    levels: tuple[tuple[Slot, ...], ...]
    receivers: Mapping[Task, tuple[int, tuple[tuple[int, int, int], ...]]]
    present: Mapping[Task, tuple[tuple[int, int], ...]]
    pieces: Mapping[int, int]
    folders: Mapping[str, str]
    retain: int
    ingest: int | None = None
    journal: tuple[JournalEpoch, ...] = ()
    forks: frozenset[int] = frozenset()
    shape: Shape = field(default_factory=Shape)
    settled: bool = True
    allowed: int | None = None
    """Rows that the batch may keep; what is beyond is shed."""
    places: tuple[str, ...] = ()
    """Where anything can run at all, as often as there are cores: what is read back is dealt over them."""
    kind: RunKind = "replay"
    at: Mapping[str, str] = field(default_factory=dict)
    """Each node's place."""
    widths: tuple[int, ...] = ()
    """How many slots each level has."""
    stored: Mapping[tuple[Task, int], StoredState] = field(default_factory=dict)
    """What gives the states that works begin with, by task and checkpoint; who is not told reads the manifest."""

    @property
    def journals(self) -> bool:
        """Whether what it reads from the source is journalled."""
        return self.kind == "epoch"

    def ingesting(self, pieces: int) -> RunPlan:
        """The plan once it is known how many parts the batch has."""
        assert self.ingest is not None
        return replace(self, pieces={**self.pieces, self.ingest: pieces})

    def sends(self, sender: Task, epoch: int) -> bool:
        """Whether a block of this sender is to be expected in this epoch."""
        return any(first <= epoch <= last for first, last in self.present.get(sender, ()))

    def spread(self, blocks: Iterable[Block], level: int) -> list[list[Block]]:
        """The blocks for each slot of this level; those for later levels travel with one of its slots."""
        slots: list[list[Block]] = [[] for _ in range(self.widths[level])]
        for block in blocks:
            if block.receiver not in self.receivers:
                continue
            target, copies = self.receivers[block.receiver]
            wanted = [slot for slot, first, last in copies if first <= block.epoch <= last]
            if target == level:
                for slot in dict.fromkeys(wanted):
                    slots[slot].append(block)
            elif target > level and wanted:
                slots[block.receiver.number % len(slots)].append(block)
        return slots


def depths(topology: Topology) -> dict[str, int]:
    """The level of every operator: 0 for sources, else one more than the deepest of its inputs."""
    depth: dict[str, int] = {}
    for operator in topology.operators:
        depth[operator.name] = max((depth[s.source] + 1 for s in topology.inputs_of(operator.name)), default=0)
    return depth


def epochs_of(run: Run) -> range:
    """The epochs that a run reads back from the journal: all that it processes but the one it ingests."""
    worked = [work for work in run.works if work.first <= work.last]
    if not worked:
        return range(0)
    first, last = min(work.first for work in worked), max(work.last for work in worked)
    return range(first, last) if run.ingest == last else range(first, last + 1)


def lay_out(
    topology: Topology,
    run: Run,
    nodes: Mapping[str, NodeInfo],
    span: JournalSpan,
    retain: int = -1,
    forks: frozenset[int] = frozenset(),
    allowed: int | None = None,
    leaving: Collection[str] = (),
    few: bool = False,
) -> RunPlan:
    """Put the works and kept outputs of a run into slots, at most one for each level and core of a place.

    ``leaving``: nodes on which nothing is read that need not be. ``few``: there is so little to do that a slot for each
    place is enough.
    """
    depth = depths(topology)
    cores = {info.place: info.cores for info in nodes.values()}
    used = dict.fromkeys(cores, 1) if few else cores
    filled: dict[int, dict[str, tuple[list[Work], list[KeptOutput]]]] = {}
    for work in run.works:
        place = nodes[work.node].place
        filled.setdefault(depth[work.task.operator], {}).setdefault(place, ([], []))[0].append(work)
    for task, (node, first, last) in run.buffers.items():
        kept = KeptOutput(task, node, first, last)
        filled.setdefault(depth[task.operator], {}).setdefault(nodes[node].place, ([], []))[1].append(kept)
    levels = _fused(
        topology,
        [
            [slot for place, given in sorted(filled[level].items()) for slot in _dealt(place, *given, used[place])]
            for level in sorted(filled)
        ],
    )
    reading = sorted({info.place for name, info in nodes.items() if name not in leaving and name not in run.avoid})
    return RunPlan(
        run.number,
        levels,
        _receivers(levels),
        _present(run),
        {each.epoch: len(each.pieces) for each in span.epochs},
        {name: info.folder for name, info in nodes.items()},
        retain,
        run.ingest,
        span.epochs,
        forks,
        run.shape,
        run.settled,
        allowed,
        tuple(place for number in range(max(cores.values(), default=0)) for place in reading if number < cores[place]),
        run.kind,
        {name: info.place for name, info in nodes.items()},
        tuple(map(len, levels)),
    )


def _dealt(place: str, works: Sequence[Work], kept: Sequence[KeptOutput], cores: int) -> list[Slot]:
    """The works of a level at one place, dealt over its cores; those of a task stay together and in their order."""
    tasks = sorted({work.task for work in works})
    count = max(1, min(cores, len(tasks)))
    core = {task: number % count for number, task in enumerate(tasks)}
    return [
        Slot(place, tuple(work for work in works if core[work.task] == number), () if number else tuple(kept), number)
        for number in range(count)
    ]


def _fused(topology: Topology, levels: Sequence[Sequence[Slot]]) -> tuple[tuple[Slot, ...], ...]:
    """These levels, each one with those before it that it can follow without an exchange."""
    fused: list[Sequence[Slot]] = []
    for level in levels:
        if fused and (one := _one_level(topology, fused[-1], level)):
            fused[-1] = one
        else:
            fused.append(level)
    return tuple(map(tuple, fused))


def _one_level(topology: Topology, level: Sequence[Slot], following: Sequence[Slot]) -> list[Slot]:
    """Two levels as one, if every task of the second has all its senders of the first in one slot, at the place of all
    its copies, and its works are spread over cores as well as before; else nothing."""
    sending: dict[Task, set[tuple[str, int]]] = {}
    for slot in level:
        senders = [*(work.task for work in slot.works if work.lane != "replica"), *(kept.task for kept in slot.kept)]
        for task in senders:
            sending.setdefault(task, set()).add((slot.place, slot.core))
    parts = {(slot.place, slot.core): [slot] for slot in level}
    fullest, dealt = Counter[str](), Counter[tuple[str, int]]()
    for slot in following:
        tasks = dict.fromkeys(work.task for work in slot.works)
        fullest[slot.place] = max(len(tasks), fullest[slot.place])
        moved: dict[tuple[str, int], list[Work]] = {}
        for task in tasks:
            came = [
                sending.get(Task(stream.source, number), ())
                for stream in topology.inputs_of(task.operator)
                for number in topology.senders(stream, task.number)
            ]
            at = set().union(*came) or {(slot.place, slot.core)}
            if len(at) > 1 or (found := min(at))[0] != slot.place:
                return []
            dealt[found] += 1
            moved.setdefault(found, []).extend(work for work in slot.works if work.task == task)
        for found, works in moved.items():
            parts.setdefault(found, []).append(Slot(slot.place, tuple(works), (), found[1]))
        if slot.kept:
            parts.setdefault((slot.place, slot.core), []).append(replace(slot, works=()))
    if any(count > fullest[place] for (place, _), count in dealt.items()):
        return []
    return [
        Slot(place, tuple(w for part in some for w in part.works), tuple(k for part in some for k in part.kept), core)
        for (place, core), some in sorted(parts.items())
    ]


def _receivers(
    levels: Sequence[Sequence[Slot]],
) -> dict[Task, tuple[int, tuple[tuple[int, int, int], ...]]]:
    receivers: dict[Task, tuple[int, tuple[tuple[int, int, int], ...]]] = {}
    for number, slots in enumerate(levels):
        for index, slot in enumerate(slots):
            for work in slot.works:
                _, copies = receivers.get(work.task, (number, ()))
                receivers[work.task] = (number, (*copies, (index, work.first, work.last)))
    return receivers


def _present(run: Run) -> dict[Task, tuple[tuple[int, int], ...]]:
    present: dict[Task, tuple[tuple[int, int], ...]] = {}
    for work in run.works:
        if work.lane != "replica":
            present[work.task] = (*present.get(work.task, ()), (work.first, work.last))
    for task, (_, first, last) in run.buffers.items():
        present[task] = (*present.get(task, ()), (first, last))
    return present


def absent_barrier(topology: Topology, plan: RunPlan, task: Task, epoch: int, blocks: Iterable[Block]) -> str:
    """The first barrier of an epoch that this task should have got and did not; "" when all are there."""
    came: dict[Task, set[int]] = {}
    for block in blocks:
        came.setdefault(block.sender, set()).add(block.piece)
    for stream in topology.inputs_of(task.operator):
        senders = [Task(stream.source, number) for number in topology.senders(stream, task.number)]
        if topology.inputs_of(stream.source):
            if absent := next((each for each in senders if each not in came and plan.sends(each, epoch)), None):
                return str(absent)
            continue
        pieces = set().union(*(came.get(sender, set()) for sender in senders))
        expected = pieces_for(topology, stream, task.number, plan.pieces[epoch])
        if lacking := len(expected - pieces):
            return f"{lacking} of {len(expected)} parts of the batch of {stream.source}"
    return ""


def pieces_for(topology: Topology, stream: Stream, receiver: int, pieces: int) -> set[int]:
    """The parts of a batch of which a task behind a source gets a block: those that the sources feeding it read."""
    feeding = set(topology.senders(stream, receiver))
    return {piece for piece in range(pieces) if source_task(topology, stream.source, piece, pieces).number in feeding}


def source_task(topology: Topology, name: str, piece: int, pieces: int) -> Task:
    """The task of a source that a part of the batch counts as."""
    return Task(name, piece * topology.operator[name].parallelism // max(pieces, 1))


def one_part(topology: Topology) -> bool:
    """Whether a batch may as well come in one part: every task of a source feeds the same tasks as its others."""
    return all(
        len({topology.receivers(stream, number) for number in range(source.parallelism)}) == 1
        for source in topology.sources
        for stream in topology.outputs_of(source.name)
    )
