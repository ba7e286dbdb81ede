"""What came with the epochs: rows up to each, of those to come and long gone, and how far back an answer looks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.coordinator.lanes import Fork, Memory
from holdfast.runtime.coordinator.ledger import REMEMBERED, Ledger

ROWS = [10, 0, 30, 5, 40]
TIMES = [100, 200, 300, 400, 500]


def learned(rows: list[int], times: list[int | None] | None = None, first: int = 0, before: int = 0) -> Ledger:
    """A ledger that has heard of these epochs one by one; ``before``: rows of all before them."""
    ledger = Ledger({first - 1: (before, None)} if first else {})
    for number, count in enumerate(rows):
        ledger.learn(first + number, count, times[number] if times else None)
    return ledger


def test_totals_are_sums_of_rows() -> None:
    ledger = learned(ROWS)
    assert [ledger.total(epoch) for epoch in range(-1, 5)] == [0, 10, 10, 40, 45, 85] and ledger.newest == 4
    assert [ledger.rows(epoch, epoch) for epoch in range(5)] == ROWS
    assert ledger.rows(1, 3) == 35 and ledger.rows(0, 4) == 85 and ledger.rows(-3, 0) == 10
    assert ledger.rows(3, 2) == 0 and ledger.rows(4, 1) == 0, "there are no epochs between"


def test_what_was_found_in_a_store_is_what_was_learned() -> None:
    ledger = Ledger({2: (40, 300), 1: (10, 200), 3: (45, None)})
    ledger.learn(4, 40, 500)
    assert [ledger.total(epoch) for epoch in (1, 2, 3, 4)] == [10, 40, 45, 85]
    assert [ledger.rows(epoch, epoch) for epoch in (2, 3, 4)] == [30, 5, 40]
    assert ledger.time(4) == 500 and ledger.time(3) == 300 and ledger.newest == 4


def test_an_epoch_of_unknown_rows_weighs_one() -> None:
    ledger = Ledger({})
    assert ledger.newest == -1 and ledger.total(-1) == 0
    assert [ledger.total(epoch) for epoch in range(3)] == [1, 2, 3] and ledger.rows(3, 7) == 5
    ledger.learn(0, None, None)
    ledger.learn(1, None, None)
    ledger.learn(2, 7, None)
    assert [ledger.rows(epoch, epoch) for epoch in range(3)] == [1, 1, 7]


def test_who_begins_to_count_late_takes_one_row_for_each_epoch_before() -> None:
    ledger = Ledger({})
    ledger.learn(6, 5, None)
    assert ledger.total(6) == 6 + 5 and ledger.rows(0, 6) == 11 and ledger.newest == 6


def test_an_epoch_to_come_has_as_many_rows_as_the_last() -> None:
    ledger = learned(ROWS)
    assert ledger.rows(5, 5) == 40 and ledger.rows(5, 7) == 120 and ledger.total(7) == 85 + 120
    assert learned([10, 0]).rows(2, 2) == 1, "one without rows says nothing of the next, which weighs something"
    assert learned([8]).rows(1, 1) == 8
    assert Ledger({9: (50, None)}).rows(10, 10) == 5, "as those before it, where only their sum is known"


def test_epochs_long_gone_have_their_part_of_the_sum() -> None:
    ledger = Ledger({9: (50, None), 10: (57, None)})
    assert [ledger.total(epoch) for epoch in (-1, 0, 3, 8, 9)] == [0, 5, 20, 45, 50]
    assert ledger.rows(0, 10) == 57 and ledger.rows(4, 9) == 30


def test_only_so_many_epochs_are_told_apart() -> None:
    ledger = Ledger({})
    for epoch in range(5 * REMEMBERED):
        ledger.learn(epoch, 2, 10 * epoch)
        assert len(ledger._totals) == len(ledger._times) <= 2 * REMEMBERED
    newest = 5 * REMEMBERED - 1
    assert ledger.newest == newest and ledger.total(newest) == 2 * (newest + 1)
    assert ledger.rows(newest - 3, newest) == 8 and ledger.rows(0, 9) == 20, "those that are one sum, in proportion"
    assert ledger.time(newest) == 10 * newest and ledger.time(5) is None
    assert ledger.since(newest, 25) == {newest - 2} and ledger.since(newest, None) == {0}


def test_an_answer_without_a_horizon_rests_on_everything() -> None:
    assert learned(ROWS, TIMES).since(3, None) == {0}
    assert learned(ROWS).since(3, 100) == {0}, "as does one where no times are known"
    assert Ledger({}).since(3, 100) == {0}


@pytest.mark.parametrize(
    ("epoch", "horizon", "first"),
    [(4, 0, 5), (4, 1, 4), (4, 100, 4), (4, 101, 3), (4, 250, 2), (4, 400, 1), (4, 401, 0), (4, 9999, 0), (2, 150, 1)],
)
def test_a_horizon_reaches_back_from_the_time_of_its_epoch(epoch: int, horizon: int, first: int) -> None:
    """The first epoch with a time later than that of this epoch less the horizon."""
    assert learned(ROWS, TIMES).since(epoch, horizon) == {first}


def test_in_an_epoch_to_come_time_stands_still_or_goes_on_as_it_did_in_the_last() -> None:
    ledger = learned(ROWS, TIMES)
    assert ledger.since(5, 150) == {3, 4} and ledger.since(5, 250) == {2, 3}, "it is 500 then, or 600"
    assert ledger.since(9, 150) == {3, 5}, "or none of those that are known"
    assert learned([10], [100]).since(1, 50) == {0}, "of one alone nobody knows how fast time goes"


def test_an_answer_is_called_as_good_before_its_epoch_is_in_the_journal_as_after() -> None:
    """Windows of ten epochs of which a fork missed three: it was 8 of 11 for who had to read the epoch first."""
    ledger, fork = learned([10] * 20, [100 * (epoch + 1) for epoch in range(20)]), Fork(0, 16, 16)
    before = Memory(ledger, {"O": 1000}).told("O", fork, 1.0, 20)
    ledger.learn(20, 10, 2100)
    assert before == Memory(ledger, {"O": 1000}).told("O", fork, 1.0, 20) == 0.7


def test_where_time_has_jumped_nobody_takes_it_to_jump_again() -> None:
    """Then nothing that the fork missed would count any more, and what lacks rows would be called exact."""
    ledger, fork = learned([10] * 5, [100, 200, 300, 400, 9000]), Fork(0, 2, 2)
    assert Memory(ledger, {"O": 8600}).told("O", fork, 1.0, 5) == 0.5


def test_epochs_are_counted_from_the_first_that_is_known() -> None:
    ledger = learned(ROWS, TIMES, first=20, before=1000)
    assert ledger.since(24, 150) == {23} and ledger.since(22, 150) == {21}
    assert ledger.since(3, 150) == {0}, "of one long gone no time is known"


def test_an_epoch_without_rows_does_not_change_how_far_back_answers_look() -> None:
    """A source that pauses for an epoch has no time in it."""
    ledger = learned([10, 10, 10, 10, 0], [100, 200, 300, 400, None])
    assert ledger.time(4) == 400
    assert ledger.since(5, 150) == ledger.since(4, 150) == {2}
    ledger.learn(5, 10, 600)
    assert ledger.since(5, 150) == {5} and ledger.since(5, 250) == {3}


def test_rows_that_come_late_do_not_turn_back_the_time() -> None:
    """Epoch 2 had nothing but rows of long ago: those of epoch 1 are in the horizon all the same."""
    ledger = learned([10] * 4, [100, 200, 50, 210])
    assert ledger.time(2) == 200 and ledger.time(3) == 210
    assert ledger.since(3, 100) == {1}
    late = learned([10] * 3, [100, 200, 50])
    assert late.since(3, 50) == {1}, "now is 200, not 50"


def test_time_is_the_newest_so_far() -> None:
    ledger = learned([1] * 4, [100, None, 300, 250])
    assert [ledger.time(epoch) for epoch in range(-1, 5)] == [None, 100, 100, 300, 300, 300]
    assert Ledger({}).time(0) is None and learned([1, 1]).time(1) is None


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=30),
    st.lists(st.integers(0, 20), min_size=30, max_size=30),
    st.integers(0, 200),
    st.data(),
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_as_counted_by_hand(rows: list[int], steps: list[int], horizon: int, data: st.DataObject) -> None:
    times = [sum(steps[: number + 1]) for number in range(len(rows))]
    ledger = learned(rows, times)
    epoch = data.draw(st.integers(0, len(rows) - 1))
    within = [each for each in range(len(rows)) if times[each] > times[epoch] - horizon]
    assert ledger.since(epoch, horizon) == {min(within, default=len(rows))}
    first = data.draw(st.integers(0, epoch))
    assert ledger.rows(first, epoch) == sum(rows[first : epoch + 1])
    assert ledger.time(epoch) == times[epoch]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5_000)), min_size=3, max_size=30),
    st.integers(1, 40_000),
    st.data(),
)
def test_after_a_restart_no_answer_is_called_better_than_it_is(
    epochs: list[tuple[int, int]], horizon: int, data: st.DataObject
) -> None:
    """However fast time went before: of what is not known any more nothing is assumed. What was kept is known."""
    times = [sum(step for _, step in epochs[: number + 1]) for number in range(len(epochs))]
    whole = learned([rows for rows, _ in epochs], list(times))
    newest = len(epochs) - 1
    first = data.draw(st.integers(0, newest))
    counts = {epoch: (whole.total(epoch), whole.time(epoch)) for epoch in range(first, newest + 1)}
    fork = Fork(0, data.draw(st.integers(first, newest)), 0)
    told = [
        Memory(each, {"O": horizon}).told("O", fork, 1.0, newest + 1)
        for each in (Ledger(counts), whole, Ledger.recalled(whole.recent(), counts))
    ]
    assert told[0] <= told[1] + 1e-9 and told[2] == told[1]


def test_what_was_kept_is_taken_as_far_as_it_leads_up_to_what_is_known() -> None:
    told = [(1, 10, 100), (2, 20, 200), (4, 40, 400), (5, 50, 500)]
    ledger = Ledger.recalled(told, {5: (50, None), 6: (60, 600)})
    assert ledger.recent() == [(4, 40, 400), (5, 50, 500), (6, 60, 600)], "what is before a gap is of no use"
    assert Ledger.recalled(told, {}).recent() == [] and Ledger({}).recent() == []
