"""What a stage does on a worker, without Spark: it takes all of its input, so that Spark uses the worker again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.runtime.spark import stages
from holdfast.runtime.worker.blocks import ALIGNED, Block, encode
from holdfast.runtime.worker.versions import Saved
from holdfast.topology import Task

Made = Callable[[Any], Callable[[int, Iterable[bytes]], Iterable[bytes]]]
NOTHING: Any = SimpleNamespace(
    of=lambda index: SimpleNamespace(reads=(), plan=SimpleNamespace(spread=lambda blocks, level: []))
)
STAGES: dict[str, Made] = {
    "warm": lambda context: stages.Warm("job", context, "slot-0"),
    "clean": lambda context: stages.Clean("job", context),
    "save": lambda context: stages.Save("job", context, [[]], ["slot-0"]),
    "journal": lambda context: stages.ReadJournal("job", context, NOTHING),
}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_leaves_nothing_unread(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python worker that left something unread ends, and the next task waits a second or more for a new one."""
    store = SimpleNamespace(check_marker=lambda marker: None)
    context = SimpleNamespace(local=str(tmp_path / "gone"), marker="")
    worker = SimpleNamespace(store=store, context=context, save=lambda uploads: Saved({}, {}))
    monkeypatch.setattr(stages, "worker_of", lambda job, given: worker)
    taken = []

    def records() -> Iterator[bytes]:
        yield b""
        taken.append("all")

    list(STAGES[name](SimpleNamespace())(0, records()))
    assert taken == ["all"]


def test_jobs_that_run_at_once_keep_their_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that has ended goes when another comes."""
    contexts = {name: SimpleNamespace(local=str(tmp_path / name)) for name in ("one", "two", "three")}
    monkeypatch.setattr(stages, "_workers", {})
    monkeypatch.setattr(stages, "unpickled", contexts.__getitem__)
    monkeypatch.setattr(stages, "Worker", lambda context, folders: SimpleNamespace(context=context))
    monkeypatch.setattr(stages, "claim", lambda folder: Path(folder).mkdir())

    def worker_of(name: str) -> Any:
        given: Any = SimpleNamespace(value=name)
        return stages.worker_of(name, given)

    first, second = worker_of("one"), worker_of("two")
    assert worker_of("one") is first and worker_of("two") is second
    (tmp_path / "one").rmdir()
    worker_of("three")
    assert sorted(stages._workers) == ["three", "two"]


def test_notes_are_put_together_without_being_read() -> None:
    one, two = [{"read": 1}, {"piece": 0, "path": "a,[b]"}], [{"task": "ü"}]
    texts = [stages.written(one) + b"   ", stages.NOTHING, stages.written([]), stages.written(two)]
    assert json.loads(stages.together(texts)) == one + two
    assert stages.together([]) == stages.together([stages.NOTHING, stages.NOTHING]) == stages.NOTHING


def test_a_bundle_has_its_notes_and_its_blocks_where_arrow_can_use_them() -> None:
    rows = pa.table({"n": list(range(1000))})
    blocks = [Block(3, Task("a", 0), piece, Task("b", 1), None, 1000, encode(rows)) for piece in range(2)]
    plan: Any = SimpleNamespace(spread=lambda blocks, level: [blocks, []])
    first, second = stages.bundles(plan, 0, blocks, stages.written([{"read": 5}]))
    found, notes = stages.opened(first)
    assert json.loads(notes) == [{"read": 5}] and [block.table() for block in found] == [rows, rows]
    assert stages.opened(second) == ([], stages.NOTHING + b" " * 10)
    begins = np.frombuffer(first, np.uint8).ctypes.data
    for block in found:
        assert (np.frombuffer(block.payload, np.uint8).ctypes.data - begins) % ALIGNED == 0
