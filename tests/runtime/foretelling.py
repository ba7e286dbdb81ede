"""What a job promises before a failure against what it then says: one failure in each of many random jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

import pyarrow as pa

from holdfast.operators import Pipeline
from holdfast.runtime.faults import Fault, When
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.auditing import audited
from holdfast.runtime.simulation.cluster import SimulatedBatch
from holdfast.runtime.simulation.drawing import drawn_topology
from holdfast.runtime.simulation.fuzzing import Case
from holdfast.runtime.simulation.operators import KEYS, cut_batches, digesting
from holdfast.runtime.simulation.schedule import FaultSchedule, Timing
from holdfast.runtime.simulation.simulation import Simulation
from holdfast.topology import Task, Topology


@dataclass(frozen=True)
class Kept:
    """``floor``: told with the last epoch before the loss; ``promised``: for the nodes that were lost."""

    seed: int
    floor: float | None
    promised: float
    achieved: float
    survived: bool
    """No more nodes were lost than are to be survived."""


STEP = 100_000
"""Microseconds from epoch to epoch of an even stream."""


def drawn(seed: int, even: bool = True) -> Case:
    """A random topology on a few nodes with random replicas, some of which die together in one epoch.

    Half of the operators with state look back for some epochs only. ``even``: as many rows come with every epoch, and
    time moves on by as much; else both come in bursts, and pause.
    """
    draw = Random(seed)
    topology = drawn_topology(draw)
    nodes = draw.randint(2, 6)
    names = [f"node-{number}" for number in range(nodes)]
    lost = tuple(draw.sample(names, draw.randint(1, nodes - 1)))
    settings = Settings(
        nodes=nodes, checkpoint_every=draw.randint(1, 8), replicas=_some(draw, topology), rebalance=False, survive=1
    )
    epoch = draw.randint(8, 30)
    timing = Timing(interval=1.0, run=0.01, level=0.01, unit=0.0, restore=0.0, checkpoint=0.05, detect=0.01)
    schedule = FaultSchedule(
        topology, settings, nodes, epoch + 3, (Fault("kill", When(epoch=epoch), lost),), timing, seed=seed
    )
    stateful = [each.name for each in topology.operators if each.stateful and topology.inputs_of(each.name)]
    horizons = {name: draw.randint(1, 12) * STEP + draw.randrange(STEP) for name in stateful if draw.random() < 0.5}
    pipeline = digesting(topology, ordered=True, horizons=horizons)
    return Case(schedule, pipeline, _batches(draw, pipeline, epoch + 3, even))


def _batches(draw: Random, pipeline: Pipeline, epochs: int, even: bool) -> list[SimulatedBatch]:
    now, batches = 0, []
    for _ in range(epochs):
        count = 4 if even else draw.choice((0, 1, 4, 4, 40))
        now += STEP if even else draw.choice((0, STEP, STEP, 5 * STEP, 30 * STEP))
        rows = {
            step.name: pa.table(
                {
                    "key": pa.array([draw.randrange(KEYS) for _ in range(count)], pa.int64()),
                    "value": [str(draw.random()) for _ in range(count)],
                    "time": pa.array([now] * count, pa.timestamp("us", "UTC")),
                }
            )
            for step in pipeline.sources
        }
        batches.append(rows)
    return cut_batches(batches)


def _some(draw: Random, topology: Topology) -> tuple[Task, ...]:
    tasks = [task for task in topology.tasks if topology.inputs_of(task.operator)]
    return tuple(draw.sample(tasks, draw.randint(0, len(tasks))))


def kept(seeds: Iterable[int], even: bool = True) -> Iterator[Kept]:
    """The jobs of these seeds in which a promise was made. Breach, if an answer is called better than it is."""
    for seed in seeds:
        case = drawn(seed, even)
        simulation = Simulation(case.schedule, case.pipeline, list(case.batches))
        audited(simulation, case.expected())
        events = simulation.history
        lost = next((number for number, event in enumerate(events) if event["kind"] == "nodes lost"), None)
        if lost is None or events[lost]["promised"] is None:
            continue
        before = [event for event in events[:lost] if event["kind"] == "epoch"]
        after = next((e for e in events[lost:] if e["kind"] == "epoch" and e["epoch"] == events[lost]["epoch"]), None)
        if after is None or not before:
            continue
        floor = before[-1]["floor"]
        yield Kept(seed, floor, events[lost]["promised"], after["fidelity"], len(events[lost]["nodes"]) <= 1)
