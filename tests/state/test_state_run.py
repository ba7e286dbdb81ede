"""Runs: many overlaid at once give what they give one after the other, and searches of all kinds find the same."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.state import run as runs_of_state
from holdfast.state.run import Keys, SortedRun, canonical, overlay, overlay_all, stacked

KEYS = 12
Rows = dict[int, tuple[int, bool]]


def run_of(rows: Rows, number: int, spread: int) -> SortedRun:
    """A run in which ``spread`` keys in a row share a hash; the value tells which run it came from."""
    keys = sorted(rows, key=lambda k: (k // spread, k))
    batch = pa.record_batch(
        {"a": pa.array(keys, pa.int64()), "b": pa.array(keys, pa.int64()), "v": [number] * len(keys)}
    )
    alive = np.array([rows[k][1] for k in keys], np.bool_)
    return SortedRun(batch, np.array(keys, np.uint64) // np.uint64(spread), 2, None if alive.all() else alive)


def rows_of(run: SortedRun) -> list[tuple[int, int, bool]]:
    ordered = canonical(run)
    alive = [True] * len(run) if ordered.alive is None else ordered.alive.tolist()
    return list(zip(ordered.rows["a"].to_pylist(), ordered.rows["v"].to_pylist(), alive, strict=True))


tables = st.dictionaries(st.integers(0, KEYS - 1), st.tuples(st.just(0), st.booleans()), max_size=KEYS)


@settings(deadline=None, derandomize=True, max_examples=40)
@given(steps=st.lists(tables, min_size=1, max_size=6), spread=st.sampled_from([1, 3]))
def test_all_at_once_is_one_after_the_other(steps: list[Rows], spread: int) -> None:
    runs = [run_of(rows, number, spread) for number, rows in enumerate(steps)]
    expected: dict[int, tuple[int, bool]] = {}
    for number, rows in enumerate(steps):
        expected |= {key: (number, alive) for key, (_, alive) in rows.items()}
    found = rows_of(overlay_all(runs))
    assert {key: (value, alive) for key, value, alive in found} == expected
    assert len(found) == len(expected)
    assert found == rows_of(reduce(overlay, runs)) == rows_of(stacked(runs))


def test_a_run_with_the_keys_of_the_next_is_hidden_by_it() -> None:
    whole = dict.fromkeys(range(KEYS), (0, True))
    newest = run_of(whole, 3, 1)
    runs = [run_of(whole, number, 1) for number in range(3)]
    assert overlay_all([*runs, newest]) is newest
    dead = run_of({0: (0, False), 1: (0, True)}, 4, 1)
    assert rows_of(overlay_all([*runs, newest, dead])) == rows_of(overlay(newest, dead))


def test_short_runs_are_put_together_before_they_meet_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    handled = 0
    real = runs_of_state.interleave

    def counted(runs: list[SortedRun], *rest: Any) -> SortedRun:
        nonlocal handled
        handled += sum(map(len, runs))
        return real(runs, *rest)

    monkeypatch.setattr(runs_of_state, "interleave", counted)
    lengths = [10_000, 1_000, 100, 10]
    whole = stacked([run_of(dict.fromkeys(range(n), (0, True)), at, 1) for at, n in enumerate(lengths)])
    assert len(whole) == 10_000
    assert handled < 1.5 * sum(lengths), "the long one is copied once, not once for each of the others"


@pytest.mark.parametrize("piece", [7, 1 << 16])
def test_keys_are_found_at_the_same_places_with_and_without_a_search_structure(
    piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_of_state, "_PIECE", piece)
    monkeypatch.setattr(runs_of_state, "_SORTED", 100)
    keys = np.random.default_rng(0).permutation(4_000)
    run = SortedRun.sorted(pa.record_batch({"k": pa.array(keys[:2_000])}), 1)
    held = {key: place for place, key in enumerate(run.rows["k"].to_pylist())}
    asked = Keys([pa.array(keys[1_800:2_200])], 400)
    expected = [held.get(key, -1) for key in keys[1_800:2_200].tolist()]
    assert run._starts is None
    assert run.find(asked).tolist() == expected, "none yet"
    assert run.find(asked).tolist() == expected and run._starts is not None, "so many were asked for that there is one"
    assert run._starts[2][-1] <= len(run) and run._starts[2].tolist() == sorted(run._starts[2].tolist())
