"""On Spark: tasks go to a node that comes late, nothing of them stays behind, and the answers are what they were."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from test_job import numbers
from test_scaling_job import counts_only, rows, running_counts

from holdfast.runtime.history.history import read_history
from holdfast.runtime.spark import start
from holdfast.state.names import folder_task
from waiting import DEADLINE

pytestmark = pytest.mark.spark


def test_tasks_move_to_a_node_that_comes_back(spark: Any, tmp_path: Path) -> None:
    job = start(
        numbers(spark), counts_only(4), store=tmp_path, nodes=2, checkpoint_every=3, capacity=100.0, rejoin_after=0.2
    )
    moving: set[str] = set()
    moved: dict[str, list[str]] = {}
    cleared = threading.Event()

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "answered" and event["epoch"] == 4:
            job.driver.ports.nodes.kill(["node-1"])
        if event["kind"] == "moving":
            moving.update(event["tasks"])
        if event["kind"] == "moved":
            moved.update(event["tasks"])
        if event["kind"] == "epoch" and moved and moved.keys() == moving:
            left = {
                folder_task(path.name)
                for old, _ in moved.values()
                for path in Path(job.driver.nodes[old].folder, "main").iterdir()
            }
            if not left & set(moved):
                cleared.set()

    job.add_listener(hear)
    assert cleared.wait(DEADLINE), (moved, [event["kind"] for event in read_history(tmp_path)])
    job.stop()
    assert rows(tmp_path) == running_counts(job.status["epoch"] + 1)
    assert len(moved) == 2 and {old for old, _ in moved.values()} == {"node-0"}
    told = [event for event in read_history(tmp_path) if event["kind"] == "epoch"]
    when = next(event["time"] for event in read_history(tmp_path) if event["kind"] == "moving")
    assert all(event["fidelity"] == 1.0 and not event["absent"] for event in told if event["time"] >= when)
