"""What the journal says of the batch behind an epoch, and which batches it takes for the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.state import Store
from holdfast.state.entries import document
from holdfast.state.journal import Gap, Journal, JournalEpoch, commit_name
from holdfast.state.origin import BatchChanged, Origin

ORIGIN = Origin(4, ('{"logOffset":4}', None), "2 00ff", by=10, left=20, operators=(20, None))


def journal(store: Store, *origins: Origin | None) -> Journal:
    known = Journal.load(store, -1)
    with store.writer("job") as writer:
        for epoch, origin in enumerate(origins):
            known.append(writer, JournalEpoch(epoch, (), {}, origin=origin))
    return Journal.load(store, -1)


def test_an_origin_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    assert journal(Store(tmp_path), replace(ORIGIN, batch=0), ORIGIN).origin == ORIGIN


def test_an_epoch_of_an_earlier_version_has_no_origin_and_is_compared_with_nothing(tmp_path: Path) -> None:
    known = journal(Store(tmp_path), None)
    assert known.origin is None
    known.check_again(0, ORIGIN)
    known.check_again(1, ORIGIN)


@pytest.mark.parametrize(
    ("again", "told"),
    [
        (replace(ORIGIN, files="3 ff00"), r"it reads 3 files \(ff00\), the epoch has 2 files \(00ff\)"),
        (replace(ORIGIN, files=""), "it reads no files"),
        (replace(ORIGIN, offsets=('{"logOffset":5}', None)), 'source 0 ends at {"logOffset":5}, in the epoch at'),
        (replace(ORIGIN, offsets=('{"logOffset":4}', "7")), "source 1 ends at 7, in the epoch at nothing"),
        (replace(ORIGIN, offsets=()), "it has 0 sources, the epoch has 2"),
    ],
)
def test_a_batch_with_other_rows_is_refused_by_name(again: Origin, told: str, tmp_path: Path) -> None:
    known = journal(Store(tmp_path), replace(ORIGIN, batch=3), ORIGIN)
    with pytest.raises(BatchChanged, match=rf"batch 4 of the source .*planned again, but {told}"):
        known.check_again(1, again)


def test_a_batch_with_the_same_rows_is_taken_whatever_watermark_the_source_has(tmp_path: Path) -> None:
    known = journal(Store(tmp_path), replace(ORIGIN, batch=3), ORIGIN)
    known.check_again(1, replace(ORIGIN, by=0, left=None, operators=()))


@pytest.mark.parametrize("batch", [3, 4, 6])
def test_a_batch_that_does_not_follow_is_refused(batch: int, tmp_path: Path) -> None:
    known = journal(Store(tmp_path), ORIGIN)
    known.check_again(1, Origin(5))
    with pytest.raises(BatchChanged, match=f"batch {batch} .*comes as epoch 1, but epoch 0 was made of batch 4"):
        known.check_again(1, Origin(batch))


def test_epochs_without_rows_follow_the_batch_that_moved_the_watermark(tmp_path: Path) -> None:
    known = journal(Store(tmp_path), ORIGIN, replace(ORIGIN, idle=True))
    known.check_again(2, Origin(5))
    known.check_again(0, ORIGIN)
    with pytest.raises(BatchChanged, match="planned again"):
        known.check_again(0, replace(ORIGIN, files="1 00"))
    with pytest.raises(BatchChanged, match="comes as epoch 2"):
        known.check_again(2, replace(ORIGIN, batch=5, idle=True))


@pytest.mark.parametrize("field", [{"batch": "4"}, {"offsets": [4]}, {"operators": "none"}, {"idle": 1}])
def test_what_is_no_origin_is_damaged(field: dict[str, object], tmp_path: Path) -> None:
    store = Store(tmp_path)
    journal(store, ORIGIN)
    extra = {"total": 0, "origin": {**ORIGIN.to_json(), **field}}
    content = {"epoch": 0, "token": 1, "tasks": {}, "extra": extra}
    store.files.put(commit_name(0, 1), document(store.files, "journal", content), True)
    with pytest.raises(Gap, match=f"is no journal of Holdfast: extra.origin.{next(iter(field))}"):
        Journal.load(store, -1).span(0, 0)
