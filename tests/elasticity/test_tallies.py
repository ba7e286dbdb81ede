"""Tallies of keys against counting row by row; splits by them against every other cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.elasticity import PARTS, ScaleOut, rerouted, sample_of, tally
from holdfast.state import KeyRange, Routing
from holdfast.state.ranges import RING
from holdfast.topology import Task

ranges = (
    st.tuples(st.integers(0, RING - 1), st.integers(1, RING))
    .filter(lambda pair: pair[0] < pair[1])
    .map(lambda pair: KeyRange(*pair))
)


def one_by_one(part: KeyRange, hashes: list[int], parts: int) -> list[int]:
    counts = [0] * parts
    for place in hashes:
        if part.lo <= place < part.hi:
            counts[(place - part.lo) * parts // part.width] += 1
    return counts


@settings(deadline=None, derandomize=True, max_examples=80)
@given(ranges, st.lists(st.integers(0, RING - 1), max_size=50), st.integers(1, 100), st.data())
def test_a_tally_is_what_counting_row_by_row_gives(
    part: KeyRange, hashes: list[int], parts: int, data: st.DataObject
) -> None:
    hashes = hashes + data.draw(st.lists(st.integers(part.lo, part.hi - 1), max_size=50))
    assert list(tally(part, np.array(hashes, np.uint32), parts)) == one_by_one(part, hashes, parts)


@settings(deadline=None, derandomize=True, max_examples=80)
@given(ranges.filter(lambda part: part.width >= 1000), st.lists(st.integers(0, 50), min_size=2, max_size=40))
def test_a_range_is_cut_between_two_parts_where_both_sides_are_as_even_as_they_can_be(
    part: KeyRange, counts: list[int]
) -> None:
    hashes, weights = sample_of(part, counts)
    left, right = part.split(2, hashes, weights)
    sides = [float(weights[each.contains(hashes)].sum()) for each in (left, right)]
    best = min(abs(sum(counts[:at]) - sum(counts[at:])) for at in range(len(counts) + 1))
    assert sum(sides) == sum(counts)
    assert abs(sides[0] - sides[1]) == best


def test_every_part_of_a_range_has_its_key_in_the_sample() -> None:
    for part in (KeyRange(0, RING), KeyRange(17, 18), KeyRange(5, 40), KeyRange(RING - 100, RING)):
        hashes, weights = sample_of(part, np.ones(PARTS))
        assert part.contains(hashes).all() and len(weights) == PARTS
        if part.width >= PARTS:
            assert list(tally(part, hashes)) == [1] * PARTS


@pytest.mark.parametrize("skew", [0.8, 1.2])
def test_a_split_by_load_leaves_less_in_the_fuller_half_than_one_by_keys(skew: float) -> None:
    """Keys with the loads of a Zipf distribution, on places drawn at random; the mean of many draws."""
    full: dict[str, list[float]] = {"by keys": [], "by load": []}
    for seed in range(40):
        draw = np.random.default_rng(seed)
        places = draw.integers(0, RING, 2000).astype(np.uint32)
        loads = 1.0 / np.arange(1, 2001) ** skew
        rows = draw.choice(places, 4000, p=loads / loads.sum())
        routing, out = Routing.even(1), [ScaleOut(Task("O", 0), 2, "")]
        sample = {0: sample_of(routing.ranges[0], tally(routing.ranges[0], rows).astype(float))}
        for what, after in (("by keys", rerouted(routing, out)), ("by load", rerouted(routing, out, sample))):
            shares = [loads[each.contains(places)].sum() / loads.sum() for each in after.ranges]
            full[what].append(max(shares))
    assert np.mean(full["by load"]) < np.mean(full["by keys"])
    assert np.mean(full["by load"]) < (0.53 if skew < 1 else 0.56)
