"""From measurements to the operator table: the four metrics, what stands behind them, and what must be said of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.assessment.experiments import Design, Measured
from holdfast.assessment.metrics import (
    Floats,
    data_dependency,
    outage_duration_impact,
    quality_impact,
    quality_score,
    recovery_time,
    relative_error,
)
from holdfast.errors import Invalid

RESULT = "assessment.json"


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """One target. ``stands_for``: the operators whose faults look like its own, itself first.

    ``quality[offset][outage]`` are mean quality scores over what the longest outage affects; ``over_time`` is the
    quality score of each section from the injection on, at the offset with the largest impact.
    """

    operator: str
    stands_for: tuple[str, ...]
    average_rate: float
    peak_rate: float
    correlation: float
    deviation: float
    accepted: bool
    recovery: int
    impact: float
    repetitions: int
    rows_lost: tuple[int, ...]
    quality: tuple[tuple[float, ...], ...]
    over_time: tuple[float, ...]
    over_time_offset: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Assessment:
    """The result of a campaign, and of what. ``content()`` is its JSON.

    ``golden``: the mean score of the golden runs; ``golden_spread``: their standard deviation, as a share of it;
    ``noise``: the relative error of a section within which golden runs lie, the median of all sections.
    """

    subject: str
    engine: str
    score: str
    fault: str
    outages: tuple[float, ...]
    at: float
    offsets: tuple[float, ...]
    section: float
    golden: float
    experiments: int
    operators: tuple[OperatorResult, ...]
    protected: tuple[str, ...] = ()
    failover: float = 0.0
    golden_runs: int = 1
    golden_spread: float = 0.0
    noise: float = 0.0

    def __getitem__(self, operator: str) -> OperatorResult:
        """The result that stands for an operator."""
        for each in self.operators:
            if operator == each.operator:
                return each
        for each in self.operators:
            if operator in each.stands_for:
                return each
        known = ", ".join(name for each in self.operators for name in each.stands_for)
        raise Invalid(f"operator {operator!r}: not assessed; assessed: {known}")

    def impacts(self) -> dict[str, float]:
        """The measured impact of every operator: its own, or that of the target which stands for it."""
        names = dict.fromkeys(name for each in self.operators for name in each.stands_for)
        return {name: self[name].impact for name in names}

    def content(self) -> dict[str, Any]:
        return asdict(self)


def assessed(
    design: Design,
    measured: Sequence[Measured],
    subject: str,
    engine: str,
    stands_for: Mapping[str, tuple[str, ...]],
) -> Assessment:
    """The four metrics for every target. The order of ``measured`` does not matter."""
    settings = design.settings
    golden = [settings.score.of(rows) for rows, _ in design.traces.runs]
    by_key = {each.key: each for each in measured}
    results = []
    for target in design.targets:
        repetitions = max((k + 1 for name, _, k in by_key if name == target), default=0)
        table = [[by_key[target, i, k] for k in range(repetitions)] for i in range(len(design.offsets))]
        results.append(_operator(design, target, table, stands_for.get(target, (target,))))
    return Assessment(
        subject,
        engine,
        str(settings.score),
        str(settings.fault),
        settings.outages,
        settings.outages[settings.fixed],
        design.offsets,
        design.grid.width,
        float(np.mean(golden)),
        len(by_key) * len(settings.outages),
        tuple(results),
        settings.protected,
        settings.failover if settings.protected else 0.0,
        len(golden),
        _spread(golden),
        float(np.median(design.noise)),
    )


def _spread(scores: Sequence[float]) -> float:
    """The standard deviation of scores as a share of their mean, or as it is where that is 0."""
    if len(scores) == 1:
        return 0.0
    return float(np.std(scores, ddof=1)) / (abs(float(np.mean(scores))) or 1.0)


def _operator(
    design: Design, target: str, table: Sequence[Sequence[Measured]], stands_for: tuple[str, ...]
) -> OperatorResult:
    settings, fixed = design.settings, design.settings.fixed
    quality = np.array([[each.quality for each in row] for row in table])  # offset, repetition, outage
    local = np.array([np.mean([each.local[fixed] for each in row], axis=0) for row in table])
    golden = np.broadcast_to(design.golden_local, local.shape)
    means = quality.mean(axis=1)
    deviation, accepted = data_dependency(quality[:, :, fixed], settings.alpha)
    limits = (settings.threshold, settings.percentile)
    begins, noise = design.begins, design.noise
    impacts = [quality_impact(local[[i]], golden[[i]], [begin], *limits, noise) for i, begin in enumerate(begins)]
    worst = int(np.argmax(impacts))
    rates = design.rates[target]
    return OperatorResult(
        target,
        stands_for,
        rates.average,
        rates.peak,
        outage_duration_impact(means, settings.outages),
        deviation,
        accepted,
        recovery_time(local, golden, begins, *limits, noise),
        max(impacts),
        quality.shape[1],
        table[0][0].rows,
        tuple(tuple(row) for row in means.tolist()),
        tuple(quality_score(local[worst], golden[worst])[begins[worst] :].tolist()),
        worst,
        (*_notes(design, table, quality, rates.peak), *_within_noise(design, local)),
    )


def _notes(design: Design, table: Sequence[Sequence[Measured]], quality: Any, peak: float) -> list[str]:
    settings, notes = design.settings, []
    if not design.traces.golden.num_rows:
        notes.append("the golden run has no output: nothing can be lost from it")
    elif all(each.golden == 0 for row in table for each in row):
        notes.append(
            "the golden score of what is affected is 0: quality scores are 1 where nothing changed, else 0 or 2"
        )
    if not peak:
        notes.append("no rows reach this operator: outages cost nothing")
    if quality.shape[0] == 1:
        notes.append("one offset: dependency on the data cannot be told")
    elif quality.shape[1] == 1:
        notes.append("one repetition: the offsets' difference cannot be tested")
    if len(settings.outages) == 1:
        notes.append("one outage: its correlation with quality is 0 by definition")
    elif np.ptp(quality.mean(axis=1), axis=1).max() == 0:
        notes.append("the quality score is the same for every outage: its correlation is 0 by definition")
    return notes


def _within_noise(design: Design, local: Floats) -> list[str]:
    """What looks like damage and is the pipeline's own chance, at the offset that has most of it."""
    errors = relative_error(local, np.broadcast_to(design.golden_local, local.shape))
    passed = (errors > design.settings.threshold) & (errors <= design.noise)
    most = max(int(row[begin:].sum()) for row, begin in zip(passed, design.begins, strict=True))
    if not most:
        return []
    limit = f"{design.settings.threshold:.0%}"
    return [f"{most} sections are off by more than {limit}, but no more than golden runs may be: they do not count"]


def read_assessment(directory: str | Path) -> Assessment:
    """The result that ``holdfast assess --out DIR`` wrote."""
    path = Path(directory) / RESULT
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        operators = tuple(
            OperatorResult(**{name: _tuples(value) for name, value in each.items()})
            for each in content.pop("operators")
        )
        return Assessment(**{name: _tuples(value) for name, value in content.items()}, operators=operators)
    except FileNotFoundError:
        raise Invalid(f"{directory}: no {RESULT} here; give the folder of holdfast assess --out") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Invalid(f"{path}: not a finished assessment: {error}") from None


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, (list, tuple)) else value
