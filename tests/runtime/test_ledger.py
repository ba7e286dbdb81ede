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
    assert ledger.since(newest, 25) == range(newest - 3, newest - 1) and ledger.since(newest, None) == range(1)


def test_an_answer_without_a_horizon_rests_on_everything() -> None:
    assert learned(ROWS, TIMES).since(3, None) == range(1)
    assert learned(ROWS).since(3, 100) == range(1), "as does one where no times are known"
    assert Ledger({}).since(3, 100) == range(1)


@pytest.mark.parametrize(
    ("epoch", "horizon", "first", "last"),
    [(4, 0, 4, 5), (4, 1, 3, 4), (4, 100, 3, 4), (4, 101, 2, 3), (4, 250, 1, 2), (4, 400, 0, 1), (4, 401, 0, 0),
     (4, 9999, 0, 0), (2, 150, 0, 1)],
)  # fmt: skip
def test_a_horizon_reaches_back_from_between_the_time_of_the_epoch_before_and_its_own(
    epoch: int, horizon: int, first: int, last: int
) -> None:
    """The first epoch with a time later than that of the epoch before less the horizon, up to the like of its own."""
    assert learned(ROWS, TIMES).since(epoch, horizon) == range(first, last + 1)


def test_in_an_epoch_to_come_time_stands_still_or_goes_on_as_it_did_in_the_last() -> None:
    ledger = learned(ROWS, TIMES)
    assert ledger.since(5, 150) == range(3, 5) and ledger.since(5, 250) == range(2, 4), "it is 500 then, to 600"
    assert ledger.since(9, 150) == range(3, 6), "or none of those that are known"
    assert learned([10], [100]).since(1, 50) == range(1), "of one alone nobody knows how fast time goes"
    paused = learned([10] * 5, [100, 200, 300, 300, 300])
    assert paused.since(5, 150) == range(1, 3), "it goes on as it did when it last did"


def test_an_answer_is_called_as_good_before_its_epoch_is_in_the_journal_as_after() -> None:
    """Windows of ten epochs of which a fork missed three, where the epoch is as those before it."""
    ledger, fork = learned([10] * 20, [100 * (epoch + 1) for epoch in range(20)]), Fork(0, 16, 16)
    before = Memory(ledger, {"O": 1000}).told("O", fork, 1.0, 20)
    ledger.learn(20, 10, 2100)
    assert before == Memory(ledger, {"O": 1000}).told("O", fork, 1.0, 20) == 0.7


def test_where_time_has_jumped_nobody_takes_it_to_jump_again() -> None:
    """Then nothing that the fork missed would count any more, and what lacks rows would be called exact."""
    ledger, fork = learned([10] * 5, [100, 200, 300, 400, 9000]), Fork(0, 2, 2)
    assert Memory(ledger, {"O": 8600}).told("O", fork, 1.0, 5) == 0.5


def told(ledger: Ledger, horizon: int | None, fork: Fork, epoch: int, given: float = 1.0) -> float:
    return Memory(ledger, {"O": horizon}).told("O", fork, given, epoch)


def even(epochs: int) -> list[int]:
    """The times of so many epochs, 100 apart."""
    return [100 * (number + 1) for number in range(epochs)]


def test_parts_of_an_answer_may_rest_on_any_epoch_between() -> None:
    """Time goes from 600 to 900: windows of 300 look back to epochs 3 to 6, and of 5 and 6 only half is there."""
    ledger = learned([10] * 7, [*even(6), 900])
    fork = Fork(0, 4, 4)
    assert ledger.since(6, 300) == range(3, 7)
    assert told(ledger, 300, fork, 6) == 0.5, (
        "windows that end at 800 have the rows of epochs 5 and 6 alone; it was 0.67"
    )


def test_windows_of_an_epoch_in_the_journal_reach_back_from_the_epoch_before() -> None:
    """What closes with epoch 5 ended after 500: it has rows of epochs 3 to 5, of which 4 was missed."""
    ledger = learned([10] * 5 + [30], [*even(5), 900])
    assert told(ledger, 250, Fork(0, 2, 4, ((3, 10.0),)), 5) == pytest.approx(30 / 40), "it was 1.0"


def test_a_fork_that_goes_on_for_long_has_not_seen_what_it_missed_of_a_window() -> None:
    """It got half of every epoch; what it got before the last 64 is one sum, which is not all of the last 80."""
    ledger = learned([10] * 201, even(201))
    fork = Fork(0, 99, 99)
    for epoch in range(100, 200):
        fork = fork.advanced(epoch, 5.0)
    assert 0.4 < told(ledger, 8000, fork, 200) <= (79 * 5 + 10) / 800, "it was 0.61"
    assert told(ledger, 3000, fork, 200) == pytest.approx((29 * 5 + 10) / 300, abs=0.01)
    assert told(ledger, None, fork, 200) == pytest.approx((1000 + 500 + 10) / 2010)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 300)), min_size=3, max_size=12),
    st.integers(1, 900),
    st.floats(0.05, 1.0),
    st.data(),
)
def test_no_part_of_an_answer_is_worse_than_what_is_told(
    epochs: list[tuple[int, int]], horizon: int, given: float, data: st.DataObject
) -> None:
    """Counted by hand for every window of this epoch: rows seen of all that are in it."""
    rows, times = (
        [count for count, _ in epochs],
        [sum(step for _, step in epochs[: at + 1]) for at in range(len(epochs))],
    )
    epoch = len(epochs) - 1
    base = data.draw(st.integers(-1, epoch - 1))
    got = {at: data.draw(st.sampled_from([None, 0.0, 0.5, 1.0])) for at in range(base + 1, epoch)}
    fork = Fork(0, base, base)
    for at, share in got.items():
        if share is not None:
            fork = fork.advanced(at, share * rows[at])
    said = told(learned(rows, list(times)), horizon, fork, epoch, given)
    share_of = {**dict.fromkeys(range(base + 1), 1.0), **{at: share or 0.0 for at, share in got.items()}, epoch: given}
    for end in range(times[epoch - 1], times[epoch] + 1):
        inside = [at for at in range(epoch + 1) if times[at] > end - horizon]
        if rested := sum(rows[at] for at in inside):
            assert said <= sum(rows[at] * share_of[at] for at in inside) / rested + 1e-9
    assert said <= given


def test_what_is_foreseen_of_an_epoch_is_what_is_known_when_it_is_journalled() -> None:
    ledger = learned(ROWS, TIMES)
    foreseen = ledger.foreseeing(5, 7, 900)
    assert ledger.newest == 4 and foreseen.newest == 5 and foreseen.rows(5, 5) == 7 and foreseen.time(5) == 900
    assert ledger.foreseeing(4, 7, 900) is ledger, "that one is known"


def test_epochs_are_counted_from_the_first_that_is_known() -> None:
    ledger = learned(ROWS, TIMES, first=20, before=1000)
    assert ledger.since(24, 150) == range(22, 24) and ledger.since(23, 150) == range(21, 23)
    assert ledger.since(3, 150) == range(1), "of one long gone no time is known"


def test_an_epoch_without_rows_does_not_change_how_far_back_answers_look() -> None:
    """A source that pauses for an epoch has no time in it."""
    ledger = learned([10, 10, 10, 10, 0], [100, 200, 300, 400, None])
    assert ledger.time(4) == 400
    assert ledger.since(4, 150) == range(2, 3) and ledger.since(5, 150) == range(2, 4)
    ledger.learn(5, 10, 600)
    assert ledger.since(5, 150) == range(2, 6) and ledger.since(5, 250) == range(1, 4)


def test_rows_that_come_late_do_not_turn_back_the_time() -> None:
    """Epoch 2 had nothing but rows of long ago: those of epoch 1 are in the horizon all the same."""
    ledger = learned([10] * 4, [100, 200, 50, 210])
    assert ledger.time(2) == 200 and ledger.time(3) == 210
    assert ledger.since(3, 100) == range(1, 2)
    late = learned([10] * 3, [100, 200, 50])
    assert late.since(2, 50) == range(1, 2), "now is 200, not 50"


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
    ends = [
        next((each for each in range(len(rows)) if times[each] > times[at] - horizon), len(rows))
        for at in (epoch - 1, epoch)
        if at >= 0
    ]
    assert ledger.since(epoch, horizon) == range(ends[0] if epoch else 0, ends[-1] + 1)
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
