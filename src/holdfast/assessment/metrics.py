"""The four metrics of an operator under faults (paper 001, section 5.2), as plain functions over arrays.

What is undefined (a constant, a single offset, a golden score of zero) has an answer here,
which each function states.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from holdfast.errors import Invalid

Floats = NDArray[np.float64]
THRESHOLD, PERCENTILE, ALPHA = 0.03, 0.9, 0.05
SURE = 0.95
SAME = 1e-12
"""Values that differ by less than this share of their size are equal: the rest is rounding."""


def quality_score(faulty: ArrayLike, golden: ArrayLike) -> Floats:
    """QS = faulty / golden, element by element.

    Where the golden score is 0 there is no ratio: 1 if the faulty one is 0 too; else the error counts as the whole
    of the answer, so 2 above zero and 0 below it.
    """
    left, right = np.broadcast_arrays(_numbers(faulty, "faulty"), _numbers(golden, "golden"))
    zero = right == 0
    ratio = left / np.where(zero, 1.0, right)
    return np.asarray(np.where(zero, 1.0 + np.sign(left), ratio))


def relative_error(faulty: ArrayLike, golden: ArrayLike) -> Floats:
    """EQ = |faulty - golden| / |golden|; where golden is 0: 0 if faulty is too, else 1."""
    return np.asarray(np.abs(quality_score(faulty, golden) - 1.0))


def outage_duration_impact(quality: ArrayLike, outages: ArrayLike) -> float:
    """Spearman's correlation of outage and mean quality score at each offset, averaged; ``quality[offset, outage]``.

    Near +1 or -1 the loss of quality is foreseeable from the length of the outage. An offset with a constant score, or
    a single outage, shows no relation: it counts as 0.
    """
    scores = _table(quality, "quality", "offset, outage")
    lengths = _numbers(outages, "outages")
    if lengths.ndim != 1 or scores.shape[1] != len(lengths):
        raise Invalid(f"outages: one for each column of quality is needed, got {lengths.size} for {scores.shape[1]}")
    return float(np.mean([_spearman(lengths, row) for row in scores]))


def data_dependency(quality: ArrayLike, alpha: float = ALPHA) -> tuple[float, bool]:
    """The deviation over offsets of the mean score at one outage, and whether ANOVA accepts that they are all alike.

    ``quality[offset, repetition]``. High and rejected: it matters which data was lost. The deviation is that of a
    sample (n - 1); of a single offset it is 0. Accepted, for want of evidence, with one offset or one repetition.
    Without any spread within offsets: accepted if all are equal, else rejected.
    """
    scores = _table(quality, "quality", "offset, repetition")
    if not 0 < alpha < 1:
        raise Invalid(f"alpha must lie between 0 and 1, got {alpha!r}")
    means = scores.mean(axis=1)
    if _constant(scores):
        return 0.0, True
    deviation = 0.0 if len(means) == 1 or _constant(means) else float(np.std(means, ddof=1))
    if min(scores.shape) == 1:
        return deviation, True
    if all(_constant(row) for row in scores):
        return deviation, _constant(means)
    return deviation, bool(stats.f_oneway(*scores).pvalue >= alpha)


def noise_floor(golden: ArrayLike) -> Floats:
    """The relative error that a section may show without any fault; ``golden[run, section]`` are local scores.

    The runs' deviation from their mean, pooled over sections, becomes a limit that no section passes by chance in
    nineteen of twenty runs; a section whose golden runs lie farther apart than that has their distance as its limit.
    One run tells nothing of noise: 0.
    """
    scores = _table(golden, "golden", "run, section")
    runs = len(scores)
    if runs == 1:
        return np.zeros(scores.shape[1])
    apart = relative_error(scores, scores.mean(axis=0))
    apart[apart <= SAME] = 0.0
    counted = int(scores.any(axis=0).sum())
    if not apart.any():
        return np.zeros(scores.shape[1])
    freedom = counted * (runs - 1)
    deviation = math.sqrt(float(np.square(apart).sum()) / freedom)
    limit = float(stats.t.ppf(1 - (1 - SURE) / 2 / counted, freedom)) * deviation * math.sqrt(1 + 1 / runs)
    return np.maximum(limit, apart.max(axis=0))


def recovery_time(
    faulty: ArrayLike,
    golden: ArrayLike,
    begin: ArrayLike,
    threshold: float = THRESHOLD,
    percentile: float = PERCENTILE,
    noise: ArrayLike = 0.0,
) -> int:
    """The section by which ``percentile`` of all wrong sections have passed, counted from 1 at ``begin``; the worst.

    ``faulty[offset, section]`` and ``golden`` likewise (or one row for all offsets) hold mean local scores; a section
    is wrong if its relative error is above ``threshold``. ``begin[offset]`` is the place, from 0, of the first section
    after the injection. 0 where no section is wrong. ``noise``: errors up to this, of each section or of all, are none.
    """
    errors, first = _errors(faulty, golden, begin, threshold, percentile, noise)
    return max(_index(row[at:], threshold, percentile) for row, at in zip(errors, first, strict=True))


def quality_impact(
    faulty: ArrayLike,
    golden: ArrayLike,
    begin: ArrayLike,
    threshold: float = THRESHOLD,
    percentile: float = PERCENTILE,
    noise: ArrayLike = 0.0,
) -> float:
    """The sum of squared errors of the wrong sections up to the offset's recovery time; the worst over offsets."""
    errors, first = _errors(faulty, golden, begin, threshold, percentile, noise)
    return max(_squares(row[at:], threshold, percentile) for row, at in zip(errors, first, strict=True))


def _spearman(outages: Floats, scores: Floats) -> float:
    if len(outages) < 2 or _constant(outages) or _constant(scores):
        return 0.0
    # Rounded, so that a perfect order is 1 and not the float next to it.
    return round(float(stats.spearmanr(outages, scores).statistic), 12)


def _index(errors: Floats, threshold: float, percentile: float) -> int:
    wrong = np.cumsum(errors > threshold)
    if not wrong.size or wrong[-1] == 0:
        return 0
    return int(np.argmax(wrong >= percentile * wrong[-1] - SAME * wrong[-1])) + 1


def _squares(errors: Floats, threshold: float, percentile: float) -> float:
    counted = errors[: _index(errors, threshold, percentile)]
    return float(np.square(counted[counted > threshold]).sum())


def _errors(
    faulty: ArrayLike, golden: ArrayLike, begin: ArrayLike, threshold: float, percentile: float, noise: ArrayLike
) -> tuple[Floats, NDArray[np.int64]]:
    if not (math.isfinite(threshold) and threshold >= 0):
        raise Invalid(f"threshold must be 0 or more, such as 0.03, got {threshold!r}")
    if not 0 < percentile <= 1:
        raise Invalid(f"percentile must lie above 0 and not above 1, such as 0.9, got {percentile!r}")
    local = _table(faulty, "faulty", "offset, section")
    right = _numbers(golden, "golden")
    if right.shape not in (local.shape, local.shape[1:]):
        raise Invalid(f"golden: the shape of faulty is needed, {local.shape}, got {right.shape}")
    first = np.atleast_1d(np.asarray(begin))
    if first.shape != local.shape[:1] or not np.issubdtype(first.dtype, np.integer) or (first < 0).any():
        raise Invalid(
            f"begin: one section number, 0 or more, for each of {len(local)} offsets is needed, got {first.tolist()}"
        )
    errors = relative_error(local, right)
    return np.where(errors <= _numbers(noise, "noise"), 0.0, errors), first.astype(np.int64)


def _constant(values: Floats) -> bool:
    return bool(np.ptp(values) <= SAME * max(1.0, float(np.abs(values).max())))


def _table(values: ArrayLike, name: str, axes: str) -> Floats:
    table = _numbers(values, name)
    if table.ndim != 2 or 0 in table.shape:
        raise Invalid(f"{name}: a table [{axes}] with at least one value is needed, got shape {table.shape}")
    return table


def _numbers(values: ArrayLike, name: str) -> Floats:
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise Invalid(f"{name}: rows of equally many numbers are needed, got {values!r:.60}") from None
    if not np.isfinite(numbers).all():
        raise Invalid(f"{name}: finite numbers are needed, got {numbers[~np.isfinite(numbers)].flat[0]}")
    return numbers
