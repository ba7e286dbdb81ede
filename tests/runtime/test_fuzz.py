"""Hundreds of failure schedules over the one shell, each audited after every event; and proof that it would notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from planted import MISTAKES, Mistake, places_from_where_it_was

from holdfast.runtime.simulation import fuzzing
from holdfast.runtime.simulation.fuzzing import CASES, attempt, digest_case, fuzz, shrink
from holdfast.runtime.simulation.simulation import Simulation

SCHEDULES = 304
SEARCHED = 300
"""Seeds tried when the one that is known to show a mistake does not show it any more."""
RECOVERING = (
    "nodes lost", "promoted", "replay", "tentative", "side", "buffers", "run broken", "adopted", "driver lost",
    "capacity lifted", "replicas", "checkpoint broken", "store unusable", "sink failed", "stood in",
    "driver resumed",
)  # fmt: skip
SOURCES = ("log", "stop", "driver lost", "adopted", "batch came again")
SCALING = ("scaling begun", "scaled", "scaling aborted", "in", "out", "nodes released", "moved")


def happened(history: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What a schedule has led to, by names."""
    tasks, arrived = 0, set[int]()
    for event in history:
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
            case "answered":
                yield from ["batch came again"] if event["epoch"] in arrived else []
                arrived.add(event["epoch"])
        yield event["kind"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kinds", "schedules", "wanted"),
    [
        (("digests", "rows"), SCHEDULES // 2, RECOVERING),
        (("watermarked",), SCHEDULES // 8, SOURCES),
        (("scaling", "scaling-rows"), SCHEDULES // 2, SCALING),
    ],
    ids=["recovery", "sources", "scaling"],
)
def test_drawn_schedules_hold_and_reach_every_part(
    kinds: tuple[str, ...], schedules: int, wanted: tuple[str, ...]
) -> None:
    """A fuzzer that never gets there proves nothing: what happened is counted."""
    seen: Counter[str] = Counter()
    for seed in range(schedules // len(kinds)):
        for kind in kinds:
            history: list[Mapping[str, Any]] = []
            if attempt(CASES[kind](seed), history=history) is not None:
                found = fuzz([seed], CASES[kind])
                assert found is not None
                pytest.fail(f"{kind}, seed {seed} fails; the shortest history found:\n{found[1].told()}")
            seen.update(happened(history))
    assert all(seen[name] >= 3 for name in wanted), seen
    assert seen["refused"] < SCHEDULES // 20, seen


def test_a_schedule_runs_the_same_every_time() -> None:
    def history(seed: int) -> list[dict[str, Any]]:
        case = digest_case(seed)
        return Simulation(case.schedule, case.pipeline, list(case.batches)).run().history

    assert [history(seed) for seed in range(3)] == [history(seed) for seed in range(3)]


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_a_planted_mistake_is_noticed(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake.plant(monkeypatch)
    make = CASES[mistake.kind]
    assert any(attempt(make(seed)) is not None for seed in (mistake.seed, *range(SEARCHED)))


def test_a_failure_is_shrunk_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    mistake = MISTAKES["places from where it was"]
    places_from_where_it_was(monkeypatch)
    monkeypatch.setattr(fuzzing, "TRIES", 8)
    failure = attempt(CASES[mistake.kind](mistake.seed))
    assert failure is not None
    small = shrink(failure)
    assert len(small.case.schedule.faults) <= len(failure.case.schedule.faults)
    assert small.case.schedule.epochs <= failure.case.schedule.epochs
    told = small.told()
    assert "NodesSeen" in told and "BROKEN: " in told and f"seed: {small.case.schedule.seed}" in told
