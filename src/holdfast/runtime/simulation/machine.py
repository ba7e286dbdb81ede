"""A simulated node: states and kept outputs that vanish with it, and how works are carried out on them.

It follows the worker of the Spark shell rule by rule: branches, versions, what a new checkpoint sweeps away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.runtime.blocks import Block, once
from holdfast.runtime.events import Report, Work
from holdfast.runtime.keeping import main_branch
from holdfast.runtime.layout import Feed, Layout, absent_barrier
from holdfast.runtime.shape import Shape
from holdfast.runtime.worker import branch_of
from holdfast.state import Routing
from holdfast.topology import Task, Topology


class Missing(Exception):
    """The node has no such version."""


class Damaged(Exception):
    """The durable store has the checkpoint, but not whole."""


@dataclass(frozen=True, slots=True)
class Made:
    """What a task made of an epoch: its next state, the blocks it sends, and its output (None for no rows)."""

    state: Any
    blocks: tuple[Block, ...]
    output: Any = None
    rows: int = 1
    keys: Sequence[int] = ()
    """Now and then: how the rows that came lie over the task's keys."""


class Engine(Protocol):
    """What tasks do: real operators over real state tables, or digests that stand for them."""

    topology: Topology

    def stateful(self, task: Task) -> bool: ...

    def empty(self, task: Task) -> Any: ...

    def ingest(self, epoch: int) -> list[list[Block]]:
        """What the sources send in an epoch, by pieces of the batch."""
        ...

    def process(self, task: Task, state: Any, blocks: Sequence[Block], epoch: int, exact: bool) -> Made: ...

    def shaped(self, shape: Shape) -> Engine:
        """The same in this shape; ``ingest``, ``process`` and ``topology`` are then of its tasks."""
        ...

    def assembled(self, before: Routing | None, task: Task, load: Callable[[Task], Any]) -> Any:
        """A task's state in the shape at hand, from the tasks of an operator that was routed so (None: as declared)."""
        ...

    def recut(self, blocks: list[Block], then: Shape) -> list[Block]:
        """Blocks that were cut in another shape, for the tasks of the one at hand."""
        ...


class Restores(Protocol):
    def restore(self, engine: Engine, task: Task, epoch: int) -> Any: ...


@dataclass(frozen=True, slots=True)
class Order:
    """A run as nodes see it. ``retain``: older epochs are not needed. ``forks``: those that are alive."""

    run: int
    layout: Layout
    retain: int
    forks: frozenset[int]
    output_tasks: frozenset[Task]
    shape: Shape = field(default_factory=Shape)
    settled: bool = True


@dataclass(slots=True)
class Machine:
    """``speed``: 1 is normal. ``stalled``: until when it answers nobody."""

    name: str
    domain: str
    speed: float = 1.0
    alive: bool = True
    stalled: float = 0.0
    busy: int = 0
    versions: dict[tuple[str, Task], dict[int, Any]] = field(default_factory=dict)
    kept: dict[Task, dict[int, tuple[Block, ...]]] = field(default_factory=dict)
    _swept: tuple[int, frozenset[int]] | None = None

    def carry_out(
        self,
        engine: Engine,
        store: Restores,
        order: Order,
        works: Sequence[Work],
        feeds: Sequence[Feed],
        arrived: Sequence[Block],
    ) -> tuple[list[Block], list[tuple[Report, dict[int, Any]]]]:
        """The works of a slot on the blocks that came: what they send, and how each went with its output by epoch."""
        waiting: dict[tuple[Task, int], list[Block]] = {}
        for block in arrived:
            waiting.setdefault((block.receiver, block.epoch), []).append(block)
        sent: list[Block] = []
        told = []
        self._sweep(order)
        for feed in feeds:
            for epoch in range(feed.first, feed.last + 1):
                sent += self.kept.get(feed.task, {}).get(epoch, ())
        for work in works:
            blocks, report, outputs = self._one(engine, store, order, work, waiting)
            sent += blocks
            told.append((report, outputs))
        return sent, told

    def _one(
        self,
        engine: Engine,
        store: Restores,
        order: Order,
        work: Work,
        waiting: Mapping[tuple[Task, int], list[Block]],
    ) -> tuple[list[Block], Report, dict[int, Any]]:
        task, reached = work.task, work.start
        exact = work.lane != "tentative"
        outputs: dict[int, Any] = {}
        output_rows: dict[int, int] = {}
        sent: list[Block] = []
        rows = 0
        keys: Sequence[int] = ()
        try:
            state = self._state(engine, store, work)
        except Missing as error:
            return [], Report(task, work.lane, work.node, "missing", reached, message=str(error)), {}
        except Damaged as error:
            return [], Report(task, work.lane, work.node, "damaged", reached, message=str(error)), {}
        branch = (branch_of(work), task)
        for epoch in work.epochs:
            blocks = once(waiting.get((task, epoch), ()))
            if missing := absent_barrier(engine.topology, order.layout, task, epoch, blocks):
                message = f"epoch {epoch}: no block from {missing}"
                return [], Report(task, work.lane, work.node, "blocked", reached, message=message), {}
            made = engine.process(task, state, blocks, epoch, exact)
            state = made.state
            if engine.stateful(task):
                held = self.versions.setdefault(branch, {})
                held[epoch] = state
                if branch[0] == main_branch(work.born) and order.retain in held:
                    for version in [each for each in held if each < order.retain]:
                        del held[version]
            if made.output is not None and task in order.output_tasks and work.lane in ("exact", "tentative"):
                outputs[epoch], output_rows[epoch] = made.output, made.rows
            if work.lane != "replica":
                sent += made.blocks
                if work.keep:
                    self.kept.setdefault(task, {})[epoch] = made.blocks
            rows += made.rows
            keys = made.keys or keys
            reached = epoch
        named = {epoch: f"{work.lane} {epoch} {task}" for epoch in outputs}
        report = Report(
            task, work.lane, work.node, "committed", reached, rows_out=rows, outputs=named, output_rows=output_rows,
            keys=keys,
        )  # fmt: skip
        return sent, report, outputs

    def _state(self, engine: Engine, store: Restores, work: Work) -> Any:
        task = work.task
        if not engine.stateful(task):
            return engine.empty(task)
        branch = (branch_of(work), task)
        if work.origin == "checkpoint":
            state = engine.empty(task) if work.start < 0 else store.restore(engine, task, work.start)
            self.versions[branch] = {work.start: state}
            return state
        held = self.versions.get((main_branch(work.born), task) if work.origin == "fork" else branch, {})
        if work.start not in held:
            have = ", ".join(map(str, sorted(held))) or "none"
            raise Missing(f"task {task}: version {work.start} is not on {self.name}; versions there: {have}")
        if work.origin == "fork":
            self.versions[branch] = {work.start: held[work.start]}
        return held[work.start]

    def _sweep(self, order: Order) -> None:
        """Once the checkpoint has moved on: sides, dead forks and kept outputs that nobody can ask for any more."""
        if order.settled:
            self._release(order.shape)
        if self._swept == (order.retain, order.forks):
            return
        moved = self._swept is not None and self._swept[0] != order.retain
        self._swept = (order.retain, order.forks)
        for branch in list(self.versions):
            kind, _, rest = branch[0].partition("-")
            stale = kind == "fork" and int(rest) < order.run and int(rest) not in order.forks
            if stale or (moved and kind == "side" and int(rest.partition("-")[2]) < order.retain):
                del self.versions[branch]
        if moved:
            for epochs in self.kept.values():
                for epoch in [each for each in epochs if each <= order.retain]:
                    del epochs[epoch]

    def _release(self, shape: Shape) -> None:
        """What is left of tasks that were scaled away goes; a shape that is being prepared is left alone."""
        for branch, task in list(self.versions):
            kind, _, rest = branch.partition("-")
            born = int(rest or 0) if kind == "main" else -1
            if 0 <= born <= shape.version and shape.born.get(task, 0) != born:
                del self.versions[branch, task]

    def saved(self, engine: Engine, task: Task, since: int, epoch: int, born: int = 0) -> Any:
        """What a checkpoint brings to the store; Missing if the changes since the last one are not all here."""
        if not engine.stateful(task):
            return None
        held = self.versions.get((main_branch(born), task), {})
        needed = range(since, epoch + 1) if since >= 0 else (epoch,)
        absent = [version for version in needed if version not in held]
        if absent:
            raise Missing(f"task {task}: version {absent[0]} is not on {self.name}")
        return held[epoch]
