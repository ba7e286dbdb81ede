"""A job's history as Prometheus metrics, in its text format (version 0.0.4): a listener that counts."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from holdfast.report.frames import STATUSES, Tasks

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Give ``heard`` to a job as a listener; ``text`` is what a scrape gets."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks = Tasks()
        self._totals: Counter[str] = Counter()
        self._counted: Counter[tuple[str, str]] = Counter()
        self._outputs = {"final": 0, "tentative": 0}
        self._buckets: Counter[float] = Counter()
        self._latency = 0.0
        self._answers = 0
        self._epoch: dict[str, Any] = {}
        self._checkpoint: dict[str, Any] = {}
        self._queries: list[str] = []
        self._up = 0
        self._late = -1

    def heard(self, event: dict[str, Any]) -> None:
        with self._lock:
            self._tasks.hear(event)
            self._count(event)

    def _count(self, event: dict[str, Any]) -> None:
        match event["kind"]:
            case "started":
                self._up = 1
                self._queries = [query["sink"] for query in event.get("topology", {}).get("queries", [])]
            case "stopped":
                self._up = 0
            case "epoch":
                self._epoch = event
                self._totals["epochs"] += 1
                self._totals["rows"] += event["rows_in"]
                self._totals["shed"] += event.get("shed", 0)
                for operator, counters in event.get("counters", {}).items():
                    self._counted.update({(operator, what): rows for what, rows in counters.items()})
            case "answered":
                self._answers += 1
                self._latency += event["seconds"]
                self._buckets[next((each for each in BUCKETS if event["seconds"] <= each), float("inf"))] += 1
            case "published":
                self._outputs[event["of"]] += len(event["epochs"]) * len(event["tasks"])
            case "nodes lost":
                self._totals["failures"] += 1
                self._totals["nodes_lost"] += len(event["nodes"])
            case "answer late":
                self._totals["late"] += self._late != event["epoch"]
                self._late = event["epoch"]
            case "stood in":
                self._totals["stood in"] += 1
            case "promoted":
                self._totals["promotions"] += len(event["tasks"])
            case "replay":
                self._totals["replays"] += 1
            case "checkpoint":
                self._checkpoint = event
                self._totals["checkpoints"] += 1
                self._totals["checkpoint_bytes"] += event["bytes"]

    def text(self) -> str:
        with self._lock:
            return "".join(self._families())

    def _families(self) -> list[str]:
        epoch, totals = self._epoch, self._totals
        status = Counter(self._tasks.status.values())
        lines = [
            _family("up", "gauge", "1 while the job runs", [("", self._up)]),
            _family("epoch", "gauge", "Last epoch that was answered", [("", epoch.get("epoch", -1))]),
            _family("epochs_total", "counter", "Epochs answered", [("", totals["epochs"])]),
            _family("rows_total", "counter", "Rows read", [("", totals["rows"])]),
            _family("shed_rows_total", "counter", "Rows left out to keep up", [("", totals["shed"])]),
            _family(
                "outputs_total",
                "counter",
                "Outputs published, one task's rows of one epoch each",
                [(_labels(kind=kind), count) for kind, count in self._outputs.items()],
            ),
            _family(
                "counted_rows_total",
                "counter",
                "Rows that operators counted, such as late ones",
                [(_labels(operator=operator, what=what), rows) for (operator, what), rows in self._counted.items()],
            ),
            *self._promised(),
            _family("fidelity", "gauge", "Fidelity of the last answer, 0 to 1", [("", epoch.get("fidelity", 1.0))]),
            _family(
                "query_fidelity",
                "gauge",
                "Fidelity of each query's last answer",
                [(_labels(query=name), epoch.get("queries", {}).get(name, 1.0)) for name in self._queries],
            ),
            self._histogram(),
            _family("nodes", "gauge", "Nodes alive", [("", sum(self._tasks.nodes.values()))]),
            _family(
                "tasks",
                "gauge",
                "Tasks by how they stand",
                [(_labels(status=name), status[name]) for name in STATUSES],
            ),
            _family("replicas", "gauge", "Tasks with a live replica", [("", len(self._tasks.replicas))]),
            _family("failures_total", "counter", "Losses of one or more nodes", [("", totals["failures"])]),
            _family("late_answers_total", "counter", "Epochs not answered in time", [("", totals["late"])]),
            _family(
                "stopgaps_total", "counter", "Late epochs answered without who is silent", [("", totals["stood in"])]
            ),
            _family("nodes_lost_total", "counter", "Nodes lost", [("", totals["nodes_lost"])]),
            _family("promotions_total", "counter", "Replicas that took over", [("", totals["promotions"])]),
            _family("replays_total", "counter", "Replays begun", [("", totals["replays"])]),
            _family(
                "state_bytes",
                "gauge",
                "State of exact tasks by operator",
                [(_labels(operator=name), size) for name, size in epoch.get("state", {}).items()],
            ),
            _family("state_rows", "gauge", "Rows of state of exact tasks", [("", epoch.get("state_rows", 0))]),
            _family("checkpoints_total", "counter", "Checkpoints made durable", [("", totals["checkpoints"])]),
            _family("checkpoint_bytes_total", "counter", "Bytes checkpointed", [("", totals["checkpoint_bytes"])]),
            _family(
                "checkpoint_epoch", "gauge", "Epoch of the last checkpoint", [("", self._checkpoint.get("epoch", -1))]
            ),
        ]
        if self._checkpoint:
            at = self._checkpoint["time"]
            lines.append(_family("checkpoint_timestamp_seconds", "gauge", "Time of the last checkpoint", [("", at)]))
        return lines

    def _promised(self) -> list[str]:
        """The floor of the last epoch that was told with one."""
        if self._epoch.get("floor") is None:
            return []
        told = "Fidelity of the next answer at least, if so many nodes (or one domain) are lost now"
        return [_family("floor", "gauge", told, [(_labels(lost=str(self._epoch["survive"])), self._epoch["floor"])])]

    def _histogram(self) -> str:
        name, below, samples = "holdfast_epoch_latency_seconds", 0, []
        for edge in BUCKETS:
            below += self._buckets[edge]
            samples.append(f'{name}_bucket{{le="{edge:g}"}} {below}\n')
        samples.append(f'{name}_bucket{{le="+Inf"}} {self._answers}\n')
        samples.append(f"{name}_sum {self._latency:.6f}\n{name}_count {self._answers}\n")
        return f"# HELP {name} From the arrival of an epoch to its answer\n# TYPE {name} histogram\n{''.join(samples)}"


def _family(name: str, kind: str, told: str, samples: list[tuple[str, float]]) -> str:
    full = f"holdfast_{name}"
    listed = "".join(f"{full}{labels} {value!r}\n" for labels, value in samples)
    return f"# HELP {full} {told}\n# TYPE {full} {kind}\n{listed}" if samples else ""


def _labels(**given: str) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in given.items()) + "}"
