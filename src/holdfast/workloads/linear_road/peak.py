"""How much traffic a machine sustains: Linear Road at its peak in real time, and the latency of every answer.

Open loop: tuples are due by the clock, whether the job keeps up or not. A tuple is due when the second of its time
begins; an answer counts from then until it is in the output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from holdfast.errors import Invalid
from holdfast.runtime.history.history import read_history
from holdfast.workloads.linear_road import LINEAR_ROAD
from holdfast.workloads.linear_road.packed import FIRST, Unpacking
from holdfast.workloads.linear_road.pipeline import pipeline
from holdfast.workloads.linear_road.traffic import CYCLE, PEAK, RAMP, peak_starts
from holdfast.workloads.workload import MOST_EXPRESSWAYS, Options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT = 5.0
"""Seconds within which an answer must leave."""
RATE = PEAK // CYCLE
"""Tuples a second of one expressway at the peak."""
HOPELESS = 30.0
"""A job that is so many seconds behind while it warms up will not keep up."""
LATENCIES = "latencies.parquet"
PERCENTILES = (50, 95, 99, 100)
BIN = 5
"""Seconds whose answers are summed up together: those of one second mostly leave at once, equally late."""
Percentiles = tuple[int, float, float, float, float]
"""The second at which a bin begins, and the percentiles of latency of the answers to its tuples."""


@dataclass(frozen=True, slots=True)
class Peak:
    """What a run at the peak showed. Latencies in seconds, of the answers to tuples due in the measured time.

    ``behind``: how late the job was when it was given up, None if it was not. ``series``: for every five
    seconds of the measured time the 50th, 95th and 99th percentile and the most.
    """

    expressways: int
    tuples_per_second: int
    seconds: int
    answers: int
    p50: float | None
    p95: float | None
    p99: float | None
    most: float | None
    behind: float | None
    epochs: int
    series: tuple[Percentiles, ...] = ()

    @property
    def sustained(self) -> bool:
        """Whether every answer was inside the limit."""
        return self.behind is None and self.most is not None and self.most <= LIMIT


@dataclass(frozen=True, slots=True)
class Load:
    """How a run is to be measured: so many seconds, after ``warm_up`` seconds at the same rate that do not count.

    ``packed``: a row of the stream stands for as many tuples as there are expressways; else it is a tuple.
    """

    seconds: int = 60
    warm_up: int = 75
    nodes: int = 2
    parallelism: int = 2
    partitions: int = 2
    checkpoint_every: int = 5
    seed: int = 0
    packed: bool = True


def peak_stream(spark: SparkSession, expressways: int, load: Load) -> DataFrame:
    """The traffic from the third hour on, each second's tuples when that second is over; in packs, or as rows."""
    size = expressways if load.packed else 1
    numbers = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", RATE * expressways // size)
        .option("numPartitions", load.partitions)
        .load()
        .selectExpr(f"value * {size}L + {peak_starts(expressways)}L AS value")
    )
    if load.packed:
        return numbers.withColumnRenamed("value", FIRST)
    return LINEAR_ROAD.generated(numbers, Options(seed=load.seed, expressways=expressways))


def run_peak(spark: SparkSession, expressways: int, load: Load, folder: Path) -> Peak:
    """One run in real time; its output, history and latencies are in ``folder``."""
    from holdfast.runtime.spark import start

    stream = peak_stream(spark, expressways, load)
    pace = _Pace(folder, RATE if load.packed else RATE * expressways, load)
    forwarder = Unpacking(expressways, load.seed, expressways) if load.packed else None
    job = start(
        stream, pipeline(parallelism=load.parallelism, forwarder=forwarder), store=folder, nodes=load.nodes,
        checkpoint_every=load.checkpoint_every, listeners=[pace.heard],
    )  # fmt: skip
    try:
        while not pace.over() and not job.awaitTermination(0.2):
            pass
    finally:
        job.stop()
    if (error := job.exception()) is not None:
        raise error
    return measured(folder, expressways, load, pace.behind)


class _Pace:
    """Listens to a running job: how far it is, and how far it is behind the clock. ``rate``: rows a second."""

    def __init__(self, folder: Path, rate: int, load: Load) -> None:
        self._folder, self._rate, self._load = folder, rate, load
        self._rows = 0
        self._due: float | None = None
        self._reached = 0
        self.behind: float | None = None

    def heard(self, event: dict[str, Any]) -> None:
        match event["kind"]:
            case "epoch":
                first = self._rows // self._rate
                self._rows += event["rows_in"]
                self._reached = self._rows // self._rate
                self._late(time.time(), first)

    def _late(self, now: float, first: int) -> None:
        """The oldest tuple of an epoch that is about to be published was due so long ago."""
        self._due = self._due or began(self._folder)
        late = now - self._due - first
        counts = self._load.warm_up <= first < self._load.warm_up + self._load.seconds
        if late > HOPELESS or (counts and late > LIMIT):
            self.behind = late

    def over(self) -> bool:
        return self.behind is not None or self._reached >= self._load.warm_up + self._load.seconds


def began(folder: Path) -> float:
    """When the first tuple was due, in seconds since 1970: what Spark's rate source wrote down."""
    log = folder / "spark" / "sources" / "0" / "0"
    try:
        return int(log.read_text(encoding="utf-8").split()[-1]) / 1000
    except (OSError, ValueError, IndexError) as error:
        raise Invalid(f"{log}: the start of Spark's rate source cannot be read: {error}") from None


def measured(folder: Path, expressways: int, load: Load, behind: float | None) -> Peak:
    """Latencies from the output and the history of a run; each answer's is written beside them."""
    published: dict[int, float] = {}
    for event in read_history(folder):
        if event["kind"] == "published" and event["of"] == "final":
            published |= dict.fromkeys(event["epochs"], event["time"])
    files = sorted((folder / "output" / "final").glob("*.parquet"))
    origin = began(folder) if files else 0.0
    answers = _latencies(files, published, origin)
    pq.write_table(answers, folder / LATENCIES)
    second = answers.column("time").to_numpy() - RAMP * CYCLE
    counted = (second >= load.warm_up) & (second < load.warm_up + load.seconds)
    latency, second = answers.column("latency").to_numpy()[counted], second[counted]
    found: list[float | None] = [None] * len(PERCENTILES)
    if len(latency):
        found = np.percentile(latency, PERCENTILES).tolist()
    p50, p95, p99, most = found
    series = tuple(_series(second // BIN * BIN, latency))
    rate = RATE * expressways
    return Peak(expressways, rate, load.seconds, len(latency), p50, p95, p99, most, behind, len(published), series)


def _latencies(files: Iterable[Path], published: dict[int, float], origin: float) -> pa.Table:
    tables = [pa.schema({"epoch": pa.int64(), "kind": pa.string(), "time": pa.int64()}).empty_table()]
    tables += [pq.read_table(file, columns=["epoch", "kind", "time"]) for file in files]
    answers = pa.concat_tables(tables)
    # Of what a driver placed that died before it could note when, nobody knows how long it took.
    answers = answers.filter(pc.is_in(answers.column("epoch"), pa.array(list(published), pa.int64())))
    epochs, which = np.unique(answers.column("epoch").to_numpy(), return_inverse=True)
    left = np.array([published[epoch] for epoch in epochs.tolist()])
    due = origin + answers.column("time").to_numpy() - RAMP * CYCLE
    return answers.append_column("latency", pa.array(left[which] - due if len(left) else due))


def _series(second: NDArray[np.int64], latency: NDArray[np.float64]) -> Iterator[Percentiles]:
    if not len(second):
        return
    order = np.argsort(second, kind="stable")
    there, starts = np.unique(second[order], return_index=True)
    for each, mine in zip(there.tolist(), np.split(latency[order], starts[1:]), strict=True):
        p50, p95, p99, most = np.percentile(mine, PERCENTILES).tolist()
        yield each, p50, p95, p99, most


def search(sustained: Callable[[int], bool], first: int = 16) -> int:
    """The largest number that is sustained: doubled until it is not, then halved in between; 0 if not even 1 is.

    Ends when what is left to find out is at most a twentieth of the number itself, and at least 1.
    """
    low, high, trial = 0, MOST_EXPRESSWAYS + 1, first
    while high - low > max(1, int(low * 0.05)):
        if sustained(trial):
            low = trial
        else:
            high = trial
        trial = min(low * 2, MOST_EXPRESSWAYS) if high > MOST_EXPRESSWAYS and low else (low + high) // 2
    return low
