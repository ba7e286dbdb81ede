"""Which outputs the sink was given: never forgotten once put down, never taken from a superseded writer."""

from __future__ import annotations

from pathlib import Path

import pytest
from crashing import cut_everywhere

from holdfast.state import Cursor, Damaged, Store, cursor
from holdfast.state.entries import numbered_names
from holdfast.state.files import LocalFiles, open_files
from holdfast.state.verify import verify


def test_a_cursor_knows_what_was_given_and_never_goes_back() -> None:
    start = Cursor()
    assert not start.given("final", "O/0", 0)
    moved = start.with_("final", "O/0", 4).with_("tentative", "O/0", 6).with_("final", "O/1", 2)
    assert [moved.given("final", "O/0", epoch) for epoch in (0, 4, 5)] == [True, True, False]
    assert [moved.given("tentative", "O/0", epoch) for epoch in (4, 6, 7)] == [True, True, False]
    assert not moved.given("tentative", "O/1", 2)
    assert moved.with_("final", "O/0", 3) == moved
    assert start == Cursor({}, {})


@pytest.mark.parametrize("url", ["local", "memory://cursors"])
def test_the_newest_counts_and_the_one_before_it_stays(url: str, tmp_path: Path) -> None:
    files = open_files(tmp_path if url == "local" else url)
    assert cursor.read(files) is None
    for token, epoch in ((1, 0), (1, 1), (1, 2), (2, 3), (2, 4)):
        cursor.write(files, Cursor({"O/0": epoch}, {}), token, True)
        assert cursor.read(files) == Cursor({"O/0": epoch}, {})
        assert len(files.list(cursor.FOLDER)) == min(epoch + 1, 2)
    # A writer that was superseded goes on: what it puts down is not the newest, and it takes nothing away.
    cursor.write(files, Cursor({"O/0": 99}, {}), 1, True)
    assert cursor.read(files) == Cursor({"O/0": 4}, {})
    cursor.write(files, Cursor({"O/0": 5}, {}), 2, True)
    assert cursor.read(files) == Cursor({"O/0": 5}, {})


def test_a_damaged_cursor_falls_back_to_the_one_before_and_both_are_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.writer("job") as writer:
        for epoch in range(3):
            cursor.write(store.files, Cursor({"O/0": epoch}, {"O/1": 7}), writer.token, True)
    assert verify(store).whole
    older, newest = numbered_names(store.files, "cursor")
    good = (tmp_path / newest).read_bytes()
    for data in (b"", good[:-30], (tmp_path / older).read_bytes()):
        (tmp_path / newest).write_bytes(data)
        assert cursor.read(store.files) == Cursor({"O/0": 1}, {"O/1": 7})
        assert [finding.path for finding in verify(store).findings] == [newest]
    (tmp_path / older).write_bytes(b"")
    with pytest.raises(Damaged, match=f"the sink was given is not known: {newest} .*; {older} is torn"):
        cursor.read(store.files)


def test_a_cursor_cut_anywhere_is_the_old_one_or_the_new(tmp_path: Path) -> None:
    before = LocalFiles(tmp_path / "before")
    cursor.write(before, Cursor({"O/0": 0}, {}), 1, True)
    done = 0

    def act(root: Path) -> None:
        nonlocal done
        done = 0
        for epoch in range(1, 5):
            cursor.write(LocalFiles(root), Cursor({"O/0": epoch}, {}), 2, True)
            done = epoch

    seen = set()
    for cut in cut_everywhere(tmp_path / "before", act, tmp_path):
        for root in (cut.root, *cut.lost):
            found = cursor.read(LocalFiles(root))
            assert found is not None
            assert done <= found.final["O/0"] <= done + 1
            seen.add(found.final["O/0"])
            cursor.write(LocalFiles(root), Cursor({"O/0": 9}, {}), 3, True)
            assert cursor.read(LocalFiles(root)) == Cursor({"O/0": 9}, {})
            assert len(numbered_names(LocalFiles(root), "cursor")) == 2
    assert seen == {0, 1, 2, 3, 4}
