"""The page of a run whose operators were scaled: every task of every shape is there, at its time."""

from __future__ import annotations

from typing import Any

from holdfast.report.digest import digest_events
from holdfast.report.frames import Tasks
from holdfast.report.page import page
from holdfast.runtime.settings import Settings
from holdfast.runtime.simulation.operators import digest_batches, digesting
from holdfast.runtime.simulation.schedule import FaultSchedule
from holdfast.runtime.simulation.simulation import Simulation
from holdfast.topology import Operator, Stream, Topology

TOPOLOGY = Topology(
    (Operator("S", 1, costs=(0.0,)), Operator("A", 1, stateful=True), Operator("B", 1, stateful=True)),
    (Stream("S", "A", "full"), Stream("A", "B", "full")),
)


def events() -> list[dict[str, Any]]:
    schedule = FaultSchedule(TOPOLOGY, Settings(nodes=3), nodes=3, epochs=12, scalings=((2.0, "A", 3), (6.0, "A", 2)))
    pipeline = digesting(TOPOLOGY, ordered=False)
    return Simulation(schedule, pipeline, digest_batches(pipeline, 12, seed=1)).run().history


def test_tasks_of_later_shapes_appear_and_go() -> None:
    tasks = Tasks()
    seen = []
    for event in events():
        tasks.hear(event)
        if event["kind"] == "scaled":
            seen.append({task: tasks.status[task] for task in sorted(tasks.status)})
            assert set(tasks.homes) == set(tasks.status)
    assert seen == [
        {"A/0": "exact", "A/1": "exact", "A/2": "exact", "B/0": "exact"},
        {"A/0": "exact", "A/1": "exact", "B/0": "exact"},
    ]


def test_the_page_draws_as_many_tasks_as_there_ever_were() -> None:
    told = digest_events(events(), "a scaled run")
    drawn = {operator["name"]: operator["tasks"] for operator in told["topology"]["operators"]}
    assert drawn == {"S": 1, "A": 3, "B": 1}
    assert {stream["partitioning"] for stream in told["topology"]["streams"]} == {"full"}
    lines = [entry["title"] for entry in told["timeline"] if entry["lane"] == "scaling"]
    assert lines == ["A to 3 tasks begun", "A has 3 tasks", "A to 2 tasks begun", "A has 2 tasks"]
    assert "A has 3 tasks" in page(told, "a scaled run")
