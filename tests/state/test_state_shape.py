"""The shape of a job in its store: replaced as a whole, fenced, and missed when it is not whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.state import Damaged, Fenced, Store
from holdfast.state import shapes as documents
from holdfast.state.entries import numbered_names
from holdfast.state.verify import verify


def test_the_newest_shape_counts_and_older_ones_go(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.shape() is None
    with store.writer("one") as writer:
        writer.commit_shape({"version": 1})
        writer.commit_shape({"version": 2})
    assert store.shape() == {"version": 2}
    assert len(numbered_names(store.files, "shape")) == 1
    with store.writer("two") as writer:
        writer.commit_shape({"version": 3})
    assert store.shape() == {"version": 3} and len(numbered_names(store.files, "shape")) == 1
    assert verify(store).whole


def test_a_writer_that_was_superseded_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old = store.writer("old")
    old.commit_shape({"version": 1})
    new = store.writer("new", force=True)
    new.commit_shape({"version": 2})
    with pytest.raises(Fenced):
        old.commit_shape({"version": 9})
    # It may have looked at the fence before the other came, and written after: its token tells.
    documents.write(store.files, {"version": 9}, token=old.token, number=77, sync=False)
    assert store.shape() == {"version": 2}
    new.close()


def test_a_damaged_shape_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.writer("one") as writer:
        writer.commit_shape({"version": 1})
    (name,) = numbered_names(store.files, "shape")
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(Damaged, match=f"{name} is torn or was altered"):
        store.shape()
    assert [finding.path for finding in verify(store).findings] == [name]
