"""Rows of a state table by something else than their key: by a time, or by rank within groups. Never stored.

Each run has its own order of its rows, made when it is first asked for and kept as long as the run. A question goes
through the orders of all runs, each as far as it must, and leaves out what newer runs have replaced. So it costs what
it answers, and making orders costs what folding runs does: a logarithm of the state for each row that changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from holdfast.state.keys import Hashes, hash64
from holdfast.state.run import Keys, Positions, SortedRun, canonical, interleave

if TYPE_CHECKING:
    from holdfast.state.table import StateTable

HASH = "group.hash"
WORTH_NOTING = 64
"""So many replaced rows must have been passed over before it is remembered where the others are."""
Passed = dict[tuple[SortedRun, str], dict[int, tuple[Positions, int]]]
"""Of a version, for the orders of its runs: from where up to where they were gone through, and where in between rows
were still there. A question that goes less far uses the part up to there, one that goes further begins at the end.
What was replaced is so in all versions made from this one, which get a copy; it may be there in others, so nothing is
handed back.
"""


@dataclass(frozen=True, slots=True)
class ByTime:
    """``times``: microseconds of each row. ``name``: no other index of the table may have it."""

    name: str
    times: Callable[[pa.Table], NDArray[np.int64]]

    def made(self, run: SortedRun) -> tuple[Positions, NDArray[np.int64]]:
        """Places by time, and the times."""
        there = _alive(run)
        times = self.times(pa.Table.from_batches([run.rows]))[there]
        order = np.argsort(times, kind="stable")
        return there[order], times[order]


@dataclass(frozen=True, slots=True)
class ByRank:
    """``groups``: columns whose equal rows are ranked together; ``order``: by what, as ``pc.sort_indices`` has it."""

    name: str
    groups: tuple[str, ...]
    order: tuple[tuple[str, str], ...]

    def made(self, run: SortedRun) -> tuple[Positions, Hashes, bool]:
        """Places by group and rank, the hash of each one's group, and whether different groups share one."""
        there = _alive(run)
        rows = run.rows if len(there) == len(run) else run.rows.take(pa.array(there))
        groups = [rows.column(name) for name in self.groups]
        keys = Keys(groups, len(rows), hash64(groups, len(rows)) if groups else np.zeros(len(rows), np.uint64))
        names = [name for name, _ in self.order]
        ranked = pa.table([*(rows.column(name) for name in names), pa.array(keys.hashes)], names=[*names, HASH])
        by = [(HASH, "ascending"), *self.order] if groups else list(self.order)
        order = np.asarray(pc.sort_indices(ranked, by), np.int64)
        hashes = keys.hashes[order]
        twins = np.flatnonzero(hashes[1:] == hashes[:-1]) if groups else np.empty(0, np.int64)
        return there[order], hashes, not keys.same(order[twins], keys, order[twins + 1]).all()


def upto(table: StateTable, index: ByTime, time: int) -> pa.Table:
    """The rows whose time is at or before ``time``, in the order of ``to_table``."""
    found = []
    for number, run in enumerate(table.runs):
        order, times = _of(run, index)
        ends = np.array([np.searchsorted(times, time, "right")])
        found.append(run.select(_walked(table, number, index.name, order, np.zeros(1, np.int64), ends, None)))
    return _together(table, found)


def best(table: StateTable, index: ByRank, groups: pa.Table, count: int | None) -> pa.Table:
    """Few rows, among them the first ``count`` of each of these groups (all, without one), in ``to_table``'s order.

    The first of every run, to be ranked. If groups share a hash there may be rows of others too, then all of both.
    """
    columns = [groups.column(name).combine_chunks() for name in index.groups]
    asked = np.unique(hash64(columns, groups.num_rows)) if columns else np.zeros(1, np.uint64)
    found = []
    made = [_of(run, index) for run in table.runs]
    if any(shared for _, _, shared in made):
        count = None
    for number, (run, (order, hashes, _)) in enumerate(zip(table.runs, made, strict=True)):
        first, last = np.searchsorted(hashes, asked), np.searchsorted(hashes, asked, "right")
        found.append(run.select(_walked(table, number, index.name, order, first, last, count)))
    return _together(table, found)


def _of(run: SortedRun, index: ByTime | ByRank) -> Any:
    if index.name not in run.indexes:
        run.indexes[index.name] = index.made(run)
    return run.indexes[index.name]


def _alive(run: SortedRun) -> Positions:
    return np.arange(len(run)) if run.alive is None else np.flatnonzero(run.alive)


def _together(table: StateTable, found: Sequence[SortedRun]) -> pa.Table:
    some = [run for run in found if len(run)]
    return pa.Table.from_batches([canonical(interleave(some)).rows] if some else [], table.schema.arrow)


def _walked(
    table: StateTable, number: int, name: str, order: Positions, first: Positions, last: Positions, count: int | None
) -> Positions:
    """Of each span of an order the first ``count`` rows (all, without one) that no newer run has replaced."""
    run, at = table.runs[number], first.copy()
    have, taken, owners = np.zeros(len(first), np.int64), [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    noted = table.passed.setdefault((run, name), {})
    wanted = np.iinfo(np.int64).max if count is None else count

    def take(ranks: Positions, owner: Positions) -> None:
        there = _unreplaced(table, number, order[ranks])
        have[:] += np.bincount(owner[there], minlength=len(first))
        taken.append(ranks[there])
        owners.append(owner[there])

    for span, begins in enumerate(first.tolist()) if noted else ():
        if begins in noted:
            # The note may go further than this span: up to a later time, or over the next group if this has no rows.
            there, end = noted[begins]
            there, at[span] = there[: np.searchsorted(there, last[span])], min(end, last[span])
            take(there, np.full(len(there), span))
    block = int((last - at).max(initial=0)) if count is None else count
    while len(more := np.flatnonzero((at < last) & (have < wanted))):
        sizes = np.minimum(last[more] - at[more], block)
        inside = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        take(np.repeat(at[more], sizes) + inside, np.repeat(more, sizes))
        at[more] += sizes
        block *= 2
    ranks, owner = np.concatenate(taken), np.concatenate(owners)
    for span in np.flatnonzero(at - first - have >= WORTH_NOTING).tolist():
        there, end = noted.get(int(first[span]), (ranks[:0], 0))
        there = np.concatenate([ranks[owner == span], there[np.searchsorted(there, at[span]) :]])
        noted[int(first[span])] = there, max(end, int(at[span]))
    return np.sort(order[ranks])


def _unreplaced(table: StateTable, number: int, places: Positions) -> NDArray[np.bool_]:
    there = np.ones(len(places), np.bool_)
    run = table.runs[number]
    for newer in table.runs[number + 1 :]:
        left = np.flatnonzero(there)
        if len(left):
            there[left] = newer.find(run.keys.at(places[left])) < 0
    return there
