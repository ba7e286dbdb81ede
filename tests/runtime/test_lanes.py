"""What a tentative answer says of itself, and the rates it is reckoned by, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from driving import chain, task

from holdfast.runtime.events import Report
from holdfast.runtime.lanes import answered, caught_up, exact_works, tentative_works
from holdfast.runtime.measurements import MEMORY, Measurements
from holdfast.runtime.standing import Fork, Home, Standing


def catching_up(given: float) -> Standing:
    """S -> A/0, A/1 -> B/0, B/1 at epoch 6: A is exact again, B is at 4 and has forks that lived through 5 and 6."""
    standing = Standing(chain(1, 2, 2), checkpoint=-1, head=6, nodes={"n": "n"})
    for name, position in (("A/0", 6), ("A/1", 6), ("B/0", 4), ("B/1", 4)):
        standing.homes[task(name)] = Home("n", position, fresh=False)
    for name in ("B/0", "B/1"):
        standing.forks[task(name)] = Fork(9, 4, 6, given)
    return standing


def test_what_a_fork_missed_is_still_missing_when_everything_upstream_is_back() -> None:
    standing = catching_up(given=2 * 0.5)
    exact = standing.topology.mask([task("S/0"), task("A/0"), task("A/1")])
    sinks = {task("B/0"), task("B/1")}
    tentative = tentative_works(standing, exact, 7, 12, standing.topology, (), sinks)
    assert [(str(work.task), work.origin, work.fork) for work in tentative] == [
        ("B/0", "local", 9),
        ("B/1", "local", 9),
    ]
    assert [work.fidelity for work in tentative] == pytest.approx([(0.5 + 0.5 + 1.0) / 3] * 2)
    works = [*exact_works(standing, exact, 7, "none"), *tentative]
    fidelity, queries = answered(standing.topology, works)
    assert fidelity == pytest.approx(2 / 3) and queries == pytest.approx({"B": 2 / 3})


def test_an_epoch_that_a_task_did_not_see_at_all_counts_nothing() -> None:
    standing = catching_up(given=0.0)
    standing.forks.clear()
    exact = standing.topology.mask([task("S/0"), task("A/0"), task("A/1")])
    works = tentative_works(standing, exact, 7, 12, standing.topology, (), {task("B/0"), task("B/1")})
    assert [(work.start, work.origin, work.fork) for work in works] == [(4, "fork", 12)] * 2
    assert [work.fidelity for work in works] == pytest.approx([1 / 3] * 2)


def test_an_answer_counts_the_tasks_of_a_query_by_their_rates_and_absent_ones_not() -> None:
    standing = catching_up(given=2.0)
    measured = Measurements(standing.topology)
    for name, rows in (("B/0", 30), ("B/1", 10)):
        measured.task(task(name), Report(task(name), "exact", "n", "committed", 6, rows_out=rows), 1)
    sink = {task("B/0"), task("B/1")}
    exact = standing.topology.mask([task("S/0"), task("A/0"), task("A/1")])
    works = [w for w in tentative_works(standing, exact, 7, 1, standing.topology, (), sink) if w.task == task("B/0")]
    assert answered(measured.topology(), works)[0] == pytest.approx(0.75)


def test_of_an_epoch_that_is_past_those_count_who_are_exact_up_to_it() -> None:
    standing = catching_up(given=2.0)
    measured = Measurements(standing.topology)
    for name, rows in (("B/0", 30), ("B/1", 10)):
        measured.task(task(name), Report(task(name), "exact", "n", "committed", 6, rows_out=rows), 1)
    assert caught_up(measured.topology(), standing, 4) == 1.0 and caught_up(measured.topology(), standing, 5) == 0.0
    standing.homes[task("B/0")] = Home("n", 5, fresh=False)
    assert caught_up(measured.topology(), standing, 5) == pytest.approx(0.75)


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
