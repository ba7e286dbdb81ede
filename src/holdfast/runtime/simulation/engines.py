"""What simulated tasks do. ``Rows`` runs a real pipeline over real state tables; ``Digests`` stands for one.

A digest sums up everything a task ever saw, in order: a block lost, doubled, swapped or taken from a fork changes every
later digest. So it checks exactness as sharply as rows do, at a hundredth of their cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.shape import Shape, reshaped_pipeline, routing_of
from holdfast.runtime.simulation.machine import Engine, Made
from holdfast.runtime.worker.blocks import Block, once
from holdfast.runtime.worker.processing import outgoing, process, process_source
from holdfast.runtime.worker.repartition import assembled, recut, tallied
from holdfast.state import Routing
from holdfast.topology import Task, Topology

Output = dict[tuple[int, Task], Any]


class Digests:
    """``seed`` draws what the sources say. One epoch in four of a task has no output rows."""

    def __init__(self, topology: Topology, seed: int = 0) -> None:
        self.topology = topology
        self.seed = seed
        self._stateful = {task: topology.operator[task.operator].stateful for task in topology.tasks}
        self._receivers = {
            task: tuple(
                Task(stream.target, number)
                for stream in topology.outputs_of(task.operator)
                for number in topology.receivers(stream, task.number)
            )
            for task in topology.tasks
        }

    def stateful(self, task: Task) -> bool:
        return self._stateful[task]

    def empty(self, task: Task) -> bytes:
        return b""

    def ingest(self, epoch: int) -> list[list[Block]]:
        pieces = 1 + (self.seed + epoch) % 3
        return [
            [
                Block(epoch, task, piece, receiver, None, 1, _digest(b"source", self.seed, epoch, piece, task))
                for operator in self.topology.sources
                for task in [Task(operator.name, piece * operator.parallelism // pieces)]
                for receiver in self._receivers[task]
            ]
            for piece in range(pieces)
        ]

    def process(self, task: Task, state: bytes, blocks: Sequence[Block], epoch: int, exact: bool) -> Made:
        seen = blake2b(state, digest_size=8)
        seen.update(b"%d %s" % (epoch, str(task).encode()))
        # Each input stream has an order of its own: that of streams among one another means nothing to an operator.
        for block in sorted(blocks, key=lambda block: block.sender.operator):
            seen.update(b"%s %d %d" % (str(block.sender).encode(), block.piece, block.epoch))
            seen.update(block.payload)
        digest = seen.digest()
        sent = tuple(Block(epoch, task, 0, receiver, None, 1, digest) for receiver in self._receivers[task])
        return Made(digest if self._stateful[task] else b"", sent, digest if digest[0] & 3 else None)

    def shaped(self, shape: Shape) -> Digests:
        if shape.routings:
            raise Invalid("digests are of whole tasks and cannot be cut by key; use Rows or KeyedDigests")
        return self

    def assembled(self, before: Routing | None, task: Task, load: Callable[[Task], Any]) -> Any:
        return load(task)

    def recut(self, blocks: list[Block], then: Shape) -> list[Block]:
        return blocks


class Rows:
    """A real pipeline over given batches, one mapping of source to rows for each epoch."""

    def __init__(self, pipeline: Pipeline, batches: Sequence[Mapping[str, pa.Table]], pieces: int = 2) -> None:
        self.pipeline = pipeline
        self.topology = pipeline.topology
        self.batches = batches
        self.pieces = pieces
        self.declared = pipeline
        self.shape = Shape()
        self._schemas: dict[tuple[str, str], pa.Schema] = {}
        self._shaped: dict[int, Rows] = {}

    def shaped(self, shape: Shape) -> Rows:
        if shape == self.shape:
            return self
        known = self._shaped.get(shape.version)
        if known is None or known.shape != shape:
            known = Rows(reshaped_pipeline(self.declared, shape), self.batches, self.pieces)
            known.declared, known.shape, known._schemas, known._shaped = (
                self.declared,
                shape,
                self._schemas,
                self._shaped,
            )
            self._shaped[shape.version] = known
        return known

    def assembled(self, before: Routing | None, task: Task, load: Callable[[Task], Any]) -> Any:
        declared = self.declared.topology
        then = before or routing_of(declared, Shape(), task.operator)
        return assembled(self.declared, then, routing_of(declared, self.shape, task.operator), task, load)

    def recut(self, blocks: list[Block], then: Shape) -> list[Block]:
        return recut(self.declared, blocks, then, self.shape)

    def stateful(self, task: Task) -> bool:
        return bool(self.pipeline.state_schemas(task.operator))

    def empty(self, task: Task) -> Any:
        return self.pipeline.empty_state(task.operator)

    def ingest(self, epoch: int) -> list[list[Block]]:
        parts = []
        for piece in range(self.pieces):
            blocks: list[Block] = []
            for step in self.pipeline.sources:
                rows = self.batches[epoch][step.name]
                first, last = (rows.num_rows * at // self.pieces for at in (piece, piece + 1))
                task = Task(step.name, piece * step.parallelism // self.pieces)
                made = process_source(self.pipeline, task, rows.slice(first, last - first), epoch)
                blocks += outgoing(self.pipeline, task, made, epoch, self.shape.routings, piece)
            parts.append(blocks)
        return parts

    def process(self, task: Task, state: Any, blocks: Sequence[Block], epoch: int, exact: bool) -> Made:
        made = process(
            self.pipeline, task, state, blocks, epoch, schemas=None if exact else self._known(task.operator, blocks)
        )
        sent = tuple(outgoing(self.pipeline, task, made, epoch, self.shape.routings))
        output = made.output if made.output is not None and made.output.num_rows else None
        keys = tallied(self.declared, self.shape, task, blocks) if epoch % 2 == 0 else ()
        return Made(made.state, sent, output, 0 if output is None else output.num_rows, keys)

    def _known(self, operator: str, blocks: Sequence[Block]) -> dict[str, pa.Schema]:
        """Schemas that the tasks of an operator have seen before: of inputs from which nothing came."""
        for block in blocks:
            if (operator, block.sender.operator) not in self._schemas:
                schema = block.table().schema
                if len(schema):
                    self._schemas[operator, block.sender.operator] = schema
        return {source: schema for (target, source), schema in self._schemas.items() if target == operator}


def undisturbed(engine: Engine, epochs: int, output_tasks: frozenset[Task]) -> Output:
    """What every query's task says in every epoch when nothing ever fails: the plain way, one task after another."""
    states = {task: engine.empty(task) for task in engine.topology.tasks}
    said: Output = {}
    for epoch in range(epochs):
        waiting: dict[Task, list[Block]] = {}
        for part in engine.ingest(epoch):
            for block in part:
                waiting.setdefault(block.receiver, []).append(block)
        for task in engine.topology.tasks:
            if not engine.topology.inputs_of(task.operator):
                continue
            made = engine.process(task, states[task], once(waiting.get(task, ())), epoch, True)
            states[task] = made.state
            for block in made.blocks:
                waiting.setdefault(block.receiver, []).append(block)
            if made.output is not None and task in output_tasks:
                said[epoch, task] = made.output
    return said


def same(one: Any, other: Any) -> bool:
    """Whether two outputs are equal, row for row."""
    if isinstance(one, pa.Table):
        return isinstance(other, pa.Table) and bool(one.equals(other))
    return bool(one == other)


def _digest(*parts: object) -> bytes:
    return blake2b(repr(parts).encode(), digest_size=8).digest()
