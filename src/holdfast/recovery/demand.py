"""What the failed query partitions need: a set-union knapsack, shrunk before anybody solves it.

Failed tasks that serve the same query partitions are needed together or not at all: they become one *part*. Query
partitions that need the same parts are completed together: they become one *goal*. Both keep every answer intact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.placement import affords
from holdfast.recovery.plan import RecoveryPlan
from holdfast.topology import Task, Topology

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lists:
    """Several lists of numbers, one after the other in one array: list i is ``values[starts[i]:starts[i + 1]]``."""

    starts: Ints
    values: Ints

    def __getitem__(self, i: int) -> Ints:
        return self.values[self.starts[i] : self.starts[i + 1]]

    def gather(self, chosen: Ints) -> tuple[Ints, Ints]:
        """The values of these lists end to end, and for each value the place in ``chosen`` that it comes from."""
        lengths = self.starts[chosen + 1] - self.starts[chosen]
        origin = np.repeat(np.arange(len(chosen)), lengths)
        before = np.cumsum(lengths) - lengths
        return self.values[np.arange(len(origin)) - before[origin] + self.starts[chosen][origin]], origin


@dataclass(frozen=True, slots=True)
class Demand:
    """Goals over shared parts. ``parts_of[goal]`` and ``goals_of[part]`` are the two sides of one relation."""

    outputs: tuple[tuple[int, ...], ...]
    priorities: Floats
    tasks: tuple[tuple[int, ...], ...]
    costs: Floats
    parts_of: Lists
    goals_of: Lists
    idle: tuple[int, ...]
    """Failed tasks that no query needs: recovered last, when capacity is left over."""

    @property
    def sharing(self) -> Ints:
        """How many goals need each part: f in the density of best-density."""
        return np.diff(self.goals_of.starts)


def demand(topology: Topology, failed: Iterable[Task]) -> Demand:
    """The failed query partitions of this topology. Linear in tasks x query partitions, 64 of them a machine word."""
    lost = sorted(topology.index[task] for task in failed)
    outputs, priorities = query_outputs(topology)
    serves = _served(topology, outputs)
    parts: dict[int, list[int]] = {}
    idle = []
    for task in lost:
        if serves[task]:
            parts.setdefault(serves[task], []).append(task)
        else:
            idle.append(task)
    needed = _bits(list(parts), len(outputs))
    goals: dict[bytes, list[int]] = {}
    for place, row in enumerate(np.packbits(needed, axis=0).T):
        if row.any():
            goals.setdefault(row.tobytes(), []).append(place)
    firsts = np.array([places[0] for places in goals.values()], np.int64)
    relation = needed[:, firsts]
    return Demand(
        outputs=tuple(tuple(outputs[place] for place in places) for places in goals.values()),
        priorities=np.array([sum(priorities[place] for place in places) for places in goals.values()], np.float64),
        tasks=tuple(tuple(tasks) for tasks in parts.values()),
        costs=np.array([topology.costs[tasks].sum() for tasks in parts.values()], np.float64),
        parts_of=_lists(relation.T),
        goals_of=_lists(relation),
        idle=tuple(idle),
    )


def query_outputs(topology: Topology) -> tuple[list[int], list[float]]:
    """The output task of every query partition, and the priority it carries: that of its query."""
    outputs: list[int] = []
    priorities: list[float] = []
    for query in topology.queries:
        span = topology.span[query.sink]
        outputs += range(span.start, span.stop)
        priorities += [query.priority] * (span.stop - span.start)
    return outputs, priorities


def plan_for(
    topology: Topology,
    wanted: Demand,
    capacity: float,
    algorithm: str,
    recover: Iterable[int],
    *,
    optimal: bool | None = None,
) -> RecoveryPlan:
    """The plan that recovers these tasks, with what it completes and costs."""
    chosen = sorted(recover)
    goals = completed(wanted, chosen)
    done = sorted(output for goal in goals for output in wanted.outputs[goal])
    return RecoveryPlan(
        algorithm=algorithm,
        capacity=capacity,
        recover=tuple(topology.tasks[place] for place in chosen),
        cost=float(topology.costs[chosen].sum()) if chosen else 0.0,
        queries=tuple(topology.tasks[output] for output in done),
        priority=float(wanted.priorities[goals].sum()),
        optimal=optimal,
    )


def completed(wanted: Demand, recovered: Iterable[int]) -> Ints:
    """The goals that are whole once these tasks are back."""
    back = set(recovered)
    lacking = np.zeros(len(wanted.outputs), np.int64)
    for part, tasks in enumerate(wanted.tasks):
        if not back.issuperset(tasks):
            lacking[wanted.goals_of[part]] += 1
    return np.flatnonzero(lacking == 0)


def with_idle(topology: Topology, wanted: Demand, capacity: float, recover: Sequence[int]) -> list[int]:
    """Once every query is whole, the cheapest of the tasks that no query needs, as far as capacity goes."""
    chosen = list(recover)
    if len(chosen) < sum(len(tasks) for tasks in wanted.tasks):
        return chosen
    spent = float(topology.costs[chosen].sum()) if chosen else 0.0
    for task in sorted(wanted.idle, key=lambda place: float(topology.costs[place])):
        if affords(capacity, spent + float(topology.costs[task])):
            spent += float(topology.costs[task])
            chosen.append(task)
    return chosen


def tasks_for(wanted: Demand, goals: Iterable[int]) -> list[int]:
    """All failed tasks that these goals need."""
    parts = {int(part) for goal in goals for part in wanted.parts_of[goal]}
    return [task for part in sorted(parts) for task in wanted.tasks[part]]


def _served(topology: Topology, outputs: Sequence[int]) -> list[int]:
    """For each task the query partitions it belongs to, as bits of one integer: wide, and cheap to unite."""
    serves = [0] * len(topology.tasks)
    for bit, task in enumerate(outputs):
        serves[task] |= 1 << bit
    for operator in reversed(topology.operators):
        start = topology.span[operator.name].start
        for stream in topology.outputs_of(operator.name):
            below = topology.span[stream.target]
            if stream.partitioning == "full":
                united = 0
                for bits in serves[below]:
                    united |= bits
                for number in range(operator.parallelism):
                    serves[start + number] |= united
                continue
            for number in range(operator.parallelism):
                for receiver in topology.receivers(stream, number):
                    serves[start + number] |= serves[below.start + receiver]
    return serves


def _bits(numbers: Sequence[int], width: int) -> NDArray[np.bool_]:
    """One row of booleans for each integer, lowest bit first."""
    size = -(-width // 8)
    packed = np.frombuffer(b"".join(number.to_bytes(size, "little") for number in numbers), np.uint8)
    return np.unpackbits(packed.reshape(len(numbers), size), axis=1, bitorder="little", count=width).astype(np.bool_)


def _lists(relation: NDArray[np.bool_]) -> Lists:
    rows, columns = np.nonzero(relation)
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(relation)))])
    return Lists(starts.astype(np.int64), columns.astype(np.int64))
