"""Key ranges and routing tables: every ring position has one owner, before and after every split and merge."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.state import KeyRange, Routing

QUICK = settings(deadline=None, derandomize=True, max_examples=40)
RING = 2**32


def covers(parts: tuple[KeyRange, ...], whole: KeyRange) -> bool:
    edges = [whole.lo, *(part.hi for part in parts)]
    return edges[-1] == whole.hi and all(part.lo == edge for part, edge in zip(parts, edges, strict=False))


@QUICK
@given(st.integers(1, 3000))
def test_even_ranges_cover_the_ring_and_differ_by_one_at_most(n: int) -> None:
    parts = KeyRange.even(n)
    assert len(parts) == n
    assert covers(parts, KeyRange.whole())
    widths = {part.width for part in parts}
    assert max(widths) - min(widths) <= 1


@QUICK
@given(
    st.lists(st.integers(0, RING - 1), max_size=40),
    st.integers(1, 9),
    st.tuples(st.integers(0, RING - 1), st.integers(1, RING)).filter(lambda t: t[0] < t[1]),
)
def test_a_measured_split_covers_its_range_whatever_the_sample(
    hashes: list[int], n: int, edges: tuple[int, int]
) -> None:
    whole = KeyRange(*edges)
    if whole.width < n:
        return
    parts = whole.split(n, np.array(hashes, np.uint32))
    assert len(parts) == n
    assert covers(parts, whole)


def test_a_measured_split_balances_a_skewed_load() -> None:
    rng = np.random.default_rng(3)
    hashes = (rng.beta(2, 30, 50_000) * RING).astype(np.uint32)
    parts = KeyRange.whole().split(8, hashes)
    loads = [int(part.contains(hashes).sum()) for part in parts]
    assert max(loads) <= 1.01 * len(hashes) / 8
    even = [int(part.contains(hashes).sum()) for part in KeyRange.even(8)]
    assert max(even) > 6 * len(hashes) / 8


def test_weights_move_the_cut_and_a_hot_key_stays_whole() -> None:
    hashes = np.array([10, 20, 30, 40], np.uint32)
    assert KeyRange(0, 100).split(2, hashes)[0] == KeyRange(0, 25)
    heavy = KeyRange(0, 100).split(2, hashes, np.array([10.0, 1, 1, 1]))
    assert heavy == (KeyRange(0, 15), KeyRange(15, 100))
    assert [p.width for p in KeyRange(0, 4).split(4, np.array([0, 0, 0], np.uint32))] == [1, 1, 1, 1]


def test_bad_ranges_say_what_is_wrong() -> None:
    for lo, hi in ((5, 5), (-1, 3), (0, RING + 1), (9, 2)):
        with pytest.raises(Invalid, match="needs 0 <= lo < hi"):
            KeyRange(lo, hi)
    with pytest.raises(Invalid, match="can be split into 1 to 2 parts, got 3"):
        KeyRange(0, 2).split(3)
    with pytest.raises(Invalid, match="do not adjoin"):
        KeyRange(0, 2).merge(KeyRange(3, 4))
    with pytest.raises(Invalid, match="one non-negative number for each of 2 hashes, got 1"):
        KeyRange(0, 9).split(2, np.array([1, 2], np.uint32), np.array([1.0]))


def test_weights_share_out_the_ring() -> None:
    assert Routing.weighted((2.0, 2.0)) == Routing.even(2)
    uneven = Routing.weighted((1.0, 0.0, 3.0))
    assert uneven.owned(0) == (KeyRange(0, RING // 4),)
    assert uneven.owned(2) == (KeyRange(RING // 4, RING),)
    with pytest.raises(Invalid, match="task 1 owns nothing"):
        uneven.owned(1)
    assert Routing.weighted((2.0, 0.0, 6.0)) == uneven


def test_routing_follows_splits_and_merges() -> None:
    first = Routing.even(2)
    hashes = np.array([0, RING // 4, RING // 2 - 1, RING // 2, RING - 1], np.uint32)
    assert first.route(hashes).tolist() == [0, 0, 0, 1, 1]
    second = first.split(0, [0, 2])
    assert (second.version, second.route(hashes).tolist()) == (1, [0, 2, 2, 1, 1])
    third = second.merge([2, 1], 1)
    assert (third.version, third.route(hashes).tolist()) == (2, [0, 1, 1, 1, 1])
    assert third.owned(1) == (KeyRange(RING // 4, RING),)
    assert Routing.from_json(json.loads(json.dumps(third.to_json()))) == third


@QUICK
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(2, 4)), max_size=6), st.integers(0, 2**32 - 1))
def test_any_series_of_splits_keeps_one_owner_for_each_position(splits: list[tuple[int, int]], seed: int) -> None:
    routing, tasks = Routing.even(3), 3
    hashes = np.random.default_rng(seed).integers(0, RING, 200, dtype=np.uint32)
    for victim, n in splits:
        owner = routing.owners[victim % len(routing.owners)]
        before = routing
        routing = routing.split(owner, [owner, *range(tasks, tasks + n - 1)], hashes)
        tasks += n - 1
        moved = routing.route(hashes) != before.route(hashes)
        assert (before.route(hashes)[moved] == owner).all()
        for task in set(routing.owners):
            (part,) = routing.owned(task)
            assert ((routing.route(hashes) == task) == part.contains(hashes)).all()


def test_bad_routing_says_what_is_wrong() -> None:
    half = KeyRange(0, RING // 2)
    for ranges, owners, words in (
        ((half,), (0,), "nobody owns what follows 0x80000000"),
        ((half, half), (0, 1), "should begin at 0x80000000"),
        ((half,), (0, 1), "one owner a range"),
    ):
        with pytest.raises(Invalid, match=words):
            Routing(0, ranges, owners)
    with pytest.raises(Invalid, match="task 9 owns nothing, 0, 1 do"):
        Routing.even(2).split(9, [9, 2])
    with pytest.raises(Invalid, match="task 1 already owns a range"):
        Routing.even(2).split(0, [0, 1])
    with pytest.raises(Invalid, match="must differ"):
        Routing.even(2).split(0, [5, 5])
    with pytest.raises(Invalid, match="do not adjoin"):
        Routing.even(3).merge([0, 2], 0)
    with pytest.raises(Invalid, match="expected version and ranges"):
        Routing.from_json({"version": 1})
