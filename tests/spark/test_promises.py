"""Nothing is lost in silence: what a job meets in its store, its nodes and its listeners, on the real runtime.

Each test is a way to lose rows that was found by trying: the answer is that of a plain loop, or the job says what is
wrong.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from promised import ROWS, breaking, counting, ended, events, expected, finished, numbers, totals, waiting_for

import holdfast
from holdfast.errors import HoldfastError
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history
from waiting import until

pytestmark = pytest.mark.spark

Begin = Callable[..., holdfast.Job]


def broken_off(spark: Any, begin: Begin, folder: Path, epochs: int, **options: Any) -> tuple[Path, Any]:
    """A store whose job ended in the middle of things, with epochs after its checkpoint, and the pipeline to go on."""
    marker, saved = folder.with_name("marker"), folder.with_name("saved")
    marker.touch()
    if options["checkpoint_every"] > epochs:
        saved.touch()

    def listener(event: dict[str, Any]) -> None:
        if event["kind"] == "checkpoint":
            saved.touch()

    pipeline = counting(waiting_for(saved, epochs * ROWS, breaking(marker, epochs)))
    job = begin(numbers(spark), pipeline, store=folder, listeners=[listener], **options)
    error = ended(job)
    assert error is not None and "the marker is there" in str(error)
    marker.unlink()
    assert totals(folder) == expected(epochs)
    return folder, pipeline


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))


def test_a_store_of_an_older_day_than_the_stream_s_own_log_is_refused(spark: Any, tmp_path: Path, begin: Begin) -> None:
    store, older = tmp_path / "store", tmp_path / "older"
    finished(begin(numbers(spark), counting(), store=store, epochs=3))
    shutil.copytree(store, older, ignore=shutil.ignore_patterns("spark"))
    finished(begin(numbers(spark), counting(), store=store, epochs=6))
    for path in store.iterdir():
        if path.name != "spark":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(older, store, dirs_exist_ok=True)
    with pytest.raises(HoldfastError, match=r"epoch [56] came, .*epochs 3 to [45] would be lost"):
        finished(begin(numbers(spark), counting(), store=store, epochs=9))
    assert totals(store) == expected(3)


def test_a_checkpoint_that_is_damaged_after_a_restart_loses_no_epoch(spark: Any, tmp_path: Path, begin: Begin) -> None:
    store, pipeline = broken_off(spark, begin, tmp_path / "store", 8, nodes=2, checkpoint_every=3)
    faults = parse_faults("damage checkpoint at epoch 8; kill node-0,node-1 at epoch 9")
    error = ended(
        begin(
            numbers(spark), pipeline, store=store, nodes=2, epochs=12, checkpoint_every=100, faults=faults,
            rejoin_after=0.3,
        )
    )  # fmt: skip
    assert any(event["file"] for event in events(store, "damaged"))
    answers = totals(store)
    assert answers == expected(len(answers))
    assert len(answers) == 12 or (error is not None and "epoch" in str(error))


@pytest.mark.parametrize("thread", ["checkpoint", "replay"])
def test_a_listener_that_raises_is_dropped_and_told_of(spark: Any, tmp_path: Path, begin: Begin, thread: str) -> None:
    heard: list[str] = []

    def listener(event: dict[str, Any]) -> None:
        if event["kind"] == "checkpoint" if thread == "checkpoint" else event.get("of") == "replay":
            heard.append("raised")
            raise RuntimeError("the listener is out of order")

    job = begin(
        numbers(spark), counting(), store=tmp_path, nodes=2, epochs=12, checkpoint_every=2, rejoin_after=0.3,
        faults=parse_faults("kill node-0,node-1 at epoch 3"),
        listeners=[listener, lambda event: heard.append(event["kind"])],
    )  # fmt: skip
    finished(job)
    assert totals(tmp_path) == expected(12)
    assert "raised" in heard
    dropped = heard.index("listener dropped") if "listener dropped" in heard else len(heard)
    assert "raised" not in heard[dropped:]
    told = [event for event in read_history(tmp_path) if "listener" in event["kind"]]
    assert any("the listener is out of order" in str(event) for event in told)
    assert events(tmp_path, "checkpoint")[-1]["epoch"] == 11


def test_a_store_that_deletes_nothing_does_not_end_checkpoints(spark: Any, tmp_path: Path, begin: Begin) -> None:
    held = tmp_path / "journal" / f"{0:012d}" / "held"  # a folder where only files should be: it cannot be unlinked
    held.mkdir(parents=True)
    error = ended(begin(numbers(spark), counting(), store=tmp_path, nodes=2, epochs=10, checkpoint_every=2))
    if error is None:
        assert totals(tmp_path) == expected(10)
        assert events(tmp_path, "checkpoint")[-1]["epoch"] == 9
    else:
        assert "journal/" in str(error)


def test_a_node_that_comes_and_goes_between_two_looks_is_no_ghost(spark: Any, tmp_path: Path, begin: Begin) -> None:
    killing, coming, threads = threading.Event(), threading.Event(), set[int]()

    def together(event: dict[str, Any]) -> None:
        """node-2 comes when node-1 has just gone, and goes while their coming and going is looked at.

        That can be arranged where listeners are called by whoever does the deed; one thread for all would wait for
        itself.
        """
        if event["kind"] == "fault":
            threads.add(threading.get_ident())
        if len(threads) > 1 and event.get("fault") == "join node-2 after 0.3s":
            killing.wait(20)
            coming.set()
        elif len(threads) > 1 and event.get("fault") == "kill node-2 at epoch 3":
            killing.set()
            coming.wait(20)
            threading.Event().wait(0.02)

    script = """
        kill node-2 at epoch 1; join node-2 after 0.3s
        kill node-1 at epoch 3; kill node-2 at epoch 3; join node-2 after 2s
    """
    job = begin(
        numbers(spark), counting(), store=tmp_path, nodes=3, epochs=12, patience=0.5, faults=parse_faults(script),
        listeners=[together],
    )  # fmt: skip
    finished(job)
    assert totals(tmp_path) == expected(12)
    assert len(events(tmp_path, "run broken")) < 50


def test_a_bad_changelog_of_a_node_does_not_end_checkpoints(spark: Any, tmp_path: Path, begin: Begin) -> None:
    store, gate = tmp_path / "store", tmp_path / "gate"
    pipeline = counting(waiting_for(gate, 10 * ROWS))
    job = begin(numbers(spark), pipeline, store=store, nodes=2, epochs=13, checkpoint_every=6)
    until(lambda: job.status["epoch"] >= 9 or not job.isActive, lambda: job.status)
    local = next(Path(tempfile.gettempdir()).glob(f"holdfast-nodes-{job.id}-*"))
    changes = [path for path in local.rglob("counts-0/*.arrow") if ".full." not in path.name]
    flip(sorted(changes, key=lambda path: path.stat().st_mtime_ns)[-4])  # of epoch 6: runs have it in memory
    gate.touch()
    finished(job)
    assert totals(store) == expected(13)
    assert events(store, "checkpoint")[-1]["epoch"] == 12


@pytest.mark.parametrize("left", [0, 0.5])
def test_damaged_outputs_are_named_and_made_again(spark: Any, tmp_path: Path, begin: Begin, left: float) -> None:
    store, pipeline = broken_off(spark, begin, tmp_path / "store", 8, checkpoint_every=20)
    outputs = sorted((store / "output" / "final").glob("*.parquet"))
    assert len(outputs) == 8
    hurt = outputs[6]
    hurt.write_bytes(hurt.read_bytes()[: int(hurt.stat().st_size * left)])
    with pytest.raises(HoldfastError, match=hurt.name):
        holdfast.read_output(store, "final")
    finished(begin(numbers(spark), pipeline, store=store, epochs=10, checkpoint_every=3))
    assert totals(store) == expected(10)
