"""Scaling under way: the tasks of the next shape, built beside those in force until they have come to the head.

Pure; the coordinator asks and decides. A *shadow* is the set of changed tasks: they begin from the last checkpoint,
cut by their keys, and are brought forward as replicas are, on the topology of the next shape. Nothing durable happens
before the switch, so to drop a shadow is to do nothing (paper 002, algorithm 3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.elasticity import Sample
from holdfast.recovery import Node, place
from holdfast.runtime.coordinator.assignment import Home, Standing
from holdfast.runtime.coordinator.replay import Copy, replay
from holdfast.runtime.messages import ScaleWanted, Work
from holdfast.runtime.shape import Shape, changed, grown, renumbered, reshaped, resized, routing_of, why_not
from holdfast.state import KeyRange, Routing
from holdfast.topology import Task, Topology

TRIES = 5
"""So often a scaling that is broken off is begun before it is given up."""
AMPLE = 1e12


@dataclass(slots=True)
class Shadow:
    """The next shape and its changed tasks. ``run``: the replay that brings them forward, if one is under way."""

    wanted: ScaleWanted
    tries: int
    shape: Shape
    topology: Topology
    homes: dict[Task, Home]
    run: int | None = None
    last: bool = False
    """Whether that replay is the one that the next epoch waits for."""
    missing: int = 0
    stuck: bool = False
    """So many epochs were missing when the newest replay began; whether as many were when it ended."""

    @property
    def operator(self) -> str:
        return self.wanted.operator

    def stateful(self, task: Task) -> bool:
        return self.topology.operator[task.operator].stateful

    def at(self, head: int) -> bool:
        """Whether every task is at the head with its state on its node; those without state always are."""
        return all(
            not self.stateful(task) or (home.position == head and (head < 0 or not home.fresh))
            for task, home in self.homes.items()
        )

    def near(self, head: int, epochs: int) -> bool:
        """Whether a short replay is all that is missing; one whose state is still to be restored is not near."""
        return all(
            not self.stateful(task) or (head - home.position <= epochs and (home.position < 0 or not home.fresh))
            for task, home in self.homes.items()
        )

    def behind(self, head: int) -> int:
        """Epochs that the last of the new tasks has to go."""
        return max((head - home.position for task, home in self.homes.items() if self.stateful(task)), default=0)

    def worth_waiting_for(self, head: int, epochs: int) -> bool:
        """Whether to hold the next epoch for a last replay: of one epoch; of more, if it does not get any nearer."""
        return self.near(head, epochs) and (self.behind(head) <= 1 or self.stuck)

    def begin(self, run: int, head: int, epochs: int) -> None:
        """A replay begins."""
        self.last = self.worth_waiting_for(head, epochs)
        self.run, self.missing = run, self.behind(head)

    def raise_to_checkpoint(self, checkpoint: int) -> None:
        if self.run is None:
            for task, home in self.homes.items():
                if home.position < checkpoint:
                    self.homes[task] = Home(home.node, checkpoint, fresh=True)

    def works(self, standing: Standing, chunk: int) -> tuple[Work, ...]:
        """What brings the shadow forward by some epochs. What was kept was cut for others, so nothing of it is read."""
        waiting = {task: home for task, home in self.homes.items() if self.stateful(task)}
        last = min(standing.head, min(home.position for home in waiting.values()) + chunk)
        behind = [
            Copy(task, home.node, "replica", "checkpoint" if home.fresh else "local", home.position)
            for task, home in waiting.items()
            if home.position < last
        ]
        if not behind:
            # At the head already, but in the store: only to be restored.
            return tuple(self._restored(task) for task, home in waiting.items() if home.fresh)
        ahead = {task: at for task, at in standing.ahead().items() if task not in self.homes and task in self._index}
        side = {task: at for task, at in standing.side.items() if task not in self.homes and task in self._index}
        works, _ = replay(self.topology, behind, ahead, standing.checkpoint, side, {}, last)
        return works

    def _restored(self, task: Task) -> Work:
        home = self.homes[task]
        return Work(task, home.node, "replica", "checkpoint", home.position, home.position + 1, home.position)

    @property
    def _index(self) -> Mapping[Task, int]:
        return self.topology.index

    def committed(self, works: Iterable[Work], head: int) -> None:
        """A replay has ended well."""
        for work in works:
            home = self.homes.get(work.task)
            if work.lane == "replica" and home is not None and (home.node, home.position) == (work.node, work.start):
                self.homes[work.task] = Home(work.node, work.last, fresh=False)
        self.stuck = self.behind(head) >= self.missing


@dataclass(slots=True)
class Scaling:
    """Requests, and the one under way. ``scalable``: operators whose keys and streams allow it."""

    declared: Topology
    scalable: frozenset[str]
    next_version: int = 1
    shadow: Shadow | None = None
    queue: deque[tuple[ScaleWanted, int]] = field(default_factory=deque)

    def refused(self, wanted: ScaleWanted, shape: Shape) -> str | None:
        """Why this cannot be done, or None."""
        name = wanted.operator
        if name not in self.scalable:
            return why_not(self.declared, name) or f"operator {name}: its state cannot be cut by key"
        if wanted.routing is None:
            return None if wanted.to >= 1 else f"operator {name}: needs at least 1 task, got {wanted.to}"
        now = routing_of(self.declared, shape, name)
        if wanted.routing.version != now.version + 1:
            return (
                f"operator {name}: the routing asked for follows version {wanted.routing.version - 1}, "
                f"but {now.version} is in force"
            )
        return None

    def want(self, wanted: ScaleWanted) -> list[ScaleWanted]:
        """Queue a request; older ones of the same operator, which it replaces."""
        replaced = [each for each, _ in self.queue if each.operator == wanted.operator]
        self.queue = deque(pair for pair in self.queue if pair[0].operator != wanted.operator)
        self.queue.append((wanted, 0))
        return replaced

    def target(self, wanted: ScaleWanted, shape: Shape, samples: Mapping[int, Sample]) -> Routing:
        before = routing_of(self.declared, shape, wanted.operator)
        return wanted.routing or (before if wanted.to == len(before.owners) else resized(before, wanted.to, samples))

    def begin(self, standing: Standing, shape: Shape, samples: Mapping[int, Sample]) -> Shadow | None:
        """Make the shadow of the next request; None, when what it asks for is there already. Taken off the queue.

        ``samples``: how the load of the operator's tasks lies over their keys, as far as it was measured.
        """
        wanted, tries = self.queue.popleft()
        before = routing_of(self.declared, shape, wanted.operator)
        after = self.target(wanted, shape, samples)
        anew = {Task(wanted.operator, number) for number in changed(before, after)}
        if not anew:
            return None
        following = grown(self.declared, shape, wanted.operator, after, self._version(), {})
        topology = reshaped(self.declared, following)
        leaving = {Task(wanted.operator, number) for number in before.owners} - _untouched(
            before, after, wanted.operator
        )
        nodes = place(topology, anew, _spare(standing, leaving), ceiling=1.0).nodes
        homes = {
            task: Home(node, standing.checkpoint if topology.operator[task.operator].stateful else standing.head, True)
            for task, node in nodes.items()
        }
        self.shadow = Shadow(wanted, tries + 1, following, topology, homes)
        return self.shadow

    def finish(self) -> Shadow:
        """The shadow takes over."""
        assert self.shadow is not None
        shadow, self.shadow = self.shadow, None
        return shadow

    def _version(self) -> int:
        self.next_version += 1
        return self.next_version - 1

    def drop(self, again: bool = True) -> bool:
        """Give the shadow up; whether it will be tried again."""
        assert self.shadow is not None
        shadow, self.shadow = self.shadow, None
        once_more = again and shadow.tries < TRIES and not any(w.operator == shadow.operator for w, _ in self.queue)
        if once_more:
            self.queue.appendleft((shadow.wanted, shadow.tries))
        return once_more

    def split(self, shape: Shape, tasks: Collection[Task], into: int, published: Mapping[Task, int]) -> Shape:
        """The shape in which each of these lost tasks is so many."""
        for name in sorted({task.operator for task in tasks}):
            before = routing_of(self.declared, shape, name)
            ranges: list[KeyRange] = []
            for number, part in zip(before.owners, before.ranges, strict=True):
                ranges.extend(part.split(into) if Task(name, number) in tasks else (part,))
            after = renumbered(before, ranges)
            shape = grown(self.declared, shape, name, after, self._version(), published)
        return shape


def _untouched(before: Routing, after: Routing, name: str) -> set[Task]:
    anew = set(changed(before, after))
    return {Task(name, number) for number in after.owners if number not in anew}


def _spare(standing: Standing, leaving: Collection[Task]) -> list[Node]:
    """The nodes with the load they will have when these tasks have left."""
    load = {node.name: node.load for node in standing.loads(AMPLE)}
    for task in leaving:
        for home in (standing.homes.get(task), standing.replicas.get(task)):
            if home is not None and home.node in load:
                load[home.node] -= standing.topology.operator[task.operator].costs[task.number]
    return [replace(node, load=max(load[node.name], 0.0)) for node in standing.loads(AMPLE)]
