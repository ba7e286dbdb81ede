"""What simulated jobs compute. A digest sums up everything a key ever saw: a row lost, doubled or taken from a fork
changes every later one. So it checks exactness as sharply as any operator, upon real state tables, at little cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast import operators as op
from holdfast.runtime.simulation.cluster import SimulatedBatch
from holdfast.runtime.worker.blocks import Block, once
from holdfast.runtime.worker.plan import source_task
from holdfast.runtime.worker.processing import outgoing, process, process_source
from holdfast.state import StateSchema
from holdfast.topology import Task, Topology

KEYS = 12
ROWS = pa.schema([("key", pa.int64()), ("value", pa.string())])
Output = dict[tuple[int, str], pa.Table]


class Digest(op.Operator):
    """``rekeys``: sends its rows on under other keys, as a pipeline does that groups twice.

    ``ordered``: the order of rows within an epoch counts too. Not where operators are scaled: rows that meet under a
    new key come from tasks whose number changes, and have no order among one another.
    """

    def __init__(self, name: str, stateful: bool, rekeys: bool, ordered: bool, horizon: int | None = None) -> None:
        self.name = name
        self.horizon = horizon
        self.rekeys = rekeys
        self.ordered = ordered
        if stateful:
            self.tables = {"state": StateSchema(pa.schema([ROWS.field("key")]), pa.schema([("digest", pa.string())]))}

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "digest", "name": self.name, "rekeys": self.rekeys}

    def process_inputs(self, inputs: Mapping[str, pa.Table], state: op.State) -> pa.Table | None:
        came: dict[int, list[str]] = {}
        for name in sorted(inputs):
            rows = inputs[name]
            if rows.num_rows:
                for key, value in zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True):
                    came.setdefault(key, []).append(f"{name} {value}")
        if not came:
            return None
        keys = sorted(came)
        before: list[str | None] = [None] * len(keys)
        if self.tables:
            before = state.lookup(pa.table({"key": pa.array(keys, pa.int64())}))["digest"].to_pylist()
        digests = []
        for key, held in zip(keys, before, strict=True):
            rows = came[key] if self.ordered else sorted(came[key])
            told = "|".join([held or "", self.name, f"{state.epoch}{'?' * state.tentative}", *rows])
            digests.append(blake2b(told.encode(), digest_size=6).hexdigest())
        if self.tables:
            state.update(pa.table({"key": pa.array(keys, pa.int64()), "digest": digests}))
        sent = [(5 * key + 3) % KEYS if self.rekeys and key % 2 else key for key in keys]
        return pa.table({"key": pa.array(sent, pa.int64()), "value": digests}, schema=ROWS)


def digesting(topology: Topology, ordered: bool, horizons: Mapping[str, int] | None = None) -> op.Pipeline:
    """A pipeline of digests in the form of a topology.

    ``horizons``: of event time, so far back these operators say that they look; rows have a ``time`` then.
    """
    steps = []
    for number, operator in enumerate(topology.operators):
        streams = topology.inputs_of(operator.name)
        if not streams:
            time = "time" if horizons is not None else None
            steps.append(op.source(operator.name, parallelism=operator.parallelism, event_time=time))
            continue
        inputs = [
            op.stream(each.source, "key" if each.partitioning in ("full", "split") else (), each.partitioning)
            for each in streams
        ]
        priorities = {query.sink: query.priority for query in topology.queries}
        steps.append(
            op.step(
                operator.name,
                Digest(operator.name, operator.stateful, number % 2 == 1, ordered, (horizons or {}).get(operator.name)),
                inputs,
                parallelism=operator.parallelism,
                correlated=operator.inputs == "correlated",
                priority=priorities.get(operator.name),
                costs=operator.costs,
            )
        )
    return op.Pipeline(*steps)


def digest_batches(pipeline: op.Pipeline, epochs: int, seed: int) -> list[SimulatedBatch]:
    """A few rows for each source, epoch and piece; now and then none."""
    batches = []
    for epoch in range(epochs):
        pieces = []
        for piece in range(1 + (seed + epoch) % 3):
            shares = {}
            for step in pipeline.sources:
                drawn = blake2b(repr((seed, epoch, piece, step.name)).encode(), digest_size=8).digest()
                keys = [byte % KEYS for byte in drawn[: drawn[7] % 7]]
                values = [f"{step.name} {epoch} {piece} {at}" for at in range(len(keys))]
                shares[step.name] = pa.table({"key": pa.array(keys, pa.int64()), "value": values}, schema=ROWS)
            pieces.append(shares)
        batches.append(SimulatedBatch(pieces))
    return batches


def cut_batches(tables: Sequence[Mapping[str, pa.Table]], pieces: int = 2) -> list[SimulatedBatch]:
    """Whole batches, each source's rows cut into as many pieces."""
    return [
        SimulatedBatch(
            [
                {
                    name: rows.slice(rows.num_rows * piece // pieces, rows.num_rows * (piece + 1) // pieces - start)
                    for name, rows in table.items()
                    for start in [rows.num_rows * piece // pieces]
                }
                for piece in range(pieces)
            ]
        )
        for table in tables
    ]


def joined_batches(batches: Sequence[SimulatedBatch]) -> SimulatedBatch:
    """Several batches as one, as of the first."""
    return replace(batches[0], pieces=[piece for batch in batches for piece in batch.pieces])


def newest_times(pipeline: op.Pipeline, pieces: Sequence[Mapping[str, pa.Table]]) -> list[int | None]:
    """Of each source, the newest event time in these pieces in milliseconds; None where there is no row."""
    newest: list[int | None] = []
    for step in pipeline.sources:
        columns = [piece[step.name]["time"] for piece in pieces if step.name in piece]
        found = [pc.max(column).cast(pa.int64()).as_py() for column in columns if len(column)]
        newest.append(max(found) // 1000 if found else None)
    return newest


def undisturbed(pipeline: op.Pipeline, batches: Sequence[SimulatedBatch], outputs: frozenset[str]) -> Output:
    """What every query's task says in every epoch when nothing ever fails: the plain way, one task after another."""
    topology = pipeline.topology
    states = {t: pipeline.empty_state(t.operator) for t in topology.tasks if topology.inputs_of(t.operator)}
    said: Output = {}
    for epoch, batch in enumerate(batches):
        waiting: dict[Task, list[Block]] = {}
        for piece, shares in enumerate(batch.pieces):
            for name, rows in shares.items():
                task = source_task(topology, name, piece, len(batch.pieces))
                made = process_source(pipeline, task, rows, epoch, batch.ends, batch.watermark_us)
                for block in outgoing(pipeline, task, made, epoch, {}, piece):
                    waiting.setdefault(block.receiver, []).append(block)
        for task, state in list(states.items()):
            made = process(pipeline, task, state, once(waiting.get(task, ())), epoch)
            states[task] = made.state
            for block in outgoing(pipeline, task, made, epoch, {}):
                waiting.setdefault(block.receiver, []).append(block)
            if made.output is not None and made.output.num_rows and task.operator in outputs:
                said[epoch, str(task)] = made.output
    return said
