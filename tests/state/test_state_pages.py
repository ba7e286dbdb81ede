"""States of which only pages are read against the same states read whole, and what they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import HoldfastError
from holdfast.state import (
    Change,
    Damaged,
    FileEntry,
    KeyRange,
    Spill,
    StateSchema,
    StateTable,
    Store,
    TaskState,
    keys,
    pages,
    run,
    verify,
)
from holdfast.state import checkpoint as checkpoints
from holdfast.state.entries import Span
from holdfast.state.files import Files, LocalFiles, open_files, read_near
from holdfast.state.index import ByTime

NUMBERS = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64()), ("w", pa.string())]))
PLACE = pa.struct([("x", pa.int32()), ("name", pa.string())])
SCHEMAS = {
    "int64": (pa.int64(), lambda n: n),
    "text": (pa.string(), lambda n: f"user-{n}"),
    "large text": (pa.large_string(), lambda n: f"{n}" * 3),
    "null": (pa.int64(), lambda n: None if n == 7 else n),
    "struct": (PLACE, lambda n: {"x": n % 9, "name": None if n % 5 == 0 else str(n)}),
    "time": (pa.timestamp("us"), lambda n: n * 1000),
    "bool": (pa.bool_(), lambda n: n % 2 == 0),
}
KEYS = 600


@pytest.fixture(autouse=True)
def not_so_large() -> Iterator[None]:
    """What is large is so with fewer rows."""
    with mock.patch.object(pages, "LARGE", 8 << 20):
        yield


@pytest.fixture
def small() -> Iterator[None]:
    """Files of a few rows are in pages of a few rows."""
    with mock.patch.object(pages, "LARGE", 2048), mock.patch.object(pages, "PAGE", 512):
        yield


class Counting:
    """Files of which it is known how many bytes were read of each."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.read_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def read(self, name: str) -> pa.Buffer:
        data = self._files.read(name)
        self.read_bytes += data.size
        return data

    def read_parts(self, name: str, spans: Sequence[tuple[int, int]]) -> Sequence[pa.Buffer]:
        self.read_bytes += sum(size for _, size in spans)
        return self._files.read_parts(name, spans)


def rows(schema: StateSchema, kind: str, numbers: Sequence[int], seed: int) -> pa.Table:
    make, rng = SCHEMAS[kind][1], np.random.default_rng(seed)
    values = {"v": rng.integers(0, 99, len(numbers)).tolist(), "w": [None if n % 3 else f"w{n}" for n in numbers]}
    columns = {"k": [make(int(n)) for n in numbers], **values, "more": [[1, None]] * len(numbers)}
    return pa.table([pa.array(columns[each.name], each.type) for each in schema.arrow], schema=schema.arrow)


def stored(files: Files, kind: str, seed: int, grows: bool) -> tuple[Store, int]:
    """A whole state and a few increments with deletes, some large, some not, perhaps with a column more."""
    rng = np.random.default_rng(seed)
    key = pa.schema([("k", SCHEMAS[kind][0])])
    schema = StateSchema(key, NUMBERS.value)
    store, wide = Store(files), StateSchema(key, NUMBERS.value.append(pa.field("more", pa.list_(pa.int64()))))
    with store.writer("test", fold_at=0) as writer:
        state = TaskState(0, {"t": StateTable.from_table(schema, rows(schema, kind, range(KEYS), seed), 0)})
        writer.commit_checkpoint(0, {"O/0": store.write_task("O/0", 0, state, token=1)})
        for epoch, count in enumerate((3, 200, 0, 20), 1):
            now = wide if grows and epoch > 1 else schema
            upserts = rows(now, kind, rng.choice(KEYS + 50, count, replace=False).tolist(), seed + epoch)
            deletes = rows(now, kind, rng.choice(KEYS, count, replace=False).tolist(), 0).select(["k"])
            written = store.write_task("O/0", epoch, {"t": Change(upserts, deletes)}, token=1, since=epoch - 1)
            writer.commit_checkpoint(epoch, {"O/0": written})
    return store, epoch


def paged(store: Store, epoch: int) -> list[FileEntry]:
    return [entry for entry in store.checkpoint(epoch).chain("O/0") if entry.pages is not None]


@pytest.mark.parametrize("twins", [False, True], ids=["", "twins"])
@pytest.mark.parametrize("grows", [False, True], ids=["", "grows"])
@pytest.mark.parametrize("kind", SCHEMAS)
def test_what_is_looked_up_is_what_the_whole_state_has(
    tmp_path: Path, small: None, kind: str, grows: bool, twins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through several epochs of changes, with keys that are there, deleted, new or never were."""
    if twins:
        # Different keys share hashes, and many of them: a page may hold a single hash.
        few = lambda columns, count: keys.hash64(columns, count) & np.uint64(0xF800000000000000)  # noqa: E731
        monkeypatch.setattr(run, "hash64", few)
        monkeypatch.setattr(run, "one_word", lambda _: False)
    store, epoch = stored(LocalFiles(tmp_path), kind, 1, grows)
    assert kind == "bool" or paged(store, epoch)
    whole, touched = store.restore("O/0", epoch)[0], store.restore("O/0", epoch, touched=True)[0]
    schema, rng = whole["t"].schema, np.random.default_rng(2)
    for at in range(epoch + 1, epoch + 6):
        asked = rows(schema, kind, rng.integers(0, KEYS + 100, 12).tolist(), 0).select(["k"])
        one, two = whole["t"].find(asked), touched["t"].find(asked)
        assert two.found.tolist() == one.found.tolist() and two.values.equals(one.values)
        assert touched["t"].contains(asked).tolist() == one.found.tolist()
        upserts = rows(schema, kind, rng.integers(0, KEYS + 100, 7).tolist(), at)
        deletes = rows(schema, kind, rng.integers(0, KEYS, 3).tolist(), at).select(["k"])
        whole, touched = (each.apply({"t": Change(upserts, deletes)}, at) for each in (whole, touched))
    if kind not in ("bool",) and not twins:
        assert touched.afar, "look-ups and changes have read all of it"
    assert touched == whole and touched.rows == whole.rows and len(touched["t"]) == len(whole["t"])
    assert not touched.afar


WHOLE: dict[str, Callable[[StateTable], Any]] = {
    "len": len,
    "to_table": lambda table: table.to_table(),
    "scan": lambda table: pa.Table.from_batches(table.scan(50)),
    "upto": lambda table: table.upto(ByTime("v", lambda rows: rows["v"].to_numpy()), 30),
    "slice": lambda table: table.slice(KeyRange(0, 1 << 31)).to_table(),
    "partition": lambda table: [part.to_table() for part in table.partition(KeyRange.even(3))],
}


@pytest.mark.parametrize("what", WHOLE)
def test_whoever_needs_more_than_look_ups_gets_all_of_it(tmp_path: Path, small: None, what: str) -> None:
    store, epoch = stored(LocalFiles(tmp_path), "text", 3, grows=False)
    whole, touched = store.restore("O/0", epoch)[0]["t"], store.restore("O/0", epoch, touched=True)[0]["t"]
    some = rows(whole.schema, "text", [1, 2, 900], 0).select(["k"])
    assert touched.lookup(some).equals(whole.lookup(some))
    assert WHOLE[what](touched) == WHOLE[what](whole)
    assert touched.lookup(some).equals(whole.lookup(some)), "and looks up in that from then on"


def test_under_a_memory_limit_nothing_is_read_to_be_spilled(tmp_path: Path, small: None) -> None:
    store, epoch = stored(LocalFiles(tmp_path / "store"), "int64", 3, grows=False)
    touched = store.restore("O/0", epoch, touched=True)[0].with_spill(Spill(tmp_path / "spill", 100))
    assert touched.afar
    rows = touched["t"].to_table()
    later = touched.apply({"t": Change(rows.slice(0, 1))}, epoch + 1)
    assert later["t"].spilled_bytes > 0 and not later.afar, "what was read whole is spilled like any other"


def test_a_file_in_pages_is_one_that_any_arrow_reader_opens(tmp_path: Path, small: None) -> None:
    store, epoch = stored(LocalFiles(tmp_path), "int64", 1, grows=False)
    for entry in paged(store, epoch):
        read = pa.ipc.open_file(store.files.read(entry.path)).read_all()
        assert read.num_rows == entry.rows and read.column("k").num_chunks > 3
        header = store.files.read(entry.path).slice(8)
        assert pa.ipc.open_stream(header).read_all().equals(read), "also from its beginning"


def test_small_files_and_their_manifests_are_what_they_were(tmp_path: Path) -> None:
    store, epoch = stored(LocalFiles(tmp_path), "int64", 1, grows=False)
    assert not paged(store, epoch)
    assert "pages" not in store.checkpoint(epoch).chain("O/0")[0].to_json()


# What is read


def large(store: Store, count: int = 400_000) -> None:
    schema = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))
    table = StateTable.from_table(schema, pa.table({"k": np.arange(count), "v": np.arange(count) * 3}), 0)
    with store.writer("test") as writer:
        writer.commit_checkpoint(0, {"O/0": store.write_task("O/0", 0, TaskState(0, {"t": table}), token=1)})


@pytest.mark.parametrize("where", ["folder", "memory", "s3"])
def test_few_keys_of_a_large_state_take_few_bytes(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = {"folder": str(tmp_path), "memory": f"memory://{tmp_path.name}"}.get(where) or request.getfixturevalue(
        "s3_url"
    )
    files = Counting(open_files(url))
    store = Store(files)  # type: ignore[arg-type]
    large(store)
    (entry,) = store.checkpoint(0).chain("O/0")
    assert entry.bytes > pages.LARGE
    files.read_bytes = 0
    state, _ = store.restore("O/0", 0, touched=True)
    asked = [3, 77, 399_999, 5_000_000]
    assert state["t"].lookup(pa.table({"k": asked}))["v"].to_pylist() == [9, 231, 1_199_997, None]
    first = files.read_bytes
    assert 0 < first < entry.bytes / 20
    state["t"].lookup(pa.table({"k": asked}))
    later = state.apply({"t": Change(pa.table({"k": asked, "v": [1, 2, 3, 4]}))}, 1)
    assert later["t"].lookup(pa.table({"k": asked}))["v"].to_pylist() == [1, 2, 3, 4]
    assert files.read_bytes == first, "what is at hand is not read again, nor for a change"
    assert state["t"].lookup(pa.table({"k": np.arange(400_000)}))["v"].to_pylist() == list(range(0, 1_200_000, 3))
    assert files.read_bytes < first + entry.bytes + 4096, "all of it at once if most of it is touched"


def test_parts_that_are_near_are_asked_for_in_one() -> None:
    data, asked = pa.py_buffer(bytes(range(100))), []

    def read(spans: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        asked.extend(spans)
        return [data[start : start + size] for start, size in spans]

    spans = [(0, 5), (5, 5), (12, 3), (40, 10), (95, 20)]
    found = read_near(spans, 4, read)
    assert [part.to_pybytes() for part in found] == [bytes(range(100))[at : at + size] for at, size in spans]
    assert asked == [(0, 15), (40, 10), (95, 20)]


@pytest.mark.parametrize("where", ["folder", "memory", "s3"])
def test_parts_beyond_the_end_are_short(where: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = {"folder": str(tmp_path), "memory": f"memory://{tmp_path.name}"}.get(where) or request.getfixturevalue(
        "s3_url"
    )
    files = open_files(url)
    files.put("a", b"0123456789", True)
    spans = [(0, 3), (4, 2), (8, 5), (1 << 20, 4)]
    assert [part.to_pybytes() for part in files.read_parts("a", spans)] == [b"012", b"45", b"89", b""]
    with pytest.raises(FileNotFoundError):
        files.read_parts("b", spans)


# Damage


def altered(store: Store, entry: FileEntry, at: int) -> None:
    data = bytearray(store.files.read(entry.path).to_pybytes())
    data[at] ^= 0x40
    store.files.put(entry.path, bytes(data), True)


def every_key(store: Store, epoch: int) -> list[int | None]:
    """Keys looked up with every page read, and never the file."""
    with mock.patch.object(pages.PagedFile, "whole", side_effect=AssertionError):
        table = store.restore("O/0", epoch, touched=True)[0]["t"]
        with mock.patch.object(pages, "MOST", 9.0):
            return list(table.lookup(pa.table({"k": range(KEYS + 50)}))["v"].to_pylist())


def test_every_byte_that_is_read_is_proven(tmp_path: Path, small: None) -> None:
    """Whatever byte is altered, look-ups of all keys say so or are right; and a check of the store names the file."""
    store, epoch = stored(LocalFiles(tmp_path), "int64", 1, grows=False)
    right, entry = every_key(store, epoch), paged(store, epoch)[0]
    assert entry.pages is not None
    told = 0
    for at in [*range(0, entry.bytes, 331), *range(entry.pages.at, entry.pages.at + entry.pages.bytes, 97)]:
        altered(store, entry, at)
        try:
            assert every_key(store, epoch) == right
        except Damaged as error:
            assert entry.path in str(error)
            told += 1
        with pytest.raises(Damaged):
            store.restore("O/0", epoch)
        altered(store, entry, at)
    assert told > entry.bytes / 331 * 0.8
    altered(store, entry, entry.pages.at + 5)
    assert [each.path for each in verify.verify(store).findings] == [entry.path]


def test_what_is_missing_cut_or_swapped_is_told(tmp_path: Path, small: None) -> None:
    store, epoch = stored(LocalFiles(tmp_path), "int64", 1, grows=False)
    first, second = paged(store, epoch)[:2]
    one, two = store.files.read(first.path), store.files.read(second.path)
    for data, other in ((one[: one.size // 2], two), (two, one), (one[:0], two)):
        store.files.put(first.path, data, True)
        store.files.put(second.path, other, True)
        with pytest.raises(Damaged, match="altered"):
            store.restore("O/0", epoch, touched=True)
    store.files.delete(first.path)
    with pytest.raises(Damaged, match="missing"):
        store.restore("O/0", epoch, touched=True)


@pytest.mark.parametrize("span", [(-1, 10), (0, 0), (0, -5), (0, 1 << 60), (1 << 62, 1 << 62), (0, 100)], ids=str)
def test_a_directory_that_is_nowhere_is_damage(tmp_path: Path, small: None, span: tuple[int, int]) -> None:
    store, epoch = stored(LocalFiles(tmp_path), "int64", 1, grows=False)
    entry = paged(store, epoch)[0]
    body = {**entry.to_json(), "pages": {"at": span[0], "bytes": span[1], "checksum": "0" * 32}}
    with pytest.raises(Damaged, match="directory"):
        checkpoints.open_run(store.files, "O/0", FileEntry.from_json(body))


def test_a_directory_that_was_forged_is_damage_or_does_no_harm(tmp_path: Path, small: None) -> None:
    """With the right checksum under it: it may be refused, never an error of another kind."""
    store, epoch = stored(LocalFiles(tmp_path), "int64", 1, grows=False)
    entry, rng = paged(store, epoch)[0], np.random.default_rng(5)
    assert entry.pages is not None
    span, data = entry.pages, store.files.read(entry.path).to_pybytes()
    refused = 0
    for _ in range(300):
        directory = bytearray(data[span.at : span.at + span.bytes])
        directory[rng.integers(len(directory))] = rng.integers(256)
        forged = FileEntry.from_json({**entry.to_json(), "pages": {"at": span.at, "bytes": span.bytes, "checksum": ""}})
        forged = FileEntry(**{
            **{name: getattr(forged, name) for name in FileEntry.__slots__},
            "pages": Span(span.at, span.bytes, pages.checksum(bytes(directory))),
        })  # fmt: skip
        store.files.put(entry.path, data[: span.at] + bytes(directory) + data[span.at + span.bytes :], True)
        try:
            opened = checkpoints.open_run(store.files, "O/0", forged)
            assert opened is not None
            schema, found = opened
            table = StateTable(schema, 0, (found,), len(found))
            with mock.patch.object(pages, "MOST", 9.0):
                table.lookup(pa.table({"k": pa.array(range(0, KEYS, 50), schema.key.field(0).type)}))
        except HoldfastError:
            refused += 1
    assert refused > 50


def test_trouble_that_was_hidden_is_told_once(tmp_path: Path, small: None) -> None:
    store, epoch = stored(LocalFiles(tmp_path), "int64", 1, grows=False)
    state = store.restore("O/0", epoch, touched=True)[0]
    for entry in paged(store, epoch):
        store.files.delete(entry.path)
    with pytest.raises(Damaged):
        state["t"].lookup(pa.table({"k": [1]}))
    with pytest.raises(Damaged):
        state.tell()
    state.tell()


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.int64()), pa.list_view(pa.int64()), pa.list_view(pa.dictionary(pa.int32(), pa.string()))],
    ids=["list", "view", "dictionary"],
)
def test_what_would_take_much_more_room_in_pages_is_written_as_one(
    small: None, tmp_path: Path, kind: pa.DataType
) -> None:
    """Arrow writes all that a view of a list is a view of with each page, and dictionaries apart."""
    schema, inner = StateSchema(pa.schema([("key", pa.int64())]), pa.schema([("value", kind)])), kind.value_type
    count = 20_000
    if kind == pa.list_(pa.int64()):
        lists = pa.array([[1]] * count, kind)
    else:
        some = pa.array(range(count), pa.int32() if inner != pa.int64() else inner)
        if inner != pa.int64():
            some = pa.DictionaryArray.from_arrays(some, [str(number) for number in range(count)])
        ones = pa.array([1] * count, pa.int32())
        lists = pa.ListViewArray.from_arrays(pa.array(range(count), pa.int32()), ones, some)
    rows = pa.table({"key": range(count), "value": lists})
    state = TaskState.empty({"t": schema}, 0).apply({"t": Change(rows)}, 0)
    (entry,) = Store(tmp_path).write_task("O/0", 0, state, token=1)
    assert (entry.pages is not None) == (kind == pa.list_(pa.int64()))
    assert entry.bytes < 8 * state.nbytes
    assert len(checkpoints.read_chain(Store(tmp_path).files, "O/0", [entry], 0)["t"]) == count
