"""New routings for an operator that grows or shrinks: tasks are numbered 0.. in the order of their key ranges.

Cuts that exist are kept wherever possible, so that what does not have to move stays: ``kept`` says which tasks do.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from holdfast.elasticity.decisions import CannotScale, Decision, ScaleIn, ScaleOut
from holdfast.errors import Invalid
from holdfast.state import KeyRange, Routing

Hashes = NDArray[np.uint32]
Weights = NDArray[np.float64]
Sample = tuple[Hashes, Weights | None]
"""Ring positions of some keys of an operator, and the load of each if it was measured."""


def split(routing: Routing, task: int, n: int, hashes: Hashes | None = None, weights: Weights | None = None) -> Routing:
    """The next version, with n tasks in place of this one: of even width, or of even load by a sample of keys."""
    at = _place(routing, task)
    parts = routing.ranges[at].split(n, hashes, weights)
    return _numbered(routing, [*routing.ranges[:at], *parts, *routing.ranges[at + 1 :]])


def merge(routing: Routing, tasks: Sequence[int]) -> Routing:
    """The next version, with one task in place of these, which must adjoin: the inverse of ``split``."""
    if len(set(tasks)) < 2:
        raise Invalid(f"merge: two tasks or more are needed, got {', '.join(map(str, tasks)) or 'none'}")
    places = sorted(_place(routing, task) for task in set(tasks))
    merged = routing.ranges[places[0]]
    for at in places[1:]:
        merged = merged.merge(routing.ranges[at])
    return _numbered(routing, [*routing.ranges[: places[0]], merged, *routing.ranges[places[-1] + 1 :]])


def evenly(routing: Routing, to: int, hashes: Hashes | None = None, weights: Weights | None = None) -> Routing:
    """The next version with ``to`` tasks, as even as it can be while every cut is kept (more) or none is new (fewer).

    More: every range is cut in so many equal parts that the largest part of all is as small as can be. Fewer:
    neighbours are grouped for the least sum of squares, O(to x tasks^2). Even by width, or by the load of a sample.
    """
    if to < 1:
        raise Invalid(f"scale: an operator needs at least 1 task, got {to}")
    sizes = _sizes([routing.ranges[_place(routing, task)] for task in routing.owners], hashes, weights)
    if to >= len(sizes):
        counts = _parts(sizes, [r.width for r in routing.ranges], to)
        cut = [r.split(n, hashes, weights) for r, n in zip(routing.ranges, counts, strict=True)]
        return _numbered(routing, [part for parts in cut for part in parts])
    edges = _groups(sizes, to)
    return _numbered(
        routing,
        [KeyRange(routing.ranges[i].lo, routing.ranges[j - 1].hi) for i, j in pairwise(edges)],
    )


def rerouted(routing: Routing, decisions: Iterable[Decision], samples: Mapping[int, Sample] | None = None) -> Routing:
    """The next version after all of these decisions about one operator, so that it is changed once.

    Numbers in the decisions are those of ``routing``; ``samples`` has the keys of tasks to split by measured load.
    """
    out: dict[int, int] = {}
    joined: dict[int, int] = {}
    for decision in decisions:
        match decision:
            case ScaleOut(task, into, _):
                out[_place(routing, task.number)] = into
            case ScaleIn((one, other), _):
                first, second = sorted((_place(routing, one.number), _place(routing, other.number)))
                if second != first + 1:
                    raise Invalid(f"scale in: {one} and {other} do not adjoin, so they cannot be merged")
                joined[first] = second
            case CannotScale():
                continue
    if both := (set(out) & (set(joined) | set(joined.values()))) | (set(joined) & set(joined.values())):
        raise Invalid(f"scale: task {routing.owners[min(both)]} is in two decisions, one at a time is possible")
    ranges: list[KeyRange] = []
    gone = set(joined.values())
    for at, whole in enumerate(routing.ranges):
        if at in gone:
            continue
        hashes, weights = (samples or {}).get(routing.owners[at], (None, None))
        grown = whole.merge(routing.ranges[joined[at]]) if at in joined else whole
        ranges.extend(whole.split(out[at], hashes, weights) if at in out else (grown,))
    return _numbered(routing, ranges)


def kept(before: Routing, after: Routing) -> dict[int, int]:
    """Tasks whose range is the same in both, old number to new: their state need not be touched."""
    places = dict(zip(after.ranges, after.owners, strict=True))
    return {owner: places[r] for r, owner in zip(before.ranges, before.owners, strict=True) if r in places}


def _place(routing: Routing, task: int) -> int:
    """Where the one range of this task stands in the routing."""
    if len(owned := routing.owned(task)) != 1:
        raise Invalid(f"routing: task {task} owns {len(owned)} ranges, merge them before scaling")
    return routing.ranges.index(owned[0])


def _numbered(routing: Routing, ranges: Sequence[KeyRange]) -> Routing:
    return Routing(routing.version + 1, tuple(ranges), tuple(range(len(ranges))))


def _sizes(ranges: Sequence[KeyRange], hashes: Hashes | None, weights: Weights | None) -> list[float]:
    """Load of each range by the sample, or its width where the sample says nothing."""
    if hashes is not None and len(hashes):
        load = np.ones(len(hashes)) if weights is None else weights
        sizes = [float(load[r.contains(hashes)].sum()) for r in ranges]
        if sum(sizes) > 0:
            return sizes
    return [float(r.width) for r in ranges]


def _parts(sizes: Sequence[float], widths: Sequence[int], to: int) -> list[int]:
    """In how many parts to cut each range, ``to`` in all, for the smallest largest part."""
    if to > sum(widths):
        raise Invalid(f"scale: the ring has {sum(widths)} positions, which is the most tasks, got {to}")
    counts = [1] * len(sizes)
    heap = [(-size, at) for at, size in enumerate(sizes) if widths[at] > 1]
    heapq.heapify(heap)
    for _ in range(to - len(sizes)):
        _, at = heapq.heappop(heap)
        counts[at] += 1
        if counts[at] < widths[at]:
            heapq.heappush(heap, (-sizes[at] / counts[at], at))
    return counts


def _groups(sizes: Sequence[float], to: int) -> list[int]:
    """Edges of ``to`` groups of neighbours, none empty, with the least sum of squared sizes."""
    before = np.concatenate([[0.0], np.cumsum(np.array(sizes) / max(sum(sizes), 1e-300))])
    squares = (before[:, None] - before[None, :]) ** 2
    squares[np.triu_indices(len(before))] = np.inf  # a group is not empty and goes forward
    least = squares[:, 0]
    chosen: list[NDArray[np.int64]] = []
    for _ in range(to - 1):
        costs = squares + least[None, :]
        cut = costs.argmin(axis=1)
        least = costs[np.arange(len(cut)), cut]
        chosen.append(cut)
    edges = [len(sizes)]
    for cut in reversed(chosen):
        edges.append(int(cut[edges[-1]]))
    return [0, *edges[::-1]]
