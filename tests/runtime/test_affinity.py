"""Tasks of a level end in the order of their slots, whoever is done first, and nobody waits for ever."""

from __future__ import annotations

import threading
from pathlib import Path
from unittest import mock

from holdfast.runtime.spark import affinity
from holdfast.runtime.spark.affinity import SlotAffinity
from waiting import DEADLINE


def bundles(index: int, _: object) -> list[bytes]:
    return [b"%d" % index] * 3


def test_the_first_slot_ends_before_the_second_that_was_done_earlier(tmp_path: Path) -> None:
    ended: list[int] = []
    began = threading.Event()

    def slow(index: int, _: object) -> list[bytes]:
        began.wait(DEADLINE)
        return bundles(index, _)

    def take(stage: SlotAffinity, index: int) -> None:
        assert list(stage(index, ())) == bundles(index, ())
        ended.append(index)

    with mock.patch.object(affinity, "PATIENCE", DEADLINE):
        second = threading.Thread(target=take, args=(SlotAffinity(bundles, str(tmp_path), 7, 2, 2), 1))
        second.start()
        first = threading.Thread(target=take, args=(SlotAffinity(slow, str(tmp_path), 7, 2, 2), 0))
        first.start()
        began.set()
        first.join()
        second.join()
    assert sorted(ended) == [0, 1]
    assert (tmp_path / "turn-2-0").stat().st_mtime_ns <= (tmp_path / "turn-2-1").stat().st_mtime_ns
    assert (tmp_path / "turn-2-0").read_text() == (tmp_path / "turn-2-1").read_text() == "7"


def test_a_slot_without_the_one_before_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "turn-0-0").write_text("6")
    with mock.patch.object(affinity, "PATIENCE", 0.0):
        assert list(SlotAffinity(bundles, str(tmp_path), 7, 0, 2)(1, ())) == bundles(1, ())
    assert list(SlotAffinity(bundles, str(tmp_path / "gone"), 7, 0, 2)(0, ())) == bundles(0, ())


def test_the_order_may_begin_elsewhere(tmp_path: Path) -> None:
    """Two read the batch and one slot does the rest: who was met last must be the first to be met again."""
    waited: list[int] = []
    with mock.patch.object(SlotAffinity, "_await", lambda _, index: waited.append(index)):
        for index in (2, 0, 1):
            assert list(SlotAffinity(bundles, str(tmp_path), 7, 0, 3, first=2)(index, ())) == bundles(index, ())
    assert waited == [2, 0], "the third waits for nobody, the first for it, the second for the first"
