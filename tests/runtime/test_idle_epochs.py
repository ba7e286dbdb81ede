"""Epochs without rows move the numbers of batches on, for good."""

from __future__ import annotations

from pathlib import Path

from holdfast.runtime.spark.idle import KEPT, IdleEpochs
from holdfast.state.files import open_files


def test_batches_behind_an_idle_epoch_have_later_numbers(tmp_path: Path) -> None:
    idle = IdleEpochs(open_files(tmp_path))
    assert [idle.epoch_of(batch) for batch in (0, 1, 2)] == [0, 1, 2] and idle.last() is None
    made = idle.add(1, 600)
    assert (made.batch, made.epoch, made.watermark) == (1, 2, 600)
    for known in (idle, IdleEpochs(open_files(tmp_path))):
        assert [known.epoch_of(batch) for batch in (0, 1, 2, 3)] == [0, 1, 3, 4] and known.last() == made


def test_old_ones_are_only_counted(tmp_path: Path) -> None:
    idle = IdleEpochs(open_files(tmp_path))
    for batch in range(0, 2 * KEPT + 40, 2):
        idle.add(batch, batch)
    again = IdleEpochs(open_files(tmp_path))
    assert again.epoch_of(2 * KEPT + 40) == 2 * KEPT + 40 + KEPT + 20
    assert again.epoch_of(2 * KEPT + 38) == 2 * KEPT + 38 + KEPT + 19
    assert (tmp_path / "cursor" / "idle.json").stat().st_size < 10_000
