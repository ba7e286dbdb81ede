"""The journal: pieces and commits, no gap, what a broken run left, and what a crash at any moment leaves."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from crashing import cut_everywhere

from holdfast.errors import Unrecoverable
from holdfast.state import (
    Damaged,
    Fenced,
    Gap,
    Journal,
    JournalEpoch,
    Routing,
    StateSchema,
    Store,
    TaskState,
    Unusable,
    Writer,
    journal,
)
from holdfast.state.journal import COMMITS, piece_name

SCHEMA = StateSchema(pa.schema([("k", pa.int64())]), pa.schema([("v", pa.int64())]))
ROUTINGS = {"O": Routing.even(3)}
_unique = itertools.count()


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store") if request.param == "local" else f"memory://journal-{next(_unique)}")


def pieces(store: Store, token: int, epoch: int, run: int = 7, of: int = 2) -> JournalEpoch:
    written = tuple(
        store.journal_write(epoch, piece_name(run, i, of), bytes([epoch, i]), token=token) for i in range(of)
    )
    return JournalEpoch(epoch, written, ROUTINGS)


def checkpoint(writer: Writer, epoch: int) -> None:
    files = writer.store.write_task("O/0", epoch, TaskState.empty({"t": SCHEMA}, epoch), token=writer.token)
    writer.commit_checkpoint(epoch, {"O/0": files})


def contents(store: Store, known: Journal, first: int, last: int) -> list[list[bytes]]:
    span = known.span(first, last)
    assert [one.epoch for one in span.epochs] == list(range(first, last + 1))
    return [[journal.read(store.files, piece) for piece in one.pieces] for one in span.epochs]


def test_what_is_appended_is_given_back_in_this_process_and_in_the_next(store: Store) -> None:
    with store.writer("job") as writer:
        known = Journal.load(store, -1)
        assert known.newest == -1
        for epoch in range(3):
            known.append(writer, pieces(store, writer.token, epoch, of=12))
            assert known.newest == epoch
        span = known.span(0, 2)
    with store.writer("next"):
        again = Journal.load(store, -1)
    assert again.newest == 2
    assert again.span(0, 2) == span and span.epochs[1].routings == ROUTINGS
    assert contents(store, again, 0, 2) == [[bytes([epoch, i]) for i in range(12)] for epoch in range(3)]
    assert again.span(3, 2).epochs == ()


def test_a_piece_is_read_by_its_entry_alone_and_checked(store: Store) -> None:
    one, other = pieces(store, 1, 4).pieces
    assert journal.read(store.files, one, piece_name(7, 0, 2)) == bytes([4, 0])
    with pytest.raises(Damaged, match="is of run-7-of-2/0 at epoch 4: files were swapped"):
        journal.read(store.files, one, piece_name(8, 0, 2))
    data = store.files.read(one.path).to_pybytes()
    store.files.put(one.path, data[:-1], False)
    with pytest.raises(Damaged, match=f"{one.path} has {len(data) - 1} bytes, {len(data)} were written"):
        journal.read(store.files, one)
    store.files.delete(other.path)
    with pytest.raises(Damaged, match=f"{other.path} is missing"):
        journal.read(store.files, other)


def test_only_the_next_epoch_can_be_appended(store: Store) -> None:
    with store.writer("job") as writer:
        known = Journal.load(store, 4)
        assert known.newest == 4
        for wrong in (0, 4, 6, 9):
            words = rf"epoch {wrong} cannot follow epoch 4 in the journal, 5 must; put the store back .* spark/ folder"
            with pytest.raises(Gap, match=words):
                known.append(writer, pieces(store, writer.token, wrong))
        assert store.journal_epochs() == []
        known.append(writer, pieces(store, writer.token, 5))
    assert store.journal_epochs() == [5] and isinstance(Gap(""), Unrecoverable)


def test_an_epoch_is_known_only_once_it_is_durable(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with store.writer("job") as writer:
        known = Journal.load(store, -1)
        one = pieces(store, writer.token, 0)
        real, refused = store.files.create, []

        def create(name: str, data: bytes, sync: bool) -> None:
            real(name, data, sync)
            if name.startswith(COMMITS) and not refused:
                refused.append(name)
                raise Unusable("503")

        monkeypatch.setattr(store.files, "create", create)
        with pytest.raises(Unusable):
            known.append(writer, one)
        assert known.newest == -1
        with pytest.raises(Gap, match="epoch 0 is not in the journal; epochs there: none"):
            known.span(0, 0)
        known.append(writer, one)
        assert known.newest == 0 and refused
        newer = store.writer("newer", force=True)
        with pytest.raises(Fenced):
            known.append(writer, pieces(store, writer.token, 1))
        assert known.newest == 0
        newer.close()


@pytest.mark.parametrize("how", ["missing", "torn", "swapped", "a piece short"])
def test_a_hole_after_the_checkpoint_is_a_gap_and_one_before_it_only_limits_the_fallback(
    how: str, store: Store
) -> None:
    with store.writer("job", keep=3) as writer:
        known = Journal.load(store, -1)
        for epoch in range(10):
            known.append(writer, pieces(store, writer.token, epoch))
            if epoch in (1, 3, 6):
                checkpoint(writer, epoch)
    names = [f"{COMMITS}/{name}" for name in store.files.list(COMMITS)]
    if how == "missing":
        store.files.delete(names[5])
    elif how == "torn":
        store.files.put(names[5], store.files.read(names[5]).to_pybytes()[:-40], False)
    elif how == "swapped":
        store.files.put(names[5], store.files.read(names[4]), False)
    else:
        with store.writer("short") as writer:
            entry = {piece_name(7, 0, 2): pieces(store, writer.token, 5).pieces[0]}
            writer.journal_commit(5, entry, {"pieces": 2, "routings": {}})
    loaded = Journal.load(store, 6)
    assert loaded.newest == 9
    assert [loaded.reaches(epoch) for epoch in (1, 3, 4, 5, 6, 9)] == [False, False, False, True, True, True]
    assert contents(store, loaded, 7, 9) == contents(store, known, 7, 9)
    with pytest.raises(Gap, match=r"epoch 5 is not in the journal.*put the store back as it was on one day"):
        loaded.span(2, 9)
    with pytest.raises(Gap, match="epoch 5 is not in the journal"):
        Journal.load(store, 3)
    found = store.latest(loaded.reaches)
    assert found is not None and found.epoch == 6
    store.files.delete(found.tasks["O/0"][0].path)
    with pytest.raises(Unrecoverable, match=r"checkpoint 3: what came after it cannot be replayed"):
        store.latest(loaded.reaches)


def test_the_checkpoint_to_fall_back_to_is_the_newest_that_the_journal_reaches(store: Store) -> None:
    with store.writer("job", keep=3) as writer:
        known = Journal.load(store, -1)
        for epoch in range(8):
            known.append(writer, pieces(store, writer.token, epoch))
            if epoch in (1, 3, 6):
                checkpoint(writer, epoch)
        assert writer.trim(6) == [0, 1]
        known.forget(1)
        assert known.reaches(1) and not known.reaches(0)
        newest = store.latest()
        assert newest is not None and newest.epoch == 6
        store.files.delete(newest.tasks["O/0"][0].path)
        fallback = store.latest(known.reaches)
        assert fallback is not None and fallback.epoch == 3
        assert store.latest(lambda epoch: epoch < 3) == store.checkpoint(1)
    again = Journal.load(store, 3)
    assert again.reaches(1) and again.newest == 7
    with pytest.raises(Gap, match="epoch 1 is not in the journal; epochs there: 2 to 7"):
        again.span(1, 4)


def test_a_torn_commit_with_nothing_after_it_is_an_epoch_that_was_never_committed(store: Store) -> None:
    """Without sync a machine's crash may leave it; the source gives the epoch again, or the next one is refused."""
    with store.writer("job") as writer:
        known = Journal.load(store, -1)
        for epoch in range(3):
            known.append(writer, pieces(store, writer.token, epoch))
    store.files.put(f"{COMMITS}/{store.files.list(COMMITS)[-1]}", b"", False)
    with store.writer("next") as writer:
        again = Journal.load(store, -1)
        assert again.newest == 1
        again.append(writer, pieces(store, writer.token, 2, run=1))
    assert contents(store, Journal.load(store, -1), 2, 2) == [[bytes([2, 0]), bytes([2, 1])]]


def test_a_journal_that_ends_before_the_checkpoint_reaches_no_older_one(store: Store) -> None:
    with store.writer("job") as writer:
        known = Journal.load(store, -1)
        for epoch in range(3):
            known.append(writer, pieces(store, writer.token, epoch))
        checkpoint(writer, 1)
        checkpoint(writer, 5)
    again = Journal.load(store, 5)
    assert again.newest == 5
    assert again.reaches(5) and not again.reaches(1)


def test_pieces_that_a_broken_run_left_are_adopted_if_all_are_there_and_whole(store: Store) -> None:
    with store.writer("job") as writer:
        known, token = Journal.load(store, -1), writer.token
        left = pieces(store, token, 0, run=7, of=3)
        pieces(store, token, 0, run=8, of=2)
        pieces(store, token, 1, run=9)
        adopted = known.adopt(store, token, 0, 7, ROUTINGS)
        assert adopted == left
        assert known.adopt(store, token, 0, 6, ROUTINGS) is None, "no such run"
        assert known.adopt(store, token + 1, 0, 7, ROUTINGS) is None, "another writer's"
        assert known.adopt(store, token, 1, 9, ROUTINGS) is None, "not the next epoch"
        known.append(writer, adopted)
        assert contents(store, Journal.load(store, -1), 0, 0) == [[bytes([0, i]) for i in range(3)]]


@pytest.mark.parametrize("how", ["one missing", "one altered", "one cut", "two of one", "another count"])
def test_pieces_that_are_not_all_of_one_run_are_not_adopted(how: str, store: Store) -> None:
    with store.writer("job") as writer:
        known = Journal.load(store, -1)
        one, other = pieces(store, writer.token, 0).pieces
        data = store.files.read(one.path).to_pybytes()
        match how:
            case "one missing":
                store.files.delete(other.path)
            case "one altered":
                store.files.put(one.path, bytes([data[0] ^ 1]) + data[1:], False)
            case "one cut":
                store.files.put(one.path, data[:-1], False)
            case "two of one":
                store.journal_write(0, piece_name(7, 1, 2), b"other bytes", token=writer.token)
            case "another count":
                store.journal_write(0, piece_name(7, 2, 3), b"x", token=writer.token)
        assert known.adopt(store, writer.token, 0, 7, ROUTINGS) is None


def test_epochs_of_before_are_read(store: Store) -> None:
    """Pieces named by their number alone, with the pieces as a count beside them."""
    with store.writer("job") as writer:
        entries = {f"batch/{i}": store.journal_write(0, f"batch/{i}", bytes([i]), token=1) for i in range(11)}
        routings = {"O": ROUTINGS["O"].to_json()}
        writer.journal_commit(0, entries, {"pieces": 11, "routings": routings})
    known = Journal.load(store, -1)
    assert contents(store, known, 0, 0) == [[bytes([i]) for i in range(11)]]
    assert known.span(0, 0).epochs[0].routings == ROUTINGS


def test_an_append_cut_anywhere_leaves_the_epoch_or_none_and_done_is_durable(tmp_path: Path) -> None:
    before = Store(tmp_path / "before")
    with before.writer("job") as writer:
        known = Journal.load(before, -1)
        known.append(writer, pieces(before, writer.token, 0))
        checkpoint(writer, 0)
        known.append(writer, pieces(before, writer.token, 1))

    def act(root: Path) -> None:
        store = Store(root)
        writer = store.writer("dying", force=True)
        known = Journal.load(store, 0)
        known.append(writer, pieces(store, writer.token, 2))

    seen = set()
    for cut in cut_everywhere(tmp_path / "before", act, tmp_path):
        for root in (cut.root, *cut.lost):
            store = Store(root)
            with store.writer("next", force=True) as writer:
                known = Journal.load(store, 0)
                seen.add(known.newest)
                assert 1 <= known.newest <= 2 and (known.newest == 2 or not cut.finished)
                assert contents(store, known, 1, known.newest) == [
                    [bytes([epoch, i]) for i in range(2)] for epoch in range(1, known.newest + 1)
                ]
                known.append(writer, pieces(store, writer.token, known.newest + 1, run=9))
    assert seen == {1, 2}
