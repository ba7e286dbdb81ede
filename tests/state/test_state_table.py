"""State tables: versions, keys of every type, nested values, growing schemas, spilling, partition and merge."""

from __future__ import annotations

import datetime as dt
import gc
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.state import Change, KeyRange, LocalState, Spill, StateSchema, StateTable, TaskState, compose, merge
from holdfast.state import run as run_module
from holdfast.state import table as table_module

QUICK = settings(deadline=None, derandomize=True, max_examples=25)
BY_ID = StateSchema(pa.schema([("id", pa.int64())]), pa.schema([("n", pa.int64())]))


def upserts(ids: Any, values: Any) -> Change:
    return Change(pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array(values, pa.int64())}))


def contents(table: StateTable) -> dict[Any, Any]:
    return dict(zip(*(column.to_pylist() for column in table.to_table().columns), strict=True))


KEYS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [-1, 0, 1, None]),
    (pa.uint64(), [2**64 - 1, 0, None]),
    (pa.float32(), [0.5, float("inf"), None]),
    (pa.float16(), [np.float16(0.5), None]),
    (pa.string(), ["", "a", "a" * 50, None]),
    (pa.large_string(), ["", "a", None]),
    (pa.binary(), [b"", b"\0", b"\0\0", None]),
    (pa.binary(4), [b"abcd", b"abce", None]),
    (pa.decimal128(12, 3), [Decimal("1.000"), Decimal("-2.500"), None]),
    (pa.decimal256(40, 3), [Decimal("1.000"), None]),
    (pa.date32(), [dt.date(2026, 11, 15), None]),
    (pa.timestamp("us", "UTC"), [dt.datetime(2026, 11, 15, tzinfo=dt.UTC), None]),
    (pa.duration("us"), [dt.timedelta(1), None]),
    (pa.time64("us"), [dt.time(12), None]),
    (pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 3]), None]),
    (pa.dictionary(pa.int16(), pa.string()), ["x", "y", None]),
    (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": None, "b": "x"}, None]),
    (pa.null(), [None]),
]


@pytest.mark.parametrize(("kind", "keys"), KEYS, ids=lambda x: str(x)[:28])
def test_every_type_of_key_is_found_replaced_and_deleted(kind: pa.DataType, keys: list[Any], tmp_path: Path) -> None:
    schema = StateSchema(pa.schema([("k", kind)]), pa.schema([("n", pa.int64())]))
    column = pa.array(keys, kind)
    first = Change(pa.table({"k": column, "n": list(range(len(keys)))}), pa.table({"k": column.slice(0, 0)}))
    table = StateTable.empty(schema).apply(first, 1)
    assert len(table) == len(keys)
    assert table.lookup(pa.table({"k": column}))["n"].to_pylist() == list(range(len(keys)))
    gone = table.apply(Change(first.upserts.slice(0, 0), pa.table({"k": column.slice(0, 1)})), 2)
    assert gone.contains(pa.table({"k": column})).tolist() == [False] + [True] * (len(keys) - 1)
    assert len(gone) == len(keys) - 1
    again = gone.apply(Change.decode(first.encode()), 3)
    assert contents_by_text(again) == contents_by_text(table)
    node = LocalState(tmp_path)
    node.restore("O/0", TaskState(3, {"t": again}))
    assert node.load("O/0", 3)["t"] == again


def contents_by_text(table: StateTable) -> dict[str, int]:
    return {str(row["k"]): row["n"] for row in table.to_table().to_pylist()}


def test_all_nans_are_one_key_and_both_zeros_another() -> None:
    schema = StateSchema(pa.schema([("k", pa.float64())]), pa.schema([("n", pa.int64())]))
    rows = pa.table({"k": [float("nan"), 0.0, -0.0, float("nan"), 1.0], "n": [1, 2, 3, 4, 5]})
    table = StateTable.from_table(schema, rows)
    assert len(table) == 3
    assert table.lookup(pa.table({"k": [float("nan"), 0.0, -0.0]}))["n"].to_pylist() == [4, 3, 3]


def test_a_stored_null_is_not_an_absent_key() -> None:
    table = StateTable.empty(BY_ID).apply(upserts([1, 2], [None, 5]), 1)
    values, found = table.find(pa.table({"id": [3, 2, 1]}))
    assert values["n"].to_pylist() == [None, 5, None]
    assert found.tolist() == [False, True, True]
    joined = table.join(pa.table({"id": [3, 1], "x": ["a", "b"]}))
    assert joined.to_pylist() == [{"id": 3, "x": "a", "n": None}, {"id": 1, "x": "b", "n": None}]
    assert table.join(pa.table({"id": [3, 1], "x": ["a", "b"]}), "inner")["x"].to_pylist() == ["b"]


def test_nested_values_and_tables_without_values() -> None:
    kind = pa.struct([("tags", pa.list_(pa.string())), ("at", pa.map_(pa.string(), pa.int64()))])
    schema = StateSchema(pa.schema([("id", pa.int64())]), pa.schema([("v", kind), ("xs", pa.list_(pa.int64()))]))
    value = {"tags": ["a", None], "at": [("x", 1)]}
    rows = pa.table({"id": [1, 2], "v": pa.array([value, None], kind), "xs": [[1, 2], []]})
    table = StateTable.from_table(schema, rows)
    assert table.lookup(pa.table({"id": [2, 1, 9]})).to_pylist() == [
        {"v": None, "xs": []},
        {"v": value, "xs": [1, 2]},
        {"v": None, "xs": None},
    ]
    seen = StateTable.empty(StateSchema(pa.schema([("id", pa.int64())]), pa.schema([])))
    seen = seen.apply(Change(pa.table({"id": [4, 5]})), 1)
    assert seen.contains(pa.table({"id": [5, 6]})).tolist() == [True, False]


def test_deletes_come_before_upserts_and_the_last_upsert_of_a_key_counts() -> None:
    table = StateTable.empty(BY_ID).apply(upserts([1, 2, 3], [1, 2, 3]), 1)
    rows = pa.table({"id": [2, 4, 2], "n": [20, 40, 21]})
    table = table.apply(Change(rows, pa.table({"id": [2, 3, 99]})), 2)
    assert contents(table) == {1: 1, 2: 21, 4: 40}
    assert len(table) == 3
    both = compose([upserts([1, 2], [1, 2]), Change(rows.slice(0, 0), pa.table({"id": [1]}))])
    assert (both.upserts.to_pylist(), both.deletes.to_pylist()) == ([{"id": 2, "n": 2}], [{"id": 1}])


def test_the_order_of_rows_is_that_of_the_rows_alone() -> None:
    rng = np.random.default_rng(5)
    ids = rng.permutation(3000)
    at_once = StateTable.empty(BY_ID).apply(upserts(ids, ids * 2), 9)
    by_and_by = StateTable.empty(BY_ID)
    for epoch, part in enumerate(np.array_split(rng.permutation(ids), 9), 1):
        by_and_by = by_and_by.apply(upserts(part, part * 2), epoch)
    assert by_and_by == at_once
    assert by_and_by.to_table().equals(at_once.to_table())
    scanned = list(by_and_by.scan(100))
    assert pa.Table.from_batches(scanned).equals(at_once.to_table())
    assert max(map(len, scanned)) < 400


@QUICK
@given(st.lists(st.lists(st.integers(0, 400), max_size=200), min_size=1, max_size=8), st.integers(1, 9), st.booleans())
def test_merge_is_the_inverse_of_partition(epochs: list[list[int]], n: int, measured: bool) -> None:
    table = StateTable.empty(BY_ID)
    for epoch, ids in enumerate(epochs, 1):
        table = table.apply(Change(pa.table({"id": pa.array(ids, pa.int64()), "n": ids}), None), epoch)
    hashes = (table.flat().hashes >> np.uint64(32)).astype(np.uint32)
    ranges = KeyRange.whole().split(n, hashes if measured else None)
    parts = table.partition(ranges)
    assert merge(parts) == table
    for part, kept in zip(ranges, parts, strict=True):
        assert part.contains((kept.flat().hashes >> np.uint64(32)).astype(np.uint32)).all()


def test_partition_and_merge_refuse_to_lose_or_double_a_key() -> None:
    table = StateTable.empty(BY_ID).apply(upserts(range(50), range(50)), 1)
    half, other = KeyRange.even(2)
    with pytest.raises(Invalid, match=r"the ranges hold \d+ of 50 keys"):
        table.partition([half])
    with pytest.raises(Invalid, match="same key is in more than one table"):
        merge([table, table])
    first, second = table.partition([half, other])
    with pytest.raises(Invalid, match="different epochs, 1 and 2"):
        merge([first, second.apply(upserts([], []), 2)])


def test_a_change_of_all_keys_and_of_most_takes_the_short_way_and_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MIN_INDEXED", 8)
    monkeypatch.setattr(table_module, "FOLD_ROWS", 8)
    rng = np.random.default_rng(1)
    ids = rng.permutation(4000)
    model = dict(zip(ids.tolist(), ids.tolist(), strict=True))
    table = StateTable.empty(BY_ID).apply(upserts(ids, ids), 1)
    for epoch in range(2, 12):
        some = rng.permutation(ids)[: int(rng.integers(900, 4001))] if epoch % 3 else ids
        table.find(pa.table({"id": some}))
        table = table.apply(upserts(some, some + epoch), epoch)
        model |= dict(zip(some.tolist(), (some + epoch).tolist(), strict=True))
        assert len(table) == 4000
        assert contents(table) == model


def test_spilled_state_answers_the_same_and_leaves_nothing_behind(tmp_path: Path) -> None:
    plain = StateTable.empty(BY_ID)
    limited = StateTable.empty(BY_ID, spilling=Spill(tmp_path / "spill", 50_000))
    rng = np.random.default_rng(2)
    for epoch in range(1, 20):
        change = upserts(rng.integers(0, 20_000, 3000), rng.integers(0, 99, 3000))
        plain, limited = plain.apply(change, epoch), limited.apply(change, epoch)
        assert limited.nbytes - limited.spilled_bytes <= 50_000
    assert limited == plain
    keys = pa.table({"id": rng.integers(0, 25_000, 500)})
    assert limited.lookup(keys).equals(plain.lookup(keys))
    assert limited.spilled_bytes > 200_000
    assert list((tmp_path / "spill").iterdir()) == []
    gc.collect()
    with pytest.raises(Invalid, match="0 bytes or more, got -1"):
        Spill(tmp_path, -1)


def test_to_spill_a_run_takes_no_second_copy_in_memory(tmp_path: Path) -> None:
    table = StateTable.empty(BY_ID).apply(upserts(np.arange(200_000), np.arange(200_000)), 1)
    usual, watched = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(watched)
    try:
        limited = table.with_spill(Spill(tmp_path, 0))
    finally:
        pa.set_memory_pool(usual)
    assert limited.spilled_bytes == table.nbytes > 4_000_000
    assert watched.max_memory() < table.nbytes / 4
    assert limited == table


def test_a_new_nullable_column_is_taken_and_anything_else_is_refused(tmp_path: Path) -> None:
    old = StateTable.empty(BY_ID).apply(upserts([1, 2], [10, 20]), 1)
    wider = StateSchema(BY_ID.key, pa.schema([("n", pa.int64()), ("note", pa.string())]))
    new = old.evolve(wider).apply(Change(pa.table({"id": [2, 3], "n": [21, 30], "note": ["b", "c"]})), 2)
    expected = {1: (10, None), 2: (21, "b"), 3: (30, "c")}
    assert {row["id"]: (row["n"], row["note"]) for row in new.to_table().to_pylist()} == expected
    # The same when the changes come from files written before and after.
    node = LocalState(tmp_path)
    node.restore("O/0", TaskState(0, {"t": StateTable.empty(BY_ID)}))
    node.save("O/0", 1, {"t": compose([Change.decode(upserts_with_key([1, 2], [10, 20]).encode())])})
    state = node.load("O/0", 1).evolve({"t": wider})
    node.save("O/0", 2, {"t": Change(pa.table({"id": [3], "n": [30], "note": ["c"]}), pa.table({"id": [1]}))})
    loaded = node.load("O/0", 2, state)["t"]
    assert {row["id"]: (row["n"], row["note"]) for row in loaded.to_table().to_pylist()} == {
        2: (20, None),
        3: (30, "c"),
    }
    assert node.load("O/0", 2)["t"] == loaded
    for key, value, words in (
        (BY_ID.key, pa.schema([("n", pa.string())]), "column 'n' was int64 and is now string"),
        (BY_ID.key, pa.schema([("m", pa.int64())]), r"column 'n' \(int64\) is gone"),
        (pa.schema([("id", pa.int32())]), BY_ID.value, "column 'id' was int64 and is now int32"),
        (pa.schema([("id", pa.int64()), ("x", pa.int64())]), BY_ID.value, r"the key was \(id\) and is now \(id, x\)"),
    ):
        with pytest.raises(Invalid, match=words):
            old.evolve(StateSchema(key, value))
    with pytest.raises(Invalid, match="table 't' is gone"):
        state.evolve({})
    assert StateSchema.from_json(wider.to_json()) == wider


def upserts_with_key(ids: list[int], values: list[int]) -> Change:
    return Change(upserts(ids, values).upserts, pa.table({"id": pa.array([], pa.int64())}))


def test_columns_that_do_not_fit_are_told_by_name() -> None:
    table = StateTable.empty(BY_ID)
    for change, words in (
        (Change(pa.table({"id": [1]})), "upserts: expected columns id, n, found id"),
        (Change(pa.table({"id": ["1"], "n": [1]})), "column 'id' must be int64, found string"),
        (Change(pa.table({"id": [1], "n": [1.5]})), "column 'n' must be int64, found double"),
        (Change(pa.table({"id": [1], "n": [1]}), pa.table({"n": [1]})), "deletes: expected columns id, found n"),
        (
            Change(pa.table({"id": pa.array([2**63], pa.uint64()), "n": [1]})),
            "column 'id' does not fit int64: .*9223372036854775808",
        ),
    ):
        with pytest.raises(Invalid, match=words):
            table.apply(change, 1)
    with pytest.raises(Invalid, match="keys: column 'id' is missing, found x"):
        table.lookup(pa.table({"x": [1]}))
    with pytest.raises(Invalid, match="change of epoch 1 cannot follow version 5"):
        StateTable.empty(BY_ID, 5).apply(upserts([1], [1]), 1)
    with pytest.raises(Invalid, match="they name the key"):
        upserts([1], [1]).encode()
    with pytest.raises(Invalid, match="change: not an Arrow IPC file"):
        Change.decode(b"nonsense")
    for key, words in (
        ([], "at least one key column"),
        ([("__hash", pa.int64())], "does not begin with '__'"),
        ([("k", pa.list_(pa.int64()))], "key column 'k' is list<.*which has no hash"),
        ([("n", pa.int64())], "column 'n' occurs more than once"),
    ):
        with pytest.raises(Invalid, match=words):
            StateSchema(pa.schema(key), BY_ID.value)


def test_rows_from_polars_fit_without_further_ado() -> None:
    schema = StateSchema(pa.schema([("word", pa.string())]), pa.schema([("n", pa.int64())]))
    frame = pl.DataFrame({"word": ["a", "b"], "n": [1, 2]}, schema={"word": pl.Categorical, "n": pl.Int32})
    table = StateTable.empty(schema).apply(Change(frame.to_arrow()), 1)
    assert contents(table) == {"a": 1, "b": 2}
    assert table.lookup(pl.DataFrame({"word": ["b"]}).to_arrow())["n"].to_pylist() == [2]


def test_the_same_change_encodes_to_the_same_bytes() -> None:
    one, two = upserts_with_key([3, 1, 2], [3, 1, 2]), upserts_with_key([1, 2, 3], [1, 2, 3])
    assert one.encode() == two.encode()
    assert Change.decode(one.encode()).upserts.equals(Change.decode(two.encode()).upserts)
