"""Recoveries told from a history: what was lost and why, what was planned and why so, how long each step took. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Recovery:
    """One failure and the way back. Times are seconds after it; None: has not happened.

    An answer is rows that a reader got, or an exact epoch: that one says that there are none. ``answered_after`` is
    when the first came, ``answered_fidelity`` its fidelity. ``silent``: how long there was none although an epoch had
    come; None where the next epoch was answered. ``exact_after``: when an answer was exact and nothing was left behind.
    ``saved_after``: a checkpoint held the exact state of every task; no reader need have got an exact answer by then.
    """

    at: float
    epoch: int | None
    nodes: list[str]
    cause: str
    down: list[str]
    promoted: list[str] = field(default_factory=list)
    plans: list[dict[str, Any]] = field(default_factory=list)
    replays: list[dict[str, Any]] = field(default_factory=list)
    joined: list[dict[str, Any]] = field(default_factory=list)
    answered_after: float | None = None
    answered_fidelity: float | None = None
    least_fidelity: float = 1.0
    promised: float | None = None
    """What the next answer was to be worth, by what was known when the nodes went."""
    silent: float | None = None
    exact_after: float | None = None
    saved_after: float | None = None
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Rates of each operator's tasks as they were measured before the failure; empty if the history does not say."""

    def as_json(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "epoch": self.epoch,
            "nodes": self.nodes,
            "cause": self.cause,
            "down": self.down,
            "promoted": self.promoted,
            "plans": self.plans,
            "replays": self.replays,
            "joined": self.joined,
            "answered_after_s": self.answered_after,
            "answered_fidelity": self.answered_fidelity,
            "silent_s": self.silent,
            "least_fidelity": self.least_fidelity,
            "promised_fidelity": self.promised,
            "exact_after_s": self.exact_after,
            "saved_after_s": self.saved_after,
        }


def losing(survive: int | str) -> str:
    """What a floor speaks of, in words."""
    few = {"domain": "a domain is lost", 1: "a node is lost"}
    return few.get(survive) or f"any {survive} nodes are lost"


def promise(events: Sequence[Mapping[str, Any]]) -> str:
    """What stands promised at the end of a history: `if any 2 nodes are lost now: at least 0.610`; empty if nothing."""
    ends = ("epoch", "nodes lost", "started", "stopped")
    last = next((event for event in reversed(events) if event["kind"] in ends), None)
    if last is None or last.get("floor") is None:
        return ""
    return f"if {losing(last['survive'])} now: at least {last['floor']:.3f}"


TOGETHER = 1.0
"""Losses within so many seconds, with no answer between them, are one failure."""


def recoveries(events: Iterable[Mapping[str, Any]]) -> list[Recovery]:
    """Every failure of a history. A loss that comes before the last one is recovered from joins it, as a new entry."""
    told: list[Recovery] = []
    open_: list[Recovery] = []
    begun: dict[int, dict[str, Any]] = {}
    final: Mapping[str, Any] | None = None
    early: Mapping[str, Any] | None = None
    replayed = 0.0
    over = False
    for event in events:
        for each in open_:
            if each.silent is not None and each.answered_after is None:
                each.silent = _after(each, event)
        match event["kind"]:
            case "started" | "stopped":
                over = event["kind"] == "stopped"
            case "nodes lost" if over:
                pass  # nodes that go when the job has ended take nothing with them
            case "nodes lost" if open_ and _together(open_[-1], event):
                open_[-1].nodes = [*open_[-1].nodes, *event["nodes"]]
                open_[-1].down = [*open_[-1].down, *event["down"]]
                if event.get("epoch") == open_[-1].epoch:  # else the answer was made before, and is on its way
                    open_[-1].promised = event.get("promised")  # for all of them together
            case "nodes lost":
                made = Recovery(event["time"], event.get("epoch"), event["nodes"], event["cause"], event["down"])
                made.rates, made.promised = event.get("rates", {}), event.get("promised")
                if early is not None and event["time"] - early["time"] < TOGETHER:
                    made.promoted += early["tasks"]  # a state was missed before its node was
                early = None
                told.append(made)
                open_.append(made)
            case "promoted" if open_:
                open_[-1].promoted += event["tasks"]
            case "promoted":
                early = event
            case "nodes joined":
                for each in open_:
                    each.joined.append({"after_s": _after(each, event), "nodes": event["nodes"]})
            case "recovery plan":
                for each in open_[-1:]:
                    each.plans.append(_plan(each, event))
            case "replay" if "scaling" not in event:
                begun[event["run"]] = dict(event)
            case "run" if event["run"] in begun:
                replayed = event["time"]
                for each in open_[-1:]:
                    each.replays.append(_replay(each, begun[event["run"]], event))
            case "published":
                _published(open_, event)
                final = event if event["of"] == "final" else final
            case "epoch":
                exact = not event["absent"] and not event["tentative"]
                _answer(open_, event, exact)
                if exact:
                    for each in open_:
                        each.exact_after = _after(each, event)
                    open_ = []
            case "checkpoint":
                # The state of every task at that epoch: who was lost before it has caught up, also without a new epoch.
                for each in [each for each in open_ if each.epoch is not None and event["epoch"] >= each.epoch]:
                    each.saved_after = _after(each, event)
                    if final is not None and final["time"] >= each.at and max(final["epochs"]) >= each.epoch:
                        # The stream ended before an epoch could show it, but its last rows are exact and were read.
                        each.exact_after = round(max(final["time"], replayed) - each.at, 3)
                        open_.remove(each)
    return told


def _together(last: Recovery, event: Mapping[str, Any]) -> bool:
    return event["time"] - last.at < TOGETHER and last.answered_after is None and not last.joined


def _published(open_: list[Recovery], event: Mapping[str, Any]) -> None:
    """Rows for a reader; of an epoch that the failure has touched, and of a query that anybody asked."""
    for each in open_:
        new = each.epoch is None or max(event["epochs"]) >= each.epoch
        if each.answered_after is None and new and event["rows"] > 0 and event["fidelity"] > 0:
            each.answered_after, each.answered_fidelity = _after(each, event), event["fidelity"]


def _answer(open_: list[Recovery], event: Mapping[str, Any], exact: bool) -> None:
    """What an epoch gave has been published before."""
    for each in open_:
        each.least_fidelity = min(each.least_fidelity, event["fidelity"])
        if each.answered_after is None and exact:
            each.answered_after, each.answered_fidelity = _after(each, event), event["fidelity"]
        elif each.answered_after is None:
            each.silent = _after(each, event)


def _plan(each: Recovery, event: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "after_s": _after(each, event),
        "scheduler": event["scheduler"],
        "capacity": event["capacity"],
        "recover": event["recover"],
        "queries": event["queries"],
        "still_down": event["still_down"],
        "why": event["why"],
    }


def _replay(each: Recovery, begun: Mapping[str, Any], done: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "after_s": _after(each, begun),
        "seconds": done["seconds"],
        "epochs": [begun["first"], begun["last"]],
        "tasks": begun["tasks"],
        "on_the_side": begun["on_the_side"],
        "from_buffers": begun["from_buffers"],
    }


def _after(each: Recovery, event: Mapping[str, Any]) -> float:
    return round(float(event["time"]) - each.at, 3)
