"""The tasks of the next shape, built beside those in force until they have come to the head (paper 002, algorithm 3).

Pure. The changed tasks begin from the last checkpoint, cut by their keys, and are brought forward as replicas are, on
the topology of the next shape. Nothing durable happens before the switch, so to drop a shadow is to do nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast.runtime.coordinator.assignment import catch_up
from holdfast.runtime.coordinator.facts import Copy
from holdfast.runtime.coordinator.replay import replay
from holdfast.runtime.messages import ScaleWanted, Work
from holdfast.runtime.shape import Shape
from holdfast.topology import Task, Topology


@dataclass(slots=True)
class Shadow:
    """The next shape and its changed tasks. ``tries``: how often this was begun.

    ``last``: the newest replay is the one that the next epoch waits for. ``missing``: so many epochs were missing when
    it began; ``stuck``: as many were when it ended.
    """

    wanted: ScaleWanted
    tries: int
    shape: Shape
    topology: Topology
    copies: dict[Task, Copy]
    last: bool = False
    missing: int = 0
    stuck: bool = False

    @property
    def operator(self) -> str:
        return self.wanted.operator

    def stateful(self, task: Task) -> bool:
        return self.topology.operator[task.operator].stateful

    def at(self, head: int) -> bool:
        """Whether every task is at the head with its state on its node; those without state always are."""
        return all(
            not self.stateful(task) or (copy.position == head and (head < 0 or not copy.fresh))
            for task, copy in self.copies.items()
        )

    def near(self, head: int, epochs: int) -> bool:
        """Whether a short replay is all that is missing; one whose state is still to be restored is not near."""
        return all(
            not self.stateful(task) or (head - copy.position <= epochs and (copy.position < 0 or not copy.fresh))
            for task, copy in self.copies.items()
        )

    def behind(self, head: int) -> int:
        """Epochs that the last of the new tasks has to go."""
        return max((head - copy.position for task, copy in self.copies.items() if self.stateful(task)), default=0)

    def worth_waiting_for(self, head: int, epochs: int) -> bool:
        """Whether to hold the next epoch for a last replay: of one epoch; of more, if it does not get any nearer."""
        return self.near(head, epochs) and (self.behind(head) <= 1 or self.stuck)

    def begin(self, head: int, epochs: int) -> None:
        """A replay begins."""
        self.last, self.missing = self.worth_waiting_for(head, epochs), self.behind(head)

    def raise_to(self, checkpoint: int) -> None:
        """No replay is under way: who has not come to the checkpoint begins from it."""
        for task, copy in self.copies.items():
            if copy.position < checkpoint:
                self.copies[task] = Copy(copy.node, checkpoint, fresh=True)

    def lose(self, nodes: Collection[str]) -> None:
        """It may be in force already: what of it is lost is recovered then."""
        self.copies = {task: copy for task, copy in self.copies.items() if copy.node not in nodes}

    def works(
        self,
        head: int,
        checkpoint: int,
        chunk: int,
        ahead: Mapping[Task, tuple[str, int]],
        side: Mapping[Task, tuple[str, int]],
    ) -> tuple[Work, ...]:
        """What brings the shadow forward by some epochs. What was kept was cut for others, so nothing of it is read.

        ``ahead`` and ``side``: where live tasks are, and pasts computed again, of the shape in force.
        """
        waiting = {task: copy for task, copy in self.copies.items() if self.stateful(task)}
        last = min(head, min(copy.position for copy in waiting.values()) + chunk)
        behind = [catch_up(task, copy, "replica") for task, copy in waiting.items() if copy.position < last]
        if not behind:
            # At the head already, but in the store: only to be restored.
            return tuple(
                Work(task, copy.node, "replica", "checkpoint", copy.position, copy.position + 1, copy.position)
                for task, copy in waiting.items()
                if copy.fresh
            )

        def others(held: Mapping[Task, tuple[str, int]]) -> dict[Task, tuple[str, int]]:
            return {t: at for t, at in held.items() if t not in self.copies and t in self.topology.index}

        return replay(self.topology, behind, others(ahead), checkpoint, others(side), {}, last)[0]

    def committed(self, works: Iterable[Work], head: int) -> None:
        """A replay has ended well."""
        for work in works:
            copy = self.copies.get(work.task)
            if work.lane == "replica" and copy is not None and (copy.node, copy.position) == (work.node, work.start):
                self.copies[work.task] = Copy(work.node, work.last, fresh=False)
        self.stuck = self.behind(head) >= self.missing

    def primaries(self, head: int) -> dict[Task, Copy]:
        """Its tasks when they take over at the head."""
        return {t: copy if self.stateful(t) else Copy(copy.node, head, fresh=True) for t, copy in self.copies.items()}
