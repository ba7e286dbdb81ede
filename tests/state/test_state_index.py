"""Rows of a state table by time and by rank, against looking through all of them, in every version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdfast.state import Change, KeyRange, StateSchema, StateTable, merge
from holdfast.state import index as index_module
from holdfast.state import table as table_module
from holdfast.state.index import ByRank, ByTime

SCHEMA = StateSchema(pa.schema([("city", pa.string()), ("key", pa.int64())]), pa.schema([("n", pa.int64())]))
CITIES = ["x", "y", None]
ROWS = st.dictionaries(
    st.tuples(st.sampled_from(CITIES), st.integers(0, 12)), st.one_of(st.none(), st.integers(0, 9)), max_size=8
)
CHANGES = st.lists(st.tuples(ROWS, ROWS, st.integers(0, 3)), max_size=12)
"""Upserts, deletes, and to which of the versions before they are applied: the last, or one that is forked."""
LATE = 2**40


def times(rows: pa.Table) -> NDArray[np.int64]:
    return np.asarray(rows["n"].fill_null(LATE))


BY_TIME = ByTime("n", times)
RANKS = {
    groups: ByRank(f"rank {groups}", groups, (("n", "descending"), ("city", "ascending"), ("key", "ascending")))
    for groups in ((), ("city",))
}


def changed(upserts: dict[Any, Any], deletes: dict[Any, Any]) -> Change:
    def keys(of: dict[Any, Any]) -> list[pa.Array]:
        return [pa.array([city for city, _ in of], pa.string()), pa.array([key for _, key in of], pa.int64())]

    rows = pa.Table.from_arrays([*keys(upserts), pa.array(upserts.values(), pa.int64())], schema=SCHEMA.arrow)
    return Change(rows, pa.Table.from_arrays(keys(deletes), schema=SCHEMA.key))


def ranked(rows: pa.Table, by: ByRank, count: int | None) -> dict[Any, list[Any]]:
    """The first of each group, by sorting everything."""
    rows = rows.take(pc.sort_indices(rows, list(by.order)))
    groups: dict[Any, list[Any]] = {}
    for row in rows.to_pylist():
        groups.setdefault(tuple(row[name] for name in by.groups), []).append(row)
    return {group: each[:count] for group, each in groups.items()}


@pytest.mark.parametrize("noting", [1, 64])
@settings(deadline=None, derandomize=True, max_examples=40)
@given(changes=CHANGES, upto=st.integers(0, 9), count=st.integers(1, 4), collide=st.booleans())
def test_what_is_due_and_what_ranks_first_is_that_of_a_scan(
    noting: int, changes: list[Any], upto: int, count: int, collide: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "FOLD_ROWS", 4)  # several runs in spite of few rows
        patch.setattr(table_module, "FOLD_RATIO", 1)
        patch.setattr(index_module, "WORTH_NOTING", noting)
        if collide:
            patch.setattr(index_module, "hash64", lambda _, rows: np.zeros(rows, np.uint64))
        versions = [StateTable.empty(SCHEMA)]
        for upserts, deletes, back in changes:
            table = versions[max(len(versions) - 1 - back, 0)]
            versions.append(table.apply(changed(upserts, deletes), table.epoch + 1))
            for each in (versions[-1], table):
                check(each, upto, count)
        parts = versions[-1].partition(KeyRange.even(2))
        check(merge(parts), upto, count)


def check(table: StateTable, upto: int, count: int) -> None:
    rows = table.to_table()
    assert table.upto(BY_TIME, upto).equals(rows.filter(pa.array(times(rows) <= upto)))
    for groups, by in RANKS.items():
        asked = pa.table({"city": pa.array(CITIES[1:], pa.string())}).select(list(groups))
        for some in (count, None):
            found, all_of_it = ranked(table.best(by, asked, some), by, some), ranked(rows, by, some)
            for group in [(city,) for city in CITIES[1:]] if groups else [()]:
                assert found.get(group) == all_of_it.get(group)


@pytest.mark.parametrize("ask", ["time", "rank"])
def test_what_was_replaced_is_passed_over_once(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand due rows go in each epoch, a thousand others come: each epoch looks at about as many, not at all."""
    looked: list[int] = []
    real = index_module._unreplaced

    def counting(table: StateTable, number: int, places: Any) -> Any:
        looked.append(len(places))
        return real(table, number, places)

    monkeypatch.setattr(index_module, "_unreplaced", counting)
    schema = StateSchema(pa.schema([("key", pa.int64())]), pa.schema([("n", pa.int64())]))
    rank = ByRank("rank", (), (("n", "ascending"), ("key", "ascending")))
    size, step = 40_000, 1_000
    table = StateTable.from_table(schema, pa.table({"key": np.arange(size), "n": np.arange(size)}))
    for epoch in range(1, 20):
        due = table.upto(BY_TIME, epoch * step - 1) if ask == "time" else table.best(rank, pa.table({}), step)
        due = due.take(pc.sort_indices(due, list(rank.order))).slice(0, step)
        assert due["n"].to_pylist() == list(range((epoch - 1) * step, epoch * step))
        new = np.arange(size + (epoch - 1) * step, size + epoch * step)
        table = table.apply(Change(pa.table({"key": new, "n": new}), due.select(["key"])), epoch)
    assert sum(looked) < 19 * step * 12
