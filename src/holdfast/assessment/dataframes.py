"""``holdfast.assess``: the same assessment for an ordinary PySpark DataFrame pipeline, without a Holdfast job.

The pipeline marks the points at which rows may be lost; bursts are dropped there by a filter on the ascending key. All
experiments of a unit run as one Spark query. Spark is imported when it is used.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.assessment.campaign import Report, run_waves
from holdfast.assessment.experiments import OUTAGES, Design, Measured, Settings, Traces, Unit, design
from holdfast.assessment.faults import Burst, FaultModel, Floats, parse_fault, positions
from holdfast.assessment.results import Assessment, assessed
from holdfast.assessment.scores import Score, as_score
from holdfast.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    Point = Callable[[str, DataFrame], DataFrame]
    DataFramePipeline = Callable[[DataFrame, Point], DataFrame]

SOURCE = "source"
"""The point at the pipeline's input; it is there without being marked."""
LABEL = "holdfast_experiment"
DROPPING = ("loss", "duplication", "corruption")


def assess(
    pipeline: DataFramePipeline,
    source: DataFrame,
    *,
    score: str | Score | Callable[[pa.Table], Any],
    key: str,
    inject: Sequence[str] | None = None,
    time: str | None = None,
    rate: float | None = None,
    fault: str | FaultModel = "loss",
    offsets: int | Sequence[float] = 5,
    outages: Sequence[float] = OUTAGES,
    repeat: int = 3,
    sections: int = 100,
    threshold: float = 0.03,
    precision: float = 0.05,
    golden: int = 2,
    seed: int = 0,
    report: Report | None = None,
) -> Assessment:
    """Drop bursts of rows at named points of a DataFrame pipeline, and say how much each point matters.

    ``pipeline(source, point)`` builds the output; ``point("trades", frame)`` marks where rows may be lost and gives the
    frame to go on with::

        def bargains(rows, point):
            trades = point("trades", rows.where("kind = 'trade'"))
            ...

        holdfast.assess(bargains, market, score="total:gain", key="key", time="time")

    ``source``: a DataFrame; a streaming one is run to the end of what is there (``availableNow``) for each experiment.
    ``inject``: the points to strike, "source" being the input itself; all by default. ``key``: a column of ascending
    numbers, from the source to the output. Outages are in seconds: ``time`` names the source's event time column;
    without one ``rate`` rows a second are assumed. ``golden``: runs without a fault; what they differ by (``rand()``)
    is noise and no damage. ``score``, ``offsets`` and the rest: as in ``holdfast assess``.
    """
    model = fault if isinstance(fault, FaultModel) else parse_fault(fault, seed)
    if model.kind not in DROPPING:
        raise Invalid(f"fault {model.kind}: a DataFrame has no order of arrival; possible: {', '.join(DROPPING)}")
    settings = Settings(
        as_score(score),
        offsets if isinstance(offsets, int) else tuple(offsets),
        tuple(outages),
        repeat,
        fault=model,
        sections=sections,
        threshold=threshold,
        precision=precision,
        seed=seed,
        golden=golden,
    )
    if key not in source.columns:
        raise Invalid(f"key {key!r}: the source has no such column; found: {', '.join(source.columns)}")
    if (time is None) == (rate is None):
        raise Invalid("time and rate: give one of them, time=COLUMN of the source or rate=ROWS a second")
    if time is not None and time not in source.columns:
        raise Invalid(f"time {time!r}: the source has no such column; found: {', '.join(source.columns)}")
    runs = DataFrameRuns(pipeline, source, key)
    points = runs.points(inject)
    plan = design(runs.traces(points, time, rate, golden), settings, {name: (name,) for name in points})
    runs.plan = plan
    measured = run_waves(runs, plan, report=report)
    name = getattr(pipeline, "__name__", "pipeline")
    return assessed(plan, measured, name, "dataframe", {})


class DataFrameRuns:
    """Runs a DataFrame pipeline with bursts; an engine for waves."""

    name = "dataframe"

    def __init__(self, pipeline: DataFramePipeline, source: DataFrame, key: str) -> None:
        self._pipeline, self._source, self._key = pipeline, source, key
        self.plan: Design | None = None

    def points(self, wanted: Sequence[str] | None) -> list[str]:
        """The points that the pipeline marks, in the order in which it does; or those asked for."""
        seen = list(self._built(None)[1])
        for name in wanted or ():
            if name not in seen:
                raise Invalid(f"inject {name!r}: the pipeline marks no such point; points: {', '.join(seen)}")
        return list(wanted) if wanted is not None else seen

    def traces(self, points: Sequence[str], time: str | None, rate: float | None, golden: int) -> Traces:
        """Golden runs, each built anew, since ``rand()`` draws its seed then; and where the rows pass each point."""
        output, frames = self._built(None)
        if self._key not in output.columns:
            found = ", ".join(output.columns)
            raise Invalid(f"key {self._key!r}: it does not reach the output, whose columns are {found}; carry it along")
        from pyspark.sql import functions as F

        wanted = [F.col(self._key).cast("double").alias("at")]
        if time is not None:
            wanted.append(F.col(time).cast("timestamp").cast("double").alias("second"))
        clock = self._collected(self._source.select(*wanted))
        at = positions(clock, "at", 0, "the source")
        order = np.argsort(at, kind="stable")
        seconds = at[order] / float(rate or 1) if time is None else np.asarray(clock["second"].to_numpy())[order]
        inputs = {name: np.sort(self._places(frames[name], name)) for name in points}
        first = self._arranged(self._collected(output))
        more = tuple(self._arranged(self._collected(self._built(None)[0])) for _ in range(golden - 1))
        return Traces(inputs, at[order], seconds, *first, more)

    def measure(self, units: Sequence[Unit]) -> Iterator[Measured]:
        assert self.plan is not None
        for unit in units:
            outputs = self._run(dict(enumerate(unit.bursts)))
            yield self.plan.measure(unit, [outputs[number] for number in range(len(unit.bursts))])

    def _run(self, bursts: Mapping[int, Burst]) -> dict[int, tuple[pa.Table, Floats]]:
        from pyspark.sql import functions as F

        if self._source.isStreaming:  # stateful streams cannot be joined into one query at will
            return {number: self._arranged(self._collected(self._built(burst)[0])) for number, burst in bursts.items()}
        union: DataFrame | None = None
        for number, burst in bursts.items():
            frame = self._built(burst)[0].withColumn(LABEL, F.lit(number))
            union = frame if union is None else union.unionByName(frame)
        assert union is not None
        rows = self._collected(union)
        return {
            number: self._arranged(rows.filter(pc.equal(rows[LABEL], number)).drop_columns(LABEL)) for number in bursts
        }

    def _built(self, burst: Burst | None) -> tuple[DataFrame, dict[str, DataFrame]]:
        """The pipeline's output with this fault, and what passes each point."""
        seen: dict[str, DataFrame] = {}

        def point(name: str, frame: DataFrame) -> DataFrame:
            if name in seen:
                raise Invalid(f"point {name!r}: the pipeline marks it twice; give each point a name of its own")
            if self._key not in frame.columns:
                found = ", ".join(frame.columns)
                raise Invalid(f"point {name!r}: the key {self._key!r} is not among its columns: {found}")
            seen[name] = frame
            return self._struck(frame, burst) if burst is not None and name in burst.targets else frame

        return self._pipeline(point(SOURCE, self._source), point), seen

    def _struck(self, frame: DataFrame, burst: Burst) -> DataFrame:
        from pyspark.sql import functions as F

        at = F.col(self._key).cast("double")
        hit = (at >= F.lit(burst.start)) & (at < F.lit(burst.stop))
        model = burst.model
        if model.kind == "duplication":
            copies = F.when(hit, F.array(F.lit(0), F.lit(1))).otherwise(F.array(F.lit(0)))
            return frame.withColumn(LABEL, F.explode(copies)).drop(LABEL)
        if model.kind == "corruption":
            if model.column not in frame.columns:
                return frame
            kind = frame.schema[model.column].dataType
            wrong = (F.col(model.column) * F.lit(model.factor)).cast(kind)
            return frame.withColumn(model.column, F.when(hit, wrong).otherwise(F.col(model.column)))
        return frame.where(~hit | hit.isNull())

    def _places(self, frame: DataFrame, name: str) -> Floats:
        return positions(self._collected(frame.select(self._key)), self._key, 0, f"point {name}")

    def _arranged(self, rows: pa.Table) -> tuple[pa.Table, Floats]:
        """In the order of keys: Spark's own order differs from run to run, and a sum of floats depends on it."""
        places = positions(rows, self._key, 0, "the output")
        order = np.argsort(places, kind="stable")
        return rows.take(pa.array(order)), places[order]

    def _collected(self, frame: DataFrame) -> pa.Table:
        if not frame.isStreaming:
            return frame.toArrow()
        name = f"holdfast_{id(frame):x}"
        with tempfile.TemporaryDirectory(prefix="holdfast-assess-") as folder:
            writing = frame.writeStream.format("memory").queryName(name).option("checkpointLocation", folder)
            query = writing.outputMode("append").trigger(availableNow=True).start()
            query.awaitTermination()
            rows = frame.sparkSession.table(name).toArrow()
            frame.sparkSession.catalog.dropTempView(name)
        return rows
