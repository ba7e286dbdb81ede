"""What a replay must run: the copies that are behind, and the ancestors whose past has to be computed again for them.

Pure. A copy that is behind needs every upstream task's output for the epochs it missed. An upstream task that is itself
behind computes them in the same run; one that is ahead has them in its buffer, or else is computed again on the side,
from the checkpoint (or from where an earlier replay left that side), with its live state untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.runtime.messages import Origin, Work
from holdfast.topology import Stream, Task, Topology

Ints = NDArray[np.int64]
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A copy of a task, at the last epoch it has committed."""

    task: Task
    node: str
    lane: Literal["exact", "replica"]
    origin: Origin
    position: int


Buffers = Mapping[Task, tuple[str, int, int]]
Keep = Literal["none", "wanted", "all"]
"""Whose outputs are kept: nobody's, those of tasks with a receiver that stays behind, everybody's."""


def replay(
    topology: Topology,
    behind: Iterable[CatchUp],
    ahead: Mapping[Task, tuple[str, int]],
    checkpoint: int,
    side: Mapping[Task, tuple[str, int]],
    buffers: Buffers,
    last: int,
    keep: Keep = "none",
) -> tuple[tuple[Work, ...], Buffers]:
    """The works that bring these copies to epoch ``last``, and the buffers they read.

    ``ahead``: node and position of every live task; ``side``: where earlier replays left a side, on which node;
    ``keep``: whose outputs are kept of what catches up, since somebody downstream may stay behind.
    O(tasks x streams), whatever the number of substreams.
    """
    behind = list(behind)
    count = len(topology.tasks)
    position = np.full(count, checkpoint, np.int64)
    for task, (_, reached) in ahead.items():
        position[topology.index[task]] = reached
    starts = np.full(count, NEVER, np.int64)
    for copy in behind:
        index = topology.index[copy.task]
        starts[index] = min(starts[index], copy.position)
        if copy.lane == "exact":
            position[index] = copy.position
    ends = np.where(starts < NEVER, last, -NEVER)
    low, high = np.full(count, NEVER, np.int64), np.full(count, -NEVER, np.int64)
    works: list[Work] = []
    read: dict[Task, tuple[str, int, int]] = {}
    for operator in reversed(topology.operators):
        streams = topology.inputs_of(operator.name)
        if not streams:
            continue
        span = topology.span[operator.name]
        for index in np.flatnonzero(low[span] < np.minimum(high[span], position[span])) + span.start:
            task = topology.tasks[index]
            until = int(min(high[index], position[index]))
            if task in buffers and buffers[task][2] >= until:
                node, first, _ = buffers[task]
                if until >= first:
                    read[task] = (node, max(first, int(low[index]) + 1), until)
                until = min(until, first - 1)
            if until <= low[index]:
                continue
            origin, start = _side_start(operator.stateful, task, int(low[index]), checkpoint, side)
            node = _side_node(task, side, ahead, origin)
            works.append(Work(task, node, "side", origin, start, start + 1, until, fork=checkpoint))
            starts[index] = min(starts[index], start)
            ends[index] = max(ends[index], until)
        for stream in streams:
            up = topology.span[stream.source]
            low[up] = np.minimum(low[up], upward(topology, stream, starts[span], np.minimum, NEVER))
            high[up] = np.maximum(high[up], upward(topology, stream, ends[span], np.maximum, -NEVER))
    wanting = np.zeros(count, np.bool_)
    if keep != "none":
        there = np.zeros(count, np.bool_)
        for task, (_, reached) in ahead.items():
            there[topology.index[task]] = reached >= last
        for copy in behind:
            there[topology.index[copy.task]] |= copy.lane == "exact"
        wanting = feeding(topology, np.ones(count, np.bool_) if keep == "all" else ~there)
    for copy in behind:
        if copy.position < last:
            kept = copy.lane == "exact" and bool(wanting[topology.index[copy.task]])
            works.append(
                Work(copy.task, copy.node, copy.lane, copy.origin, copy.position, copy.position + 1, last, kept)
            )
    return tuple(sorted(works, key=lambda work: (topology.index[work.task], work.lane))), read


def _side_start(
    stateful: bool, task: Task, low: int, checkpoint: int, side: Mapping[Task, tuple[str, int]]
) -> tuple[Origin, int]:
    if not stateful:
        return "checkpoint", low
    if task in side and checkpoint <= side[task][1] <= low:
        return "local", side[task][1]
    return "checkpoint", checkpoint


def _side_node(
    task: Task, side: Mapping[Task, tuple[str, int]], ahead: Mapping[Task, tuple[str, int]], origin: Origin
) -> str:
    return side[task][0] if origin == "local" else ahead[task][0]


def upward(
    topology: Topology, stream: Stream, values: Ints, combine: Callable[..., Ints], neutral: int
) -> NDArray[np.int64]:
    """For each upstream task of a stream, the values of the downstream tasks it feeds, combined."""
    n1 = topology.operator[stream.source].parallelism
    n2 = len(values)
    if stream.partitioning == "full":
        return np.full(n1, combine.reduce(values, initial=neutral), np.int64)  # type: ignore[attr-defined]
    if stream.partitioning == "one-to-one":
        return values
    if stream.partitioning == "merge":
        return values[np.arange(n1) * n2 // n1]
    result = np.full(n1, neutral, np.int64)
    combine.at(result, np.arange(n2) * n1 // n2, values)  # type: ignore[attr-defined]
    return result


def feeding(topology: Topology, marks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which tasks feed a marked one directly."""
    found = np.zeros(len(marks), np.int64)
    for stream in topology.streams:
        up, down = topology.span[stream.source], topology.span[stream.target]
        found[up] |= upward(topology, stream, marks[down].astype(np.int64), np.maximum, 0)
    return found.astype(np.bool_)


def downward(topology: Topology, stream: Stream, marks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For each downstream task of a stream, whether any upstream task that feeds it is marked."""
    n1, n2 = len(marks), topology.operator[stream.target].parallelism
    if stream.partitioning == "full":
        return np.full(n2, bool(marks.any()))
    if stream.partitioning == "one-to-one":
        return marks
    if stream.partitioning == "split":
        return marks[np.arange(n2) * n1 // n2]
    result = np.zeros(n2, np.bool_)
    np.logical_or.at(result, np.arange(n1) * n2 // n1, marks)
    return result
