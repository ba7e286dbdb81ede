"""Top k: the most visited pages of the last minute, by hierarchical aggregation (paper 000, Q1; paper 002, 6.1)."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from holdfast import operators as op
from holdfast.operators import Pipeline
from holdfast.workloads import generated
from holdfast.workloads.expressions import rank, time
from holdfast.workloads.files import InputFile
from holdfast.workloads.generated import Rows
from holdfast.workloads.picks import TIME, Pick, pick_text, pick_time
from holdfast.workloads.workload import Options, Workload

PAGES, POWER = 10_000, 2


def pipeline(parallelism: int = 4, keep: int = 100, size: str = "60 seconds", every: str = "10 seconds") -> Pipeline:
    """Three levels, a tree: slices of the input, merged by half as many tasks, ranked by one.

    Levels one and two shrink an epoch to visits by page and second and remember nothing; the third keeps the windows.
    """
    by = {"page": "string", "second": TIME}
    second = pl.col("time").dt.truncate("1s")
    slices = op.chain(op.map("page", second=second), op.combine(by, visits=op.count()))
    top = op.sliding(size, every, by="page", time="second", visits=op.sum("visits"), top=(keep, "visits"))
    return Pipeline(
        op.source("slices", slices, parallelism=parallelism, event_time="time"),
        op.step("merge", op.combine(by, visits=op.sum("visits")), "slices", parallelism=max(1, parallelism // 2)),
        op.step("top", top, "merge"),
    )


def _expressions(options: Options) -> dict[str, str]:
    page = f"concat('/page/', lpad({rank(0, PAGES, POWER)}, 5, '0'))"
    return {"page": page, "time": time(options.rate)}


def _rows(rows: Rows, options: Options) -> pa.Table:
    pages = generated.rank(generated.draw(rows, options.seed, 0), PAGES, POWER)
    names = pa.array([f"/page/{page:05d}" for page in range(PAGES)])
    return pa.table({"page": names.take(pa.array(pages)), "time": generated.times(rows, options.rate)})


def _picks(file: InputFile, options: Options) -> tuple[Pick, ...]:
    return pick_text(file, "page", options.column), pick_time(file, options.rate)


TOP_K = Workload(
    name="top-k",
    pipeline=pipeline,
    columns=("page", "start", "end", "rank", "visits"),
    input=pa.schema({"page": pa.string(), "time": TIME}),
    lanes=1,
    vocabulary=0,
    expressions=_expressions,
    rows=_rows,
    picks=_picks,
)
