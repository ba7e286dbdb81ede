"""Promises: told before a failure, kept after it."""

from __future__ import annotations

from promises import kept

TOLERANCE = 0.02
"""A fork's own epoch counts as wholly seen in the promise; where its input is incomplete, it is a little less."""


def test_what_is_promised_is_what_is_then_said() -> None:
    """benchmarks/promises.py does it for a thousand."""
    found = list(kept(range(40)))
    assert len(found) > 25 and sum(each.promised < 0.99 for each in found) > 10
    assert [each for each in found if abs(each.promised - each.achieved) > TOLERANCE] == []


def test_the_floor_is_not_undercut_by_a_loss_that_it_speaks_of() -> None:
    found = [each for each in kept(range(40, 70)) if each.survived and each.floor is not None]
    assert len(found) > 8
    assert [each for each in found if each.floor is not None and each.achieved < each.floor - TOLERANCE] == []
