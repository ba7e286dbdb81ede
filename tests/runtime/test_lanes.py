"""What a tentative answer says of itself, and the rates it is reckoned by, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from driving import chain, task

from holdfast.runtime.coordinator.assignment import Assignment
from holdfast.runtime.coordinator.facts import Copy
from holdfast.runtime.coordinator.lanes import Fork, answered, caught_up, exact_works, tentative_works
from holdfast.runtime.coordinator.measurements import MEMORY, Measurements
from holdfast.runtime.messages import Report
from holdfast.topology import Task


def catching_up() -> Assignment:
    """S -> A/0, A/1 -> B/0, B/1 at epoch 6: A is exact again, B is at 4."""
    assignment = Assignment(chain(1, 2, 2))
    for name, position in (("A/0", 6), ("A/1", 6), ("B/0", 4), ("B/1", 4)):
        assignment.primaries[task(name)] = Copy("n", position, fresh=False)
    return assignment


def forks(given: float) -> dict[Task, Fork]:
    """Those of B, which lived through 5 and 6."""
    return {task(name): Fork(9, 4, 6, given) for name in ("B/0", "B/1")}


def test_what_a_fork_missed_is_still_missing_when_everything_upstream_is_back() -> None:
    assignment = catching_up()
    exact = assignment.topology.mask([task("S/0"), task("A/0"), task("A/1")])
    sinks = {task("B/0"), task("B/1")}
    tentative = tentative_works(assignment, forks(2 * 0.5), exact, 7, 12, assignment.topology, (), sinks)
    assert [(str(work.task), work.origin, work.fork) for work in tentative] == [
        ("B/0", "local", 9),
        ("B/1", "local", 9),
    ]
    assert [work.fidelity for work in tentative] == pytest.approx([(0.5 + 0.5 + 1.0) / 3] * 2)
    works = [*exact_works(assignment, exact, 7, "none"), *tentative]
    fidelity, queries = answered(assignment.topology, works)
    assert fidelity == pytest.approx(2 / 3) and queries == pytest.approx({"B": 2 / 3})


def test_an_epoch_that_a_task_did_not_see_at_all_counts_nothing() -> None:
    assignment = catching_up()
    exact = assignment.topology.mask([task("S/0"), task("A/0"), task("A/1")])
    works = tentative_works(assignment, {}, exact, 7, 12, assignment.topology, (), {task("B/0"), task("B/1")})
    assert [(work.start, work.origin, work.fork) for work in works] == [(4, "fork", 12)] * 2
    assert [work.fidelity for work in works] == pytest.approx([1 / 3] * 2)


def test_an_answer_counts_the_tasks_of_a_query_by_their_rates_and_absent_ones_not() -> None:
    assignment = catching_up()
    measured = Measurements(assignment.topology)
    for name, rows in (("B/0", 30), ("B/1", 10)):
        measured.task(task(name), Report(task(name), "exact", "n", "committed", 6, rows_out=rows), 1)
    sink = {task("B/0"), task("B/1")}
    exact = assignment.topology.mask([task("S/0"), task("A/0"), task("A/1")])
    works = [
        w
        for w in tentative_works(assignment, forks(2.0), exact, 7, 1, assignment.topology, (), sink)
        if w.task == task("B/0")
    ]
    assert answered(measured.topology(), works)[0] == pytest.approx(0.75)


def test_of_an_epoch_that_is_past_those_count_who_are_exact_up_to_it() -> None:
    assignment = catching_up()
    measured, primaries = Measurements(assignment.topology), assignment.primaries
    for name, rows in (("B/0", 30), ("B/1", 10)):
        measured.task(task(name), Report(task(name), "exact", "n", "committed", 6, rows_out=rows), 1)
    assert caught_up(measured.topology(), primaries, 4) == 1.0 and caught_up(measured.topology(), primaries, 5) == 0.0
    assert caught_up(measured.topology(), {**primaries, task("B/0"): Copy("n", 5, fresh=False)}, 5) == 0.75


def test_what_a_plan_of_replicas_leaves_is_said_with_what_it_assumes() -> None:
    topology = chain(1, 2, 2)
    why = Measurements(topology).replicas_within(2.0).why
    assert "if everything else fails and every replica lives; where both nodes of a task die it may be less" in why


def test_rates_and_costs_are_those_of_the_last_epochs_not_of_the_last_one() -> None:
    topology = chain(1, 2, 2)
    measured = Measurements(topology)
    silent = Report(task("B/0"), "exact", "n", "committed", 0)
    speaking = Report(task("B/0"), "exact", "n", "committed", 0, rows_out=100, seconds=1.0)

    def rate() -> float:
        return float(measured.topology().rates[topology.index[task("B/0")]])

    measured.task(task("B/0"), silent, 1)
    assert rate() == 0.0
    measured.task(task("B/0"), speaking, 1)
    assert rate() == pytest.approx(50.0)
    measured.task(task("B/0"), silent, 2)
    assert rate() == pytest.approx(25.0)
    for _ in range(20 * MEMORY):
        measured.task(task("B/0"), speaking, 1)
    assert rate() == pytest.approx(100.0, rel=1e-6)
    measured.task(task("B/0"), Report(task("B/0"), "exact", "n", "committed", 0, rows_out=500), 50)
    assert rate() == pytest.approx(10.0), "a long replay says more than what is remembered"
    assert np.isfinite(measured.topology().rates).all()
