"""State tables: immutable versions keyed by one or more columns, made of runs that versions share.

An epoch's change becomes a small run on top; runs of like size are folded together, so the cost of a change follows
the change (amortised: times the logarithm of the state), and an older version stays valid for as long as it is held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.state import index
from holdfast.state.change import Change
from holdfast.state.ipc import spill
from holdfast.state.ranges import KeyRange
from holdfast.state.run import Keys, SortedRun, canonical, interleave, overlay, raise_first, stacked
from holdfast.state.schema import StateSchema

FOLD_RATIO = 2
"""A run is folded into the next older one once that is at most this many times as long."""
FOLD_ROWS = 2048
"""Runs that together have at most this many rows are folded at once: it costs less than one more run to search."""
FOLD_BYTES = 1 << 30
"""Runs are not folded past this size: the offsets of Arrow's strings end at 2 GiB."""

UNCOUNTED = -1


class Found(NamedTuple):
    """Value columns for each key asked for, and whether the key is there (a stored null is not an absent key)."""

    values: pa.Table
    found: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Spill:
    """Keep at most ``limit`` bytes of a table's rows and hashes in memory; others go to files under ``directory``.

    Orders by time and rank stay in memory, 16 bytes a row each, and are not counted.
    """

    directory: Path
    limit: int

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise Invalid(f"spill: the limit must be 0 bytes or more, got {self.limit}")


@dataclass(frozen=True, slots=True, eq=False)
class StateTable:
    """One version of a table. ``runs`` go from the oldest and longest to the newest.

    ``rows``: how many there are; ``UNCOUNTED`` where to count them a run would have to come from afar.
    """

    schema: StateSchema
    epoch: int
    runs: tuple[SortedRun, ...]
    rows: int
    spilling: Spill | None = None
    passed: index.Passed = field(default_factory=dict)

    @classmethod
    def empty(cls, schema: StateSchema, epoch: int = 0, spilling: Spill | None = None) -> StateTable:
        return cls(schema, epoch, (), 0, spilling)

    @classmethod
    def from_table(cls, schema: StateSchema, table: pa.Table, epoch: int = 0) -> StateTable:
        """A version that holds these rows; of several with one key the last one counts."""
        return cls.empty(schema, epoch).apply(Change(table, schema.key.empty_table()), epoch)

    def __len__(self) -> int:
        return len(self.flat()) if self.rows == UNCOUNTED else self.rows

    @property
    def afar(self) -> bool:
        """Whether some of it is elsewhere, and comes as it is asked for."""
        return any(run.afar for run in self.runs)

    def tell(self) -> None:
        """Raise what came in between as something of it was asked for, though nobody may have said so."""
        raise_first(run.tell for run in self.runs)

    def __eq__(self, other: object) -> bool:
        """Same schema, epoch and rows, whatever the runs."""
        if not isinstance(other, StateTable):
            return NotImplemented
        same = self.schema == other.schema and self.epoch == other.epoch and len(self) == len(other)
        return same and self.to_table().equals(other.to_table())

    def __hash__(self) -> int:
        return hash((self.epoch, len(self)))

    @property
    def nbytes(self) -> int:
        """Bytes of rows and hashes, in memory and spilled, of all runs (shared ones counted in each version).

        Orders by time and rank are not in it: what is stored depends on it, and so must follow from the rows alone.
        """
        return sum(run.nbytes for run in self.runs)

    @property
    def spilled_bytes(self) -> int:
        return sum(run.nbytes for run in self.runs if run.spilled)

    def find(self, keys: pa.Table | pa.RecordBatch) -> Found:
        """Values for a batch of keys, in its order. ``keys`` may have other columns too; they are ignored."""
        asked = self._keys(keys)
        where = self._where(asked)
        return Found(self._gather(where, len(asked.hashes)), where[0] >= 0)

    def lookup(self, keys: pa.Table | pa.RecordBatch) -> pa.Table:
        """Value columns for a batch of keys, in its order; null where the key is absent (``find`` tells which)."""
        return self.find(keys).values

    def contains(self, keys: pa.Table | pa.RecordBatch) -> NDArray[np.bool_]:
        return self._where(self._keys(keys))[0] >= 0

    def join(self, batch: pa.Table, how: str = "left") -> pa.Table:
        """``batch`` with the value columns beside it: ``left`` keeps every row, ``inner`` those with a key here."""
        if how not in ("left", "inner"):
            raise Invalid(f"join: how must be left or inner, got {how!r}")
        if twice := [name for name in self.schema.value.names if name in batch.schema.names]:
            raise Invalid(f"join: column {twice[0]!r} is in the batch and in the state; rename one of them")
        values, found = self.find(batch)
        for name in values.schema.names:
            batch = batch.append_column(name, values.column(name))
        return batch if how == "left" else batch.filter(pa.array(found))

    def apply(self, change: Change, epoch: int) -> StateTable:
        """The next version. Deletes come first, then upserts; of several upserts of one key the last one counts."""
        if epoch < self.epoch:
            raise Invalid(f"state: a change of epoch {epoch} cannot follow version {self.epoch}")
        return self.apply_run(change.run(self.schema, self.runs[0] if self.runs else None), epoch)

    def apply_run(self, new: SortedRun, epoch: int) -> StateTable:
        """``apply`` for a change that is already a run of this table's schema."""
        if not len(new):
            return self.at(epoch)
        runs = _folded([*self.runs, new])
        if len(runs) <= 1:  # each key once, and no tombstones
            rows = sum(map(len, runs))
        elif self.rows == UNCOUNTED or self.afar or new.afar:
            rows = UNCOUNTED
        elif len(self.runs) == 1 and new.alive is None and new.hashes is self.runs[0].hashes:
            rows = len(new)
        else:
            there = self._where(new.keys)[0] >= 0
            alive = np.ones(len(new), np.bool_) if new.alive is None else new.alive
            rows = self.rows + int((alive & ~there).sum()) - int((~alive & there).sum())
        runs = self._spilled(runs)
        passed = {key: dict(each) for key, each in self.passed.items() if each and key[0] in runs}
        return StateTable(self.schema, epoch, runs, rows, self.spilling, passed)

    def at(self, epoch: int) -> StateTable:
        """The version of a later epoch that changed nothing."""
        if epoch < self.epoch:
            raise Invalid(f"state: version {epoch} cannot follow version {self.epoch}")
        return StateTable(self.schema, epoch, self.runs, self.rows, self.spilling, self.passed)

    def upto(self, by: index.ByTime, time: int) -> pa.Table:
        """The rows whose time is at or before this one, in the order of ``to_table``. It costs what it answers."""
        return index.upto(self, by, time)

    def best(self, by: index.ByRank, groups: pa.Table, count: int | None) -> pa.Table:
        """Few rows, among them the first ``count`` of each of these groups: see ``index.best``."""
        return index.best(self, by, groups, count)

    def to_table(self) -> pa.Table:
        """All rows, in the order of their hashes: the same for the same rows, whatever their history."""
        return pa.Table.from_batches([canonical(self.flat()).rows], self.schema.arrow)

    def flat(self) -> SortedRun:
        """All live rows as one run."""
        if not self.runs:
            return SortedRun(_no_rows(self.schema), np.zeros(0, np.uint64), len(self.schema.key))
        return stacked([run.loaded() for run in self.runs]).without_tombstones()

    def scan(self, batch_rows: int = 65_536) -> Iterator[pa.RecordBatch]:
        """All rows in the order of ``to_table``, about ``batch_rows`` at a time; memory follows the batch."""
        if batch_rows < 1:
            raise Invalid(f"scan: batch_rows must be at least 1, got {batch_rows}")
        if not len(self):
            return
        total = sum(len(run) for run in self.runs)
        places = np.concatenate([run.hashes[:: max(1, batch_rows // 8)] for run in self.runs])
        parts = min(-(-total // batch_rows), 2**20)
        for part in KeyRange.whole().split(parts, (places >> np.uint64(32)).astype(np.uint32)):
            rows = self.slice(part).to_table()
            if len(rows):
                yield from rows.to_batches()

    def slice(self, part: KeyRange) -> StateTable:
        """The rows whose key lies in a range, without copying them."""
        runs = tuple(cut for run in self.runs if len(cut := run.slice(part)))
        if len(runs) == 1:
            rows = len(runs[0]) if runs[0].alive is None else int(runs[0].alive.sum())
            return StateTable(self.schema, self.epoch, runs, rows, self.spilling)
        whole = StateTable(self.schema, self.epoch, runs, UNCOUNTED, self.spilling)
        return StateTable(self.schema, self.epoch, runs, len(whole.flat()), self.spilling)

    def partition(self, ranges: Sequence[KeyRange]) -> list[StateTable]:
        """One table a range; Invalid if a key would be lost or doubled."""
        parts = [self.slice(part) for part in ranges]
        if (total := sum(map(len, parts))) != len(self):
            raise Invalid(f"partition: the ranges hold {total} of {len(self)} keys; each must be in just one range")
        return parts

    def evolve(self, schema: StateSchema) -> StateTable:
        """The same rows under a schema with more nullable columns."""
        if schema == self.schema:
            return self
        self.schema.evolve(schema)
        runs = tuple(run.evolved(schema.arrow) for run in self.runs)
        return StateTable(schema, self.epoch, runs, self.rows, self.spilling)

    def with_spill(self, spilling: Spill | None) -> StateTable:
        """The same version under a memory limit, for itself and those made from it."""
        bare = StateTable(self.schema, self.epoch, self.runs, self.rows, spilling)
        return StateTable(self.schema, self.epoch, bare._spilled(self.runs), self.rows, spilling)

    def _keys(self, keys: pa.Table | pa.RecordBatch) -> Keys:
        names = self.schema.key.names
        batch = self.schema.conform(_only(keys, names), names, "keys")
        return Keys(batch.columns, len(batch))

    def _where(self, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each key the run that holds its live row and the row there; -1 for none."""
        count = len(keys.hashes)
        which, place = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        left: NDArray[np.int64] | None = None
        for number in range(len(self.runs) - 1, -1, -1):
            run = self.runs[number]
            some = keys if left is None else keys.at(left)
            at = run.find(some)
            hit = at >= 0
            if left is None and not run.buries and hit.all():
                return np.full(count, number, np.int64), at
            rows, found = np.flatnonzero(hit) if left is None else left[hit], at[hit]
            if run.buries:
                lives = run.lives(found)
                rows, found = rows[lives], found[lives]
            which[rows] = number
            place[rows] = found
            left = np.flatnonzero(~hit) if left is None else left[~hit]
            if not len(left):
                break
        return which, place

    def _gather(self, where: tuple[NDArray[np.int64], NDArray[np.int64]], count: int) -> pa.Table:
        which, place = where
        schema = self.schema.value
        if not len(schema):
            return schema.empty_table()
        absent = place < 0
        missing = bool(absent.any())
        some = not (missing and bool(absent.all()))
        hits = [0] if some and len(self.runs) == 1 else np.unique(which[~absent] if missing else which).tolist()
        if len(hits) == 1:
            index = pa.array(place, mask=absent) if missing else pa.array(place)
            values = self.runs[hits[0]].values(index, schema)
        elif not hits:
            return pa.table([pa.nulls(count, f.type) for f in schema], schema=schema)
        else:
            rows = [np.flatnonzero(which == number) for number in hits]
            parts = [
                self.runs[number].values(pa.array(place[mine]), schema) for number, mine in zip(hits, rows, strict=True)
            ]
            order = np.full(count, -1, np.int64)
            order[np.concatenate(rows)] = np.arange(sum(map(len, rows)))
            values = pa.concat_batches(parts).take(pa.array(order, mask=order < 0))
        return pa.Table.from_batches([values], schema)

    def _spilled(self, runs: tuple[SortedRun, ...]) -> tuple[SortedRun, ...]:
        if self.spilling is None:
            return runs
        held = sum(run.nbytes for run in runs if not run.spilled)
        kept = []
        for run in runs:
            if held > self.spilling.limit and not run.spilled:
                held -= run.nbytes
                run = spill(self.schema, run, self.spilling.directory)  # noqa: PLW2901
            kept.append(run)
        return tuple(kept)


def merge(tables: Sequence[StateTable]) -> StateTable:
    """The inverse of ``partition``: tables of one schema and epoch without a key in common, as one."""
    if not tables:
        raise Invalid("merge: at least one table is needed")
    first = tables[0]
    for table in tables[1:]:
        if table.schema != first.schema:
            different = first.schema.differences(table.schema) or table.schema.differences(first.schema)
            raise Invalid(f"merge: the tables have different schemas: {'; '.join(different) or 'columns were added'}")
        if table.epoch != first.epoch:
            raise Invalid(f"merge: the tables are of different epochs, {first.epoch} and {table.epoch}")
    flat = [table.flat() for table in tables if len(table)]
    if not flat:
        return StateTable(first.schema, first.epoch, (), 0, first.spilling)
    for i, run in enumerate(flat):
        for other in flat[i + 1 :]:
            if _overlap(run, other) and (run.find(other.keys) >= 0).any():
                raise Invalid("merge: the same key is in more than one table")
    flat.sort(key=lambda run: int(run.hashes[0]))
    one = interleave(flat)
    bare = StateTable(first.schema, first.epoch, (one,), len(one), first.spilling)
    return bare.with_spill(first.spilling)


def _overlap(one: SortedRun, other: SortedRun) -> bool:
    return bool(one.hashes[0] <= other.hashes[-1] and other.hashes[0] <= one.hashes[-1])


def _folded(runs: list[SortedRun]) -> tuple[SortedRun, ...]:
    while len(runs) > 1:
        older, newer = runs[-2], runs[-1]
        if older.afar or newer.afar:
            break
        near = len(older) <= FOLD_RATIO * len(newer) or len(older) + len(newer) <= FOLD_ROWS
        if not near or older.nbytes + newer.nbytes > FOLD_BYTES:
            break
        folded = overlay(older, newer)
        # Nothing lies below the oldest run, so there a tombstone has nothing left to hide.
        runs = [*runs[:-2], folded if len(runs) > 2 else folded.without_tombstones()]
    if len(runs) == 1:
        runs = [runs[0].without_tombstones()]
    return tuple(run for run in runs if len(run))


def _only(table: pa.Table | pa.RecordBatch, names: list[str]) -> pa.Table | pa.RecordBatch:
    if missing := [name for name in names if name not in table.schema.names]:
        raise Invalid(f"keys: column {missing[0]!r} is missing, found {', '.join(table.schema.names) or 'no columns'}")
    return table if table.schema.names == names else table.select(names)


def _no_rows(schema: StateSchema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema.arrow], schema=schema.arrow)
