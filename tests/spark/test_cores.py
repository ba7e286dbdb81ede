"""Every core of an executor works: its tasks of a level go on at once, with one job in the session and with two."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from commands import running
from on_cores import EPOCHS, all_at_work
from on_executors import counted

from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.outputs import read_output
from waiting import DEADLINE

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("programs")]


@pytest.mark.long
@pytest.mark.parametrize(("executors", "cores"), [(2, 2), (1, 4)], ids=["two of two", "one of four"])
def test_tasks_of_an_executor_are_at_work_at_once(executors: int, cores: int, tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).with_name("on_cores.py"))]
    with running(str(executors), str(cores), str(tmp_path), program=program) as process:
        _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err[-3000:]

    all_at_work(tmp_path, executors, cores)
    for name in ("counts", "beside"):
        table = read_output(tmp_path / name, "final")
        rows = sorted(zip(*(table[column].to_pylist() for column in ("epoch", "key", "count")), strict=True))
        assert rows == counted(EPOCHS)
        lost = [event for event in read_history(tmp_path / name) if event["kind"] == "nodes lost"]
        assert lost, "both had a node on the executor that was killed"
