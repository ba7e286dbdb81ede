"""A driver that is killed or stopped goes on with the watermark that it had, and with every row.

What each epoch must have is worked out by a plain loop over the batches that Spark planned (``planned.py``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from restart_queries import BEGIN, PIPELINE, assert_as_planned, begin, drop, put, sunk

from holdfast.errors import HoldfastError, StreamEnded
from holdfast.queries.writer import NO_DATA
from holdfast.runtime.spark.idle import IdleEpochs
from holdfast.runtime.spark.source import StreamSource
from holdfast.state import Store
from holdfast.state.entries import document, read_document

pytestmark = pytest.mark.spark

DEADLINE = 240.0
HELD = 1.0
"""Seconds that Spark takes to commit a batch once the stream is told to end, unless its query is stopped meanwhile."""
DOORS = ("windows", PIPELINE)
ENDS_AT = 1
"""The epoch at which a driver is killed or stopped; there are files for more."""
AT_ONCE = ("once within", PIPELINE)


def test_killed_when_epochs_are_answered_and_not_committed(retaining: Any, tmp_path: Path) -> None:
    dropped(tmp_path)
    killed_at(tmp_path, ENDS_AT, *AT_ONCE)
    for name in AT_ONCE:
        log = tmp_path / "stores" / name / "spark"
        assert (log / "offsets" / f"{ENDS_AT}").exists() and not (log / "commits" / f"{ENDS_AT}").exists(), name
    for query in [begin(retaining, tmp_path, name) for name in AT_ONCE]:
        assert query.awaitTermination(DEADLINE)
    assert_as_planned(tmp_path, *AT_ONCE)


def dropped(root: Path) -> None:
    for number in range(ENDS_AT + 3):
        drop(root, number)


def killed_at(root: Path, epoch: int, *names: str) -> None:
    """A driver of these queries, which is killed when all have answered this epoch."""
    program = [sys.executable, str(Path(__file__).with_name("restart_job.py")), str(root), "dies", str(epoch), *names]
    paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(
        program, start_new_session=True, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        try:
            _, said = process.communicate(timeout=DEADLINE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, said[-3000:]


@pytest.fixture
def no_idle_epochs(retaining: Any) -> Iterator[None]:
    """The newest epoch is the newest batch."""
    retaining.conf.set(NO_DATA, "false")
    yield
    retaining.conf.unset(NO_DATA)


@pytest.fixture
def slow_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark is slow to commit a batch: the stream is told to end before, and no query that is stopped does."""
    each, close = StreamSource._each, StreamSource.close
    held, told = threading.Event(), threading.Event()

    def closing(source: StreamSource, error: HoldfastError | None) -> None:
        close(source, error)
        told.set()

    def holding(source: StreamSource, frame: Any, batch: int) -> None:
        each(source, frame, batch)
        if batch != ENDS_AT or held.is_set():
            return
        held.set()
        query: Any = source.query
        thread = query._jsq.streamingQuery().queryExecutionThread()
        until = time.monotonic() + (HELD if told.wait(5 * HELD) else 0)
        while time.monotonic() < until:
            if thread.isInterrupted():
                raise InterruptedError("the query is stopped")
            threading.Event().wait(0.01)

    monkeypatch.setattr(StreamSource, "close", closing)
    monkeypatch.setattr(StreamSource, "_each", holding)


@pytest.mark.usefixtures("slow_commit")
@pytest.mark.parametrize("name", DOORS)
def test_stopped_while_spark_commits_a_batch(name: str, retaining: Any, tmp_path: Path) -> None:
    dropped(tmp_path)
    answered = threading.Event()
    query = begin(retaining, tmp_path, name, listeners=[hearing(answered)])
    assert answered.wait(DEADLINE)
    query.stop()
    assert begin(retaining, tmp_path, name).awaitTermination(DEADLINE)
    assert_as_planned(tmp_path, name)


def hearing(answered: threading.Event) -> Callable[[dict[str, Any]], None]:
    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "answered" and event["epoch"] == ENDS_AT:
            answered.set()

    return hear


@pytest.mark.usefixtures("slow_commit")
@pytest.mark.parametrize("waits", [True, False])
def test_started_again_after_the_epochs_that_were_asked_for(
    waits: bool, retaining: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``waits``: for Spark's commit; else it takes too long, and the batch comes again."""
    if not waits:
        monkeypatch.setattr("holdfast.runtime.spark.source.COMMITS", 0.01)
    dropped(tmp_path)
    assert begin(retaining, tmp_path, PIPELINE, epochs=ENDS_AT + 1).awaitTermination(DEADLINE)
    assert begin(retaining, tmp_path, PIPELINE).awaitTermination(DEADLINE)
    assert_as_planned(tmp_path, PIPELINE)


def files_of(store: Path, folder: str) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in (store / folder).rglob("*") if path.is_file()}


def lose_newest(log: Path) -> None:
    """What power loss may leave of a log that is not synced: without all that Spark wrote of its newest batch."""
    newest = max(int(path.name) for path in (log / "offsets").iterdir() if path.name.isdecimal())
    for lost in (log / "offsets", log / "commits", log / "sources" / "0"):
        for path in lost.iterdir():
            if path.name.strip(".").partition(".")[0] == str(newest):
                path.unlink()


@pytest.mark.usefixtures("no_idle_epochs")
@pytest.mark.parametrize("name", DOORS)
@pytest.mark.parametrize("came", ["more", "another"])
def test_a_batch_that_is_planned_again_with_other_rows_is_refused(
    came: str, name: str, retaining: Any, tmp_path: Path
) -> None:
    """``more``: the rows that the store has, and others; ``another``: other rows, as many."""
    files = 2 if came == "more" else 1
    for number in (0, 1):
        drop(tmp_path, number)
    assert begin(retaining, tmp_path, name, files).awaitTermination(DEADLINE)
    drop(tmp_path, 3)
    assert begin(retaining, tmp_path, name, files).awaitTermination(DEADLINE)
    store, given = tmp_path / "stores" / name, sunk(tmp_path, name)
    lose_newest(store / "spark")
    drop(tmp_path, 2)
    journal = files_of(store, "journal")
    with pytest.raises(HoldfastError, match=r"(batch|epoch) \d") as refused:
        begin(retaining, tmp_path, name, files).awaitTermination(DEADLINE)
    assert "\n" not in str(refused.value)
    assert files_of(store, "journal") == journal and sunk(tmp_path, name) == given


@pytest.mark.parametrize("name", DOORS)
def test_a_batch_that_is_planned_again_with_the_same_rows_is_the_one_that_is_there(
    name: str, retaining: Any, tmp_path: Path
) -> None:
    """The windows have an epoch without rows behind it, the pipeline has none."""
    for number in range(3):
        drop(tmp_path, number)
    assert begin(retaining, tmp_path, name).awaitTermination(DEADLINE)
    lose_newest(tmp_path / "stores" / name / "spark")
    for number in range(3, 6):
        drop(tmp_path, number)
    assert begin(retaining, tmp_path, name).awaitTermination(DEADLINE)
    assert_as_planned(tmp_path, name)


@pytest.mark.usefixtures("no_idle_epochs")
@pytest.mark.parametrize("name", DOORS)
def test_a_store_of_a_version_without_origins_continues_and_says_what_is_not_compared(
    name: str, retaining: Any, tmp_path: Path
) -> None:
    for number in range(3):
        drop(tmp_path, number)
    assert begin(retaining, tmp_path, name).awaitTermination(DEADLINE)
    store = tmp_path / "stores" / name
    for folder in ("journal/commits", "checkpoints"):
        for path in (store / folder).glob("*-*-*.json" if folder == "checkpoints" else "*.json"):
            kind = folder.partition("/")[0].removesuffix("s")
            body = read_document(Store(store).files, kind, str(path.relative_to(store)))
            body["extra"].pop("origin")
            path.write_bytes(
                document(Store(store).files, kind, {key: body[key] for key in body if key not in ("format", "layout")})
            )
    for path in (store / "spark" / "commits").iterdir():
        if path.name.strip(".").partition(".")[0] == "2":
            path.unlink()
    for number in range(3, 5):
        drop(tmp_path, number)
    told: list[str] = []
    listener = lambda event: told.append(event.get("message", ""))  # noqa: E731
    assert begin(retaining, tmp_path, name, listeners=[listener]).awaitTermination(DEADLINE)
    assert any("epoch 2 comes again" in each and "not compared" in each for each in told)
    assert_as_planned(tmp_path, name, idles=False)


def test_a_stream_that_is_silent_after_a_restart_keeps_its_watermark(retaining: Any, tmp_path: Path) -> None:
    """The least of both counts. Structured Streaming forgets which of them has come how far."""
    put(tmp_path, "views", 0, [{"ad": 1, "seen": BEGIN + 100}])
    put(tmp_path, "clicks", 0, [{"ad": 2, "clicked": BEGIN + 500}])
    assert begin(retaining, tmp_path, "join").awaitTermination(DEADLINE)
    put(tmp_path, "views", 1, [{"ad": 3, "seen": BEGIN + 300}])
    assert begin(retaining, tmp_path, "join").awaitTermination(DEADLINE)
    assert_as_planned(tmp_path, "join")
    assert [(BEGIN + 100, 1, None)] in sunk(tmp_path, "join")["rows"].values()


@pytest.mark.parametrize(
    "more",
    [0, 1],
)
def test_an_epoch_without_rows_that_was_put_down_alone_is_the_next_one(
    more: int, retaining: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver died before it was run. ``more``: files that have come meanwhile."""
    add = IdleEpochs.add

    def dying(epochs: IdleEpochs, batch: int, watermark: int) -> Any:
        add(epochs, batch, watermark)
        raise StreamEnded("it was killed")

    for number in range(3):
        drop(tmp_path, number)
    with monkeypatch.context() as patch:
        patch.setattr(IdleEpochs, "add", dying)
        with pytest.raises(StreamEnded, match="it was killed"):
            begin(retaining, tmp_path, "windows").awaitTermination(DEADLINE)
    for number in range(3, 3 + more):
        drop(tmp_path, number)
    assert begin(retaining, tmp_path, "windows").awaitTermination(DEADLINE)
    assert_as_planned(tmp_path, "windows")
