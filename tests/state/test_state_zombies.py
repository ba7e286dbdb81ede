"""A driver or an executor that was given up and comes back can write nothing that counts, on a folder and on S3.

Each test stops an older writer at one moment, lets a newer one take the store over, and lets the older one go on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.queries.delivery import Delivery
from holdfast.runtime.driver.requests import ask, asked
from holdfast.runtime.spark.log import belongs
from holdfast.state import Fenced, Journal, JournalEpoch, Store, TaskState, Writer, cursor, output
from holdfast.state import checkpoint as checkpoints
from holdfast.state.cursor import Cursor
from holdfast.state.journal import piece_name
from holdfast.state.output import place, stage
from holdfast.state.verify import verify
from waiting import DEADLINE


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(tmp_path / "store" if request.param == "folder" else request.getfixturevalue("s3_url"))


def another(store: Store) -> Store:
    """The same store as another process sees it."""
    return Store(store.url)


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": numbers})


def staged(store: Store, writer: Writer, run: int, *numbers: int, epoch: int = 1) -> output.StagedOutput:
    return stage(store.files, f"{writer.token}-{run}", "final", epoch, "O/0", rows(*numbers), 1.0, True)


def before(store: Store, name: str, then: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call of this kind waits until ``then`` has happened: a long pause just before it."""
    real = getattr(store.files, name)

    def slept(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(store.files, name, real)
        then()
        return real(*args, **kwargs)

    monkeypatch.setattr(store.files, name, slept)


def checkpoint(store: Store, writer: Writer, epoch: int) -> None:
    state = TaskState.empty({}, epoch)
    writer.commit_checkpoint(epoch, {"O/0": store.write_task("O/0", epoch, state, token=writer.token)})


def test_a_staged_output_is_not_placed_by_a_driver_that_slept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old = store.writer("old")
    late = staged(store, old, 1, 1)
    old.check()
    newer: list[Writer] = []

    def taken_over() -> None:
        newer.append(another(store).writer("new", force=True))
        assert place(store.files, [staged(store, newer[0], 1, 2)], True) == [True]

    before(store, "link", taken_over, monkeypatch)
    with pytest.raises(FileNotFoundError):
        place(store.files, [late], True)
    assert output.read(store.files, "final", 1, "O/0")["n"].to_pylist() == [2]
    assert late.path.rpartition("/")[2] not in store.files.list(output.STAGED)


def test_what_is_placed_is_never_replaced_by_anybody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = store.writer("one")
    first, second = staged(store, writer, 1, 1), staged(store, writer, 2, 2)
    before(store, "link", lambda: place(another(store).files, [first], True), monkeypatch)
    assert place(store.files, [second], True) == [False]
    assert output.read(store.files, "final", 1, "O/0")["n"].to_pylist() == [1]


def test_an_executor_that_comes_back_does_not_change_what_its_successor_has_staged(store: Store) -> None:
    writer = store.writer("job")
    made = staged(store, writer, 7, 1)
    staged(store, writer, 7, 1, 1)  # the same task of the same run, elsewhere, with other bytes
    assert place(store.files, [made], True) == [True]
    assert output.read(store.files, "final", 1, "O/0")["n"].to_pylist() == [1]


def test_what_an_executor_of_the_older_driver_stages_or_journals_late_does_not_count(store: Store) -> None:
    old = store.writer("old")
    new = another(store).writer("new", force=True)
    piece = store.journal_write(0, piece_name(1, 0, 1), b"late", token=old.token)
    staged(store, old, 1, 1)
    store.write_task("O/0", 3, TaskState.empty({}, 3), token=old.token)
    with pytest.raises(Fenced):
        Journal.load(store, -1).append(old, JournalEpoch(0, (piece,), {}))
    with pytest.raises(Fenced):
        checkpoint(store, old, 3)
    assert store.journal_epochs() == [] and store.checkpoints() == [] and verify(store).whole
    good = store.journal_write(0, piece_name(1, 0, 1), b"good", token=new.token)
    Journal.load(store, -1).append(new, JournalEpoch(0, (good,), {}))
    checkpoint(store, new, 4)
    new.trim()
    assert output.clear_staged(store.files, lambda path: output.staged_by(path) >= new.token) == 1
    left = [name for name in store.files.tree("") if f"-{old.token:010d}" in name]
    assert left == [], "what the older one has left goes with the rest"


def test_a_commit_that_comes_late_does_not_exist_though_its_bytes_are_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = store.writer("old")
    known = Journal.load(store, -1)
    piece = store.journal_write(0, piece_name(1, 0, 1), b"late", token=old.token)
    before(store, "create", lambda: another(store).writer("new", force=True), monkeypatch)
    with pytest.raises(Fenced):
        known.append(old, JournalEpoch(0, (piece,), {}))
    assert store.files.list("journal/commits") and store.journal_epochs() == []


@pytest.mark.parametrize("pause", ["list", "tree", "delete_many"])
def test_what_is_retired_late_is_nothing_that_the_newer_writer_counts_on(
    pause: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one has four checkpoints for a moment and keeps three; the newer one takes over in that moment."""
    old = store.writer("old", keep=3)
    for epoch in (1, 2, 3):
        checkpoint(store, old, epoch)
    newer: list[Writer] = []
    published = old._publish

    def publish(done: checkpoints.Checkpoint) -> None:
        published(done)
        before(store, pause, lambda: newer.append(another(store).writer("new", force=True)), monkeypatch)

    monkeypatch.setattr(old, "_publish", publish)
    with contextlib.suppress(Fenced):
        checkpoint(store, old, 4)
    assert newer and [one.epoch for one in store.checkpoints()] == [2, 3, 4]
    for epoch in (2, 3, 4):
        assert store.restore("O/0", epoch)[1] == epoch
    found = verify(store)
    assert found.whole, found.findings


def test_the_journal_is_trimmed_late_no_further_than_the_newer_writer_can_do_without(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = store.writer("old", keep=2)
    known = Journal.load(store, -1)
    for epoch in range(6):
        piece = store.journal_write(epoch, piece_name(1, 0, 1), b"rows", token=old.token)
        known.append(old, JournalEpoch(epoch, (piece,), {}))
    for epoch in (1, 3, 5):
        checkpoint(store, old, epoch)
    newer: list[Writer] = []
    before(store, "delete_many", lambda: newer.append(another(store).writer("new", force=True)), monkeypatch)
    assert old.trim() == [0, 1, 2, 3]
    oldest = min(one.epoch for one in store.checkpoints())
    assert oldest == 3 and Journal.load(store, oldest).reaches(oldest)
    with pytest.raises(Fenced):
        old.trim()


def test_cursors_of_the_older_driver_are_not_the_newest_and_delete_none_of_the_newer(store: Store) -> None:
    old = store.writer("old")
    there = cursor.write(store.files, Cursor().with_("final", "O/0", 1), old.token, True)
    new = another(store).writer("new", force=True)
    cursor.write(store.files, Cursor().with_("final", "O/0", 7), new.token, True)
    for epoch in (2, 3, 4):
        there = cursor.write(store.files, Cursor().with_("final", "O/0", epoch), old.token, True, there)
    found = cursor.read(store.files)
    assert found is not None and found.given("final", "O/0", 7)


def test_batches_of_the_older_driver_move_nobody_on_and_delete_nothing(store: Store) -> None:
    """It has handed a batch over and slept before that was written down: outputs that the newer one needs stay."""
    old = store.writer("old")
    place(store.files, [staged(store, old, 1, 5, epoch=epoch) for epoch in range(2)], True)
    newer: list[Writer] = []
    over, told = threading.Event(), []

    def take(table: pa.Table | None, epoch: int) -> None:
        if epoch == 0:
            newer.append(another(store).writer("new", force=True))

    delivery = Delivery(store.files, take, told.append, lambda: (1, 1))
    delivery.finals()
    delivery.begin(old)
    delivery.end(over.set)
    assert over.wait(DEADLINE)
    assert [type(error) for error in told] == [Fenced]
    assert [epoch for epoch, _ in output.written(store.files, "final")] == [0, 1]
    given: list[int] = []
    ended = threading.Event()
    after = Delivery(another(store).files, lambda _, epoch: given.append(epoch), told.append, lambda: (1, 1))
    after.finals()
    after.begin(newer[0])
    after.end(ended.set)
    assert ended.wait(DEADLINE) and given in ([0, 1], [1])


def test_the_log_of_the_older_driver_is_not_put_down_as_the_one_that_belongs_to_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = store.writer("old")
    before(store, "put", lambda: another(store).writer("new", force=True), monkeypatch)
    with pytest.raises(Fenced):
        belongs(store.files, old.token, "late", "log", begun=False)
    store.files.delete("spark-log.json")
    for begun in (False, True):
        with pytest.raises(Fenced):
            belongs(store.files, old.token, "late", "log", begun)
    assert "spark-log.json" not in store.files.tree("")


def test_requests_are_not_taken_away_by_the_older_driver(store: Store) -> None:
    old = store.writer("old")
    new = another(store).writer("new", force=True)
    request = ask(store.files, "counts", 3)
    assert list(asked(store.files, old.check)) == []
    assert list(asked(store.files, new.check)) == [request]


def test_a_writer_is_told_apart_however_many_came_after_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims of long ago are gone: its own too, so that it cannot take itself for the newest."""
    monkeypatch.setattr("holdfast.state.fence.CLAIMS_KEPT", 1)
    old = store.writer("old")
    for _ in range(4):
        another(store).writer("new", force=True)
    assert not [name for name in store.files.list("fence") if name[:10] in ("0000000001", "0000000002")]
    with pytest.raises(Fenced, match="superseded by writer 5"):
        old.check()


def test_a_listing_that_comes_late_hides_no_writer_and_no_commit(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old = store.writer("old")
    known = Journal.load(store, -1)
    for epoch in range(3):
        piece = store.journal_write(epoch, piece_name(1, 0, 1), b"rows", token=old.token)
        known.append(old, JournalEpoch(epoch, (piece,), {}))
    checkpoint(store, old, 1)
    late = another(store)
    real = late.files.list
    hidden = ("0000000001.json", f"{2:012d}-", f"{1:012d}-")

    def listed(folder: str) -> list[str]:
        hides = folder in ("fence", "journal/commits")
        return [name for name in real(folder) if not (hides and name.startswith(hidden))]

    monkeypatch.setattr(late.files, "list", listed)
    new = late.writer("new", force=True)
    assert new.token == 2
    assert Journal.load(late, 1).newest == 2
    assert Journal.load(another(store), 1).newest == 2
