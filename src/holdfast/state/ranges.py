"""The key space: half-open intervals of the 32-bit ring, and routing tables that say which task owns which.

Pure values. A task owns one interval; a routing table covers the whole ring, without gaps or overlaps (paper 002, 3.1).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import Invalid

RING = 2**32


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """The half-open interval [lo, hi) of the ring."""

    lo: int
    hi: int

    def __post_init__(self) -> None:
        if not 0 <= self.lo < self.hi <= RING:
            raise Invalid(f"key range [{self.lo}, {self.hi}): needs 0 <= lo < hi <= {RING}")

    def __str__(self) -> str:
        return f"[{self.lo:#010x}, {self.hi:#010x})"

    @property
    def width(self) -> int:
        return self.hi - self.lo

    @classmethod
    def whole(cls) -> KeyRange:
        return cls(0, RING)

    @classmethod
    def even(cls, n: int) -> tuple[KeyRange, ...]:
        """The ring in n adjoining ranges whose widths differ by at most one."""
        return cls.whole().split(n)

    def contains(self, hashes: NDArray[np.uint32]) -> NDArray[np.bool_]:
        wide = hashes.astype(np.uint64)
        return (wide >= np.uint64(self.lo)) & (wide < np.uint64(self.hi))

    def split(
        self, n: int, hashes: NDArray[np.uint32] | None = None, weights: NDArray[np.float64] | None = None
    ) -> tuple[KeyRange, ...]:
        """n adjoining ranges: of even width, or of even load when ``hashes`` (a sample of keys) are given.

        ``weights`` is the load of each hash, one each by default. A key is never cut in two, so one hot key can
        still make its range the heaviest.
        """
        if not 1 <= n <= self.width:
            raise Invalid(f"key range {self}: can be split into 1 to {self.width} parts, got {n}")
        mine = None if hashes is None else self.contains(hashes)
        if hashes is None or mine is None or not mine.any():
            cuts = [self.lo + self.width * i // n for i in range(1, n)]
        else:
            load = np.ones(len(hashes)) if weights is None else np.asarray(weights, np.float64)
            if len(load) != len(hashes) or (load < 0).any():
                raise Invalid(f"weights: one non-negative number for each of {len(hashes)} hashes, got {len(load)}")
            places, inverse = np.unique(hashes[mine], return_inverse=True)
            before = np.cumsum(np.bincount(inverse, load[mine])).astype(np.float64)
            cuts = _balanced_cuts(self, places, before, n)
            for i in range(n - 1):
                cuts[i] = max(cuts[i], (cuts[i - 1] if i else self.lo) + 1)
            for i in reversed(range(n - 1)):
                cuts[i] = min(cuts[i], (cuts[i + 1] if i + 1 < n - 1 else self.hi) - 1)
        edges = [self.lo, *cuts, self.hi]
        return tuple(KeyRange(lo, hi) for lo, hi in pairwise(edges))

    def adjoins(self, other: KeyRange) -> bool:
        return self.hi == other.lo or other.hi == self.lo

    def merge(self, other: KeyRange) -> KeyRange:
        if not self.adjoins(other):
            raise Invalid(f"key ranges {self} and {other} do not adjoin, so they cannot be merged")
        return KeyRange(min(self.lo, other.lo), max(self.hi, other.hi))


def _balanced_cuts(whole: KeyRange, places: NDArray[np.uint32], before: NDArray[np.float64], n: int) -> list[int]:
    """For each i in 1..n-1 a cut that leaves about i/n of the load below it, in the middle of the gap between keys."""
    goals = before[-1] * np.arange(1, n) / n
    at = np.minimum(np.searchsorted(before, goals), len(before) - 1)
    below = np.where(at > 0, before[at - 1], 0.0)
    gaps = at + (goals - below > before[at] - goals)
    cuts: list[int] = []
    for gap, count in zip(*np.unique(gaps, return_counts=True), strict=True):
        low = int(places[gap - 1]) + 1 if gap else whole.lo
        high = int(places[gap]) if gap < len(places) else whole.hi
        cuts.extend(low + (high - low) * (j + 1) // (int(count) + 1) for j in range(count))
    return cuts


@dataclass(frozen=True, slots=True)
class Routing:
    """Which task (by number) owns which interval of the ring. Every change gives the next version."""

    version: int
    ranges: tuple[KeyRange, ...]
    owners: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.ranges) != len(self.owners) or not self.ranges:
            raise Invalid(f"routing: one owner a range, got {len(self.ranges)} ranges and {len(self.owners)} owners")
        edges = [0, *(r.hi for r in self.ranges)]
        for edge, part in zip(edges, self.ranges, strict=False):
            if part.lo != edge:
                raise Invalid(f"routing: ranges must cover the ring in order; {part} should begin at {edge:#010x}")
        if edges[-1] != RING:
            raise Invalid(f"routing: ranges must cover the ring; nobody owns what follows {edges[-1]:#010x}")

    @classmethod
    def even(cls, n: int) -> Routing:
        """Version 0: n tasks with equal shares, task i owning the i-th."""
        return cls(0, KeyRange.even(n), tuple(range(n)))

    @staticmethod
    @lru_cache(maxsize=256)
    def weighted(weights: tuple[float, ...]) -> Routing:
        """Shares of the ring in proportion to the weights, one for each task; a task without weight owns nothing."""
        if len(set(weights)) == 1:
            return Routing.even(len(weights))
        ends = np.round(np.cumsum(weights) / sum(weights) * RING).astype(np.int64).tolist()
        edges = enumerate(pairwise([0, *ends]))
        owned = [(KeyRange(lo, hi), owner) for owner, (lo, hi) in edges if hi > lo]
        return Routing(1, tuple(part for part, _ in owned), tuple(owner for _, owner in owned))

    def route(self, hashes: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The owner of each ring position."""
        starts = np.array([r.lo for r in self.ranges], np.uint32)
        which = np.searchsorted(starts, hashes, side="right") - 1
        return np.array(self.owners, np.int64)[which]

    def owned(self, owner: int) -> tuple[KeyRange, ...]:
        mine = tuple(r for r, o in zip(self.ranges, self.owners, strict=True) if o == owner)
        if not mine:
            raise Invalid(f"routing version {self.version}: task {owner} owns nothing, {_listed(self.owners)} do")
        return mine

    def overlapping(self, part: KeyRange) -> tuple[tuple[int, KeyRange], ...]:
        """Who owns some of these keys, each with its range, in the order of the ring. O(log tasks)."""
        first = bisect_right(self.ranges, part.lo, key=lambda each: each.lo) - 1
        last = bisect_left(self.ranges, part.hi, key=lambda each: each.lo)
        return tuple(zip(self.owners[first:last], self.ranges[first:last], strict=True))

    def split(self, owner: int, into: Sequence[int], hashes: NDArray[np.uint32] | None = None) -> Routing:
        """The next version, in which ``into`` share the range of ``owner``: evenly, or by the measured ``hashes``."""
        parts = self.owned(owner)
        if len(parts) != 1:
            raise Invalid(f"routing: task {owner} owns {len(parts)} ranges, merge them before splitting")
        if taken := [n for n in into if n != owner and n in self.owners]:
            raise Invalid(f"routing: task {taken[0]} already owns a range, so it cannot take part of task {owner}'s")
        if len(set(into)) != len(into):
            raise Invalid(f"routing: the new owners must differ, got {_listed(into)}")
        at = self.ranges.index(parts[0])
        ranges = parts[0].split(len(into), hashes)
        return Routing(
            self.version + 1,
            (*self.ranges[:at], *ranges, *self.ranges[at + 1 :]),
            (*self.owners[:at], *into, *self.owners[at + 1 :]),
        )

    def merge(self, owners: Sequence[int], owner: int) -> Routing:
        """The next version, in which ``owner`` has the adjoining ranges of all of ``owners``."""
        parts = sorted(part for one in owners for part in self.owned(one))
        merged = parts[0]
        for part in parts[1:]:
            merged = merged.merge(part)
        if owner not in owners and owner in self.owners:
            raise Invalid(f"routing: task {owner} already owns another range")
        at = self.ranges.index(parts[0])
        keep = at + len(parts)
        return Routing(
            self.version + 1,
            (*self.ranges[:at], merged, *self.ranges[keep:]),
            (*self.owners[:at], owner, *self.owners[keep:]),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "ranges": [[r.lo, r.hi, o] for r, o in zip(self.ranges, self.owners, strict=True)],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Routing:
        try:
            rows = [(int(lo), int(hi), int(owner)) for lo, hi, owner in content["ranges"]]
            version = int(content["version"])
        except (KeyError, TypeError, ValueError) as error:
            raise Invalid(f"routing: expected version and ranges of [lo, hi, owner], got {content!r:.200}") from error
        return cls(version, tuple(KeyRange(lo, hi) for lo, hi, _ in rows), tuple(owner for *_, owner in rows))


def _listed(owners: Sequence[int]) -> str:
    return ", ".join(map(str, owners)) or "none"
