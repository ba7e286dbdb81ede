"""A run: rows sorted by the hash of their key, each key once, some of them tombstones. What state tables are made of.

Immutable and shared between versions. Because the ring position is the top of the hash, a key range is a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import HoldfastError, Invalid
from holdfast.state.keys import Hashes, equal_keys, hash64, one_word
from holdfast.state.ranges import RING, KeyRange

Positions = NDArray[np.int64]
_PROBES = 12
_PIECE = 1 << 16
"""Hashes that are put into buckets at once."""
_SORTED = 4096
"""So many hashes or more are sorted before they are searched for."""
MIN_INDEXED = 512
AT_ONCE = 1 << 30
"""Runs of more bytes than this are overlaid one after the other."""


def raise_first(calls: Iterable[Callable[[], None]]) -> None:
    """Call all of these, and raise what the first raised that did."""
    raised: list[HoldfastError] = []
    for call in calls:
        try:
            call()
        except HoldfastError as error:
            raised.append(error)
    if raised:
        raise raised[0]


class Keys:
    """A batch of keys with their hashes; ``exact`` when equal hashes prove equal keys (one word, no nulls)."""

    __slots__ = ("columns", "exact", "hashes")

    def __init__(self, columns: Sequence[pa.Array], rows: int, hashes: Hashes | None = None) -> None:
        self.columns = columns
        self.hashes = hash64(columns, rows) if hashes is None else hashes
        self.exact = len(columns) == 1 and one_word(columns[0].type) and columns[0].null_count == 0

    def same(self, rows: Positions, other: Keys, other_rows: Positions) -> NDArray[np.bool_]:
        """Whether these rows and those of ``other``, pair by pair, have the same key, given that their hashes agree."""
        equal = np.ones(len(rows), np.bool_)
        if self.exact and other.exact:
            return equal
        left, right = pa.array(rows), pa.array(other_rows)
        for one, two in zip(self.columns, other.columns, strict=True):
            equal &= equal_keys(one.take(left), two.take(right))
        return equal

    def at(self, rows: Positions) -> Keys:
        """The keys of these rows alone."""
        index = pa.array(rows)
        return Keys([column.take(index) for column in self.columns], len(rows), self.hashes[rows])


class SortedRun:
    """Rows sorted by hash. ``alive`` is None when no row is a tombstone.

    Two runs share one array of hashes only if they have the same keys, row by row.
    """

    __slots__ = ("_asked", "_starts", "alive", "indexes", "keys", "rows", "spilled")

    def __init__(
        self,
        rows: pa.RecordBatch,
        hashes: Hashes,
        keys: int,
        alive: NDArray[np.bool_] | None = None,
        spilled: bool = False,
    ) -> None:
        self.rows = rows
        self.keys = Keys(rows.columns[:keys], len(rows), hashes)
        self.alive = alive
        self.spilled = spilled
        self.indexes: dict[str, Any] = {}
        """Orders of these rows by something else: ``holdfast.state.index``."""
        self._asked = 0
        self._starts: tuple[np.uint64, np.uint64, NDArray[np.integer[Any]]] | None = None

    @classmethod
    def sorted(
        cls, rows: pa.RecordBatch, keys: int, alive: NDArray[np.bool_] | None = None, like: SortedRun | None = None
    ) -> SortedRun:
        """A run of these rows in any order; of several rows with one key the last one counts.

        ``like`` is a run that may hold most of the same keys: looking keys up in it is cheaper than sorting them.
        """
        batch = Keys(rows.columns[:keys], len(rows))
        if (batch.hashes[1:] > batch.hashes[:-1]).all():
            alive = None if alive is not None and alive.all() else alive
            return cls(rows, batch.hashes, keys, alive)
        if like is not None and alive is None and (known := like.order_of(batch)) is not None:
            order, places = known
            same = len(order) == len(like)
            run = cls(rows.take(pa.array(order)), like.hashes if same else like.hashes[places], keys)
            run._starts = like._starts if same else None
            return run
        order = np.argsort(batch.hashes)
        hashes = batch.hashes[order]
        twins = np.flatnonzero(hashes[1:] == hashes[:-1])
        if len(twins):
            order = np.argsort(batch.hashes, kind="stable")
            order = order[_last_of_each(batch, order, twins)]
            hashes = batch.hashes[order]
        if alive is not None:
            alive = alive[order]
            alive = None if alive.all() else alive
        return cls(rows.take(pa.array(order)), hashes, keys, alive)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def hashes(self) -> Hashes:
        return self.keys.hashes

    @property
    def key_count(self) -> int:
        return len(self.keys.columns)

    @property
    def afar(self) -> bool:
        """Whether most of it is elsewhere and comes as it is asked for: pages.py."""
        return False

    @property
    def buries(self) -> bool:
        """Whether some rows may be tombstones."""
        return self.alive is not None

    def loaded(self) -> SortedRun:
        """The same run, all of it at hand."""
        return self

    def tell(self) -> None:
        """Raise what came in between since it was last told: nothing, where all is at hand."""

    def lives(self, places: Positions) -> NDArray[np.bool_]:
        """Whether the rows at these places are no tombstones."""
        return np.ones(len(places), np.bool_) if self.alive is None else self.alive[places]

    def values(self, places: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
        """The value columns at these places, null where a place is null. ``schema``: theirs."""
        return pa.RecordBatch.from_arrays(self.rows.columns[self.key_count :], schema=schema).take(places)

    @property
    def nbytes(self) -> int:
        marks = 0 if self.alive is None else self.alive.nbytes
        return int(self.rows.nbytes + self.hashes.nbytes + marks)

    def find(self, keys: Keys) -> Positions:
        """The row of each key, tombstones included, or -1. Expected constant time a key once indexed."""
        found = self._first_at_least(keys.hashes)
        if not len(self):
            return np.full(len(found), -1, np.int64)
        inside = np.minimum(found, len(self) - 1)
        hit = self.hashes[inside] == keys.hashes
        if keys.exact and self.keys.exact:
            return np.where(hit, inside, -1)
        answer = np.full(len(found), -1, np.int64)
        waiting = np.flatnonzero(hit)
        at = inside[waiting]
        # Different keys with one hash lie side by side: step along until the key itself agrees.
        while len(waiting):
            same = self.keys.same(at, keys, waiting)
            answer[waiting[same]] = at[same]
            waiting, at = waiting[~same], at[~same] + 1
            more = at < len(self)
            more[more] = self.hashes[at[more]] == keys.hashes[waiting[more]]
            waiting, at = waiting[more], at[more]
        return answer

    def order_of(self, keys: Keys) -> tuple[Positions, Positions] | None:
        """The order that sorts ``keys`` and their rows here, if each of them is here once and there are enough."""
        count = len(keys.hashes)
        if self._starts is None or not len(self) // 4 <= count <= len(self):
            return None
        places = self.find(keys)
        if (places < 0).any():
            return None
        order = np.full(len(self), -1, np.int64)
        order[places] = np.arange(count)
        if count < len(self):
            places = np.flatnonzero(order >= 0)
            order = order[places]
        return (order, places) if len(order) == count and bool((order >= 0).all()) else None

    def _first_at_least(self, hashes: Hashes) -> Positions:
        self._asked += len(hashes)
        if self._starts is None and len(self) >= MIN_INDEXED and self._asked * 4 >= len(self):
            self._starts = _bucket_starts(self.hashes)
        if self._starts is None or len(hashes) < MIN_INDEXED // 8:
            return _places(self.hashes, hashes)
        low, shift, starts = self._starts
        at: Positions
        mine = self.hashes
        # Hashes are spread evenly, so a bucket of the range they cover holds about one of them.
        bucket = (np.maximum(hashes, low) - low) >> shift
        at = starts[np.minimum(bucket, np.uint64(len(starts) - 1)).view(np.int64)].astype(np.int64)
        behind = np.flatnonzero(mine[np.minimum(at, len(mine) - 1)] < hashes)
        for _ in range(_PROBES):
            if not len(behind):
                return at
            at[behind] += 1
            here = at[behind]
            behind = behind[(here < len(mine)) & (mine[np.minimum(here, len(mine) - 1)] < hashes[behind])]
        at[behind] = np.searchsorted(mine, hashes[behind])
        return at

    def select(self, chosen: NDArray[np.bool_] | Positions) -> SortedRun:
        """The chosen rows (a mask, or increasing positions)."""
        places = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        alive = None if self.alive is None else self.alive[places]
        if alive is not None and alive.all():
            alive = None
        return SortedRun(self.rows.take(pa.array(places)), self.hashes[places], self.key_count, alive)

    def without_tombstones(self) -> SortedRun:
        return self if self.alive is None else self.select(self.alive)

    def slice(self, part: KeyRange) -> SortedRun:
        """The rows within a key range, without a copy."""
        start = int(np.searchsorted(self.hashes, np.uint64(part.lo << 32)))
        stop = len(self) if part.hi == RING else int(np.searchsorted(self.hashes, np.uint64(part.hi << 32)))
        if start == 0 and stop == len(self):
            return self
        alive = None if self.alive is None else self.alive[start:stop]
        if alive is not None and alive.all():
            alive = None
        rows = self.rows.slice(start, stop - start)
        return SortedRun(rows, self.hashes[start:stop], self.key_count, alive, self.spilled)

    def evolved(self, schema: pa.Schema) -> SortedRun:
        """The same rows with the columns of ``schema``: null where this run has none."""
        if self.rows.schema.equals(schema):
            return self
        have = self.rows.schema.names
        columns = [
            self.rows.column(field.name) if field.name in have else pa.nulls(len(self), field.type) for field in schema
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        return SortedRun(rows, self.hashes, self.key_count, self.alive, self.spilled)


def overlay(older: SortedRun, newer: SortedRun) -> SortedRun:
    """Both runs as one, the newer rows winning; tombstones stay. Linear in the rows of both."""
    if not len(older):
        return newer
    if not len(newer):
        return older
    if _same_key_set(older, newer):
        return newer
    replaced = older.find(newer.keys)
    return interleave([older, newer], replaced[replaced >= 0])


def stacked(runs: Sequence[SortedRun]) -> SortedRun:
    """Runs of one schema, oldest first, as one; tombstones stay. Newest first: they are short, and the rest is long."""
    return reduce(lambda newer, older: overlay(older, newer), reversed(runs))


def overlay_all(runs: Sequence[SortedRun]) -> SortedRun:
    """Several runs of one schema as one, later ones winning; tombstones stay. One sort for all, if memory allows."""
    parts: list[SortedRun] = []
    for run in reversed(runs):
        # One whose keys are those of the next newer run is hidden by it.
        if len(run) and not (parts and _same_key_set(run, parts[-1])):
            parts.append(run)
    parts.reverse()
    if len(parts) < 3 or sum(run.nbytes for run in parts) > AT_ONCE:
        return stacked(parts or runs)
    both = interleave(parts)
    twins = np.flatnonzero(both.hashes[1:] == both.hashes[:-1])
    if not len(twins):
        return both
    return both.select(_last_of_each(both.keys, np.arange(len(both)), twins))


def interleave(runs: Iterable[SortedRun], without: Positions | None = None) -> SortedRun:
    """All rows of these runs by hash, those of earlier runs first: one run if they have no key in common.

    ``without``: places of rows of the first run that are left out. Linear when their hashes are nearly in order.
    """
    parts = [run for run in runs if len(run)]
    if len(parts) == 1:
        return parts[0]
    hashes = np.concatenate([run.hashes for run in parts])
    try:
        rows = pa.concat_batches([run.rows for run in parts])
    except pa.ArrowInvalid as error:
        raise Invalid(f"state: {error}; use large_string or large_binary for columns of over 2 GiB a task") from error
    order = np.argsort(hashes, kind="stable")
    if without is not None and len(without):
        stays = np.ones(len(hashes), np.bool_)
        stays[without] = False
        order = order[stays[order]]
    alive = None
    if any(run.alive is not None for run in parts):
        alive = np.concatenate([np.ones(len(run), np.bool_) if run.alive is None else run.alive for run in parts])
        alive = alive[order]
        alive = None if alive.all() else alive
    return SortedRun(rows.take(pa.array(order)), hashes[order], parts[0].key_count, alive)


def canonical(run: SortedRun) -> SortedRun:
    """The run in the one order that its rows alone decide: by hash, and by key where different keys share a hash."""
    twins = np.flatnonzero(run.hashes[1:] == run.hashes[:-1])
    if not len(twins):
        return run
    order = np.arange(len(run))
    for start, stop in _groups(twins):
        names = [repr([column[row].as_py() for column in run.keys.columns]) for row in range(start, stop)]
        order[start:stop] = start + np.array(sorted(range(stop - start), key=names.__getitem__))
    alive = None if run.alive is None else run.alive[order]
    return SortedRun(run.rows.take(pa.array(order)), run.hashes, run.key_count, alive)


def _same_key_set(older: SortedRun, newer: SortedRun) -> bool:
    """True only if both runs hold the same keys, row by row (the case of an epoch that changes every key)."""
    if len(older) != len(newer):
        return False
    if older.hashes is newer.hashes:
        return True
    if not np.array_equal(older.hashes, newer.hashes):
        return False
    if older.keys.exact and newer.keys.exact:
        return True
    every = np.arange(len(older))
    return bool(older.keys.same(every, newer.keys, every).all())


def _bucket_starts(hashes: Hashes) -> tuple[np.uint64, np.uint64, NDArray[np.integer[Any]]]:
    """For about as many equal buckets of the covered range as there are hashes: where each bucket begins."""
    low, span = hashes[0], int(hashes[-1] - hashes[0])
    shift = np.uint64(max(span.bit_length() - len(hashes).bit_length(), 0))
    # A run may be most of memory: what is needed meanwhile is a piece of it at a time.
    starts: NDArray[Any] = np.zeros((span >> int(shift)) + 2, np.uint32 if len(hashes) < 1 << 32 else np.int64)
    for begin in range(0, len(hashes), _PIECE):
        buckets = ((hashes[begin : begin + _PIECE] - low) >> shift).view(np.int64)
        first, last = int(buckets[0]), int(buckets[-1])
        starts[first + 1 : last + 2] += np.bincount(buckets - first).astype(starts.dtype)
    np.cumsum(starts, out=starts)
    return low, shift, starts[:-1]


def _places(hashes: Hashes, wanted: Hashes) -> Positions:
    """Where each of these is, or would be. Many are asked for in order: neighbours lie in the same cache lines."""
    if len(wanted) < _SORTED:
        places: Positions = np.searchsorted(hashes, wanted)
        return places
    order = np.argsort(wanted)
    places = np.empty(len(wanted), np.int64)
    places[order] = np.searchsorted(hashes, wanted[order])
    return places


def _groups(twins: Positions) -> Iterable[tuple[int, int]]:
    """Row intervals of equal hashes, from the positions whose next row has the same hash."""
    breaks = np.flatnonzero(np.diff(twins) > 1)
    firsts = twins[np.concatenate([[0], breaks + 1])]
    lasts = twins[np.concatenate([breaks, [len(twins) - 1]])]
    return zip(firsts.tolist(), (lasts + 2).tolist(), strict=True)


def _last_of_each(batch: Keys, order: Positions, twins: Positions) -> NDArray[np.bool_]:
    """A mask over ``order`` (stable by hash) that keeps the last row of each key."""
    keep = np.ones(len(order), np.bool_)
    same = batch.same(order[twins], batch, order[twins + 1])
    keep[twins[same]] = False
    if same.all():
        return keep
    odd = twins[~same]
    for start, stop in _groups(twins):
        # Only where different keys share a hash can two rows of one key lie apart.
        if np.searchsorted(odd, start) == np.searchsorted(odd, stop - 1):
            continue
        group = order[start:stop]
        for i in range(len(group) - 1):
            later = group[i + 1 :]
            keep[start + i] = not batch.same(np.full(len(later), group[i]), batch, later).any()
    return keep
