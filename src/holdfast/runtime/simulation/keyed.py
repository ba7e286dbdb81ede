"""``KeyedDigests``: what simulated tasks do when operators are scaled, at a fraction of the cost of real rows.

A task keeps one digest a key, which sums up everything that key ever saw, in order: rows lost, doubled, swapped or sent
to the wrong task change every later digest. Every other operator sends its rows on under another key, as a pipeline
that groups twice does; rows that meet under such a key come from several tasks and have no order among one another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from holdfast.elasticity import tally
from holdfast.runtime.shape import Shape, parents, reshaped, routing_of
from holdfast.runtime.simulation.machine import Made
from holdfast.runtime.worker.blocks import Block
from holdfast.state import Routing
from holdfast.topology import Task, Topology

KEYS = 12
Row = tuple[int, str]


class KeyedDigests:
    """``seed`` draws what the sources say. Operators with an odd number in their name send on under other keys."""

    def __init__(self, topology: Topology, seed: int = 0, shape: Shape | None = None) -> None:
        self.declared = topology
        self.seed = seed
        self.shape = shape or Shape()
        self.topology = reshaped(topology, self.shape)
        self._places = np.array([_place(key) for key in range(KEYS)], np.uint32)
        self._shaped: dict[int, KeyedDigests] = {}
        self._rekeys = {o.name: int(o.name[1:] or 0) % 2 == 1 for o in topology.operators}
        self._owners = {
            o.name: self._routed(self.shape, o.name) for o in topology.operators if topology.inputs_of(o.name)
        }

    def _routed(self, shape: Shape, name: str) -> list[int]:
        return [int(owner) for owner in routing_of(self.declared, shape, name).route(self._places)]

    def shaped(self, shape: Shape) -> KeyedDigests:
        if shape == self.shape:
            return self
        known = self._shaped.get(shape.version)
        if known is None or known.shape != shape:
            known = KeyedDigests(self.declared, self.seed, shape)
            known._shaped = self._shaped
            self._shaped[shape.version] = known
        return known

    def stateful(self, task: Task) -> bool:
        return self.declared.operator[task.operator].stateful

    def empty(self, task: Task) -> Mapping[int, str]:
        return {}

    def ingest(self, epoch: int) -> list[list[Block]]:
        pieces = 1 + (self.seed + epoch) % 3
        parts = []
        for piece in range(pieces):
            blocks: list[Block] = []
            for operator in self.topology.sources:
                task = Task(operator.name, piece * operator.parallelism // pieces)
                drawn = blake2b(repr((self.seed, epoch, piece, operator.name)).encode(), digest_size=8).digest()
                rows = [
                    (byte % KEYS, f"{operator.name} {epoch} {piece} {at}")
                    for at, byte in enumerate(drawn[: drawn[7] % 8])
                ]
                blocks += self._sent(task, rows, epoch, piece)
            parts.append(blocks)
        return parts

    def process(self, task: Task, state: Mapping[int, str], blocks: Sequence[Block], epoch: int, exact: bool) -> Made:
        came: dict[int, list[str]] = {}
        for name in sorted({block.sender.operator for block in blocks}):
            rows = [row for block in blocks if block.sender.operator == name for row in _rows(block)]
            for key, value in sorted(rows) if self._rekeys[name] else rows:
                came.setdefault(key, []).append(f"{name} {value}")
        following = dict(state)
        said: list[Row] = []
        for key in sorted(came):
            told = "|".join([state.get(key, ""), task.operator, str(epoch), *came[key]])
            digest = blake2b(told.encode(), digest_size=6).hexdigest()
            following[key] = digest
            said.append((key, digest))
        if self._rekeys[task.operator]:
            said = [((5 * key + 3) % KEYS if key % 2 else key, digest) for key, digest in said]
        output = tuple(said) or None
        kept = following if self.stateful(task) else {}
        keys = self._tallied(task, came) if epoch % 2 == 0 else ()
        return Made(kept, tuple(self._sent(task, said, epoch, 0)), output, len(said), keys)

    def _tallied(self, task: Task, came: Mapping[int, Sequence[str]]) -> list[int]:
        """Tasks are cut where their rows lie, as those of real pipelines are."""
        routing = routing_of(self.declared, self.shape, task.operator)
        if task.number not in routing.owners:
            return []
        keys = np.repeat(np.array(list(came), np.int64), [len(rows) for rows in came.values()])
        return [int(n) for n in tally(routing.ranges[routing.owners.index(task.number)], self._places[keys])]

    def _sent(self, task: Task, rows: Sequence[Row], epoch: int, piece: int) -> list[Block]:
        return [
            block
            for stream in self.topology.outputs_of(task.operator)
            for block in self._cut(task, stream.target, rows, epoch, piece)
        ]

    def _cut(self, task: Task, target: str, rows: Sequence[Row], epoch: int, piece: int) -> list[Block]:
        stream = next(s for s in self.topology.outputs_of(task.operator) if s.target == target)
        receivers = self.topology.receivers(stream, task.number)
        if stream.partitioning == "full":
            owners = self._owners[target]
        else:
            owners = [receivers[key * len(receivers) // KEYS] for key in range(KEYS)]
        shares: dict[int, list[Row]] = {receiver: [] for receiver in receivers}
        for row in rows:
            shares[owners[row[0]]].append(row)
        return [
            Block(epoch, task, piece, Task(target, receiver), None, len(share), json.dumps(share).encode())
            for receiver, share in shares.items()
        ]

    def assembled(self, before: Routing | None, task: Task, load: Callable[[Task], Any]) -> Any:
        then = before or routing_of(self.declared, Shape(), task.operator)
        now = routing_of(self.declared, self.shape, task.operator)
        mine = now.ranges[now.owners.index(task.number)]
        olds = parents(then, mine)
        if olds == (task.number,) and then.ranges[then.owners.index(task.number)] == mine:
            return load(task)
        owns = self._owners[task.operator]
        found: dict[int, str] = {}
        for old in olds:
            for key, digest in load(Task(task.operator, old)).items():
                if owns[key] == task.number:
                    assert key not in found, f"key {key} of {task.operator} was in two tasks"
                    found[key] = digest
        return found

    def recut(self, blocks: list[Block], then: Shape) -> list[Block]:
        names = {*then.routings, *self.shape.routings}
        moved = {name for name in names if then.routings.get(name) != self.shape.routings.get(name)}
        result = [block for block in blocks if block.receiver.operator not in moved]
        again: dict[tuple[int, Task, int, str], list[Block]] = {}
        for block in blocks:
            if block.receiver.operator in moved:
                again.setdefault((block.epoch, block.sender, block.piece, block.receiver.operator), []).append(block)
        for (epoch, sender, piece, name), parts in again.items():
            rows = [row for block in sorted(parts, key=lambda each: each.receiver.number) for row in _rows(block)]
            result += self._cut(sender, name, rows, epoch, piece)
        return result


def _rows(block: Block) -> list[Row]:
    return [(key, value) for key, value in json.loads(bytes(block.payload))]


def _place(key: int) -> int:
    return int.from_bytes(blake2b(str(key).encode(), digest_size=4).digest(), "big")
