"""Thousands of failure schedules, each audited after every event; and proof that the audit would notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from holdfast.runtime.simulation.audit import audited
from holdfast.runtime.simulation.endings import Hopeless
from holdfast.runtime.simulation.engines import undisturbed
from holdfast.runtime.simulation.fuzzer import attempt, digest_case, fuzz, rows_case, shrink
from holdfast.runtime.simulation.machine import Machine
from holdfast.runtime.simulation.shell import Simulation

from holdfast.runtime.coordinator import recovering
from holdfast.runtime.coordinator import replay as replaying
from holdfast.runtime.coordinator.answering import Answering
from holdfast.runtime.coordinator.assignment import Assignment
from holdfast.runtime.coordinator.recovering import Recovering
from holdfast.runtime.coordinator.runs import Running, Runs
from holdfast.runtime.messages import Publish
from holdfast.runtime.simulation import fuzzer

DIGESTS = 2000
ROWS = 100


@pytest.mark.parametrize("part", range(4))
def test_two_thousand_drawn_schedules_hold(part: int) -> None:
    share = DIGESTS // 4
    found = fuzz(range(part * share, (part + 1) * share))
    assert found is None, f"seed {found[0]} fails; the shortest history found:\n{found[1].told()}"


@pytest.mark.parametrize("part", range(2))
def test_drawn_schedules_over_real_pipelines_hold(part: int) -> None:
    share = ROWS // 2
    found = fuzz(range(part * share, (part + 1) * share), rows_case)
    assert found is None, f"seed {found[0]} fails; the shortest history found:\n{found[1].told()}"


def test_the_schedules_reach_every_part_of_recovery() -> None:
    """A fuzzer that never gets there proves nothing: count what happened in the first schedules."""
    seen: Counter[str] = Counter()
    for seed in range(150):
        case = digest_case(seed)
        simulation = Simulation(case.scenario, case.engine)
        expected = undisturbed(case.engine, case.scenario.epochs, simulation.coordinator.output_tasks)
        try:
            audited(simulation, expected)
        except Hopeless:
            seen["hopeless"] += 1
        for event in simulation.history:
            seen[event["kind"]] += 1
            seen["tentative"] += event["kind"] == "epoch" and event["tentative"] > 0
            seen["side"] += event["kind"] == "replay" and bool(event["on_the_side"])
            seen["buffers"] += event["kind"] == "replay" and bool(event["from_buffers"])
    wanted = ("nodes lost", "promoted", "replay", "tentative", "side", "buffers", "run broken", "checkpoint broken")
    assert all(seen[what] >= 5 for what in (*wanted, "driver back", "capacity lifted", "replicas")), seen
    assert seen["hopeless"] < 10


def test_a_scenario_runs_the_same_every_time() -> None:
    def history(seed: int) -> list[dict[str, Any]]:
        case = digest_case(seed)
        return Simulation(case.scenario, case.engine).run().history

    assert [history(seed) for seed in range(10)] == [history(seed) for seed in range(10)]


# Would it notice? Each mutant is a mistake that once was made, or might be.


def forgets_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_sides(*given: Any, **named: Any) -> Any:
        works, read = replaying.replay(*given, **named)
        return tuple(work for work in works if work.lane != "side"), read

    monkeypatch.setattr(recovering, "replay", no_sides)


def sides_begin_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "_side_start", lambda stateful, task, low, *rest: ("local", low))


def calls_the_fork_final(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Answering._publish

    def mixed(self: Answering, run: Any, reports: Any) -> Any:
        for each in publish(self, run, reports):
            yield Publish(each.run, each.outputs, "final") if isinstance(each, Publish) else each

    monkeypatch.setattr(Answering, "_publish", mixed)


def publishes_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = Answering._publish

    def again(self: Answering, run: Any, reports: Any) -> Any:
        self.published.clear()
        return publish(self, run, reports)

    monkeypatch.setattr(Answering, "_publish", again)


def believes_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    done = Runs._done

    def trusting(self: Runs, running: Running, *rest: Any) -> Any:
        return done(self, replace(running, gone=frozenset()), *rest)

    monkeypatch.setattr(Runs, "_done", trusting)


def places_from_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Assignment.place

    def late(self: Assignment, task: Any, *rest: Any) -> None:
        place(self, task, *rest)
        copy = self.primaries[task]
        self.primaries[task] = replace(copy, position=max(copy.position, self.lost_at.get(task, -1)))

    monkeypatch.setattr(Assignment, "place", late)


def sweeps_what_is_young(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(self: Machine, order: Any) -> None:
        for branch in [each for each in self.versions if each[0] != "main"]:
            del self.versions[branch]

    monkeypatch.setattr(Machine, "_sweep", sweep)


def never_plans_again(monkeypatch: pytest.MonkeyPatch) -> None:
    due = Recovering.due
    monkeypatch.setattr(Recovering, "due", lambda self, parts: self.planned_for is None and due(self, parts))


def checkpoints_before_outputs_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Answering, "finals_unplaced", False)


MUTANTS = (
    forgets_sides,
    sides_begin_too_late,
    calls_the_fork_final,
    publishes_twice,
    believes_the_dead,
    places_from_where_it_was,
    sweeps_what_is_young,
    never_plans_again,
    checkpoints_before_outputs_are_placed,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.replace("_", " "))
def test_the_fuzzer_notices_a_mistake(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert any(attempt(digest_case(seed)) is not None for seed in range(400))


def test_a_failure_is_shrunk_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    places_from_where_it_was(monkeypatch)
    monkeypatch.setattr(fuzzer, "TRIES", 60)
    failure = next(found for seed in range(400) if (found := attempt(digest_case(seed))) is not None)
    small = shrink(failure)
    assert len(small.case.scenario.faults) <= len(failure.case.scenario.faults)
    assert small.case.scenario.epochs <= failure.case.scenario.epochs
    told = small.told()
    assert "NodesSeen" in told and "BROKEN: " in told and f"seed: {small.case.scenario.seed}" in told
