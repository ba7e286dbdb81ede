"""The four metrics: values worked out by hand, scipy as judge, plain loops as reference, and every degenerate input."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from holdfast.assessment.metrics import (
    data_dependency,
    noise_floor,
    outage_duration_impact,
    quality_impact,
    quality_score,
    recovery_time,
    relative_error,
)
from holdfast.errors import Invalid

REPRODUCIBLE = settings(deadline=None, derandomize=True, max_examples=30)
scores = st.floats(-5, 5).map(lambda value: round(value, 3))
GOLDEN = [10.0] * 12


def test_recovery_time_and_impact_by_hand() -> None:
    # From section 2 on: errors 1, 1, 0.5, 0.02, 0.1, 0, 0.2, 0, 0, 0. Five wrong ones; 90 % of 5 is 4.5, so the fifth,
    # which is the seventh section after the injection. 1 + 1 + 0.25 + 0.01 + 0.04 = 2.30.
    faulty = [[10, 3, 0, 20, 15, 10.2, 9, 10, 12, 10, 10, 10]]
    assert recovery_time(faulty, [GOLDEN], [2]) == 7
    assert quality_impact(faulty, [GOLDEN], [2]) == pytest.approx(2.30)
    # Half of five is 2.5: the third wrong section, the third after the injection.
    assert recovery_time(faulty, [GOLDEN], [2], percentile=0.5) == 3
    assert quality_impact(faulty, [GOLDEN], [2], percentile=0.5) == pytest.approx(2.25)
    # A wider threshold leaves 1, 1, 0.5 and 0.2.
    assert recovery_time(faulty, [GOLDEN], [2], threshold=0.15) == 7
    assert quality_impact(faulty, [GOLDEN], [2], threshold=0.15) == pytest.approx(2.29)


def test_the_worst_offset_counts_for_each_metric_on_its_own() -> None:
    short_and_deep = [10, 0, 40, 10, 10, 10]
    long_and_shallow = [10, 9, 9, 9, 9, 9]
    golden = [[10] * 6] * 2
    assert recovery_time([short_and_deep, long_and_shallow], golden, [1, 1]) == 5
    assert quality_impact([short_and_deep, long_and_shallow], golden, [1, 1]) == pytest.approx(1 + 9)


def test_an_error_at_the_threshold_is_not_above_it() -> None:
    assert recovery_time([[1.25, 1.0]], [[1.0, 1.0]], [0], threshold=0.25) == 0
    assert recovery_time([[1.25, 1.0]], [[1.0, 1.0]], [0], threshold=0.2499) == 1


def test_nothing_wrong_is_zero() -> None:
    assert recovery_time([GOLDEN], [GOLDEN], [0]) == 0
    assert quality_impact([GOLDEN], [GOLDEN], [0]) == 0.0
    # Beyond the last section there is nothing to judge; what happened before the injection does not count.
    assert recovery_time([[0.0] * 12], [GOLDEN], [12]) == 0
    assert recovery_time([[0.0, 10, 10]], [[10, 10, 10]], [1]) == 0


def test_one_golden_row_serves_all_offsets() -> None:
    faulty = [[1, 2, 3], [1, 2, 6]]
    assert recovery_time(faulty, [1, 2, 3], [0, 0]) == recovery_time(faulty, [[1, 2, 3]] * 2, [0, 0]) == 3


def test_correlation_by_hand() -> None:
    outages = [0.5, 1, 2, 4]
    assert outage_duration_impact([[0.9, 0.8, 0.5, 0.0]], outages) == -1.0
    assert outage_duration_impact([[1, 2, 3, 4], [4, 3, 2, 1]], outages) == pytest.approx(0.0)
    # Ranks 1 2 4 3 against 1 2 3 4: 1 - 6 * 2 / (4 * 15) = 0.8.
    assert outage_duration_impact([[0.1, 0.2, 0.9, 0.5]], outages) == pytest.approx(0.8)
    # A constant offset counts as 0.
    assert outage_duration_impact([[0.1, 0.2, 0.9, 0.5], [1, 1, 1, 1]], outages) == pytest.approx(0.4)


def test_dependency_by_hand() -> None:
    # Means 1, 2, 3: sample deviation 1. Within each offset 0.1 around: F is huge.
    assert data_dependency([[0.9, 1.1], [1.9, 2.1], [2.9, 3.1]]) == (pytest.approx(1.0), False)
    # Within 2 around: F is 2 over 8, far too small; the offsets look alike.
    deviation, accepted = data_dependency([[-1.0, 3.0], [0.0, 4.0], [1.0, 5.0]])
    assert (deviation, accepted) == (pytest.approx(1.0), True)


@pytest.mark.parametrize(
    ("quality", "expected"),
    [
        ([[0.0, 0.0], [0.0, 0.0]], (0.0, True)),  # constant
        ([[0.3, 0.3 + 1e-16]], (0.0, True)),  # rounding is not a difference
        ([[0.1, 0.9]], (0.0, True)),  # one offset
        ([[0.5], [0.5]], (0.0, True)),  # one repetition
        ([[1.0], [2.0], [3.0]], (1.0, True)),  # one repetition: a deviation, but nothing to test it by
        ([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], (1.0, False)),  # no spread within, so the offsets make the difference
        ([[7.0]], (0.0, True)),
    ],
)
def test_degenerate_dependency(quality: Any, expected: tuple[float, bool]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        deviation, accepted = data_dependency(quality)
    assert deviation == pytest.approx(expected[0])
    assert accepted is expected[1]


@pytest.mark.parametrize("quality", [[[1.0]], [[1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
def test_degenerate_correlation_is_zero(quality: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outage_duration_impact(quality, list(range(1, len(quality[0]) + 1))) == 0.0


def test_a_golden_score_of_zero() -> None:
    assert quality_score([0, 5, -5, 6], [0, 0, 0, 3]).tolist() == [1, 2, 0, 2]
    assert relative_error([0, 5, -5, 6], [0, 0, 0, 3]).tolist() == [0, 1, 1, 1]
    # A negative golden score has a size all the same.
    assert relative_error([-6], [-3]).tolist() == [1]
    assert quality_impact([[0, 0, 9]], [[0, 0, 0]], [0]) == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: outage_duration_impact([1, 2], [1, 2]), "quality: a table"),
        (lambda: outage_duration_impact([[1, 2]], [1, 2, 3]), "outages: one for each column"),
        (lambda: outage_duration_impact([[1, math.nan]], [1, 2]), "finite"),
        (lambda: data_dependency([[1, 2], [3]]), "equally many"),
        (lambda: data_dependency([[]]), "at least one value"),
        (lambda: data_dependency([[1, 2]], alpha=0), "alpha"),
        (lambda: recovery_time([[1]], [[1, 2]], [0]), "golden: the shape"),
        (lambda: recovery_time([[1]], [[1]], [0, 1]), "begin"),
        (lambda: recovery_time([[1]], [[1]], [-1]), "begin"),
        (lambda: recovery_time([[1]], [[1]], [0.5]), "begin"),
        (lambda: recovery_time([[1]], [[1]], [0], threshold=-1), "threshold"),
        (lambda: quality_impact([[1]], [[1]], [0], percentile=0), "percentile"),
    ],
)
def test_bad_input_is_one_line(call: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def plain_recovery(
    faulty: Any, golden: Any, begin: Any, threshold: float = 0.03, percentile: float = 0.9
) -> tuple[int, float]:
    """Equations 5 to 8 of the paper, section by section."""
    worst, impact = 0, 0.0
    for left, right, first in zip(faulty, golden, begin, strict=True):
        errors = []
        for f, g in zip(left[first:], right[first:], strict=True):
            errors.append((0.0 if f == 0 else 1.0) if g == 0 else abs(f / g - 1))
        total = sum(error > threshold for error in errors)
        seen, at = 0, 0
        squares = 0.0
        for u, error in enumerate(errors, 1):
            if total == 0 or seen >= percentile * total - 1e-9:
                break
            if error > threshold:
                seen += 1
                squares += error**2
            at = u
        worst, impact = max(worst, at), max(impact, squares)
    return worst, impact


@given(
    hnp.arrays(float, st.tuples(st.integers(1, 4), st.integers(1, 20)), elements=scores),
    st.randoms(use_true_random=False),
    st.sampled_from([0.03, 0.5]),
    st.sampled_from([0.1, 0.5, 0.9, 1.0]),
)
@REPRODUCIBLE
def test_recovery_and_impact_against_plain_loops(faulty: Any, random: Any, threshold: float, percentile: float) -> None:
    golden = np.array([[random.choice([0.0, 1.0, 2.0, value]) for value in row] for row in faulty])
    begin = [random.randrange(faulty.shape[1]) for _ in faulty]
    expected = plain_recovery(faulty, golden, begin, threshold, percentile)
    assert recovery_time(faulty, golden, begin, threshold, percentile) == expected[0]
    assert quality_impact(faulty, golden, begin, threshold, percentile) == pytest.approx(expected[1])


@given(hnp.arrays(float, st.tuples(st.integers(1, 5), st.integers(2, 7)), elements=scores))
@REPRODUCIBLE
def test_against_scipy(quality: Any) -> None:
    outages = 2.0 ** np.arange(quality.shape[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = np.nan_to_num([stats.spearmanr(outages, row).statistic for row in quality]).mean()
    assert outage_duration_impact(quality, outages) == pytest.approx(expected, abs=1e-12)
    deviation, accepted = data_dependency(quality)
    assert math.isfinite(deviation) and isinstance(accepted, bool)
    if len(quality) > 1 and all(np.ptp(row) > 1e-6 for row in quality):
        assert deviation == pytest.approx(np.std(quality.mean(axis=1), ddof=1), abs=1e-12)
        assert accepted == (stats.f_oneway(*quality).pvalue >= 0.05)


def test_noise_is_what_golden_runs_differ_by() -> None:
    assert noise_floor([[1.0, 2.0]]).tolist() == [0.0, 0.0]
    assert noise_floor([[1.0, 2.0, 0.0]] * 3).tolist() == [0.0, 0.0, 0.0]
    draws = np.random.default_rng(4)
    golden = draws.normal(100, 2, (3, 100))
    floor = noise_floor(golden)
    assert floor.min() == pytest.approx(3.6 * 0.02 * np.sqrt(4 / 3), rel=0.15)
    passed = [(np.abs(draws.normal(100, 2, 100) / golden.mean(axis=0) - 1) > floor).sum() for _ in range(200)]
    assert np.count_nonzero(passed) < 0.1 * 200  # of runs without a fault, one in twenty shows a section above it
    assert (noise_floor([[1.0, 1.0], [1.0, 9.0]]) >= [0.0, 0.8]).all()


def test_errors_within_noise_do_not_count() -> None:
    golden, faulty = [1.0] * 5, [[1.2, 1.04, 1.0, 1.1, 1.0]]
    assert recovery_time(faulty, golden, [0], percentile=1.0) == 4
    assert recovery_time(faulty, golden, [0], percentile=1.0, noise=[0.1, 0.1, 0.1, 0.11, 0.1]) == 1
    assert quality_impact(faulty, golden, [0], noise=0.15) == pytest.approx(0.04)
    assert quality_impact(faulty, golden, [0], noise=0.2000001) == 0.0
