"""The shape in force and how it changes: operators are scaled as asked for, and lost tasks come back as several."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.elasticity import Sample
from holdfast.recovery import Node, place
from holdfast.runtime.coordinator.facts import (
    Committed,
    CopiesLost,
    Copy,
    FellBack,
    Refused,
    Reshaped,
    Said,
    Told,
    record,
)
from holdfast.runtime.coordinator.replay import CatchUp
from holdfast.runtime.coordinator.shadow import Shadow
from holdfast.runtime.messages import CommitShape, Record, Run, ScaleWanted, ShapeCommitted
from holdfast.runtime.settings import AMPLE, HANDOVER
from holdfast.runtime.shape import Shape, changed, grown, renumbered, reshaped, resized, routing_of, why_not
from holdfast.state import KeyRange, Routing
from holdfast.topology import Task, Topology

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.parts import Parts

TRIES = 5
"""So often a scaling that is broken off is begun before it is given up."""


@dataclass(frozen=True, slots=True)
class Committing:
    """A shape on its way to the store: that of the shadow, or the one in which ``split`` are several each."""

    shape: Shape
    operators: frozenset[str]
    split: tuple[Task, ...] = ()


class Rescaling:
    """``shape``: the one in force. ``queue``: requests, with how often each was begun; ``shadow``: the one under way.

    ``committing``: until it is in the store, nothing begins. ``checkpointed_for``: the request that a checkpoint was
    asked for. ``split_off``: tasks that came of lost ones and were not lost since: they are not split once more.
    """

    def __init__(self, declared: Topology, scalable: Collection[str] | None, shape: Shape) -> None:
        able = {each.name for each in declared.operators if why_not(declared, each.name) is None}
        self.declared = declared
        self.scalable = frozenset(able if scalable is None else able & set(scalable))
        self.shape = shape
        self.queue: deque[tuple[ScaleWanted, int]] = deque()
        self.shadow: Shadow | None = None
        self.committing: Committing | None = None
        self.next_version = shape.version + 1
        self.checkpointed_for: ScaleWanted | None = None
        self.split_off: set[Task] = set()

    def hear(self, told: Told, parts: Parts) -> Said:
        match told:
            case ScaleWanted():
                yield from self._wanted(told)
            case ShapeCommitted(version) if self.committing is not None and self.committing.shape.version == version:
                yield from self._committed(self.committing, parts)
            case CopiesLost():
                yield from self._lost(told)
            case FellBack(lost) if self.committing is None:
                yield from self._abort(f"checkpoint {lost}, which the new tasks came from, is damaged")
            case Committed(run) if self.shadow is not None and self._of_shadow(run):
                self.shadow.committed((work for work, _ in told.counted), parts.answering.head)
            case Refused(run, reports) if self._of_shadow(run):
                if wrong := [report for report in reports if report.status != "unusable"]:
                    yield from self._abort(f"{wrong[0].task}: {wrong[0].message}")

    def _of_shadow(self, run: Run | None) -> bool:
        """Whether this run brings the shadow forward."""
        return (
            run is not None
            and not run.settled
            and self.shadow is not None
            and run.shape.version == self.shadow.shape.version
        )

    # Requests

    def _wanted(self, wanted: ScaleWanted) -> Said:
        if why := self.refused(wanted):
            yield record("scaling refused", operator=wanted.operator, request=wanted.request, reason=why)
            return
        another = "another request for the operator came"
        for each, _ in self.queue:
            if each.operator == wanted.operator:
                yield tell("scaling aborted", each, reason=another, again=False)
        self.queue = deque(pair for pair in self.queue if pair[0].operator != wanted.operator)
        self.queue.append((wanted, 0))
        if self.shadow is not None and self.shadow.operator == wanted.operator and self.committing is None:
            yield from self._abort(another)

    def refused(self, wanted: ScaleWanted) -> str | None:
        """Why this cannot be done, or None."""
        name = wanted.operator
        if name not in self.scalable:
            return why_not(self.declared, name) or f"operator {name}: its state cannot be cut by key"
        if wanted.routing is None:
            return None if wanted.to >= 1 else f"operator {name}: needs at least 1 task, got {wanted.to}"
        now = routing_of(self.declared, self.shape, name)
        if wanted.routing.version != now.version + 1:
            return (
                f"operator {name}: the routing asked for follows version {wanted.routing.version - 1}, "
                f"but {now.version} is in force"
            )
        return None

    def _abort(self, reason: str) -> Said:
        """Give the shadow up, if there is one; it is tried again, but not for ever."""
        shadow, self.shadow = self.shadow, None
        if shadow is None:
            return
        again = shadow.tries < TRIES and not any(wanted.operator == shadow.operator for wanted, _ in self.queue)
        if again:
            self.queue.appendleft((shadow.wanted, shadow.tries))
        yield tell("scaling aborted", shadow.wanted, reason=reason, again=again, tries=shadow.tries)

    def _lost(self, told: CopiesLost) -> Said:
        self.split_off.difference_update(told.tasks)
        if told.lost is None or self.shadow is None:
            return
        gone = told.lost.nodes
        if self.committing is not None:
            self.shadow.lose(gone)
        elif hit := sorted(gone & {copy.node for copy in self.shadow.copies.values()}):
            yield from self._abort(f"{', '.join(hit)} was lost with new tasks on it")
        elif told.down:
            yield from self._abort(f"{', '.join(sorted(gone))} was lost, and {len(told.down)} tasks are down")

    # From a request to a shape in force

    def advance(self, parts: Parts) -> Said:
        """Begin what was asked for once everything is up, and let what has come to the head take over."""
        while self.shadow is None and self.queue and parts.whole and not self._checkpoint_first(parts):
            yield self._begin(parts)
        shadow, head = self.shadow, parts.answering.head
        if shadow is None:
            return
        if not self._of_shadow(parts.runs.of("replay")):
            shadow.raise_to(parts.checkpointing.durable)
        if parts.quiet and parts.whole and shadow.at(head):
            # Everything up to the head was said by those before them.
            done = {**shadow.shape.done, **dict.fromkeys(shadow.copies, head)}
            yield self._commit(Committing(replace(shadow.shape, done=done), frozenset({shadow.operator})))

    def _checkpoint_first(self, parts: Parts) -> bool:
        """Whether to wait for a checkpoint: what is in it need not be replayed, beside epochs that want the same cores.

        Once for each request, since epochs that are quick may have gone far again when it is there.
        """
        checkpointing, request = parts.checkpointing, self.queue[0][0]
        age = parts.answering.head - checkpointing.durable
        if checkpointing.taking is not None:
            return True
        if self.checkpointed_for == request:
            return checkpointing.wanted and age > 0
        if age <= HANDOVER:
            return False
        self.checkpointed_for = request
        checkpointing.want(parts)
        return True

    def _begin(self, parts: Parts) -> Record:
        """Take the next request off the queue and make its shadow, unless what it asks for is there already."""
        wanted, tries = self.queue.popleft()
        name, head = wanted.operator, parts.answering.head
        if why := self.refused(wanted):
            # The shape has changed since it was asked for: lost tasks came back as several.
            return tell("scaling aborted", wanted, reason=why, again=False)
        before = routing_of(self.declared, self.shape, name)
        after = self._target(wanted, before, parts.measurements.samples(name, before))
        anew = {Task(name, number) for number in changed(before, after)}
        if not anew:
            return tell("scaled", wanted, tasks=len(before.owners), epoch=head)
        shape = grown(self.declared, self.shape, name, after, self._version(), {})
        topology = reshaped(self.declared, shape)
        leaving = {Task(name, number) for number in before.owners} - (
            {Task(name, number) for number in after.owners} - anew
        )
        nodes = place(topology, anew, spare(parts, leaving), ceiling=1.0).nodes
        start = parts.checkpointing.durable if topology.operator[name].stateful else head
        copies = {task: Copy(node, start, fresh=True) for task, node in nodes.items()}
        self.shadow = Shadow(wanted, tries + 1, shape, topology, copies)
        return tell(
            "scaling begun",
            wanted,
            tasks=len(after.owners),
            new={str(task): node for task, node in nodes.items()},
            checkpoint=parts.checkpointing.durable,
            epoch=head,
            tries=tries + 1,
        )

    def _target(self, wanted: ScaleWanted, before: Routing, samples: Mapping[int, Sample]) -> Routing:
        return wanted.routing or (before if wanted.to == len(before.owners) else resized(before, wanted.to, samples))

    def _version(self) -> int:
        self.next_version += 1
        return self.next_version - 1

    def _commit(self, committing: Committing) -> CommitShape:
        self.committing = committing
        return CommitShape(committing.shape)

    def _committed(self, committing: Committing, parts: Parts) -> Said:
        """From now on this shape is in force: what is known of changed tasks is of others."""
        before, shape, shadow, head = self.shape, committing.shape, self.shadow, parts.answering.head
        self.shape, self.committing, self.shadow = shape, None, None
        topology = reshaped(self.declared, shape)
        tasks = {name: topology.operator[name].parallelism for name in committing.operators}
        if shadow is not None:
            self.checkpointed_for = None
            yield Reshaped(before, shape, topology, committing.operators, shadow.primaries(head))
            yield tell(
                "scaled",
                shadow.wanted,
                tasks=tasks[shadow.operator],
                new={str(task): copy.node for task, copy in shadow.copies.items()},
                epoch=head,
                version=shape.version,
            )
            return
        self.split_off |= {task for task, version in shape.born.items() if before.born.get(task) != version}
        yield Reshaped(before, shape, topology, committing.operators)
        age, chunk = head - parts.checkpointing.durable, parts.settings.replay_chunk
        yield record(
            "recovering in parallel",
            tasks=[str(task) for task in committing.split],
            into=parts.settings.parallel_recovery,
            operators=tasks,
            version=shape.version,
            why=f"{age} epochs are to be replayed, more than one run of {chunk}",
        )

    # Bringing the shadow forward

    def joins(self, behind: Sequence[CatchUp], parts: Parts) -> bool:
        """Whether to hold the epoch for the shadow: it takes over at once, or after a short replay that can begin."""
        shadow, head, run = self.shadow, parts.answering.head, parts.runs.of("replay")
        if shadow is None or behind or parts.checkpointing.taking is not None:
            return False
        if run is not None:
            return self._of_shadow(run) and shadow.last
        if shadow.at(head):
            return parts.whole  # outputs that are on their way are all that it waits for
        return shadow.worth_waiting_for(head, parts.settings.handover)

    def replay(self, parts: Parts) -> Said:
        """Bring the new tasks forward, when nothing else is behind."""
        shadow, head, checkpoint = self.shadow, parts.answering.head, parts.checkpointing.durable
        if shadow is None or shadow.at(head) or not parts.assignment.all_up:
            return
        if parts.recovering.waits(parts) or parts.assignment.behind(head):
            return
        ahead = {task: (copy.node, copy.position) for task, copy in parts.assignment.primaries.items()}
        works = shadow.works(head, checkpoint, parts.settings.replay_chunk, ahead, parts.recovering.side)
        if not works:
            return
        shadow.begin(head, parts.settings.handover)
        run = parts.runs.start("replay", works, parts, shadow=shadow)
        yield run
        yield record(
            "replay",
            run=run.number,
            first=min(run.first, run.last),
            last=run.last,
            tasks=[str(work.task) for work in works if work.lane == "replica"],
            on_the_side=[str(work.task) for work in works if work.lane == "side"],
            from_buffers=[],
            scaling=shadow.operator,
        )

    # Recovery in parallel

    def to_split(self, parts: Parts) -> list[Task]:
        """Lost tasks that shall come back as several each, since their replay is long.

        Only when it takes more than one run, there are nodes for the parts, and an operator does not get more than so
        many times the tasks it was declared with. A task with outputs to be made again comes back as it was: those
        that have its keys afterwards say nothing of epochs before.
        """
        into, age = parts.settings.parallel_recovery, parts.answering.head - parts.checkpointing.durable
        long = age > parts.settings.replay_chunk and len(parts.members.nodes) >= into
        if into < 2 or not long or not parts.recovering.due(parts):
            return []
        declared, now = self.declared.operator, parts.assignment.topology.operator
        room = {name: into * declared[name].parallelism - now[name].parallelism for name in self.scalable}
        chosen: list[Task] = []
        durable, missing = parts.checkpointing.durable, parts.answering.before.missing
        owing = {task for task, epoch in missing.items() if epoch > durable}
        for task in sorted(set(parts.assignment.down) - self.split_off - owing):
            if room.get(task.operator, 0) >= into - 1 and parts.assignment.stateful(task):
                room[task.operator] -= into - 1
                chosen.append(task)
        return chosen

    def split(self, parts: Parts) -> Said:
        """Share long replays out, as soon as nothing is under way."""
        chosen = self.to_split(parts)
        if not chosen:
            return
        yield from self._abort("tasks that were lost come back as several")
        if not parts.quiet:
            return
        answering, shape = parts.answering, self.shape
        done = {task: max(answering.published.get(task, -1), answering.before.found.get(task, -1)) for task in chosen}
        operators = sorted({task.operator for task in chosen})
        for name in operators:
            before = routing_of(self.declared, shape, name)
            ranges: list[KeyRange] = []
            for number, part in zip(before.owners, before.ranges, strict=True):
                into = parts.settings.parallel_recovery if Task(name, number) in chosen else 1
                ranges.extend(part.split(into) if into > 1 else (part,))
            shape = grown(self.declared, shape, name, renumbered(before, ranges), self._version(), done)
        yield self._commit(Committing(shape, frozenset(operators), tuple(chosen)))

    def check(self, parts: Parts) -> Iterable[str]:
        if self.committing is not None and not parts.quiet:
            yield f"shape {self.committing.shape.version} is being committed while something is under way"
        if self.shadow is not None:
            for task, copy in self.shadow.copies.items():
                if copy.node not in parts.members.nodes:
                    yield f"the new task {task} lives on {copy.node}, which is gone"
            if self.shadow.tries > TRIES:
                yield f"the scaling of {self.shadow.operator} was begun {self.shadow.tries} times"


def tell(what: str, wanted: ScaleWanted, **fields: Any) -> Record:
    return record(what, operator=wanted.operator, request=wanted.request, why=wanted.why, **fields)


def spare(parts: Parts, leaving: Collection[Task]) -> list[Node]:
    """The nodes with the load they will have when these tasks have left."""
    freed: dict[str, float] = {}
    for copies in (parts.assignment.primaries, parts.assignment.replicas):
        for task in leaving & copies.keys():
            freed[copies[task].node] = freed.get(copies[task].node, 0.0) + parts.assignment.cost(task)
    nodes = parts.members.loads(AMPLE, parts)
    return [replace(node, load=max(node.load - freed.get(node.name, 0.0), 0.0)) for node in nodes]
