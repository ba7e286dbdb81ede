"""The query whose state is checkpointed: a grouped count keyed ``user % k``, held in Holdfast's own state tables.

Every checkpoint of a trace is really taken (encoded), really restored (decoded) and replayed forward to the next one,
which must give the state that never failed. What the emulator uses of it is the size of each checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.errors import Unrecoverable
from holdfast.resilience.scenario import Floats
from holdfast.state import Change, StateSchema, StateTable

SCHEMA = StateSchema(pa.schema([("group", pa.int64())]), pa.schema([("count", pa.int64())]))
EVENT_BYTES = 16
"""An input event is a user and a search, 8 bytes each."""
MOST_GROUPS = 4096
FEWEST_GROUPS = 16
MOST_EVENTS = 50_000
"""Events of one checkpoint period at most; k is chosen so that checkpoint and input stay in proportion."""
CHECKPOINTS = 32
WARM_UP = 60_000
"""Events before the first checkpoint, so that most groups have come up; the rest follow, and sizes vary by that."""
USERS = 1.3
"""Exponent of the Zipf law that users follow."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Real checkpoints of one run: ``moved[j]`` is the time to move the j-th one at the input rate."""

    bytes: NDArray[np.int64]
    moved: Floats
    restored: int


def count_users(table: StateTable, users: NDArray[np.int64], groups: int, epoch: int) -> StateTable:
    """The next version of the counts: one change with the groups that occur."""
    group, times = np.unique(users % groups, return_counts=True)
    keys = pa.table({"group": group})
    before, found = table.find(keys)
    counts = np.where(found, before["count"].fill_null(0).to_numpy(), 0) + times
    return table.apply(Change(keys.append_column("count", pa.array(counts))), epoch)


def take(table: StateTable) -> bytes:
    """A checkpoint: all rows of this version as one Arrow IPC file."""
    return Change(table.to_table(), SCHEMA.key.empty_table()).encode()


def restore(data: bytes, epoch: int) -> StateTable:
    return StateTable.empty(SCHEMA).apply(Change.decode(data), epoch)


def run_query(checkpoint: float, period: float, seed: int) -> Trace:
    """Run the query for so many periods that checkpoints of about ``checkpoint`` (in time at the input rate) come out.

    Their mean sets the proportion of state to input; each of them differs from it as it happens to.
    """
    rows_of_state = EVENT_BYTES / _bytes_a_group()
    most = MOST_EVENTS * rows_of_state * checkpoint / period
    groups = int(np.clip(most, FEWEST_GROUPS, MOST_GROUPS))
    events = int(np.clip(groups / rows_of_state * period / checkpoint, 1, MOST_EVENTS))
    sizes: list[int] = []
    kept: bytes | None = None
    table = StateTable.empty(SCHEMA)
    for epoch, users in enumerate(_users(events, seed), start=1):
        table = count_users(table, users, groups, epoch)
        if kept is not None and not count_users(restore(kept, epoch - 1), users, groups, epoch) == table:
            raise Unrecoverable(f"checkpoint {epoch - 1} of the emulated query, restored and replayed, differs")
        kept = take(table)
        sizes.append(len(kept))
    measured = np.array(sizes)
    return Trace(measured, measured / measured.mean() * checkpoint, restored=CHECKPOINTS - 1)


def _users(events: int, seed: int) -> Iterator[NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    yield rng.zipf(USERS, WARM_UP)
    for _ in range(CHECKPOINTS - 1):
        yield rng.zipf(USERS, events)


def _bytes_a_group() -> float:
    few, many = (
        len(take(StateTable.from_table(SCHEMA, pa.table({"group": np.arange(n), "count": np.arange(n)}))))
        for n in (1000, 2000)
    )
    return (many - few) / 1000
