"""Rows of a state table by time and by rank, against looking through all of them, in every version."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from holdfast.state import Change, KeyRange, Spill, StateSchema, StateTable, merge
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
GROUPS = [*CITIES, "a", "b"]
"""Of these the first ones are in most states, the others in few or none."""
FEW = st.dictionaries(
    st.tuples(st.sampled_from(GROUPS), st.integers(0, 12)), st.one_of(st.none(), st.integers(0, 9)), max_size=4
)
ASKED = st.tuples(
    st.integers(0, 4), st.integers(-1, 10), st.lists(st.sampled_from(GROUPS), unique=True), st.integers(1, 4)
)
"""How many versions back, up to which time, which groups, and how many of each."""
STEPS = st.lists(st.tuples(FEW, FEW, st.integers(0, 3), st.lists(ASKED, max_size=5)), max_size=10)


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


@settings(deadline=None, derandomize=True, max_examples=40)
@given(factor=st.integers(1, 9), steps=STEPS, spilled=st.booleans(), noting=st.sampled_from([1, 3]))
def test_every_version_answers_for_itself_whatever_was_asked_of_others(
    factor: int, steps: list[Any], spilled: bool, noting: int
) -> None:
    """Versions are kept, forked and asked in any order, each time for other times and groups."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(table_module, "FOLD_ROWS", 2)
        patch.setattr(table_module, "FOLD_RATIO", 1)
        patch.setattr(index_module, "WORTH_NOTING", noting)
        first = StateTable.empty(SCHEMA).with_spill(Spill(Path(folder), 400) if spilled else None)
        rows = {(city, key): key * factor % 10 for city in CITIES for key in range(13)}
        versions = [first.apply(changed(rows, {}), 0)]
        for upserts, deletes, back, questions in steps:
            table = versions[max(len(versions) - 1 - back, 0)]
            versions.append(table.at(table.epoch + 1))
            versions.append(table.apply(changed(upserts, deletes), table.epoch + 1))
            for behind, time, groups, count in questions:
                asked = versions[max(len(versions) - 1 - behind, 0)]
                everything = asked.to_table()
                due = everything.filter(pa.array(times(everything) <= time))
                assert asked.upto(BY_TIME, time).equals(due)
                assert_ranked(asked, everything, groups, count)


def assert_ranked(table: StateTable, everything: pa.Table, groups: list[Any], count: int) -> None:
    for columns, by in RANKS.items():
        found = table.best(by, pa.table({"city": pa.array(groups, pa.string())}).select(list(columns)), count)
        assert found.group_by(["city", "key"]).aggregate([]).num_rows == found.num_rows
        best, expected = ranked(found, by, count), ranked(everything, by, count)
        for group in [(city,) for city in groups] if columns else [()]:
            assert best.get(group) == expected.get(group)


def test_a_group_without_rows_takes_none_of_the_next_one() -> None:
    """What was passed over of a group is remembered by where it begins: where one without rows begins and ends."""
    hot = {("hot", number): number for number in range(5000)}
    table = StateTable.empty(SCHEMA).apply(changed(hot, {}), 0)
    table = table.apply(changed({("hot", number): -1 for number in range(4900, 5000)}, {}), 1)
    by = RANKS[("city",)]
    for groups in (["hot"], ["hot", *"abcdefgh"], list("abcdefgh")):
        found = ranked(table.best(by, pa.table({"city": groups}), 3), by, 3)
        assert {group: [row["n"] for row in rows] for group, rows in found.items()} == (
            {("hot",): [4899, 4898, 4897]} if "hot" in groups else {}
        )


def test_an_earlier_time_is_answered_after_a_later_one() -> None:
    """As where a fork that is ahead asks of a version that the exact copy asks too."""
    table = StateTable.empty(SCHEMA).apply(changed({("x", number): number for number in range(5000)}, {}), 1)
    table = table.apply(changed({}, {("x", number): 0 for number in range(100)}), 1)
    later = table.at(2)
    for asked, time in ((later, 900), (table, 200), (later, 900), (table, 50), (table, 1200), (later, 600)):
        found = asked.upto(BY_TIME, time)
        assert sorted(found["n"].to_pylist()) == list(range(100, time + 1))


def test_what_one_fork_replaced_is_still_there_in_the_other_and_before() -> None:
    def deleted(table: StateTable, start: int) -> StateTable:
        return table.apply(changed({}, {("x", number): 0 for number in range(start, start + 100)}), table.epoch + 1)

    def due(table: StateTable) -> list[int]:
        return sorted(table.upto(BY_TIME, 999)["n"].to_pylist())

    before = StateTable.empty(SCHEMA).apply(changed({("x", number): number for number in range(5000)}, {}), 1)
    before = deleted(before, 0)
    assert due(before) == list(range(100, 1000))
    one, other = deleted(before, 100), deleted(before, 300)
    for _ in range(2):
        assert due(one) == list(range(200, 1000))
        assert due(other) == [*range(100, 300), *range(400, 1000)]
        assert due(before) == list(range(100, 1000))


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
