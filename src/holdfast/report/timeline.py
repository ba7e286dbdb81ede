"""What happened, in words: the events of a history that a person wants to read about, each one line. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

LANES = ("failures", "nodes", "replicas", "plans", "scaling", "replays", "checkpoints", "job")
CHARTED = ("epoch", "answered", "published")
"""Kinds that are drawn as bars and lines instead of told, since every epoch has them."""
SHOWN = 6
"""So many names are listed; more are counted."""


def timeline(events: Iterable[Mapping[str, Any]], times: Iterable[float]) -> list[dict[str, Any]]:
    """Entries ``{t, lane, title, detail, epoch?, until?}`` in the order of time; a replay lasts ``until``."""
    told: list[dict[str, Any]] = []
    replays: dict[Any, dict[str, Any]] = {}
    began = False
    for event, time in zip(events, times, strict=True):
        kind = event["kind"]
        if kind == "run":
            if (begun := replays.pop(event["run"], None)) is not None:
                begun["until"] = time
            continue
        if kind == "run broken":
            if (begun := replays.pop(event["run"], None)) is not None:
                begun["until"] = time
                begun["detail"] += f"; broken off: {event['reason']}"
            continue
        began |= kind == "epoch"
        if kind in CHARTED:
            continue
        lane, title, detail = _line(event, began)
        entry: dict[str, Any] = {"t": time, "lane": lane, "title": title, "detail": detail}
        if event.get("epoch") is not None:
            entry["epoch"] = event["epoch"]
        if kind == "replay":
            replays[event["run"]] = entry
        if kind == "started":
            replays.clear()
        told.append(entry)
    return told


def _line(event: Mapping[str, Any], began: bool) -> tuple[str, str, str]:
    match event["kind"]:
        case "note":
            return "job", "note", str(event["message"])
        case "listener failed" | "listener dropped":
            what = "a listener raised" if event["kind"] == "listener failed" else "a listener is not called any more"
            return "job", what, f"{event['listener']}: {event['error']} ({_count(event['times'], 'time')})"
        case "sink failed":
            again = f"tried {_count(event['tries'], 'time')}, again in {event['retry_seconds']:g} s"
            return "job", "the sink raised", f"{event['output']}; {again}"
        case "adopted":
            return "job", f"epoch {event['epoch']} was journalled before its run broke", f"run {event['run']}"
        case "node refused":
            return "nodes", "a node was refused", str(event["reason"])
        case "compaction failed" | "tidying failed":
            return "checkpoints", f"{event['kind']}; the next checkpoint tries again", str(event["error"])
        case "started":
            return (
                "job",
                "job started",
                f"{event['nodes']} nodes" + (f" on {event['master']}" if "master" in event else ""),
            )
        case "stopped":
            return "job", "job stopped" if not event["error"] else "job failed", event["error"] or "in good order"
        case "failed":
            return "job", "an operator failed", f"{event['task']}: {event['message']}"
        case "fault":
            return "failures", "fault injected", str(event["fault"])
        case "nodes lost":
            down = f"{len(event['down'])} tasks down: {names(event['down'])}" if event["down"] else "no task is down"
            told = f"{event['cause']}; {down}; {event['alive']} nodes left"
            if event.get("promised") is not None:
                told += f"; the next answer will have fidelity {event['promised']:.3f}"
            return "failures", f"lost {names(event['nodes'])}", told
        case "answer late":
            who = f"waiting for {names(event['silent'])}" if event["silent"] else "nobody in particular holds it up"
            return "failures", f"no answer for {event['seconds']:.1f} s", f"epoch {event['epoch']}: {who}"
        case "stood in":
            told = f"{names(event['silent'])} say nothing; the others answer with fidelity {event['fidelity']:.3f}"
            return "failures", f"epoch {event['epoch']} is answered without them", told
        case "misplaced":
            return "failures", f"{names(event['tasks'])} were sent elsewhere", event["message"]
        case "missing":
            return "failures", f"state of {event['task']} is missing", f"on {event['node']}: {event['message']}"
        case "mute":
            return "failures", f"{event['task']} cannot answer tentatively", str(event["message"])
        case "store unusable":
            again = f"{event['message']}; asked again every {event['retry_seconds']:g} s"
            return "failures", "the store takes nothing: the job waits", again
        case "store usable":
            return "failures", "the store takes writes again", f"after {event['after_seconds']:.1f} s"
        case "damaged":
            return "failures", "a file was damaged on purpose", str(event["file"])
        case "nodes wanted":
            told = "asked for" if event["given"] else "this Spark master gives none"
            return "nodes", f"{_count(event['count'], 'more node')} wanted", told
        case "request refused":
            return "scaling", "a request was refused", str(event["reason"])
        case "nodes joined":
            return "nodes", f"joined: {names(event['nodes'])}", f"{event['alive']} nodes alive"
        case "nodes leaving":
            return "nodes", f"to be given back: {names(event['nodes'])}", str(event["why"])
        case "nodes released":
            return "nodes", f"given back: {names(event['nodes'])}", f"{event['alive']} nodes alive"
        case "nodes stay":
            return "nodes", f"stay after all: {names(event['nodes'])}", str(event["why"])
        case "capacity lifted":
            why = f"nobody came for {event['after_seconds']:g} s, so the nodes that are left take everything"
            return "nodes", "capacity lifted", why
        case "replicas planned":
            return "replicas", f"plan: {_count(len(event['tasks']), 'replica')}", _with(event["tasks"], event["why"])
        case "replicas":
            placed = [f"{task} on {node}" for task, node in event["placed"].items()]
            return "replicas", f"{_count(len(placed), 'replica')} made", names(placed)
        case "promoted":
            return "replicas", f"{_count(len(event['tasks']), 'replica')} took over", names(event["tasks"])
        case "moving":
            return (
                "replicas",
                f"{_count(len(event['tasks']), 'task')} to move",
                f"{event['why']}: {_moves(event['tasks'])}",
            )
        case "moved":
            return "replicas", f"{_count(len(event['tasks']), 'task')} moved", _moves(event["tasks"])
        case "recovery plan" if not began:
            return "plans", "tasks placed", _placed(event["recover"])
        case "recovery plan":
            waiting = f"; waiting: {names(event['still_down'])}" if event["still_down"] else ""
            return (
                "plans",
                f"recover {len(event['recover'])} tasks",
                (f"{event['why']}: {_placed(event['recover'])}{waiting}"),
            )
        case "scaling begun":
            new = f"{_placed(event['new'])}: {event['why']}"
            return "scaling", f"{event['operator']} to {event['tasks']} tasks begun", new
        case "scaled":
            new = _placed(event["new"]) if "new" in event else "nothing had to change"
            return "scaling", f"{event['operator']} has {event['tasks']} tasks", f"{new}: {event['why']}"
        case "cannot scale":
            return "scaling", f"{event['task']} stays a bottleneck", str(event["why"])
        case "scaling aborted":
            again = "; it will be tried again" if event["again"] else "; given up"
            return "scaling", f"scaling of {event['operator']} broken off", f"{event['reason']}{again}"
        case "scaling refused":
            return "scaling", f"{event['operator']} cannot be scaled", str(event["reason"])
        case "recovering in parallel":
            return "plans", f"{names(event['tasks'])} come back as {event['into']} each", str(event["why"])
        case "waiting":
            return "plans", "waiting", str(event["why"])
        case "replay":
            side = f"; computed again on the side: {names(event['on_the_side'])}" if event["on_the_side"] else ""
            kept = f"; from buffers: {names(event['from_buffers'])}" if event["from_buffers"] else ""
            return (
                "replays",
                f"replay of epochs {event['first']} to {event['last']}",
                (f"{names(event['tasks']) or 'no task of its own'}{side}{kept}"),
            )
        case "checkpoint":
            return "checkpoints", f"checkpoint of epoch {event['epoch']}", f"{event['bytes']:,} bytes"
        case "checkpoint broken" | "checkpoint failed":
            return (
                "checkpoints",
                f"checkpoint of epoch {event['epoch']} failed",
                str(event.get("reason", event.get("message", ""))),
            )
        case "checkpoint lost":
            return (
                "checkpoints",
                f"checkpoint of epoch {event['epoch']} is damaged",
                (
                    f"going on from epoch {event['fallback']}"
                    if event["fallback"] >= 0
                    else "going on from the beginning"
                ),
            )
        case kind:  # of another version: as it stands
            rest = (f"{name} {value}" for name, value in event.items() if name not in ("time", "kind"))
            return "job", str(kind), ", ".join(rest)


def names(given: Iterable[str]) -> str:
    """A few names, and how many more there are."""
    listed = list(given)
    more = len(listed) - SHOWN
    return ", ".join(listed[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _placed(placed: Mapping[str, str]) -> str:
    return names(f"{task} on {node}" for task, node in placed.items()) or "nothing fits"


def _moves(tasks: Mapping[str, list[str]]) -> str:
    return names(f"{task} from {old} to {new}" for task, (old, new) in tasks.items())


def _with(tasks: list[str], why: str) -> str:
    return f"{names(tasks)}: {why}" if tasks else why


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
