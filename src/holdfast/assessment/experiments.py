"""The design of a campaign: where, when and for how long faults strike, and what one experiment measures.

Pure: from the traces of a golden run and settings to experiments; from the outputs of an experiment to its scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from holdfast.assessment.faults import Burst, FaultModel, Floats
from holdfast.assessment.metrics import (
    ALPHA,
    PERCENTILE,
    SAME,
    THRESHOLD,
    noise_floor,
    quality_score,
    relative_error,
)
from holdfast.assessment.scores import Score, affected
from holdfast.errors import Invalid

Placed = tuple[pa.Table, Floats]
"""Rows, and where each of them stands in the stream."""
Rate = Literal["peak", "average"]
RATES: tuple[Rate, ...] = get_args(Rate)
OUTAGES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
REACH = 0.7
"""Offsets lie in this first part of the stream, so that the last of them still sees a recovery."""
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Settings:
    """How a campaign is run. ``offsets``: how many, evenly spread, or the positions themselves.

    ``outages`` in seconds, which become rows by the operator's own measured ``rate``. ``at``: the outage at which
    dependency, recovery and impact are taken; the longest by default. ``groups``: operators that fail together instead
    of the targets that the placement rules choose. ``protected``: operators with replicas, for which an outage lasts
    no longer than ``failover`` seconds. ``precision``: an operator's repetitions end when the 95 % confidence intervals
    of all its quality scores are narrower than this on either side; 0 runs them all. ``golden``: how many golden runs;
    what they differ by is noise, and errors within it do not count.
    """

    score: Score
    offsets: int | tuple[float, ...] = 5
    outages: tuple[float, ...] = OUTAGES
    repeat: int = 5
    at: float | None = None
    rate: Rate = "peak"
    fault: FaultModel = field(default_factory=FaultModel)
    groups: tuple[tuple[str, ...], ...] = ()
    sections: int = 100
    threshold: float = THRESHOLD
    percentile: float = PERCENTILE
    alpha: float = ALPHA
    precision: float = 0.05
    protected: tuple[str, ...] = ()
    failover: float = 2.0
    seed: int = 0
    golden: int = 1

    def __post_init__(self) -> None:
        number = self.offsets if isinstance(self.offsets, int) else len(self.offsets)
        for name, value, most in (
            ("offsets", number, MOST),
            ("repeat", self.repeat, MOST),
            ("golden", self.golden, MOST),
            ("sections", self.sections, 10**6),
        ):
            if not 1 <= value <= most:
                raise Invalid(f"--{name}: from 1 to {most} is possible, got {value}")
        if not self.outages or any(not math.isfinite(each) or each <= 0 for each in self.outages):
            raise Invalid(f"--outages: seconds above 0, such as 0.5,1,2, are needed, got {_listed(self.outages)}")
        if len(set(self.outages)) < len(self.outages):
            raise Invalid(f"--outages: each length once, got {_listed(self.outages)}")
        object.__setattr__(self, "outages", tuple(sorted(self.outages)))
        if self.at is not None and self.at not in self.outages:
            raise Invalid(f"--at: one of the outages is needed ({_listed(self.outages)}), got {self.at:g}")
        if self.rate not in RATES:
            raise Invalid(f"--rate-of must be one of {', '.join(RATES)}, got {self.rate!r}")
        for name in ("precision", "failover", "threshold"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise Invalid(f"--{name}: a number, 0 or more, is needed, got {value}")
        for name in ("percentile", "alpha"):
            if not 0 < getattr(self, name) <= 1:
                raise Invalid(f"--{name}: a number above 0 and not above 1 is needed, got {getattr(self, name)}")

    @property
    def fixed(self) -> int:
        """The place of the outage at which three of the four metrics are taken."""
        return len(self.outages) - 1 if self.at is None else self.outages.index(self.at)


@dataclass(frozen=True)
class Traces:
    """What a golden run shows: where the rows stand that reach each operator, the clock of the input, the output.

    ``more``: the output of further golden runs, and where its rows stand.
    """

    inputs: Mapping[str, Floats]
    places: Floats
    seconds: Floats
    golden: pa.Table
    golden_at: Floats
    more: tuple[Placed, ...] = ()

    @property
    def runs(self) -> tuple[Placed, ...]:
        """The output of every golden run."""
        return ((self.golden, self.golden_at), *self.more)

    @property
    def span(self) -> tuple[float, float]:
        return (float(self.places[0]), float(self.places[-1])) if len(self.places) else (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Rates:
    """Rows a second that reach an operator."""

    average: float
    peak: float


@dataclass(frozen=True, slots=True)
class Grid:
    """Local sections: equal stretches of positions."""

    origin: float
    width: float
    count: int

    def of(self, at: Floats) -> NDArray[np.int64]:
        """The section of each position; those before the first count to it, those after the last to the last."""
        number = np.floor((at - self.origin) / self.width)
        return np.clip(number, 0, self.count - 1).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Unit:
    """The experiments that share a target, an offset and a repetition: one burst for each outage, shortest first."""

    target: str
    offset: int
    repetition: int
    bursts: tuple[Burst, ...]
    rows: tuple[int, ...]

    @property
    def key(self) -> tuple[str, int, int]:
        return self.target, self.offset, self.repetition


@dataclass(frozen=True, slots=True)
class Measured:
    """What a unit gave, for each outage: quality score over what the longest one affects, and local scores.

    Of a real kill (``rows``: those that were not right in time): the tasks lost, those of them whose replicas took
    over, seconds until answers were exact again; the quality score of the final output, and in how many places it is
    not the golden one.
    """

    target: str
    offset: int
    repetition: int
    rows: tuple[int, ...]
    golden: float
    quality: tuple[float, ...]
    local: tuple[tuple[float, ...], ...]
    lost: tuple[str, ...] = ()
    promoted: tuple[str, ...] = ()
    seconds: float | None = None
    final_quality: float | None = None
    final_wrong: int = 0

    @property
    def key(self) -> tuple[str, int, int]:
        return self.target, self.offset, self.repetition


@dataclass(frozen=True)
class Design:
    """All that is fixed before the first fault."""

    settings: Settings
    traces: Traces
    targets: Mapping[str, tuple[str, ...]]
    rates: Mapping[str, Rates]
    offsets: tuple[float, ...]
    grid: Grid
    golden_local: Floats
    noise: Floats
    noisy: bool
    """``golden_local``: mean over golden runs; ``noise``: relative error of a section within which they lie."""

    @property
    def begins(self) -> list[int]:
        return [int(each) for each in self.grid.of(np.array(self.offsets))]

    def unit(self, target: str, offset: int, repetition: int) -> Unit:
        """Repetitions strike a little later than the first, by up to a section: no two crashes hit the same row.

        The shift depends on offset and repetition alone, so that all operators lose the same stretch of the stream.
        """
        shift = 0.0
        if repetition:
            generator = np.random.default_rng([abs(self.settings.seed), offset, repetition])
            shift = float(generator.uniform(0, self.grid.width))
        start = self.offsets[offset] + shift
        operators = self.targets[target]
        at = self.traces.inputs[operators[0]]
        bursts, rows = [], []
        for seconds in self.settings.outages:
            number = self.lost(target, seconds)
            first = int(np.searchsorted(at, start))
            stop = float(at[first + number]) if first + number < len(at) else math.inf
            rows.append(min(number, len(at) - first))
            bursts.append(Burst(operators, start, max(stop, start), self.settings.fault))
        return Unit(target, offset, repetition, tuple(bursts), tuple(rows))

    def lost(self, target: str, seconds: float) -> int:
        """How many rows an outage costs: by the operator's rate, and no longer than a failover if it has replicas."""
        if all(operator in self.settings.protected for operator in self.targets[target]):
            seconds = min(seconds, self.settings.failover)
        rates = self.rates[target]
        return round(seconds * (rates.peak if self.settings.rate == "peak" else rates.average))

    def measure(self, unit: Unit, outputs: Sequence[Placed]) -> Measured:
        """Scores from the faulty outputs, one for each outage: a table and the position of each row."""
        score = self.settings.score
        local = [score.local(rows, self.grid.of(at), self.grid.count) for rows, at in outputs]
        hit, where = self._affected(outputs[-1], local[-1])
        golden = float(np.mean([score.of(_within(rows, where(at), hit)) for rows, at in self.traces.runs]))
        quality = [quality_score(score.of(_within(rows, where(at), hit)), golden) for rows, at in outputs]
        return Measured(
            unit.target,
            unit.offset,
            unit.repetition,
            unit.rows,
            golden,
            tuple(float(each) for each in quality) if len(hit) else (1.0,) * len(outputs),
            tuple(tuple(each.tolist()) for each in local),
        )

    def _affected(self, faulty: Placed, local: Floats) -> tuple[Floats, Callable[[Floats], Floats]]:
        """The places that a fault has changed, and how to tell a row's place: its position, if golden runs are alike.

        Where they are not, every row may differ by itself; what tells then is a section that is off by more than noise.
        """
        if not self.noisy:
            return affected(self.traces.golden, self.traces.golden_at, *faulty), lambda at: at
        wrong = relative_error(local, self.golden_local) > np.maximum(self.noise, SAME)
        return np.flatnonzero(wrong).astype(np.float64), lambda at: self.grid.of(at).astype(np.float64)


def design(traces: Traces, settings: Settings, targets: Mapping[str, tuple[str, ...]]) -> Design:
    """Rates, offsets and sections from a golden run."""
    if not len(traces.places):
        raise Invalid("the input has no rows; nothing can be lost")
    if traces.golden.num_columns:
        settings.score.check(traces.golden.schema)
    low, high = traces.span
    width = max((high - low) / settings.sections, 1e-9)
    offsets = positions_of(settings, low, high)
    grid = Grid(low, width, settings.sections)
    local = np.array([settings.score.local(rows, grid.of(at), grid.count) for rows, at in traces.runs])
    noisy = any(len(affected(traces.golden, traces.golden_at, *other)) for other in traces.more)
    rates = {label: _rates(traces, operators[0]) for label, operators in targets.items()}
    return Design(settings, traces, targets, rates, offsets, grid, local.mean(axis=0), noise_floor(local), noisy)


def positions_of(settings: Settings, low: float, high: float) -> tuple[float, ...]:
    """Where faults strike in a stream that lies between these positions."""
    if isinstance(settings.offsets, int):
        many = settings.offsets
        return tuple(low + (high - low) * REACH * (place + 0.5) / many for place in range(many))
    for each in settings.offsets:
        if not low <= each <= high:
            raise Invalid(f"--offsets: the stream lies between {low:g} and {high:g}, got {each:g}")
    return tuple(float(each) for each in settings.offsets)


def _rates(traces: Traces, operator: str) -> Rates:
    """The input's average rate and that of its busiest second, in the share of its rows that reach the operator.

    Not the operator's own busiest second: in a thin stream that is chance, and an outage would cover more of the input
    at one operator than at another.
    """
    second = np.floor(traces.seconds).astype(np.int64)
    counts = np.bincount(second - second.min())
    share = len(traces.inputs[operator]) / len(traces.places)
    return Rates(share * len(second) / len(counts), share * float(counts.max()))


def _within(rows: pa.Table, at: Floats, hit: Floats) -> pa.Table:
    if not rows.num_columns:
        return rows
    return rows.filter(pa.array(np.isin(at, hit)))


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{each:g}" for each in numbers) or "none"
