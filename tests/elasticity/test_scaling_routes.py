"""Routings that grow and shrink: the ring stays covered, numbers follow the intervals, cuts are kept."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.elasticity import CannotScale, ScaleIn, ScaleOut, evenly, kept, merge, rerouted, split
from holdfast.errors import Invalid
from holdfast.state import KeyRange, Routing
from holdfast.state.ranges import RING
from holdfast.topology import Task

QUICK = settings(deadline=None, derandomize=True, max_examples=60)


@st.composite
def routings(draw: st.DrawFn, most: int = 9) -> Routing:
    cuts = sorted(draw(st.lists(st.integers(1, RING - 1), max_size=most - 1, unique=True)))
    edges = [0, *cuts, RING]
    ranges = tuple(KeyRange(lo, hi) for lo, hi in pairwise(edges))
    return Routing(draw(st.integers(0, 9)), ranges, tuple(range(len(ranges))))


def edges_of(routing: Routing) -> set[int]:
    return {part.lo for part in routing.ranges}


def in_order(routing: Routing, version: int) -> bool:
    """The constructor has checked that the ring is covered without overlap."""
    return routing.owners == tuple(range(len(routing.ranges))) and routing.version == version


@QUICK
@given(routings(), st.data())
def test_merge_undoes_split(routing: Routing, data: st.DataObject) -> None:
    task = data.draw(st.integers(0, len(routing.ranges) - 1))
    n = data.draw(st.integers(2, min(5, max(2, routing.ranges[task].width))))
    if routing.ranges[task].width < n:
        return
    hashes = np.array(data.draw(st.lists(st.integers(0, RING - 1), max_size=20)), np.uint32)
    after = split(routing, task, n, hashes)
    assert in_order(after, routing.version + 1)
    assert len(after.ranges) == len(routing.ranges) + n - 1
    back = merge(after, list(range(task, task + n)))
    assert (back.ranges, back.owners) == (routing.ranges, routing.owners)
    assert back.version == routing.version + 2
    same = kept(routing, after)
    assert same == {old: old + (n - 1) * (old > task) for old in routing.owners if old != task}


@QUICK
@given(routings(), st.integers(1, 14), st.lists(st.integers(0, RING - 1), max_size=30))
def test_evenly_gives_as_many_as_asked_and_keeps_cuts(routing: Routing, to: int, sample: list[int]) -> None:
    if to > len(routing.ranges) and min(r.width for r in routing.ranges) < to:
        return
    for hashes in (None, np.array(sample, np.uint32)):
        after = evenly(routing, to, hashes)
        assert in_order(after, routing.version + 1)
        assert len(after.ranges) == to
        if to >= len(routing.ranges):
            assert edges_of(after) >= edges_of(routing)
        else:
            assert edges_of(after) <= edges_of(routing)


@QUICK
@given(routings(7), st.integers(1, 7))
def test_fewer_tasks_are_as_even_as_any_choice_of_old_cuts(routing: Routing, to: int) -> None:
    if to > len(routing.ranges):
        return
    cuts = sorted(edges_of(routing) - {0})

    def squares(chosen: tuple[int, ...]) -> float:
        edges = [0, *chosen, RING]
        return sum(((hi - lo) / RING) ** 2 for lo, hi in pairwise(edges))

    found = squares(tuple(sorted(edges_of(evenly(routing, to)) - {0})))
    assert found == pytest.approx(min(squares(chosen) for chosen in combinations(cuts, to - 1)), rel=1e-9)


@QUICK
@given(routings(4), st.integers(1, 8))
def test_more_tasks_have_the_smallest_largest_part_that_old_cuts_allow(routing: Routing, to: int) -> None:
    widths = [r.width for r in routing.ranges]
    if to < len(widths) or min(widths) < to:
        return

    def counts(left: int, ranges: int) -> list[tuple[int, ...]]:
        if ranges == 1:
            return [(left,)]
        return [(n, *rest) for n in range(1, left - ranges + 2) for rest in counts(left - n, ranges - 1)]

    best = min(max(-(-w // n) for w, n in zip(widths, chosen, strict=True)) for chosen in counts(to, len(widths)))
    assert max(r.width for r in evenly(routing, to).ranges) <= best + 1


def test_three_of_one_are_thirds_and_four_of_two_are_quarters() -> None:
    assert evenly(Routing.even(1), 3).ranges == KeyRange.even(3)
    assert evenly(Routing.even(2), 4).ranges == KeyRange.even(4)
    assert evenly(Routing.even(8), 2).ranges == KeyRange.even(2)
    assert [r.width * 8 // RING for r in evenly(Routing.even(8), 3).ranges] in ([3, 3, 2], [3, 2, 3], [2, 3, 3])
    assert kept(Routing.even(4), evenly(Routing.even(4), 5)) == {1: 2, 2: 3, 3: 4}


def test_evenly_by_load_cuts_where_the_load_is() -> None:
    hashes = np.arange(0, 1000, 10).astype(np.uint32)
    after = evenly(Routing.even(2), 5, hashes)
    loads = [int(part.contains(hashes).sum()) for part in after.ranges]
    assert loads == [25, 25, 25, 25, 0]
    heavy = evenly(Routing.even(1), 2, hashes, np.array([100.0] + [1.0] * 99))
    assert heavy.ranges[0].contains(hashes).sum() == 1


def test_several_decisions_make_one_new_version() -> None:
    routing = Routing.even(5)
    decisions = [
        ScaleOut(Task("O", 0), 3, ""),
        ScaleIn((Task("O", 4), Task("O", 3)), ""),
        CannotScale(Task("O", 1), ""),
    ]
    after = rerouted(routing, decisions)
    assert in_order(after, 1)
    assert after.ranges == (*routing.ranges[0].split(3), *routing.ranges[1:3], KeyRange(routing.ranges[3].lo, RING))
    one_by_one = merge(split(routing, 0, 3), (5, 6))
    assert after.ranges == one_by_one.ranges
    sample = np.array([1, 2, 3, 4], np.uint32)
    assert rerouted(routing, decisions[:1], {0: (sample, None)}).ranges[:3] == routing.ranges[0].split(3, sample)


def test_what_cannot_be_done_is_refused() -> None:
    routing = Routing.even(4)
    for decisions, message in (
        ([ScaleIn((Task("O", 0), Task("O", 2)), "")], "O/0 and O/2 do not adjoin"),
        ([ScaleOut(Task("O", 1), 2, ""), ScaleIn((Task("O", 1), Task("O", 2)), "")], "task 1 is in two decisions"),
        ([ScaleIn((Task("O", i), Task("O", i + 1)), "") for i in (0, 1)], "task 1 is in two decisions"),
        ([ScaleOut(Task("O", 9), 2, "")], "task 9 owns nothing"),
    ):
        with pytest.raises(Invalid, match=message):
            rerouted(routing, decisions)
    with pytest.raises(Invalid, match="at least 1 task, got 0"):
        evenly(routing, 0)
    with pytest.raises(Invalid, match="two tasks or more are needed, got 1"):
        merge(routing, (1, 1))
    with pytest.raises(Invalid, match="do not adjoin"):
        merge(routing, (0, 2))
    with pytest.raises(Invalid, match="task 0 owns 2 ranges, merge them before scaling"):
        split(Routing(0, KeyRange.even(3), (0, 1, 0)), 0, 2)
    with pytest.raises(Invalid, match="4294967296 positions, which is the most tasks, got 4294967297"):
        evenly(routing, RING + 1)
