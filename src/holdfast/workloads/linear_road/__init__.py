"""Linear Road, the benchmark of tolls on congested expressways: its rules, its operators and its traffic."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.workloads.generated import Rows
from holdfast.workloads.linear_road.input import open_road, picks
from holdfast.workloads.linear_road.pipeline import pipeline
from holdfast.workloads.linear_road.rules import ANSWERS
from holdfast.workloads.linear_road.traffic import INPUT, expressions, tuples
from holdfast.workloads.workload import Options, Workload


def _layers(options: Options) -> Sequence[dict[str, str]]:
    return expressions(options.seed, options.expressways)[:-1]


def _expressions(options: Options) -> dict[str, str]:
    return expressions(options.seed, options.expressways)[-1]


def _rows(rows: Rows, options: Options) -> pa.Table:
    return tuples(rows, options.seed, options.expressways)


LINEAR_ROAD = Workload(
    name="linear-road",
    pipeline=pipeline,
    columns=tuple(ANSWERS.names),
    input=INPUT,
    lanes=0,
    vocabulary=0,
    expressions=_expressions,
    rows=_rows,
    picks=picks,
    layers=_layers,
    opened=open_road,
)
