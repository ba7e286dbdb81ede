"""What a job promises before a failure against what it then says: one failure in each of many random jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from holdfast.runtime.faults import Fault, When
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.costed import costed
from holdfast.runtime.simulation.drawing import drawn_topology
from holdfast.runtime.simulation.schedule import FaultSchedule, Timing
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


def drawn(seed: int) -> FaultSchedule:
    """A random topology on a few nodes with random replicas, some of which die together in one epoch."""
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
    return FaultSchedule(
        topology, settings, nodes, epoch + 3, (Fault("kill", When(epoch=epoch), lost),), timing, seed=seed
    )


def _some(draw: Random, topology: Topology) -> tuple[Task, ...]:
    tasks = [task for task in topology.tasks if topology.inputs_of(task.operator)]
    return tuple(draw.sample(tasks, draw.randint(0, len(tasks))))


def kept(seeds: range) -> Iterator[Kept]:
    """The jobs of these seeds in which a promise was made."""
    for seed in seeds:
        schedule = drawn(seed)
        events = costed(schedule).run().history
        lost = next((number for number, event in enumerate(events) if event["kind"] == "nodes lost"), None)
        if lost is None or events[lost]["promised"] is None:
            continue
        before = [event for event in events[:lost] if event["kind"] == "epoch"]
        after = next((e for e in events[lost:] if e["kind"] == "epoch" and e["epoch"] == events[lost]["epoch"]), None)
        if after is None or not before:
            continue
        floor = before[-1]["floor"]
        yield Kept(seed, floor, events[lost]["promised"], after["fidelity"], len(events[lost]["nodes"]) <= 1)
