"""What a tentative answer says of itself, and the rates it is reckoned by, worked out by hand."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from driving import chain, task

from holdfast.runtime.coordinator.assignment import Assignment
from holdfast.runtime.coordinator.facts import Copy
from holdfast.runtime.coordinator.lanes import (
    TOLD_APART,
    Fork,
    Memory,
    answered,
    caught_up,
    exact_works,
    tentative_works,
)
from holdfast.runtime.coordinator.ledger import Ledger
from holdfast.runtime.coordinator.measurements import MEMORY, Measurements
from holdfast.runtime.messages import Report, Work
from holdfast.topology import Operator, Stream, Task, Topology

UNKNOWN = Memory(Ledger({}), {})
"""Of no epoch the rows are known: each weighs one."""
ROWS = [10, 20, 30, 40, 50, 60]


def catching_up() -> Assignment:
    """S -> A/0, A/1 -> B/0, B/1 at epoch 6: A is exact again, B is at 4."""
    assignment = Assignment(chain(1, 2, 2))
    for name, position in (("A/0", 6), ("A/1", 6), ("B/0", 4), ("B/1", 4)):
        assignment.primaries[task(name)] = Copy("n", position, fresh=False)
    return assignment


def forks(given: float) -> dict[Task, Fork]:
    """Those of B, which lived through 5 and 6 and were given so much of each."""
    return {task(name): Fork(9, 4, 6, ((5, given), (6, given))) for name in ("B/0", "B/1")}


def test_what_a_fork_missed_is_still_missing_when_everything_upstream_is_back() -> None:
    assignment = catching_up()
    exact = assignment.topology.mask([task("S/0"), task("A/0"), task("A/1")])
    sinks = {task("B/0"), task("B/1")}
    tentative = tentative_works(
        assignment.topology, assignment.primaries, forks(0.5), exact, 7, 12, assignment.topology, UNKNOWN, (), sinks
    )
    assert [(str(work.task), work.origin, work.fork) for work in tentative] == [
        ("B/0", "local", 9),
        ("B/1", "local", 9),
    ]
    assert [work.given for work in tentative] == [1.0, 1.0]
    assert [work.fidelity for work in tentative] == pytest.approx([(5 + 0.5 + 0.5 + 1.0) / 8] * 2)
    works = [*exact_works(assignment, exact, 7, "none"), *tentative]
    fidelity, queries = answered(assignment.topology, works)
    assert fidelity == pytest.approx(7 / 8) and queries == pytest.approx({"B": 7 / 8})


def test_an_epoch_that_a_task_did_not_see_at_all_counts_nothing() -> None:
    assignment = catching_up()
    exact = assignment.topology.mask([task("S/0"), task("A/0"), task("A/1")])
    sinks = {task("B/0"), task("B/1")}
    works = tentative_works(
        assignment.topology, assignment.primaries, {}, exact, 7, 12, assignment.topology, UNKNOWN, (), sinks
    )
    assert [(work.start, work.origin, work.fork) for work in works] == [(4, "fork", 12)] * 2
    assert [work.fidelity for work in works] == pytest.approx([(5 + 1) / 8] * 2)


def test_an_answer_counts_the_tasks_of_a_query_by_their_rates_and_absent_ones_not() -> None:
    assignment = catching_up()
    measured = Measurements(assignment.topology, UNKNOWN)
    for name, rows in (("B/0", 30), ("B/1", 10)):
        measured.task(task(name), Report(task(name), "exact", "n", "committed", 6, rows_out=rows), 1)
    sink = {task("B/0"), task("B/1")}
    exact = assignment.topology.mask([task("S/0"), task("A/0"), task("A/1")])
    works = [
        w
        for w in tentative_works(
            assignment.topology, assignment.primaries, forks(1.0), exact, 7, 1, assignment.topology, UNKNOWN, (), sink
        )
        if w.task == task("B/0")
    ]
    assert answered(measured.topology(), works)[0] == pytest.approx(0.75)


def test_of_an_epoch_that_is_past_those_count_who_are_exact_up_to_it() -> None:
    assignment = catching_up()
    measured, primaries = Measurements(assignment.topology, UNKNOWN), assignment.primaries
    for name, rows in (("B/0", 30), ("B/1", 10)):
        measured.task(task(name), Report(task(name), "exact", "n", "committed", 6, rows_out=rows), 1)
    assert caught_up(measured.topology(), primaries, 4) == 1.0 and caught_up(measured.topology(), primaries, 5) == 0.0
    assert caught_up(measured.topology(), {**primaries, task("B/0"): Copy("n", 5, fresh=False)}, 5) == 0.75


def test_rates_and_costs_are_those_of_the_last_epochs_not_of_the_last_one() -> None:
    topology = chain(1, 2, 2)
    measured = Measurements(topology, UNKNOWN)
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


def remembering(*rows: int, **horizons: int | None) -> Memory:
    """So many rows came with each epoch, whose times are 100, 200 and so on."""
    totals = {epoch: (sum(rows[: epoch + 1]), 100 * (epoch + 1)) for epoch in range(len(rows))}
    return Memory(Ledger(totals), horizons)


def lost(topology: Topology, positions: dict[str, int], fresh: bool = True) -> Assignment:
    """Tasks of this topology at these epochs; those that are not named are at epoch 5."""
    assignment = Assignment(topology)
    for each in assignment.tasks:
        at = positions.get(str(each), 5)
        assignment.primaries[each] = Copy("n", at, fresh=fresh and str(each) in positions)
    return assignment


def said(
    assignment: Assignment, memory: Memory, forks: dict[Task, Fork] | None = None, epoch: int = 6, mute: tuple = ()
) -> dict[str, Work]:
    """The tentative works of an epoch, of which the sinks are heard."""
    topology = assignment.topology
    sinks = {each for each in topology.tasks if not topology.outputs_of(each.operator)}
    exact = assignment.exact(epoch, epoch - 1)
    found = tentative_works(
        assignment.topology, assignment.primaries, forks or {}, exact, epoch, 99, topology, memory, mute, sinks
    )
    return {str(work.task): work for work in found}


def test_a_running_aggregate_from_a_checkpoint_has_seen_all_rows_up_to_it_and_those_of_now() -> None:
    """Epochs 0 to 2 had 60 rows, 3 to 5 150 that it misses; epoch 6 is to come: 60 as epoch 5, until it is known."""
    assignment = lost(chain(1, 1), {"A/0": 2})
    (work,) = said(assignment, remembering(*ROWS)).values()
    assert (work.origin, work.start, work.first, work.last, work.fork) == ("checkpoint", 2, 6, 6, 99)
    assert (work.fidelity, work.given, work.past) == (pytest.approx((60 + 60) / 270), 1.0, 600)
    (work,) = said(assignment, remembering(*ROWS, 90)).values()
    assert work.fidelity == pytest.approx((60 + 90) / 300)
    (work,) = said(lost(chain(1, 1), {"A/0": -1}), remembering(*ROWS, 90)).values()
    assert work.fidelity == pytest.approx(90 / 300), "it has seen nothing yet"


@pytest.mark.parametrize(("checkpoint", "seen", "rested"), [(-1, 0, 220), (0, 0, 220), (3, 0, 180), (4, 50, 180)])
def test_a_window_rests_on_no_more_than_its_horizon(checkpoint: int, seen: int, rested: int) -> None:
    """Time goes from 600 to 700 with epoch 6: rows after 350, of epoch 3, may count, and those after 450 do."""
    memory = remembering(*ROWS, 70, A=250)
    (work,) = said(lost(chain(1, 1), {"A/0": checkpoint}), memory).values()
    assert work.fidelity == pytest.approx((seen + 70) / rested)


def test_a_fork_of_a_window_is_whole_when_its_horizon_has_passed() -> None:
    assignment, memory = lost(chain(1, 1), {"A/0": 2}), remembering(*ROWS, 70, A=250)
    fork = Fork(8, 1, 5, ((3, 40.0), (4, 50.0), (5, 60.0)))
    (work,) = said(assignment, memory, {task("A/0"): fork}).values()
    assert (work.origin, work.start, work.fork, work.fidelity) == ("local", 5, 8, 1.0)
    half = Fork(8, 1, 5, ((2, 30.0), (3, 40.0), (4, 25.0), (5, 60.0)))
    (work,) = said(assignment, memory, {task("A/0"): half}).values()
    assert work.fidelity == pytest.approx((25 + 60 + 70) / 180), "what came before the horizon does not count"
    fork = Fork(8, 2, 5, ((4, 50.0), (5, 60.0)))
    everlasting = remembering(*ROWS, 70)
    (work,) = said(assignment, everlasting, {task("A/0"): fork}).values()
    assert work.fidelity == pytest.approx((280 - 40) / 280), "a running aggregate misses epoch 3 for ever"


@pytest.mark.parametrize(
    ("third", "fifth", "goes_on"), [(40, 60, True), (60, 40, False), (50, 50, True)], ids=["fork", "replay", "equal"]
)
def test_a_fork_goes_on_or_begins_anew_from_what_was_replayed_whichever_has_seen_more(
    third: int, fifth: int, goes_on: bool
) -> None:
    """The fork has missed epoch 3; the exact state has come to epoch 4, so one begun from it misses epoch 5."""
    memory = remembering(10, 20, 30, third, 50, fifth, 70)
    assignment = lost(chain(1, 1), {"A/0": 4}, fresh=False)
    fork = Fork(8, 2, 5, ((4, 50.0), (5, float(fifth))))
    (work,) = said(assignment, memory, {task("A/0"): fork}).values()
    assert (work.origin, work.start, work.fork) == (("local", 5, 8) if goes_on else ("fork", 4, 99))
    assert work.fidelity == pytest.approx(1 - min(third, fifth) / 280)


def test_a_fork_that_the_exact_state_has_passed_is_left_behind() -> None:
    """It has missed nothing, but it is at epoch 3, and the exact state at 4."""
    fork = Fork(8, 2, 3, ((3, 40.0),))
    assignment = lost(chain(1, 1), {"A/0": 4}, fresh=False)
    (work,) = said(assignment, remembering(*ROWS, 70), {task("A/0"): fork}).values()
    assert (work.origin, work.start, work.fork) == ("fork", 4, 99)
    assert work.fidelity == pytest.approx(1 - 60 / 280)


def test_what_has_no_state_counts_this_epoch_alone() -> None:
    """A/0 was lost long ago, and says of epoch 6 all there is to say; without A/1 it is half."""
    topology = chain(1, 2, 1, stateless=("A", "B"))
    works = said(lost(topology, {"A/0": 1}), remembering(*ROWS))
    assert works.keys() == {"A/0", "B/0"} and {work.fidelity for work in works.values()} == {1.0}
    assignment = lost(topology, {"A/0": 1, "B/0": 1})
    del assignment.primaries[task("A/1")]
    works = said(assignment, remembering(*ROWS))
    assert {name: work.fidelity for name, work in works.items()} == {"A/0": 1.0, "B/0": 0.5}


def test_stale_tasks_one_behind_the_other_each_add_what_they_miss() -> None:
    """All are at epoch 2, at 60 of 270 rows. What A/0 says of epoch 6 rests on 120 of 270; B/0 gets that much of it."""
    works = said(lost(chain(1, 1, 1, 1), {"A/0": 2, "B/0": 2, "C/0": 2}), remembering(*ROWS))
    first = 120 / 270
    second = (60 + 60 * first) / 270
    third = (60 + 60 * second) / 270
    assert [work.fidelity for work in works.values()] == pytest.approx([first, second, third])
    assert [work.given for work in works.values()] == pytest.approx([1.0, first, second])


def test_a_live_task_behind_a_stale_one_is_as_good_as_this_epoch() -> None:
    """B/0 has seen everything up to epoch 5: it lacks what A/0 does not say of epoch 6, and no more."""
    works = said(lost(chain(1, 1, 1), {"A/0": 2}), remembering(*ROWS))
    assert works["B/0"].origin == "fork" and works["B/0"].start == 5
    assert works["B/0"].fidelity == works["B/0"].given == works["A/0"].fidelity == pytest.approx(120 / 270)


def test_stale_inputs_of_a_join_are_multiplied_and_others_weighed_by_their_rates() -> None:
    def below(inputs: Literal["independent", "correlated"]) -> float:
        operators = (
            Operator("S", 1, costs=(0.0,)),
            Operator("A", 1, rates=(3.0,), stateful=True),
            Operator("B", 1, rates=(1.0,), stateful=True),
            Operator("J", 1, inputs=inputs),
        )
        streams = [
            Stream("S", "A", "full"),
            Stream("S", "B", "full"),
            Stream("A", "J", "full"),
            Stream("B", "J", "full"),
        ]
        works = said(lost(Topology(operators, tuple(streams)), {"A/0": 2, "B/0": 4}), remembering(*ROWS))
        assert works["A/0"].fidelity == pytest.approx(12 / 27) and works["B/0"].fidelity == pytest.approx(21 / 27)
        return works["J/0"].fidelity

    assert below("correlated") == pytest.approx(12 / 27 * 21 / 27)
    assert below("independent") == pytest.approx((3 * 12 / 27 + 21 / 27) / 4)


def test_who_is_mute_or_nowhere_says_nothing_and_is_missed_by_those_below() -> None:
    topology = chain(1, 2, 1)
    assignment = lost(topology, {"A/0": 2, "A/1": 2})
    works = said(assignment, remembering(*ROWS), mute=(task("A/1"),))
    assert works.keys() == {"A/0", "B/0"} and works["B/0"].given == pytest.approx(120 / 270 / 2)
    del assignment.primaries[task("A/0")]
    assert said(assignment, remembering(*ROWS), mute=(task("A/1"),)) == {}


def test_where_no_rows_came_nothing_is_missing() -> None:
    """Within the horizon no row came at all: a window has nothing to lack."""
    quiet = remembering(10, 20, 30, 40, 0, 0, 0, A=150)
    (work,) = said(lost(chain(1, 1), {"A/0": 2}), quiet).values()
    assert work.fidelity == 1.0


def test_a_fork_knows_of_so_many_epochs_what_it_got_and_of_older_ones_in_all() -> None:
    fork = Fork(1, 4, 4)
    for epoch in range(5, 5 + 3 * TOLD_APART):
        fork = fork.advanced(epoch, 0.5 * epoch)
        assert len(fork.given) <= TOLD_APART and fork.reached == epoch == fork.given[-1][0]
    assert (fork.number, fork.base) == (1, 4)
    assert sum(rows for _, rows in fork.given) == 0.5 * sum(range(5, 5 + 3 * TOLD_APART))
    last = range(5 + 2 * TOLD_APART + 1, 5 + 3 * TOLD_APART)
    assert fork.given[1:] == tuple((epoch, 0.5 * epoch) for epoch in last)
