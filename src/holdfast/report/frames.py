"""The tasks through time: after each event that moved one, how every task stands and where it lives. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

STATUSES = ("exact", "catching up", "tentative", "down")


@dataclass(slots=True)
class Tasks:
    """How things stand. ``status``: one of STATUSES for each task that has a home to lose; sources are not here."""

    status: dict[str, str] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    replicas: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, bool] = field(default_factory=dict)
    moving: set[str] = field(default_factory=set)
    """Tasks whose replica is there to take over."""
    begun: bool = False

    def hear(self, event: Mapping[str, Any]) -> bool:
        """Take an event in; whether it can have moved a task or a node."""
        match event["kind"]:
            case "started":
                self._started(event)
            case "nodes joined":
                self.nodes.update(dict.fromkeys(event["nodes"], True))
            case "nodes lost":
                self._lost(event["nodes"])
            case "missing":
                self._missing(event)
            case "recovery plan":
                for task, node in event["recover"].items():
                    self.homes[task] = node
                    self.status[task] = "catching up" if self.begun else "exact"
            case "replicas":
                self.replicas.update(event["placed"])
            case "moving":
                self.replicas.update({task: new for task, (_, new) in event["tasks"].items()})
                self.moving.update(event["tasks"])
            case "moved":
                for task, (_, new) in event["tasks"].items():
                    self.homes[task] = new
                    self.replicas.pop(task, None)
                self.moving.difference_update(event["tasks"])
            case "nodes stay":
                for task in self.moving:
                    self.replicas.pop(task, None)
                self.moving.clear()
            case "nodes released":
                for node in event["nodes"]:
                    self.nodes.pop(node, None)
                self.replicas = {task: node for task, node in self.replicas.items() if node in self.nodes}
            case "replicas planned":
                self.replicas = {task: node for task, node in self.replicas.items() if task in event["tasks"]}
            case "scaled":
                self._scaled(event["operator"], event["tasks"])
                for task, node in event.get("new", {}).items():
                    self.homes[task], self.status[task] = node, "exact"
                    self.replicas.pop(task, None)
            case "recovering in parallel":
                for operator, tasks in event["operators"].items():
                    self._scaled(operator, tasks)
            case "epoch":
                self._epoch(event.get("inexact", {}))
            case _:
                return False
        return True

    def _started(self, event: Mapping[str, Any]) -> None:
        topology = event.get("topology", {"operators": [], "streams": []})
        fed = {stream["to"] for stream in topology["streams"]}
        fresh = {
            f"{operator['name']}/{number}": "down"
            for operator in topology["operators"]
            for number in range(operator["parallelism"])
            if operator["name"] in fed
        }
        self.status, self.homes, self.replicas, self.nodes, self.moving, self.begun = fresh, {}, {}, {}, set(), False

    def _scaled(self, operator: str, tasks: int) -> None:
        """The operator has so many tasks now: those beyond are no more, new ones are down until they have a home."""
        there = {f"{operator}/{number}" for number in range(tasks)}
        for held in (self.status, self.homes, self.replicas):
            for task in [each for each in held if each.rpartition("/")[0] == operator and each not in there]:
                del held[task]
        for task in there:
            self.status.setdefault(task, "down")

    def _lost(self, nodes: Iterable[str]) -> None:
        gone = set(nodes)
        self.nodes.update(dict.fromkeys(gone, False))
        self.replicas = {task: node for task, node in self.replicas.items() if node not in gone}
        for task in [task for task, node in self.homes.items() if node in gone]:
            self._drop(task)

    def _missing(self, event: Mapping[str, Any]) -> None:
        """A node has not what it should have; a report about a node that the task has left by now says nothing."""
        held = self.replicas if event["lane"] == "replica" else self.homes
        if event["lane"] not in ("exact", "replica") or held.get(event["task"]) != event["node"]:
            return
        if event["lane"] == "replica":
            del self.replicas[event["task"]]
        else:
            self._drop(event["task"])

    def _drop(self, task: str) -> None:
        """Its home is gone; a replica takes over, if there is one."""
        self.homes.pop(task, None)
        if task in self.replicas:
            self.homes[task] = self.replicas.pop(task)
        elif task in self.status:
            self.status[task] = "down"

    def _epoch(self, inexact: Mapping[str, str]) -> None:
        self.begun = True
        for task in self.status:
            lane = inexact.get(task)
            if lane is None:
                self.status[task] = "exact"
            elif lane == "tentative":
                self.status[task] = "tentative"
            else:
                self.status[task] = "catching up" if task in self.homes else "down"


def frames(events: Iterable[Mapping[str, Any]], times: Iterable[float]) -> list[dict[str, Any]]:
    """What changed with each event that moved something: a reader adds the frames up, from the first on."""
    tasks = Tasks()
    told: list[dict[str, Any]] = []
    seen: dict[str, dict[str, Any]] = {"status": {}, "homes": {}, "replicas": {}, "nodes": {}}
    for event, time in zip(events, times, strict=True):
        if not tasks.hear(event):
            continue
        frame: dict[str, Any] = {"t": time, "what": event["kind"]}
        if event.get("epoch") is not None:
            frame["epoch"] = event["epoch"]
        for name, before in seen.items():
            now = dict(getattr(tasks, name))
            if changed := _changed(before, now):
                frame[name] = changed
            seen[name] = now
        if event["kind"] == "epoch":
            frame["fidelity"] = event["fidelity"]
        told.append(frame)
    return told


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What is new or other now; None for what is no more."""
    fresh = {key: value for key, value in now.items() if key not in before or before[key] != value}
    return {**fresh, **{key: None for key in before if key not in now}}
