"""A plan cut for its slots: each gets its own works, what they begin with, to whom what it sends goes, and whose blocks
it expects.

Pure. What several slots need, who receives and who sends, is cut by operator and kept once, each piece in bytes of its
own: a slot opens those that concern it. With streams from all to all that is a level of tasks; it is never the plan.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.runtime.worker.plan import RunPlan, Slot
from holdfast.state.journal import JournalEpoch
from holdfast.topology import Task, Topology

NOBODY = Slot("")


@dataclass(frozen=True, slots=True)
class SlotPart:
    """What one slot knows of a plan. ``reads``: the parts of the journal that it is to read."""

    plan: RunPlan
    slot: Slot = NOBODY
    reads: tuple[tuple[JournalEpoch, int], ...] = ()


@dataclass(frozen=True)
class SlotParts:
    """The slots of one level as they travel: what all know, what each knows, and tables of operators."""

    common: bytes
    own: tuple[bytes, ...]
    tables: Mapping[str, bytes]

    def of(self, index: int) -> SlotPart:
        """The part of one slot; nothing else is opened. Where all have the same, there is one for all."""
        # Made by the driver a moment ago and never stored.
        plan: RunPlan = pickle.loads(self.common)
        slot, folders, reads, names, stored = pickle.loads(self.own[index % len(self.own)])
        receivers, present = {}, {}
        for name in names:
            operator, level, copies, spans = pickle.loads(self.tables[name])
            receivers.update({Task(operator, number): (level, each) for number, each in copies.items()})
            present.update({Task(operator, number): each for number, each in spans.items()})
        begun = pickle.loads(zlib.decompress(stored)) if stored else {}
        own = replace(plan, receivers=receivers, present=present, folders=folders, stored=begun)
        return SlotPart(own, slot, reads)

    def opened(self, index: int) -> int:
        """How many bytes a slot opens."""
        own = self.own[index % len(self.own)]
        return len(self.common) + len(own) + sum(len(self.tables[name]) for name in pickle.loads(own)[3])


class Cut:
    """A plan, about to be cut. ``topology``: of its shape."""

    def __init__(self, plan: RunPlan, topology: Topology) -> None:
        self._plan, self._topology = plan, topology
        self._common = pickle.dumps(
            replace(plan, levels=(), receivers={}, present={}, folders={}, journal=(), places=(), at={}, stored={})
        )
        self._level = {task.operator: level for task, (level, _) in plan.receivers.items()}
        copies: dict[str, dict[int, object]] = {}
        spans: dict[str, dict[int, object]] = {}
        for task, (_, each) in plan.receivers.items():
            copies.setdefault(task.operator, {})[task.number] = each
        for task, span in plan.present.items():
            spans.setdefault(task.operator, {})[task.number] = span
        self._tables = {
            f"to {name}": pickle.dumps((name, self._level[name], each, {})) for name, each in copies.items()
        }
        self._tables |= {f"from {name}": pickle.dumps((name, 0, {}, each)) for name, each in spans.items()}
        self._folders: dict[str, dict[str, str]] = {}
        for node, place in plan.at.items():
            self._folders.setdefault(place, {})[node] = plan.folders[node]

    def ingest(self) -> SlotParts:
        """For those who read the batch: all send to whomever sources feed."""
        return self._parts([(NOBODY, {}, (), self._fed)])

    def journal(self, partitions: int) -> SlotParts:
        """For so many who read the journal, each its share of it."""
        parts = [(epoch, piece) for epoch in self._plan.journal for piece in range(len(epoch.pieces))]
        shares = [tuple(parts[number::partitions]) for number in range(partitions)]
        return self._parts([(NOBODY, {}, share, self._fed) for share in shares])

    def level(self, number: int) -> SlotParts:
        """For the slots of a level. Blocks for later levels travel through all levels between."""
        passing = [
            stream.target
            for stream in self._topology.streams
            if self._level.get(stream.target, -1) > number > self._level.get(stream.source, -1)
        ]
        given = []
        for slot in self._plan.levels[number]:
            tasks = [*(work.task for work in slot.works), *(kept.task for kept in slot.kept)]
            senders = {stream.source for task in tasks for stream in self._topology.inputs_of(task.operator)}
            names = [*self._sent_by({task.operator for task in tasks}), *(f"to {name}" for name in passing)]
            names += [f"from {name}" for name in senders]
            given.append((slot, self._folders[slot.place], (), self._known(names)))
        return self._parts(given)

    @property
    def _fed(self) -> tuple[str, ...]:
        return self._sent_by(operator.name for operator in self._topology.sources)

    def _sent_by(self, operators: Iterable[str]) -> tuple[str, ...]:
        streams = (stream for name in operators for stream in self._topology.outputs_of(name))
        return self._known(f"to {stream.target}" for stream in streams)

    def _known(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(sorted({name for name in names if name in self._tables}))

    def _stored(self, slot: Slot) -> bytes:
        """What its works begin with. Names of files are long and alike: a quarter of the bytes are left."""
        begun = {(work.task, work.start) for work in slot.works if work.origin == "checkpoint"}
        known = {each: self._plan.stored[each] for each in begun & self._plan.stored.keys()}
        return zlib.compress(pickle.dumps(known), 1) if known else b""

    def _parts(self, given: Sequence[tuple[Slot, Mapping[str, str], tuple[object, ...], tuple[str, ...]]]) -> SlotParts:
        used = {name for *_, names in given for name in names}
        own = tuple(pickle.dumps((*each, self._stored(each[0]))) for each in given)
        return SlotParts(self._common, own, {name: self._tables[name] for name in sorted(used)})
