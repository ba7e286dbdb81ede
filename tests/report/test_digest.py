"""What the page shows is what the history says: tasks through time, recoveries, thinning, sittings, attachments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from histories import TOPOLOGY, epoch, half_lost, written

from holdfast.errors import Invalid
from holdfast.report.clock import PAUSE, seconds
from holdfast.report.comparison import compare
from holdfast.report.digest import POINTS, digest, digest_events
from holdfast.report.frames import frames
from holdfast.report.timeline import timeline
from holdfast.topology import Operator, Stream, Topology, topology_from


def standing(told: list[dict[str, Any]], upto: int) -> dict[str, dict[str, Any]]:
    """Frames added up, as the page does it."""
    now: dict[str, dict[str, Any]] = {"status": {}, "homes": {}, "replicas": {}, "nodes": {}}
    for frame in told[: upto + 1]:
        for part, held in now.items():
            for key, value in frame.get(part, {}).items():
                held.pop(key, None)
                if value is not None:
                    held[key] = value
    return now


def frame_of(told: list[dict[str, Any]], kind: str, which: int = 0) -> int:
    return [number for number, frame in enumerate(told) if frame["what"] == kind][which]


def test_tasks_go_down_catch_up_and_become_exact_again() -> None:
    events = half_lost()
    told = frames(events, seconds(events))
    before = standing(told, frame_of(told, "epoch", 1))
    assert set(before["status"].values()) == {"exact"} and before["replicas"] == {"count/3": "node-0"}
    lost = standing(told, frame_of(told, "nodes lost"))
    assert {task for task, status in lost["status"].items() if status == "down"} == {"count/1", "count/2"}
    assert lost["homes"]["count/3"] == "node-0" and not lost["replicas"]  # the replica took over
    assert lost["nodes"] == {"node-0": True, "node-1": False, "node-2": False, "node-3": True}
    answered = standing(told, frame_of(told, "epoch", 2))
    assert answered["status"] == {
        "count/0": "exact", "count/1": "catching up", "count/2": "down", "count/3": "exact", "top/0": "tentative",
    }  # fmt: skip
    after = standing(told, len(told) - 1)
    assert set(after["status"].values()) == {"exact"} and after["homes"]["count/2"] == "node-1"


def test_tasks_move_and_nodes_are_given_back() -> None:
    begun = half_lost()
    then = begun[-1]["time"]

    def event(after: float, kind: str, **fields: Any) -> dict[str, Any]:
        return {"time": then + after, "kind": kind, **fields}

    moving = {"count/2": ["node-1", "node-3"], "top/0": ["node-1", "node-0"]}
    leave = event(1, "nodes leaving", nodes=["node-1"], tasks=list(moving), why="not needed")
    events = [
        *begun, leave, event(2, "moving", tasks=moving, why="leaving"), event(3, "moved", tasks=moving, epoch=9),
        event(4, "nodes released", nodes=["node-1"], alive=3),
    ]  # fmt: skip
    told = frames(events, seconds(events))
    under_way = standing(told, frame_of(told, "moving"))
    assert under_way["homes"]["count/2"] == "node-1" and under_way["replicas"]["count/2"] == "node-3"
    after = standing(told, len(told) - 1)
    assert after["homes"]["count/2"] == "node-3" and after["homes"]["top/0"] == "node-0"
    assert not set(moving) & set(after["replicas"]) and "node-1" not in after["nodes"]
    lines = [entry["title"] if "title" in entry else str(entry) for entry in timeline(events, seconds(events))]
    assert any("given back: node-1" in line for line in lines) and any("2 tasks moved" in line for line in lines)
    stays = [*events[:-2], event(3, "nodes stay", nodes=["node-1"], why="nodes were lost")]
    told = frames(stays, seconds(stays))
    assert not set(moving) & set(standing(told, len(told) - 1)["replicas"])


def test_state_that_a_node_lacks_is_lost_unless_the_task_has_left_it() -> None:
    def lacking(task: str, node: str, lane: str) -> dict[str, Any]:
        return {"time": 1002.3, "kind": "missing", "task": task, "node": node, "lane": lane, "message": "gone"}

    start = half_lost()[:8]
    stale = [*start, lacking("count/0", "node-3", "exact"), lacking("count/3", "node-2", "replica")]
    now = standing(frames(stale, seconds(stale)), len(stale))
    assert now["status"]["count/0"] == "exact" and now["replicas"] == {"count/3": "node-0"}
    true = [*start, lacking("count/0", "node-0", "exact"), lacking("count/3", "node-0", "replica")]
    now = standing(frames(true, seconds(true)), len(true))
    assert now["status"]["count/0"] == "down" and not now["replicas"] and now["status"]["count/3"] == "exact"


def test_sources_have_no_home_to_lose() -> None:
    events = half_lost()
    status = standing(frames(events, seconds(events)), 0)["status"]
    assert sorted(status) == ["count/0", "count/1", "count/2", "count/3", "top/0"]


def test_a_timeline_tells_causes_plans_with_reasons_and_how_long_a_replay_took() -> None:
    events = half_lost()
    told = timeline(events, seconds(events))
    by_title = {entry["title"]: entry for entry in told}
    assert by_title["lost node-1, node-2"]["detail"] == (
        "executor lost; 2 tasks down: count/1, count/2; 2 nodes left; the next answer will have fidelity 0.480"
    )
    assert (
        "1 of 2 fits" in by_title["recover 1 tasks"]["detail"] or "1 of 1 fits" in by_title["recover 1 tasks"]["detail"]
    )
    assert by_title["plan: 1 replica"]["detail"] == "count/3: budget of 1: fidelity 0.250"
    assert by_title["1 replica took over"]["detail"] == "count/3"
    replay = by_title["replay of epochs 2 to 2"]
    assert (replay["t"], replay["until"]) == (3.4, 3.9)
    assert {entry["lane"] for entry in told} == {
        "job", "nodes", "plans", "replicas", "checkpoints", "failures", "replays",
    }  # fmt: skip


def test_a_digest_has_the_numbers_of_the_history(tmp_path: Path) -> None:
    told = digest(written(tmp_path / "run", half_lost()))
    assert not told["running"] and told["error"] is None and told["seconds"] == 6.0
    assert [each["fidelity"] for each in told["epochs"]] == [1.0, 1.0, 0.5, 1.0, 1.0]
    assert [each["latency"] for each in told["epochs"]] == [0.5, 0.5, 1.5, 0.4, 0.4]
    assert (told["outputs"][-1]["final"], told["outputs"][-1]["tentative"]) == (5, 1)
    assert told["checkpoints"] == [{"t": 2.2, "epoch": 1, "bytes": 2048}, {"t": 6.0, "epoch": 4, "bytes": 1024}]
    (recovery,) = told["recoveries"]
    assert recovery["answered_after_s"] == 0.5 and recovery["answered_fidelity"] == 0.5
    assert recovery["exact_after_s"] == 1.9 and recovery["t"] == 2.6
    assert [operator["column"] for operator in told["topology"]["operators"]] == [0, 1, 2]
    json.dumps(told, allow_nan=False)


def test_schedulers_are_compared_on_the_failure_that_happened() -> None:
    model = topology_from(TOPOLOGY)
    told = compare(model, ["count/1", "count/2", "top/0"])
    assert told is not None and told["before"] == 0.0 and told["steps"] == 3
    by_name = {each["scheduler"]: each for each in told["schedules"]}
    # Counts that nobody listens to are worth nothing: the query's own task comes first, and gives half at once.
    assert by_name["incremental"]["steps"][0] == {"recover": ["top/0"], "fidelity": 0.5}
    assert all(each["steps"][-1]["fidelity"] == pytest.approx(1.0) for each in told["schedules"])
    assert compare(model, ["count/1"]) is None


def test_schedulers_are_compared_by_the_rates_that_were_measured() -> None:
    model = Topology(
        (Operator("S"), Operator("count", parallelism=2)),
        (Stream("S", "count", "full"),),
    )
    even = compare(model, ["count/0", "count/1"])
    uneven = compare(model, ["count/0", "count/1"], {"count": [9.0, 1.0], "gone": [1.0]})
    assert even is not None and uneven is not None

    def firsts(told: dict[str, Any]) -> set[float]:
        """What the one task that comes back first is worth, whichever a scheduler takes."""
        return {round(each["steps"][0]["fidelity"], 9) for each in told["schedules"]}

    assert firsts(even) == {0.5} and firsts(uneven) <= {0.1, 0.9} and 0.9 in firsts(uneven)
    assert compare(model, ["count/0", "count/1"], {"count": [9.0, 1.0, 1.0]}) == even, "rates of another parallelism"


def test_hours_between_two_sittings_are_cut_out() -> None:
    events = [*half_lost(1000.0), *half_lost(90_000.0)]
    told = seconds(events)
    second = len(half_lost())
    assert told[second] == pytest.approx(told[second - 1] + PAUSE)
    assert told == sorted(told)
    assert digest_events(events, "run")["sittings"] == 2


def test_a_clock_that_was_set_back_does_not_turn_time_around() -> None:
    assert seconds([{"time": 10.0, "kind": "a"}, {"time": 4.0, "kind": "b"}, {"time": 11.0, "kind": "c"}]) == [0, 0, 1]


def test_a_long_run_is_thinned_and_keeps_its_worst_moments() -> None:
    events = half_lost()[:5] + [epoch(1000.0 + n, n, None, 0.25 if n == 4321 else 1.0) for n in range(4 * POINTS)]
    told = digest_events(events, "long")
    assert len(told["epochs"]) <= POINTS and len(told["frames"]) <= POINTS + 10
    assert min(each["fidelity"] for each in told["epochs"]) == 0.25


def test_a_run_of_a_time_before_topologies_were_recorded_is_still_told(tmp_path: Path) -> None:
    events = half_lost()
    for event in events:
        for key in ("topology", "settings", "master", "inexact", "state"):
            event.pop(key, None)
    told = digest(written(tmp_path, events))
    assert told["topology"] is None and len(told["epochs"]) == 5


def test_a_torn_last_line_and_an_empty_history(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", half_lost()[:9])
    with (folder / "history.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"time": 1, "ki')
    assert digest(folder)["running"]
    with pytest.raises(Invalid, match="the history is empty"):
        digest(written(tmp_path / "empty", []))
    with pytest.raises(Invalid, match=r"no history\.jsonl here"):
        digest(tmp_path / "nowhere")


def test_answers_of_other_commands_become_sections(tmp_path: Path) -> None:
    folder = written(tmp_path, half_lost())
    files = {
        "a-plan": {"algorithm": "greedy", "budget": 2, "cost": 2, "replicas": ["count/0"], "fidelity": 0.25},
        "advice": {"best": "periodic", "strategies": [{"strategy": "periodic", "nodes": 2, "feasible": True}]},
        "assess-1": {"operators": [{"operator": "count", "score": 0.5, "none": None}]},
        "bench-throughput": [{"system": "Holdfast", "rows_per_second": 1.5e6}],
        "schedule": {"algorithm": "incremental", "steps": [{"capacity": 2, "recover": ["top/0", "count/1"]}]},
        "else": {"something": "else"},
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "broken.json").write_text("{", encoding="utf-8")
    told = {each["file"]: each for each in digest(folder)["attachments"]}
    kinds = {name: each["kind"] for name, each in told.items()}
    assert kinds == {
        "a-plan.json": "plan", "advice.json": "advice", "assess-1.json": "assessment",
        "bench-throughput.json": "benchmark", "schedule.json": "plan",
    }  # fmt: skip
    assert told["a-plan.json"]["facts"]["replicas"] == "count/0"
    assert told["advice.json"]["rows"] == [["periodic", "2", "yes"]]
    assert told["schedule.json"]["rows"] == [["2", "top/0, count/1"]]
    assert told["assess-1.json"]["rows"] == [["count", "0.5", ""]]


@pytest.mark.parametrize(
    "written",
    [b'{"a": 1}', b"garbage", bytes(range(256)), b'{"kind": "epoch", "time": 1}', b'{"kind": "started", "time": "x"}'],
)
def test_a_file_that_is_no_history_of_ours_is_invalid(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "history.jsonl").write_bytes(written + b"\n")
    with pytest.raises(Invalid, match="history"):
        digest(tmp_path)
