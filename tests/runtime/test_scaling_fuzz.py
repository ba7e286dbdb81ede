"""Hundreds of schedules that scale operators while nodes die around it; and proof that the audit would notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from holdfast.runtime.simulation.endings import Hopeless
from holdfast.runtime.simulation.fuzzer import fuzz, scaling_case, scaling_rows_case
from holdfast.runtime.simulation.keyed import KeyedDigests
from holdfast.runtime.simulation.machine import Machine
from holdfast.runtime.simulation.shell import Simulation

from holdfast.runtime.coordinator import rescaling
from holdfast.runtime.coordinator.facts import Released, record
from holdfast.runtime.coordinator.membership import Membership
from holdfast.runtime.coordinator.replicating import Replicating
from holdfast.runtime.coordinator.rescaling import Committing, Rescaling
from holdfast.runtime.coordinator.shadow import Shadow
from holdfast.runtime.messages import ReleaseNodes, TakeCheckpoint

SCHEDULES = 400
ROWS = 24


@pytest.mark.parametrize("part", range(2))
def test_drawn_schedules_with_scaling_hold(part: int) -> None:
    share = SCHEDULES // 2
    found = fuzz(range(part * share, (part + 1) * share), scaling_case)
    assert found is None, f"seed {found[0]} fails; the shortest history found:\n{found[1].told()}"


def test_drawn_schedules_with_scaling_over_real_pipelines_hold() -> None:
    found = fuzz(range(ROWS), scaling_rows_case)
    assert found is None, f"seed {found[0]} fails; the shortest history found:\n{found[1].told()}"


def test_the_schedules_reach_every_part_of_scaling() -> None:
    seen: Counter[str] = Counter()
    for seed in range(160):
        case = scaling_case(seed)
        simulation = Simulation(case.scenario, case.engine)
        try:
            simulation.run()
        except Hopeless:
            seen["hopeless"] += 1
        before = 0
        for event in simulation.history:
            seen[event["kind"]] += 1
            seen["given up"] += event["kind"] == "scaling aborted" and not event["again"]
            if event["kind"] == "driver back" and simulation.store.shape.version:
                seen["restarted in a shape"] += 1
            if event["kind"] == "scaled":
                seen["in" if event["tasks"] < before else "out"] += 1
                before = event["tasks"]
    wanted = (
        "scaling begun",
        "scaled",
        "scaling aborted",
        "in",
        "out",
        "restarted in a shape",
        "nodes released",
        "moved",
    )
    assert all(seen[what] >= 10 for what in wanted), seen
    assert seen["recovering in parallel"] >= 3, seen


# Would it notice? Each mutant is a mistake that might be made.


def does_not_recut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyedDigests, "recut", lambda self, blocks, then: blocks)


def takes_the_state_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(self: KeyedDigests, before: Any, task: Any, load: Callable[[Any], Any]) -> Any:
        try:
            return load(task)
        except KeyError:
            return {}

    monkeypatch.setattr(KeyedDigests, "assembled", alone)


def forgets_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Rescaling._commit

    def forgetful(self: Rescaling, committing: Committing) -> Any:
        return commit(self, replace(committing, shape=replace(committing.shape, done={})))

    monkeypatch.setattr(Rescaling, "_commit", forgetful)


def switches_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shadow, "at", lambda self, head: not any(home.fresh for home in self.copies.values()))


def releases_what_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Machine._sweep

    def sweeps(self: Machine, order: Any) -> None:
        self._release(order.shape)
        sweep(self, order)

    monkeypatch.setattr(Machine, "_sweep", sweeps)


def checkpoints_changes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TakeCheckpoint, "since_of", lambda self, task: self.since)


def one_name_for_all_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of another shape in the folders of those they replace."""
    made = rescaling.grown

    def unborn(*given: Any, **named: Any) -> Any:
        return replace(made(*given, **named), born={})

    monkeypatch.setattr(rescaling, "grown", unborn)


def gives_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(self: Membership, parts: Any) -> Any:
        if (gone := frozenset(self.leaving)) and not parts.runs.under_way:
            yield Released(gone)
            yield ReleaseNodes(tuple(sorted(gone)))

    monkeypatch.setattr(Membership, "release", release)


def moves_before_the_copy_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    def hand_over(self: Replicating, parts: Any) -> Any:
        if arrived := sorted(self.moving):
            for task in arrived:
                parts.assignment.hand_over(task)
            self.moving.clear()
            yield record("moved", tasks=[str(task) for task in arrived], epoch=parts.answering.head)

    monkeypatch.setattr(Replicating, "_hand_over", hand_over)


MUTANTS = (
    gives_back_at_once,
    moves_before_the_copy_has_come,
    does_not_recut,
    takes_the_state_of_its_number,
    forgets_what_was_published,
    switches_too_early,
    releases_what_is_in_force,
    checkpoints_changes_alone,
    one_name_for_all_tries,
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mistake_is_noticed(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    from holdfast.runtime.simulation.fuzzer import attempt

    assert any(attempt(scaling_case(seed)) is not None for seed in range(200))
