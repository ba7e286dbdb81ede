"""Moments against two passes over all rows, however rows are cut into epochs and senders."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import operators as op
from holdfast.operators.statistics import comoments, moments

VALUES = st.one_of(st.none(), st.floats(-100, 100), st.sampled_from([1e9, 1e9 + 1]))
ROWS = st.lists(st.tuples(st.sampled_from("ab"), VALUES, VALUES), max_size=12)
Row = tuple[str, float | None, float | None]


def table(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ([], [], [])
    kinds = {"key": pa.string(), "x": pa.float64(), "y": pa.float64()}
    return pa.table({name: pa.array(each, kinds[name]) for name, each in zip(kinds, columns, strict=True)})


def running(senders: int = 1) -> op.Trial:
    spread = op.aggregate(
        "key",
        variance=op.variance("x"),
        stddev=op.stddev("x"),
        all_variance=op.variance("x", population=True),
        all_stddev=op.stddev("x", population=True),
        moments=moments("x", 4),
        pairs=comoments("x", "y"),
    )
    return op.Trial(op.Pipeline(op.source("rows", parallelism=senders), op.step("answer", spread, "rows")))


def plain(rows: list[Row]) -> dict[str, Any]:
    xs = [x for _, x, _ in rows if x is not None]
    n, mean = len(xs), math.fsum(xs) / max(1, len(xs))
    powers = [math.fsum((x - mean) ** power for x in xs) for power in (2, 3, 4)]
    variance = powers[0] / (n - 1) if n > 1 else None
    whole = powers[0] / n if n else None
    pairs = [(x, y) for _, x, y in rows if x is not None and y is not None]
    xm, ym = (math.fsum(each) / max(1, len(pairs)) for each in (zip(*pairs, strict=True) if pairs else ([], [])))
    far = [(x - xm, y - ym) for x, y in pairs]
    products = [math.fsum(each) for each in ([x * y for x, y in far], [x * x for x, _ in far], [y * y for _, y in far])]
    return {
        "variance": variance,
        "stddev": None if variance is None else math.sqrt(variance),
        "all_variance": whole,
        "all_stddev": None if whole is None else math.sqrt(whole),
        "moments": dict(zip(("n", "avg", "m2", "m3", "m4"), (n, mean, *powers), strict=True)),
        "pairs": dict(zip(("n", "xAvg", "yAvg", "ck", "xMk", "yMk"), (len(pairs), xm, ym, *products), strict=True)),
    }


def close(found: Any, expected: Any, scale: float) -> bool:
    if isinstance(expected, dict):
        return all(close(found[name], value, scale) for name, value in expected.items())
    if expected is None or found is None:
        return found is expected
    return math.isclose(found, expected, rel_tol=1e-9, abs_tol=scale)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(epochs=st.lists(ROWS, max_size=3), senders=st.integers(1, 3))
def test_moments_do_not_depend_on_how_rows_are_cut(epochs: list[list[Row]], senders: int) -> None:
    trial, so_far = running(senders), list[Row]()
    for rows in epochs:
        so_far += rows
        for answer in trial.epoch(table(rows)).output.to_pylist():
            mine = [row for row in so_far if row[0] == answer["key"]]
            size = max([1.0, *(abs(v) for row in mine for v in row[1:] if v is not None)])
            expected = plain(mine)
            for name, power in (("variance", 2), ("all_variance", 2), ("stddev", 1), ("all_stddev", 1), ("pairs", 2)):
                assert close(answer[name], expected[name], 1e-13 * size**power), name
            for power, name in enumerate(("n", "avg", "m2", "m3", "m4")):
                assert close(answer["moments"][name], expected["moments"][name], 1e-12 * size**power), name


def test_small_distances_far_from_zero_are_kept() -> None:
    """Where a sum of squares has no digits left."""
    trial = running(2)
    for start in range(0, 1000, 100):
        batch = table([("a", 1e9 + (start + number) % 2, None) for number in range(100)])
        (row,) = trial.epoch(batch).output.to_pylist()
    assert row["all_variance"] == pytest.approx(0.25, rel=1e-12) and row["pairs"]["n"] == 0


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_what_is_no_number_makes_the_variance_none_either(odd: float) -> None:
    trial = running()
    for rows in ([("a", 1.0, 1.0)], [("a", odd, 2.0)], [("a", 2.0, 3.0)]):
        (row,) = trial.epoch(table(rows)).output.to_pylist()
    assert math.isnan(row["variance"]) and math.isnan(row["all_stddev"]) and math.isnan(row["pairs"]["ck"])


def test_integers_and_decimals_have_a_variance_too() -> None:
    kinds = {"n": "int64", "d": "decimal128(9, 2)"}
    spread = op.aggregate("k", **{name: op.variance(name, kind, population=True) for name, kind in kinds.items()})
    trial = op.Trial(op.Pipeline(op.source("rows"), op.step("answer", spread, "rows")))
    batch = pa.table({"k": ["a"] * 3, "n": [1, 3, None], "d": pa.array([1, None, 3], pa.decimal128(9, 2))})
    assert trial.epoch(batch).output.to_pylist() == [{"k": "a", "n": 1.0, "d": 1.0}]
