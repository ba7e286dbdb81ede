"""A driver that is stopped within user code or a file write, superseded and resumed does no harm any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from promised import DEADLINE, ROWS
from superseded import EPOCHS, FILES, STARTS, STOPPED_AT, Latest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

PATIENCE = 4 * DEADLINE
CALLS = ("sink", "batches")


def until(condition: Callable[[], bool], what: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@contextmanager
def older(folder: Path, *names: str) -> Iterator[subprocess.Popen[str]]:
    """The older driver, in a process group of its own that is gone afterwards."""
    program = [sys.executable, str(Path(__file__).with_name("superseded.py")), str(folder), *names]
    known = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": known}
    with subprocess.Popen(program, start_new_session=True, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def take_over(spark: Any, folder: Path) -> None:
    """The newer driver waits for the leases of the older one, takes over, and gives what there is up to an epoch."""

    def done(name: str) -> bool:
        if name in FILES:
            return (folder / name / f"epoch={EPOCHS}").exists()
        return ("new", EPOCHS) in Latest(folder, name, "test").calls()

    jobs: dict[str, Any] = {}
    try:
        for name, start in STARTS.items():
            jobs[name] = start(spark, folder, "new", lambda _: None, standby=True)
        deadline = time.monotonic() + PATIENCE
        for name, job in jobs.items():
            while not done(name):
                assert not job.awaitTermination(0.01) and time.monotonic() < deadline, (name, job.status)
    finally:
        for job in jobs.values():
            job.stop()


@pytest.fixture(scope="module")
def resumed(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What both drivers have done, when the older one has been stopped, superseded, resumed, and has ended."""
    folder = tmp_path_factory.mktemp("superseded")
    with older(folder, *STARTS) as process:
        for name in STARTS:
            until((folder / f"{name}.inside").exists, f"{name}: the older driver never got there", process)
        os.killpg(process.pid, signal.SIGSTOP)
        take_over(spark, folder)
        (folder / "resumed").touch()
        os.killpg(process.pid, signal.SIGCONT)
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said[-3000:]
    assert all((folder / f"{name}.ended").exists() for name in STARTS), "the older driver has not given way"
    return folder


@pytest.mark.parametrize("name", CALLS)
def test_a_superseded_driver_begins_nothing_more(name: str, resumed: Path) -> None:
    latest = Latest(resumed, name, "test")
    calls = latest.calls()
    taken = calls.index(("new", STOPPED_AT))
    assert calls[:taken].count(("old", STOPPED_AT)) == 1, "it was stopped in its first call of this epoch"
    assert [call for call in calls[taken:] if call[0] == "old"] == []


@pytest.mark.parametrize("name", CALLS)
def test_what_a_sink_upserts_does_not_go_back(name: str, resumed: Path) -> None:
    latest = Latest(resumed, name, "test")
    newest = max(epoch for _, epoch in latest.calls())
    counts = [ROWS * (newest + 1) // 16] * 16
    assert latest.rows() == [(key, newest, count) for key, count in enumerate(counts)]


@pytest.mark.parametrize("name", FILES)
def test_files_have_every_row_once(name: str, spark: Any, resumed: Path) -> None:
    values = [row["value"] for row in spark.read.format(name).load(str(resumed / name)).collect()]
    epochs = len(list((resumed / name).glob("epoch=*")))
    assert epochs > STOPPED_AT and sorted(values) == list(range(epochs * ROWS))
