"""What an overloaded job keeps: how many rows, which, and how it is told."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from driving import Driver, chain, task
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.runtime.driver.shedding import REMEMBERED, Shedder, sample
from holdfast.runtime.messages import EpochJournalled, Report, Run, RunDone


def test_nothing_is_shed_before_the_pace_is_known() -> None:
    assert Shedder(2.0).allowed is None


def test_an_epoch_may_keep_what_the_pace_gets_done_in_time() -> None:
    shedder = Shedder(2.0)
    shedder.observe(1_000, 0.5)
    assert shedder.allowed == 4_000
    shedder.observe(0, 0.3)
    assert shedder.allowed == 4_000, "an empty epoch says nothing about rows"


def test_small_epochs_which_are_mostly_overhead_do_not_slow_the_pace_down() -> None:
    shedder = Shedder(1.0)
    for _ in range(REMEMBERED // 2 + 1):
        shedder.observe(10_000, 1.0)
    for _ in range(REMEMBERED // 2):
        shedder.observe(10, 0.3)
    assert shedder.allowed == 10_000


def test_the_pace_follows_a_job_that_lost_half_of_its_nodes() -> None:
    shedder = Shedder(1.0)
    for _ in range(REMEMBERED):
        shedder.observe(10_000, 1.0)
    for _ in range(REMEMBERED):
        shedder.observe(10_000, 2.0)
    assert shedder.allowed == 5_000


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_bound_that_allows_nothing_is_refused(seconds: float) -> None:
    with pytest.raises(Invalid, match="more than 0 seconds"):
        Shedder(seconds)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 400), st.integers(1, 500))
def test_a_sample_is_even_in_order_and_of_the_size_that_was_asked_for(count: int, keep: int) -> None:
    kept = sample(pa.table({"n": range(count)}), keep)["n"].to_pylist()
    assert len(kept) == min(count, keep)
    assert kept == sorted(set(kept)) and set(kept) <= set(range(count))
    gaps = [b - a for a, b in pairwise(kept)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_an_epoch_that_was_shed_says_so_and_does_not_claim_to_be_whole() -> None:
    driver = Driver(chain(1, 1), nodes=1)
    driver.join(0)
    driver.arrive(0)
    run = driver.only(Run)
    source = Report(task("S/0"), "exact", "", "committed", 0, rows_in=300, counters={"shed": 700})
    works = tuple(Report(work.task, "exact", work.node, "committed", 0) for work in run.works)
    driver.tell(EpochJournalled(0))
    driver.tell(RunDone(run.number, (source, *works)))
    (told,) = driver.records("epoch")
    assert (told["rows_in"], told["shed"]) == (300, 700)
    assert told["fidelity"] == pytest.approx(0.3)
