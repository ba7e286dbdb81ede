"""Histories for tests: a job on four nodes that loses two of them, written as the runtime writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TOPOLOGY: dict[str, Any] = {
    "operators": [
        {"name": "words", "parallelism": 2, "costs": [0, 0]},
        {"name": "count", "parallelism": 4, "stateful": True},
        {"name": "top", "parallelism": 1, "stateful": True},
    ],
    "streams": [
        {"from": "words", "to": "count", "partitioning": "full"},
        {"from": "count", "to": "top", "partitioning": "merge"},
    ],
    "queries": [{"sink": "top", "priority": 1}],
}


def epoch(time: float, number: int, inexact: dict[str, str] | None = None, fidelity: float = 1.0) -> dict[str, Any]:
    lanes = list((inexact or {}).values())
    return {
        "time": time, "kind": "epoch", "epoch": number, "exact": 5 - len(lanes), "tentative": lanes.count("tentative"),
        "replicas": 1, "absent": lanes.count("absent"), "inexact": inexact or {}, "fidelity": fidelity,
        "queries": {"top": fidelity} if inexact else {}, "rows_in": 1000, "state_bytes": 4096 + number,
        "state_rows": 100, "state": {"count": 4000 + number, "top": 96},
        "floor": None if inexact else 0.61, "survive": 2,
    }  # fmt: skip


def published(time: float, of: str, number: int, fidelity: float = 1.0) -> dict[str, Any]:
    return {
        "time": time, "kind": "published", "of": of, "epochs": [number], "tasks": ["top/0"], "run": number, "rows": 50,
        "fidelity": fidelity,
    }  # fmt: skip


def half_lost(start: float = 1000.0) -> list[dict[str, Any]]:
    """Epochs 0 to 4; node-1 and node-2 go during epoch 2: count/3 has a replica, count/1 and count/2 are restored."""
    homes = {"count/0": "node-0", "count/1": "node-1", "count/2": "node-2", "count/3": "node-1", "top/0": "node-3"}
    down = {"count/1": "absent", "count/2": "absent", "top/0": "tentative"}
    plan = {"kind": "recovery plan", "scheduler": "incremental", "capacity": 5.0, "queries": ["top/0"]}
    events: list[dict[str, Any]] = [
        {"time": 0.0, "kind": "started", "job": "j", "nodes": 4, "epochs": 5, "master": "local[2]",
         "topology": TOPOLOGY, "settings": {"scheduler": "incremental", "recovery": "incremental"}},
        {"time": 0.1, "kind": "nodes joined", "nodes": ["node-0", "node-1", "node-2", "node-3"], "alive": 4},
        {"time": 0.1, **plan, "recover": homes, "still_down": [], "why": "5 of 5 tasks fit", "epoch": 0},
        {"time": 0.2, "kind": "replicas planned", "tasks": ["count/3"], "why": "budget of 1: fidelity 0.250"},
        {"time": 0.2, "kind": "replicas", "placed": {"count/3": "node-0"}},
    ]  # fmt: skip
    for number in (0, 1):
        events += [
            published(1.0 + number, "final", number),
            epoch(1.0 + number, number),
            {"time": 1.1 + number, "kind": "answered", "epoch": number, "seconds": 0.5},
        ]
    events += [
        {"time": 2.2, "kind": "checkpoint", "epoch": 1, "bytes": 2048},
        {"time": 2.5, "kind": "fault", "fault": "kill node-1,node-2 at epoch 2"},
        {"time": 2.6, "kind": "nodes lost", "nodes": ["node-1", "node-2"], "cause": "executor lost", "epoch": 2,
         "down": ["count/1", "count/2"], "alive": 2, "promised": 0.48},
        {"time": 2.6, "kind": "promoted", "tasks": ["count/3"], "epoch": 2},
        {"time": 2.7, **plan, "recover": {"count/1": "node-0"}, "still_down": ["count/2"], "why": "1 of 2 fits",
         "epoch": 2},
        published(3.1, "tentative", 2, 0.5),
        epoch(3.1, 2, down, 0.5),
        {"time": 3.1, "kind": "answered", "epoch": 2, "seconds": 1.5},
        {"time": 3.3, "kind": "nodes joined", "nodes": ["node-1"], "alive": 3},
        {"time": 3.3, **plan, "recover": {"count/2": "node-1"}, "still_down": [], "why": "1 of 1 fits", "epoch": 2},
        {"time": 3.4, "kind": "replay", "run": 7, "first": 2, "last": 2, "tasks": ["count/1", "count/2", "top/0"],
         "on_the_side": [], "from_buffers": ["count/0"]},
        {"time": 3.9, "kind": "run", "run": 7, "of": "replay", "seconds": 0.5},
        published(3.9, "final", 2),
    ]  # fmt: skip
    for number in (3, 4):
        events += [
            published(1.5 + number, "final", number),
            epoch(1.5 + number, number),
            {"time": 1.5 + number, "kind": "answered", "epoch": number, "seconds": 0.4},
        ]
    events += [
        {"time": 5.9, "kind": "stopped", "error": None},
        {"time": 6.0, "kind": "checkpoint", "epoch": 4, "bytes": 1024},
    ]
    return [{**event, "time": start + event["time"]} for event in events]


def silent(start: float = 1000.0) -> list[dict[str, Any]]:
    """The same failure, but top/0, the only sink, is down too until the replay: epoch 2 is answered with nothing."""
    events = []
    for event in half_lost(start):
        if event["kind"] == "published" and event["of"] == "tentative":
            continue
        absent = dict.fromkeys(("count/1", "count/2", "top/0"), "absent")
        empty = event["kind"] == "epoch" and event["epoch"] == 2
        events.append(epoch(event["time"], 2, absent, 0.0) if empty else event)
    return events


def written(folder: Path, events: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(event) + "\n" for event in events)
    (folder / "history.jsonl").write_text(text, encoding="utf-8")
    return folder
