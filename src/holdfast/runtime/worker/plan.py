"""How a run is laid out: levels of slots, each slot a bundle of works on one place, and where every block must go.

Pure. Few, full slots: a Spark task in Python costs ten milliseconds before it does anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.runtime.messages import Run, Work
from holdfast.runtime.worker.blocks import Block
from holdfast.topology import Task, Topology


@dataclass(frozen=True, slots=True)
class Feed:
    """Kept outputs of a sender, to be read on its node instead of being computed."""

    task: Task
    node: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Slot:
    """What one Spark task does on one place: these works, and these feeds."""

    place: str
    works: tuple[Work, ...] = ()
    feeds: tuple[Feed, ...] = ()


@dataclass(frozen=True)
class Layout:
    """``levels``: the slots of each level, sources not included. ``present``: whose blocks an epoch will see."""

    levels: tuple[tuple[Slot, ...], ...]
    receivers: Mapping[Task, tuple[int, tuple[tuple[int, int, int], ...]]]
    present: Mapping[Task, tuple[tuple[int, int], ...]]
    pieces: Mapping[int, int] = field(default_factory=dict)

    def sends(self, sender: Task, epoch: int) -> bool:
        """Whether a block of this sender is to be expected in this epoch."""
        return any(first <= epoch <= last for first, last in self.present.get(sender, ()))

    def spread(self, blocks: Iterable[Block], level: int) -> list[list[Block]]:
        """The blocks for each slot of this level; those for later levels travel with one of its slots."""
        slots: list[list[Block]] = [[] for _ in self.levels[level]]
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


def lay_out(topology: Topology, run: Run, places: Mapping[str, str], pieces: Mapping[int, int]) -> Layout:
    """Put the works and feeds of a run into slots, one for each level and place; ``places``: where each node's go."""
    depth = depths(topology)
    filled: dict[int, dict[str, tuple[list[Work], list[Feed]]]] = {}
    for work in run.works:
        filled.setdefault(depth[work.task.operator], {}).setdefault(places[work.node], ([], []))[0].append(work)
    for task, (node, first, last) in run.buffers.items():
        feed = Feed(task, node, first, last)
        filled.setdefault(depth[task.operator], {}).setdefault(places[node], ([], []))[1].append(feed)
    levels = tuple(
        tuple(Slot(place, tuple(works), tuple(feeds)) for place, (works, feeds) in sorted(filled[level].items()))
        for level in sorted(filled)
    )
    return Layout(levels, _receivers(levels), _present(run), pieces)


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


def absent_barrier(topology: Topology, layout: Layout, task: Task, epoch: int, blocks: Iterable[Block]) -> str:
    """The first barrier of an epoch that this task should have got and did not; "" when all are there."""
    listed = list(blocks)
    came = {block.sender for block in listed}
    from_sources = False
    for stream in topology.inputs_of(task.operator):
        if not topology.inputs_of(stream.source):
            from_sources |= stream.partitioning == "full"
            continue
        for number in topology.senders(stream, task.number):
            sender = Task(stream.source, number)
            if sender not in came and layout.sends(sender, epoch):
                return str(sender)
    if from_sources:
        pieces = {block.piece for block in listed if not topology.inputs_of(block.sender.operator)}
        expected = layout.pieces.get(epoch, 0)
        if len(pieces) < expected:
            return f"{expected - len(pieces)} of {expected} parts of the batch"
    return ""
