"""How late a system answers after a failure, measured against the schedule that it kept before.

Pure: times of answers and events of a history in, seconds out. ``failover.py`` says what is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

LOOKED_BACK = 8
"""Number of answers before the kill that make the schedule."""
KEPT_UP = 1.05
"""A system whose answers are no further apart than the trigger interval, times this, keeps up with the trigger."""
WATCHED = 3
"""Number of answers after the kill that are compared with the schedule."""
ANSWER = ("noticed", "called off", "not due", "decided", "state read", "worked", "published")
EXACT = ("replayed", "awaited", "caught up")

Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Epoch ``n`` is due at ``phase + n * pace``, in seconds of the wall clock."""

    phase: float
    pace: float

    def late(self, epoch: int, at: float) -> float:
        return at - (self.phase + epoch * self.pace)


def schedule(
    answers: Mapping[int, float], killed: float, interval: float | None, looked_back: int = LOOKED_BACK
) -> Schedule:
    """When epochs would have been answered without the failure, from the last ones that were answered before it.

    ``pace`` is the trigger interval where the system keeps up with it, else the median time from one answer to the
    next; ``phase`` is the median of what the answers say of it. Epochs are numbered by the rows that they hold, so this
    also holds without a trigger: the epoch with the same rows, at the undisturbed pace.
    """
    before = sorted((epoch, at) for epoch, at in answers.items() if at <= killed)[-looked_back:]
    if len(before) < looked_back:
        raise ValueError(f"{len(before)} answers before the kill make no schedule, {looked_back} are needed")
    pace = statistics.median((later - at) / (after - epoch) for (epoch, at), (after, later) in pairwise(before))
    if interval is not None and pace <= interval * KEPT_UP:
        pace = interval
    return Schedule(statistics.median(at - epoch * pace for epoch, at in before), pace)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds after the kill, but for ``late`` and ``worst``, which are seconds after the schedule.

    ``answer``: the next answer; ``late``: how late it is; ``worst``: how late the latest of the next three is.
    ``exact``: the first epoch whose answer is exact, as all later ones are; ``exact_by``: the number of that epoch,
    counted from 1, the first one that was answered after the kill. None: not within the time that was waited.
    """

    answer: float | None
    late: float | None
    worst: float | None
    exact: float | None
    exact_by: int | None
    pace: float


def outcome(killed: float, answers: Mapping[int, float], whole: Mapping[int, float | None], kept: Schedule) -> Outcome:
    """``answers``: when each epoch was answered first; ``whole``: when exactly, None for one that lacked something."""
    after = sorted(epoch for epoch, at in answers.items() if at > killed)
    if not after:
        return Outcome(None, None, None, None, None, kept.pace)
    late = [kept.late(epoch, answers[epoch]) for epoch in after]
    first = exact_epoch(after[0], whole)
    at = None if first is None else whole[first]
    return Outcome(
        answers[after[0]] - killed,
        late[0],
        max(late[:WATCHED]),
        None if at is None else at - killed,
        None if first is None else first - after[0] + 1,
        kept.pace,
    )


def exact_epoch(first: int, whole: Mapping[int, float | None]) -> int | None:
    """The first epoch from ``first`` on that is exact and behind which none lacks anything."""
    lacking = max((epoch for epoch, at in whole.items() if at is None), default=-1)
    exact = [epoch for epoch, at in whole.items() if at is not None and epoch >= max(first, lacking + 1)]
    return min(exact, default=None)


def answers_of(events: Iterable[Event]) -> dict[int, float]:
    """When each epoch of a history had its first rows in their place."""
    found: dict[int, float] = {}
    for event in events:
        if event["kind"] == "published" and event["rows"] > 0 and event["fidelity"] > 0:
            found.setdefault(max(event["epochs"]), event["time"])
    return found


def whole_of(events: Iterable[Event]) -> dict[int, float | None]:
    """When each epoch of a history was answered exactly by all tasks; None for one that was not."""
    epochs = [event for event in events if event["kind"] == "epoch"]
    return {each["epoch"]: None if each["absent"] or each["tentative"] else each["time"] for each in epochs}


def parts(killed: float, events: Sequence[Event], upto: int | None) -> dict[str, float] | None:
    """Where the time of a recovery went, one part after the other, from the events of its history.

    To the first answer that was begun after the loss was noticed: until all losses are ``noticed``; until the run at
    hand is ``called off``; until the epoch comes (``not due``: no system can answer before); until a run is ``decided``
    on and laid out; its ``state read``, as long as the task took that read longest; the rest of the run, ``worked``;
    ``published``. Then, to the exact answer of the epoch ``upto``: ``replayed`` runs; until that epoch comes
    (``awaited``); and the rest, ``caught up``. None where no loss was noticed, or nothing was answered after it.
    """
    runs = {event["run"]: event for event in events if event["kind"] == "run"}
    losses = [event["time"] for event in events if event["kind"] == "nodes lost" and event["time"] > killed]
    if not losses:
        return None
    said = next(
        (
            event
            for event in events
            if event["kind"] == "published" and event["rows"] > 0 and event["run"] in runs
            and runs[event["run"]]["of"] == "epoch" and _began(runs[event["run"]]) >= losses[0]
        ),
        None,
    )  # fmt: skip
    if said is None:
        return None
    run = runs[said["run"]]
    began = _began(run)
    came = {event["epoch"]: event["time"] - event["seconds"] for event in events if event["kind"] == "answered"}
    lost = max(each for each in losses if each <= began)
    broken = [event["time"] for event in events if event["kind"] == "run broken" and lost <= event["time"] <= began]
    free = max([lost, *broken])
    due = min(began, max(free, came.get(max(said["epochs"]), free)))
    read = min(run.get("restored", 0.0), run["seconds"])
    found = [
        lost - killed, free - lost, due - free, began - due, read, run["seconds"] - read, said["time"] - run["time"],
    ]  # fmt: skip
    told = dict(zip(ANSWER, found, strict=True))
    exact = next((e["time"] for e in events if e["kind"] == "epoch" and e["epoch"] == upto), None)
    if exact is None or exact < said["time"]:
        return told
    replays = [each for each in runs.values() if each["of"] == "replay" and said["time"] < each["time"] <= exact]
    replayed = sum(each["time"] - max(said["time"], _began(each)) for each in replays)
    behind = max([said["time"], *(each["time"] for each in replays)])
    awaited = max(0.0, min(exact, came.get(upto or 0, behind)) - behind)
    return told | dict(zip(EXACT, (replayed, awaited, exact - said["time"] - replayed - awaited), strict=True))


def _began(run: Event) -> float:
    return float(run["time"]) - float(run["seconds"])
