"""Linear Road on a real Spark: the same traffic as without it, and exact answers although a node dies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from plain_linear_road import PlainLinearRoad

from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import start
from holdfast.workloads import Options, workload
from holdfast.workloads.linear_road.history import expenditure
from holdfast.workloads.linear_road.peak import Load, run_peak
from holdfast.workloads.linear_road.traffic import peak_starts, tuples
from waiting import DEADLINE

pytestmark = pytest.mark.spark
ROAD = workload("linear-road")


def spent(vid: int, day: int) -> int:
    return int(expenditure(np.array([vid]), np.array([day]))[0])


def test_the_traffic_of_the_peak_is_the_same_with_and_without_spark(spark: Any) -> None:
    for expressways in (1, 350):
        first = peak_starts(expressways) - 3000
        numbers = spark.range(first, first + 6000).withColumnRenamed("id", "value")
        made = ROAD.generated(numbers, Options(seed=-7, expressways=expressways)).toArrow()
        assert made.cast(ROAD.input).equals(tuples(np.arange(first, first + 6000), -7, expressways))


def test_answers_are_exact_on_spark_although_a_node_dies(spark: Any, tmp_path: Path) -> None:
    options = Options(rate=2500, epochs=6, seed=3, expressways=2)
    job = start(
        ROAD.stream(spark, options), ROAD.pipeline(parallelism=2), store=tmp_path, nodes=2, epochs=options.epochs,
        checkpoint_every=2, faults=parse_faults(["kill node-1 at epoch 4"]), rejoin_after=0.1,
    )  # fmt: skip
    assert job.awaitTermination(DEADLINE), job.status
    found = read_output(tmp_path, "final").drop_columns(["epoch", "task", "lav"])
    rows = pa.concat_tables([ROAD.batch(options, place) for place in range(options.epochs)]).to_pylist()
    expected = PlainLinearRoad(spent).answers(rows)
    assert sorted(map(str, (tuple(row.values()) for row in found.to_pylist()))) == sorted(
        str(each[:4] + each[5:]) for each in expected
    )
    assert {each[0] for each in expected} == {"toll", "balance", "expenditure"}


@pytest.mark.long
@pytest.mark.parametrize("packed", [True, False])
def test_a_small_peak_is_sustained_and_every_latency_kept(spark: Any, tmp_path: Path, packed: bool) -> None:
    peak = run_peak(spark, 2, Load(seconds=2, warm_up=3, packed=packed), tmp_path)
    assert peak.answers > 1000
    assert peak.p50 is not None
    assert peak.most is not None
    assert 1.0 <= peak.p50 <= peak.most
    assert [row[0] for row in peak.series] == [0]
