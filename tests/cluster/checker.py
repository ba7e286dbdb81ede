"""What a history of answers is worth: the log of faults and the sink's log in, a verdict out. Pure.

As Jepsen does it: clients write down what they saw, a model says what they should have seen, and every difference has a
name. The model is the output of a plain loop over the same rows. The sink is given every output at least once and
leaves out what it has (``again``), so what counts is what was new to it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

Row = tuple[int, str, int]
"""Epoch, key, value."""
KINDS = ("lost", "doubled", "out of order", "wrong value", "tentative without a final", "superseded")
"""``superseded``: something new from a driver after another driver, that came later, had spoken."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``until``: when it was over; None: never. ``settled``: what comes later is not its doing; None: unknown."""

    what: str
    hosts: tuple[str, ...]
    at: float
    until: float | None = None
    settled: float | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """An output as the sink got it. ``rows``: key and value. ``again``: the sink had it, and left it out."""

    time: float
    driver: str
    epoch: int
    task: str
    kind: Literal["final", "tentative"]
    fidelity: float
    rows: tuple[tuple[str, int], ...]
    again: bool = False

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Delivery:
        """From a line of the sink's log."""
        rows = tuple((str(key), int(value)) for key, value in line["rows"])
        told = {name: line[name] for name in ("time", "driver", "epoch", "task", "kind", "fidelity", "again")}
        return cls(**told, rows=rows)


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    text: str
    time: float | None = None
    """When it was seen; None for what never came."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What readers saw of a fault, up to the next one. Seconds after it; None: it did not come to that.

    ``next_s``: the first rows of an epoch of which nothing had been said; ``fidelity``: the least of any task's in that
    answer. ``exact_s``: every task had answered for such an epoch finally, and nothing tentative followed. ``gap_s``:
    the longest time without anything new.
    """

    fault: Fault
    next_s: float | None
    of: str | None
    fidelity: float | None
    exact_s: float | None
    gap_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    violations: tuple[Violation, ...]
    faults: tuple[Seen, ...]
    epochs: int
    """Answered finally by every task."""
    again: int
    drivers: tuple[str, ...]
    """In the order in which they first spoke."""

    @property
    def right(self) -> bool:
        return not self.violations

    def words(self, most: int = 5) -> str:
        """In a line: how many of each kind, and the first of them in full."""
        counts = Counter(each.kind for each in self.violations)
        told = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind])
        return f"{told}: " + "; ".join(each.text for each in self.violations[:most]) if told else "right"


def judged(
    faults: Sequence[Fault], log: Sequence[Delivery], expected: Sequence[Row], epochs: int | None = None
) -> Verdict:
    """The verdict on a whole run. ``expected``: in the order of epoch, and of at least as many epochs as the log has.

    ``epochs``: how many the job says that it answered; as many as the log has final rows of when None. Every task of
    the query has rows in every epoch, so an epoch without rows of a task lacks them.
    """
    heard = 1 + max((each.epoch for each in log if each.kind == "final"), default=-1)
    count = heard if epochs is None else max(epochs, heard)
    found = [*_values(log, expected, count), *_order(log), *_unsettled(log, count), *_superseded(log)]
    drivers = dict.fromkeys(each.driver for each in log)
    return Verdict(
        tuple(found), tuple(_seen(faults, log)), _complete(log), sum(each.again for each in log), tuple(drivers)
    )


def _new(log: Iterable[Delivery], kind: str | None = None) -> list[Delivery]:
    return [each for each in log if not each.again and kind in (None, each.kind)]


def _values(log: Sequence[Delivery], expected: Sequence[Row], epochs: int) -> Iterable[Violation]:
    said: dict[tuple[int, str], int] = {}
    for each in _new(log, "final"):
        for key, value in each.rows:
            where = f"{key!r} in epoch {each.epoch}, by {each.task}"
            if (each.epoch, key) in said:
                yield Violation("doubled", f"{where}: a second time", each.time)
            said.setdefault((each.epoch, key), value)
    right = {(epoch, key): value for epoch, key, value in expected if epoch < epochs}
    for (epoch, key), value in right.items():
        got = said.pop((epoch, key), None)
        if got is None:
            yield Violation("lost", f"{key!r} in epoch {epoch}, {value}: never said")
        elif got != value:
            yield Violation("wrong value", f"{key!r} in epoch {epoch}: {got} instead of {value}")
    for (epoch, key), got in said.items():
        yield Violation("wrong value", f"{key!r} in epoch {epoch}: {got} instead of nothing")


def _order(log: Sequence[Delivery]) -> Iterable[Violation]:
    """Of each task epochs go up, for final and for tentative answers, and final ones have the last word."""
    newest: dict[tuple[str, str], int] = {}
    for each in _new(log):
        before = newest.get((each.kind, each.task), -1)
        where = f"{each.kind} answer of {each.task} for epoch {each.epoch}"
        if each.epoch <= before:
            yield Violation("out of order", f"{where} after that for epoch {before}", each.time)
        if each.kind == "tentative" and newest.get(("final", each.task), -1) >= each.epoch:
            yield Violation("out of order", f"{where} after its final one", each.time)
        newest[each.kind, each.task] = max(before, each.epoch)


def _unsettled(log: Sequence[Delivery], epochs: int) -> Iterable[Violation]:
    final = {(each.epoch, each.task) for each in log if each.kind == "final"}
    for each in _new(log, "tentative"):
        if each.epoch < epochs and (each.epoch, each.task) not in final:
            text = f"{each.task} in epoch {each.epoch} was answered for tentatively alone"
            yield Violation("tentative without a final", text, each.time)


def _superseded(log: Sequence[Delivery]) -> Iterable[Violation]:
    """Drivers in the order in which they first spoke: each ends the say of those before it."""
    spoken: list[str] = []
    for each in log:
        if each.driver not in spoken:
            spoken.append(each.driver)
        elif each.driver != spoken[-1] and not each.again:
            what = f"{each.kind} answer of {each.task} for epoch {each.epoch}"
            yield Violation("superseded", f"{what} by {each.driver}, after {spoken[-1]} spoke", each.time)


def _complete(log: Sequence[Delivery]) -> int:
    """How many epochs every task has answered finally."""
    last: dict[str, int] = {}
    for each in log:
        if each.kind == "final":
            last[each.task] = max(each.epoch, last.get(each.task, -1))
    return 1 + min(last.values(), default=-1)


def _seen(faults: Sequence[Fault], log: Sequence[Delivery]) -> Iterable[Seen]:
    ordered = sorted(faults, key=lambda each: each.at)
    ends = [*(each.at for each in ordered[1:]), float("inf")][: len(ordered)]
    tasks = {each.task for each in log if each.kind == "final"}
    for fault, end in zip(ordered, ends, strict=True):
        known = max((each.epoch for each in _new(log) if each.time <= fault.at), default=-1)
        last = end if fault.settled is None else min(end, fault.settled)
        after = [each for each in _new(log) if fault.at < each.time <= last]
        fresh = [each for each in after if each.epoch > known]
        first = fresh[0] if fresh else None
        times = [fault.at, *(each.time for each in after)]
        exact = _exact(after, tasks, known)
        yield Seen(
            fault,
            None if first is None else first.time - fault.at,
            None if first is None else first.kind,
            None if first is None else min(each.fidelity for each in fresh if _alike(each, first)),
            None if exact is None else exact - fault.at,
            max((b - a for a, b in pairwise(times)), default=0.0),
        )


def _alike(one: Delivery, other: Delivery) -> bool:
    """Whether they belong to one answer: of an epoch, final or tentative."""
    return (one.epoch, one.kind) == (other.epoch, other.kind)


def _exact(after: Sequence[Delivery], tasks: set[str], known: int) -> float | None:
    """When the first new epoch was final for all tasks that nothing tentative came after."""
    doubtful = max((each.epoch for each in after if each.kind == "tentative"), default=known)
    least = max(known, doubtful)
    answered: dict[int, set[str]] = defaultdict(set)
    for each in after:
        if each.kind == "final":
            answered[each.epoch].add(each.task)
            if each.epoch > least and answered[each.epoch] == tasks:
                return each.time
    return None
