"""Hundreds of failure schedules over the one shell, each audited after every event; and proof that it would notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from planted import MISTAKES, Mistake, places_from_where_it_was

from holdfast.runtime.simulation import fuzzing
from holdfast.runtime.simulation.fuzzing import CASES, Case, attempt, digest_case, fuzz, mixed_case, shrink
from holdfast.runtime.simulation.simulation import JobRefused, Simulation

SCHEDULES = 320
PARTS = 8
SEARCHED = 300
"""Seeds tried when the one that is known to show a mistake does not show it any more."""


@pytest.mark.parametrize("part", range(PARTS))
def test_drawn_schedules_hold(part: int) -> None:
    share = SCHEDULES // PARTS
    found = fuzz(range(part * share, (part + 1) * share), mixed_case)
    assert found is None, f"seed {found[0]} fails; the shortest history found:\n{found[1].told()}"


def simulated(case: Case) -> Simulation:
    return Simulation(case.schedule, case.pipeline, list(case.batches))


def happened(case: Case) -> Iterator[str]:
    """What a schedule has led to, by names."""
    simulation = simulated(case)
    try:
        simulation.run()
    except JobRefused:
        yield "refused"
    tasks = 0
    for event in simulation.history:
        match event["kind"]:
            case "epoch" if event["tentative"]:
                yield "tentative"
            case "replay":
                yield from (["side"] if event["on_the_side"] else [])
                yield from (["buffers"] if event["from_buffers"] else [])
            case "scaled":
                yield "in" if event["tasks"] < tasks else "out"
                tasks = event["tasks"]
            case "mishap":
                yield event["mishap"].rpartition(" at ")[0].rpartition(" ")[0]
        yield event["kind"]


def test_the_schedules_reach_every_part_of_recovery() -> None:
    """A fuzzer that never gets there proves nothing: count what happened in some schedules."""
    seen = Counter(name for seed in range(60) for name in happened(digest_case(seed)))
    wanted = ("nodes lost", "promoted", "replay", "tentative", "side", "buffers", "run broken", "adopted")
    also = ("driver lost", "capacity lifted", "replicas", "checkpoint broken", "store unusable", "sink failed")
    assert all(seen[name] >= 3 for name in (*wanted, *also)), seen
    assert seen["refused"] < 6, seen


def test_the_schedules_reach_every_part_of_scaling() -> None:
    seen = Counter(name for seed in range(60) for name in happened(CASES["scaling"](seed)))
    wanted = ("scaling begun", "scaled", "scaling aborted", "in", "out", "nodes released", "moved")
    assert all(seen[name] >= 3 for name in wanted) and seen["recovering in parallel"], seen


def test_a_schedule_runs_the_same_every_time() -> None:
    def history(seed: int) -> list[dict[str, Any]]:
        return simulated(digest_case(seed)).run().history

    assert [history(seed) for seed in range(6)] == [history(seed) for seed in range(6)]


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_planted_mistake_is_noticed(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.plant(monkeypatch)
    make = CASES[mistake.kind]
    assert any(attempt(make(seed)) is not None for seed in (mistake.seed, *range(SEARCHED)))


def test_a_failure_is_shrunk_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = MISTAKES["places from where it was"]
    places_from_where_it_was(monkeypatch)
    monkeypatch.setattr(fuzzing, "TRIES", 30)
    failure = attempt(CASES[mistake.kind](mistake.seed))
    assert failure is not None
    small = shrink(failure)
    assert len(small.case.schedule.faults) <= len(failure.case.schedule.faults)
    assert small.case.schedule.epochs <= failure.case.schedule.epochs
    told = small.told()
    assert "NodesSeen" in told and "BROKEN: " in told and f"seed: {small.case.schedule.seed}" in told
