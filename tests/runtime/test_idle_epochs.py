"""Epochs without rows move the numbers of batches on, for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.spark.idle import KEPT, IdleEpoch, IdleEpochs
from holdfast.runtime.spark.source import Edge, StreamSource
from holdfast.state import Damaged, Store
from holdfast.state.entries import document
from holdfast.state.fence import Fenced
from waiting import DEADLINE


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_batches_behind_an_idle_epoch_have_later_numbers(store: Store) -> None:
    with store.writer("first") as writer:
        idle = IdleEpochs(store.files, writer.token)
        assert [idle.epoch_of(batch) for batch in (0, 1, 2)] == [0, 1, 2] and idle.last() is None
        made = idle.add(1, 600)
    assert (made.batch, made.epoch, made.watermark) == (1, 2, 600)
    with store.writer("second") as writer:
        for known in (idle, IdleEpochs(store.files, writer.token)):
            assert [known.epoch_of(batch) for batch in (0, 1, 2, 3)] == [0, 1, 3, 4] and known.last() == made


def test_old_ones_are_only_counted(tmp_path: Path, store: Store) -> None:
    with store.writer("test") as writer:
        idle = IdleEpochs(store.files, writer.token)
        for batch in range(0, 2 * KEPT + 40, 2):
            idle.add(batch, batch)
        again = IdleEpochs(store.files, writer.token)
    assert again.epoch_of(2 * KEPT + 40) == 2 * KEPT + 40 + KEPT + 20
    assert again.epoch_of(2 * KEPT + 38) == 2 * KEPT + 38 + KEPT + 19
    (file,) = (tmp_path / "cursor").glob("idle-*.json")
    assert file.stat().st_size < 10_000


def test_a_driver_that_was_superseded_adds_none(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even if it had asked whether it may just before the other came."""
    old = IdleEpochs(store.files, store.writer("old").token)
    old.add(0, 5)
    with store.writer("new", force=True) as writer:
        new = IdleEpochs(store.files, writer.token)
        with pytest.raises(Fenced, match="writer 1 was superseded by writer 2"):
            old.add(1, 6)
        assert len(list((tmp_path / "cursor").glob("idle-*.json"))) == 1
        with monkeypatch.context() as patched:
            patched.setattr("holdfast.runtime.spark.idle.fence.check", lambda *_: None)
            old.add(1, 6)
        assert new.epoch_of(2) == 3
    with store.writer("third") as writer:
        assert IdleEpochs(store.files, writer.token).epoch_of(2) == 3, "one came behind batch 0, none behind batch 1"


def put_old(store: Store, epochs: list[list[int]]) -> None:
    """As it was when all writers had one document."""
    store.files.put("cursor/idle.json", document(store.files, "idle", {"before": 2, "epochs": epochs}), True)


@pytest.mark.parametrize("adds", [True, False])
def test_a_document_from_before_they_had_tokens_counts(adds: bool, tmp_path: Path, store: Store) -> None:
    with store.writer("old"):
        put_old(store, [[3, 6, 600]])
    with store.writer("new") as writer:
        for _ in range(2):
            idle = IdleEpochs(store.files, writer.token, adds)
            assert [idle.epoch_of(batch) for batch in (3, 4)] == [5, 7] and idle.last() == IdleEpoch(3, 6, 600)
            assert [file.name for file in (tmp_path / "cursor").iterdir()] == ["idle-0000000002.json"]


def test_one_with_a_token_counts_before_one_without(store: Store) -> None:
    with store.writer("new") as writer:
        IdleEpochs(store.files, writer.token).add(4, 700)
        put_old(store, [[3, 6, 600]])
        assert IdleEpochs(store.files, writer.token).last() == IdleEpoch(4, 5, 700)


def test_a_driver_that_was_superseded_by_one_that_adds_none_adds_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = IdleEpochs(store.files, store.writer("old").token)
    with store.writer("new", force=True) as writer:
        IdleEpochs(store.files, writer.token, adds=False)
        monkeypatch.setattr("holdfast.runtime.spark.idle.fence.check", lambda *_: None)
        old.add(1, 6)  # it had asked before
    with store.writer("third") as writer:
        assert IdleEpochs(store.files, writer.token, adds=False).epoch_of(2) == 2


@pytest.mark.parametrize("epochs", [[[3, 6]], [[3, 6, 600, 1]], [[]]])
def test_a_document_whose_epochs_are_none_is_damaged(epochs: list[list[int]], store: Store) -> None:
    with store.writer("new") as writer:
        put_old(store, epochs)
        with pytest.raises(Damaged, match=r"idle\.json is no idle of Holdfast: epochs\[0\] must be a list of 3"):
            IdleEpochs(store.files, writer.token)


def test_they_are_read_when_the_fence_is_taken_and_not_before(store: Store) -> None:
    """A source is made before: until then another driver may add some."""
    frame: Any = None
    ends: list[object] = []
    tokens: list[int] = []
    source = StreamSource(
        {"rows": frame},
        "log",
        Edge({}, idles=True),
        ends.append,
        store,
        lambda: tokens[-1],
        lambda: 0,
        lambda: None,
    )
    with store.writer("other") as writer:
        IdleEpochs(store.files, writer.token).add(1, 600)
    with store.writer("this") as writer:
        tokens.append(writer.token)
        source.open(lambda *_: None, None)
        assert source.thread is not None
        source.thread.join(DEADLINE)  # there is no stream to attend to
    assert source._idle.epoch_of(2) == 3 and len(ends) == 1
