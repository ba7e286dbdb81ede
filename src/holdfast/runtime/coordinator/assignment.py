"""Where things stand: which copy of which task lives where, how far each has come, what is kept for replay.

The coordinator's memory, with the questions it asks of it; no decisions here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.recovery import Node
from holdfast.runtime.coordinator.replay import Copy, downward
from holdfast.runtime.messages import NodeInfo
from holdfast.topology import Task, Topology

Held = TypeVar("Held")


@dataclass(slots=True)
class Home:
    """Where a copy of a task lives and which epoch it has committed. ``fresh``: its state is still in the store."""

    node: str
    position: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Fork:
    """A tentative branch of a task's state: the run that began it, the exact epoch it began from, how far it has come.

    ``given``: the fidelity of its input, summed over the epochs since; one that it missed counts nothing.
    """

    number: int
    base: int
    reached: int
    given: float


@dataclass(slots=True)
class Standing:
    """``checkpoint`` and ``head``: the newest durable checkpoint and the newest journalled epoch; -1 when none is."""

    topology: Topology
    checkpoint: int = -1
    head: int = -1
    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    """Live nodes."""
    homes: dict[Task, Home] = field(default_factory=dict)
    replicas: dict[Task, Home] = field(default_factory=dict)
    left_at: dict[Task, int] = field(default_factory=dict)
    """The position at which a task that is down was lost."""
    cold: set[Task] = field(default_factory=set)
    """Tasks placed anew whose replay has not come to the failure yet: they know too little to answer tentatively."""
    forks: dict[Task, Fork] = field(default_factory=dict)
    side: dict[Task, tuple[str, int]] = field(default_factory=dict)
    buffers: dict[Task, tuple[str, int, int]] = field(default_factory=dict)
    moving: set[Task] = field(default_factory=set)
    """Tasks with a replica that is to take over as soon as it has come to the head; the primary goes then."""
    leaving: set[str] = field(default_factory=set)
    """Nodes that are to be given back: nothing new is placed there."""
    tasks: tuple[Task, ...] = ()
    """Every task but the sources': those run wherever Spark reads them, so they cannot be lost."""

    def __post_init__(self) -> None:
        self.tasks = tuple(task for task in self.topology.tasks if self.topology.inputs_of(task.operator))

    @property
    def down(self) -> tuple[Task, ...]:
        if self.all_up:
            return ()
        return tuple(task for task in self.tasks if task not in self.homes)

    @property
    def all_up(self) -> bool:
        return len(self.homes) == len(self.tasks)

    @property
    def caught_up(self) -> bool:
        """Every copy that lives has come to the head."""
        return all(home.position >= self.head for homes in (self.homes, self.replicas) for home in homes.values())

    def domain(self, name: str) -> str:
        return (self.nodes[name].domain or name) if name in self.nodes else ""

    def place(self, task: Task, node: str) -> None:
        """A task that is down comes up on this node, from the checkpoint; one without state from where it was."""
        stateful = self.topology.operator[task.operator].stateful
        position = self.checkpoint if stateful else self.left_at.get(task, self.checkpoint)
        self.homes[task] = Home(node, position, fresh=True)
        if position < self.head:
            self.cold.add(task)

    def reshaped(self, topology: Topology, untouched: Callable[[Task], bool], recut: Collection[str]) -> Standing:
        """Where things stand in another shape: untouched tasks keep theirs, ``recut`` operators no buffers."""

        def stay(held: Mapping[Task, Held]) -> dict[Task, Held]:
            return {task: what for task, what in held.items() if untouched(task)}

        return Standing(
            topology,
            self.checkpoint,
            self.head,
            self.nodes,
            stay(self.homes),
            stay(self.replicas),
            stay(self.left_at),
            {task for task in self.cold if untouched(task)},
            stay(self.forks),
            stay(self.side),
            {task: held for task, held in stay(self.buffers).items() if task.operator not in recut},
            {task for task in self.moving if untouched(task)},
            self.leaving,
        )

    def lose(self, gone: set[str]) -> tuple[list[Task], list[Task]]:
        """These nodes are no more; the tasks that were lost with them, and those whose replica takes over."""
        for name in gone:
            self.nodes.pop(name, None)
        self.leaving -= gone
        self.side = {task: held for task, held in self.side.items() if held[0] not in gone}
        self.buffers = {task: held for task, held in self.buffers.items() if held[0] not in gone}
        self.replicas = {task: home for task, home in self.replicas.items() if home.node not in gone}
        self.moving &= self.replicas.keys()
        hit = [task for task, home in self.homes.items() if home.node in gone]
        promoted = [task for task in hit if self.drop_home(task)]
        return [task for task in hit if task not in self.homes], promoted

    def drop_home(self, task: Task) -> bool:
        """The primary of this task is gone; its replica is promoted if there is one."""
        home = self.homes.pop(task)
        self.moving.discard(task)
        self.forks.pop(task, None)
        self.buffers.pop(task, None)
        self.left_at[task] = home.position
        self.cold.discard(task)
        if task not in self.replicas:
            return False
        self.homes[task] = self.replicas.pop(task)
        if self.homes[task].position < home.position:
            self.cold.add(task)
        return True

    def move(self, task: Task, node: str) -> None:
        """Begin to move a task: a replica on the other node, from the checkpoint; one without state, as it is."""
        stateful = self.topology.operator[task.operator].stateful
        position = self.checkpoint if stateful else self.homes[task].position
        self.replicas[task] = Home(node, position, fresh=True)
        self.moving.add(task)

    def stay(self, tasks: Iterable[Task]) -> None:
        """These do not move after all."""
        for task in list(tasks):
            self.moving.discard(task)
            self.replicas.pop(task, None)

    def take_over(self, task: Task) -> None:
        """The replica of a task that moves is the primary now, and there is no other copy."""
        self.moving.discard(task)
        self.forks.pop(task, None)
        self.homes[task] = self.replicas.pop(task)

    def raise_to_checkpoint(self, busy: Collection[tuple[Task, str]]) -> None:
        """Copies that have not come to the checkpoint begin from it; those that a run is busy with, when it ends."""
        for lane, homes in (("exact", self.homes), ("replica", self.replicas)):
            for task, home in homes.items():
                if home.position < self.checkpoint and (task, lane) not in busy:
                    homes[task] = Home(home.node, self.checkpoint, fresh=True)
                    if lane == "exact" and self.checkpoint >= self.head:
                        self.cold.discard(task)

    def fall_back(self, epoch: int) -> None:
        """The checkpoint is lost: copies whose state was still in it begin from an older one, and are cold again."""
        lost, self.checkpoint = self.checkpoint, epoch
        self.side.clear()
        for homes in (self.homes, self.replicas):
            for task, home in homes.items():
                if home.fresh and home.position <= lost and self.topology.operator[task.operator].stateful:
                    homes[task] = Home(home.node, epoch, fresh=True)
                    if homes is self.homes and epoch < self.head:
                        self.cold.add(task)

    def exact(self, epoch: int) -> NDArray[np.bool_]:
        """Which tasks can process this epoch exactly: their state is at the one before, as is everything upstream."""
        able = np.ones(len(self.topology.tasks), np.bool_)
        if self.all_up and epoch == self.head + 1 and self.caught_up:
            return able
        for operator in self.topology.operators:
            streams = self.topology.inputs_of(operator.name)
            if not streams:
                continue
            span = self.topology.span[operator.name]
            for index in range(span.start, span.stop):
                home = self.homes.get(self.topology.tasks[index])
                able[index] = home is not None and home.position == epoch - 1
            for stream in streams:
                able[span] &= ~downward(self.topology, stream, ~able[self.topology.span[stream.source]])
        return able

    def behind(self) -> list[Copy]:
        """Copies that have not come to the head and can: nothing upstream of them is down."""
        if self.caught_up:
            return []
        whole = np.ones(len(self.topology.tasks), np.bool_)
        copies = []
        for operator in self.topology.operators:
            span = self.topology.span[operator.name]
            streams = self.topology.inputs_of(operator.name)
            for stream in streams:
                whole[span] &= ~downward(self.topology, stream, ~whole[self.topology.span[stream.source]])
            for index in range(span.start, span.stop) if streams else ():
                task = self.topology.tasks[index]
                home = self.homes.get(task)
                if whole[index]:
                    copies += [self._copy(task, home, "exact")] if home and home.position < self.head else []
                    twin = self.replicas.get(task)
                    copies += [self._copy(task, twin, "replica")] if twin and twin.position < self.head else []
                whole[index] &= home is not None
        return copies

    def near(self, copies: Sequence[Copy], epochs: int) -> list[Copy]:
        """Those of these copies that at most so many epochs part from the head, as all that is behind upstream of them.

        One whose state is still to be restored is not near: that takes longer than a few epochs.
        """

        def close(copy: Copy) -> bool:
            return self.head - copy.position <= epochs and (copy.origin != "checkpoint" or copy.position < 0)

        far = np.zeros(len(self.topology.tasks), np.bool_)
        for copy in copies:
            far[self.topology.index[copy.task]] |= copy.lane == "exact" and not close(copy)
        if far.any():
            for operator in self.topology.operators:
                span = self.topology.span[operator.name]
                for stream in self.topology.inputs_of(operator.name):
                    far[span] |= downward(self.topology, stream, far[self.topology.span[stream.source]])
        return [copy for copy in copies if close(copy) and not far[self.topology.index[copy.task]]]

    @staticmethod
    def _copy(task: Task, home: Home, lane: Literal["exact", "replica"]) -> Copy:
        return Copy(task, home.node, lane, "checkpoint" if home.fresh else "local", home.position)

    def ahead(self) -> dict[Task, tuple[str, int]]:
        return {task: (home.node, home.position) for task, home in self.homes.items()}

    def loads(self, capacity: float) -> list[Node]:
        """The live nodes with what they carry, but for those that are leaving."""
        load = dict.fromkeys(self.nodes, 0.0)
        for homes in (self.homes, self.replicas):
            for task, home in homes.items():
                load[home.node] += self.topology.operator[task.operator].costs[task.number]
        return [Node(name, capacity, load[name], self.domain(name)) for name in self.nodes if name not in self.leaving]

    def check(self, busy: Collection[tuple[Task, str]] = ()) -> Iterable[str]:
        """What is wrong with where things stand: nothing, ever. ``busy``: copies that a run is working on."""
        for task, twin in self.replicas.items():
            home = self.homes.get(task)
            if home is None:
                yield f"{task} has a replica and no primary"
            elif home.node == twin.node or (
                task not in self.moving and self.domain(home.node) == self.domain(twin.node)
            ):
                yield f"{task} and its replica share {home.node}"
        for what, lane, homes in (("primary", "exact", self.homes), ("replica", "replica", self.replicas)):
            for task, home in homes.items():
                if home.node not in self.nodes:
                    yield f"the {what} of {task} lives on {home.node}, which is gone"
                if home.position > self.head:
                    yield f"the {what} of {task} is at epoch {home.position}, beyond the head {self.head}"
                if home.position < self.checkpoint and (task, lane) not in busy:
                    yield f"the {what} of {task} is at {home.position}, before the checkpoint {self.checkpoint}"
        for task in self.moving - self.replicas.keys():
            yield f"{task} moves and has no replica"
        if gone := sorted(self.leaving - set(self.nodes)):
            yield f"{gone[0]} is to leave, but it is gone"
        if self.nodes and not set(self.nodes) - self.leaving:
            yield "every node is to leave"
        for task in self.forks:
            if task not in self.homes:
                yield f"{task} is down and has a fork"
