"""What a run's folder says, as one JSON object: all that the page shows. The same for a run that is still going on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, Invalid
from holdfast.report.attachments import attachments
from holdfast.report.clock import seconds
from holdfast.report.comparison import compare
from holdfast.report.frames import Tasks, frames
from holdfast.report.short import in_short, standing
from holdfast.report.timeline import LANES, timeline
from holdfast.runtime.history.history import read_history, understood
from holdfast.runtime.history.narrative import Recovery, losing, promise, recoveries
from holdfast.topology import Topology, topology_from

POINTS = 1500
"""Epochs that a chart shows; of more, the worst of each group is kept."""
COMPARED = 5
"""So many of the last failures are compared with other schedulers."""


def digest(directory: str | Path) -> dict[str, Any]:
    """Of a run's folder, or of a store by URL; Invalid if it is none."""
    name = str(directory).rstrip("/").rpartition("/")[2]
    with understood(directory):
        told = digest_events(list(read_history(directory)), name)
        heard = datetime.fromtimestamp(told["began"] + told["elapsed"], UTC)
    folder = Path(directory) if "://" not in str(directory) else None
    for part in ("setup", "summary", "verdict"):
        told[part] = _read(folder / ("run.json" if part == "setup" else f"{part}.json")) if folder is not None else {}
    told["attachments"] = attachments(folder) if folder is not None else []
    if told["running"]:
        # Nobody here can know which of the two it is.
        told["standing"] = {
            "level": "fair",
            "text": f"Still running, or killed: the history has no end; last heard {heard:%F %T} UTC",
        }
    if told["setup"].get("workload"):
        told["title"] = f"{told['setup']['workload']} in {name}"
    return told


def digest_events(events: Sequence[dict[str, Any]], title: str) -> dict[str, Any]:
    """Of a history alone, as far as it goes."""
    if not events:
        raise Invalid(f"{title}: the history is empty; nothing has happened yet")
    times = seconds(events)
    started = [event for event in events if event["kind"] == "started"]
    topology = started[-1].get("topology") if started else None
    model = topology_from(topology) if topology else None
    end = ending(events)
    found = recoveries(events)
    told = {
        "title": title,
        "began": events[0]["time"],
        "elapsed": events[-1]["time"] - events[0]["time"],
        "seconds": times[-1],
        "running": end is None,
        "error": end["error"] if end is not None else None,
        "sittings": len(started),
        "nodes": started[-1]["nodes"] if started else None,
        "wanted_epochs": started[-1].get("epochs") if started else None,
        "master": started[-1].get("master") if started else None,
        "settings": started[-1].get("settings", {}) if started else {},
        "topology": _drawn(model, most_tasks(events)) if model is not None else None,
        "lanes": LANES,
        "timeline": timeline(events, times),
        "frames": _thin_frames(frames(events, times)),
        "epochs": _epochs(events, times),
        "floor_of": next((losing(e["survive"]) for e in reversed(events) if e.get("floor") is not None), None),
        "promise": promise(events),
        "outputs": _outputs(events, times),
        "checkpoints": [
            {"t": time, "epoch": event["epoch"], "bytes": event["bytes"]}
            for event, time in zip(events, times, strict=True)
            if event["kind"] == "checkpoint"
        ],
        "recoveries": _recoveries(events, times, model, found),
        "setup": {},
        "summary": {},
        "verdict": {},
        "attachments": [],
    }
    told["standing"] = _standing(events, told)
    told["short"] = in_short(told, found)
    return told


def _standing(events: Sequence[Mapping[str, Any]], told: Mapping[str, Any]) -> dict[str, str]:
    tasks = Tasks()
    last = refused = None
    for event in events:
        tasks.hear(event)
        if event["kind"] == "started":
            last = refused = None
        elif event["kind"] in ("store unusable", "store usable"):
            refused = event.get("message")
        elif event["kind"] == "epoch":
            last = event
        elif event["kind"] == "checkpoint" and last is not None and event["epoch"] >= last["epoch"]:
            # The state of every task at the newest epoch: whoever was behind has caught up.
            last = {**last, "absent": 0, "tentative": 0}
            tasks.status = dict.fromkeys(tasks.status, "exact")
    if told["running"] and refused is not None:
        return {"level": "bad", "text": f"Waiting for the store: {refused}"}
    down = list(tasks.status.values()).count("down") if told["running"] else 0
    return standing(last, told["error"], told["running"], down)


def ending(events: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The word that the last sitting has ended, if it has. The last checkpoint comes after it."""
    for event in reversed(events):
        if event["kind"] in ("started", "stopped"):
            return event if event["kind"] == "stopped" else None
    return None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def most_tasks(events: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The most tasks that operators had which were scaled while the job ran."""
    most: dict[str, int] = {}
    for event in events:
        if event["kind"] == "scaled":
            most[event["operator"]] = max(event["tasks"], most.get(event["operator"], 0))
        elif event["kind"] == "recovering in parallel":
            for name, tasks in event["operators"].items():
                most[name] = max(tasks, most.get(name, 0))
    return most


def _drawn(topology: Topology, scaled: Mapping[str, int]) -> dict[str, Any]:
    """The topology as the page draws it: operators in columns, and who talks to whom. ``scaled``: their most tasks."""
    depth: dict[str, int] = {}
    queries = {query.sink: query.priority for query in topology.queries}
    operators = []
    for operator in topology.operators:
        depth[operator.name] = max((depth[s.source] + 1 for s in topology.inputs_of(operator.name)), default=0)
        operators.append(
            {
                "name": operator.name,
                "tasks": max(operator.parallelism, scaled.get(operator.name, 0)),
                "column": depth[operator.name],
                "stateful": operator.stateful,
                "join": operator.inputs == "correlated",
                "source": not topology.inputs_of(operator.name),
                "priority": queries.get(operator.name),
            }
        )
    streams = [
        {
            "from": stream.source,
            "to": stream.target,
            "partitioning": "full" if {stream.source, stream.target} & set(scaled) else stream.partitioning,
        }
        for stream in topology.streams
    ]
    return {"operators": operators, "streams": streams}


def _epochs(events: Sequence[Mapping[str, Any]], times: Sequence[float]) -> list[dict[str, Any]]:
    """One entry an epoch that was answered; of an epoch that was answered again, the last word."""
    told: dict[int, dict[str, Any]] = {}
    for event, time in zip(events, times, strict=True):
        if event["kind"] == "epoch":
            told[event["epoch"]] = {
                "t": time,
                "epoch": event["epoch"],
                "fidelity": event["fidelity"],
                "floor": event.get("floor"),
                "queries": event["queries"],
                "rows": event["rows_in"],
                "exact": event["exact"],
                "tentative": event["tentative"],
                "absent": event["absent"],
                "state_bytes": event["state_bytes"],
                "state_rows": event["state_rows"],
                "state": event.get("state", {}),
                "latency": None,
            }
        elif event["kind"] == "answered" and event["epoch"] in told:
            told[event["epoch"]]["latency"] = event["seconds"]
    return _thin(list(told.values()))


def _thin(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most POINTS entries: of each group the one with the least fidelity, then the longest latency."""
    size = math.ceil(len(entries) / POINTS)
    if size <= 1:
        return entries
    groups = (entries[first : first + size] for first in range(0, len(entries), size))
    return [min(group, key=lambda each: (each["fidelity"], -(each["latency"] or 0.0))) for group in groups]


def _thin_frames(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Frames of epochs that changed nothing are left out when there are too many; all others must stay."""
    if len(told) <= POINTS:
        return told
    idle = {"t", "what", "epoch", "fidelity"}
    every = math.ceil(len(told) / POINTS)
    return [frame for number, frame in enumerate(told) if number % every == 0 or set(frame) - idle]


def _outputs(events: Sequence[Mapping[str, Any]], times: Sequence[float]) -> list[dict[str, Any]]:
    """How many outputs (one task's rows of one epoch) had been published, each time some were."""
    counts = {"final": 0, "tentative": 0}
    told = []
    for event, time in zip(events, times, strict=True):
        if event["kind"] == "published":
            counts[event["of"]] += len(event["epochs"]) * len(event["tasks"])
            told.append({"t": time, "of": event["of"], "epochs": [event["epochs"][0], event["epochs"][-1]], **counts})
    every = math.ceil(len(told) / POINTS)
    return told if every <= 1 else [*told[:-1:every], told[-1]]


def _recoveries(
    events: Sequence[dict[str, Any]], times: Sequence[float], topology: Topology | None, found: Sequence[Recovery]
) -> list[dict[str, Any]]:
    at = {event["time"]: time for event, time in zip(events, times, strict=True) if event["kind"] == "nodes lost"}
    told = []
    for number, each in enumerate(found):
        entry = {**each.as_json(), "t": at[each.at], "comparison": None}
        if topology is not None and number >= len(found) - COMPARED:
            try:
                entry["comparison"] = compare(topology, each.down, each.rates)
            except HoldfastError:
                entry["comparison"] = None  # a task of an earlier parallelism, before the job was migrated
        told.append(entry)
    return told
