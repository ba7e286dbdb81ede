"""Queries that nobody wrote: composed from a grammar, each batch that of Structured Streaming.

A few of them in every run; more by ``make fuzz-queries N=200 FIRST=1000``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from composing import composed
from pyspark.sql import DataFrame, SparkSession
from queries import EVENTS
from side_by_side import Rows, answers, by_spark

import holdfast
from holdfast.runtime.faults import parse_faults

pytestmark = pytest.mark.spark

FIRST, MANY = int(os.environ.get("HOLDFAST_FIRST", "0")), int(os.environ.get("HOLDFAST_QUERIES", "4"))
BATCHES, ROWS = 3, 50


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Streams: one with nulls and late rows; one whose second batch is empty; one without nulls and with few keys."""
    return [_written(tmp_path_factory.mktemp("stream"), seed) for seed in range(3)]


def _written(folder: Path, seed: int) -> Path:
    draw = random.Random(seed)
    nulls = [None] if seed < 2 else []
    for batch in range(BATCHES):
        rows = []
        for number in range(0 if seed == 1 and batch == 1 else ROWS):
            minute = batch * 20 + draw.randrange(20) - draw.choice((0, 0, 0, 35, 70))
            moment = f"2026-03-29 {5 + minute // 60:02d}:{minute % 60:02d}:{number % 60:02d}"
            rows.append({
                "k": draw.choice(["ann", "bob", "cy", *nulls]), "n": draw.choice([*range(9), *nulls]),
                "x": draw.choice([round(draw.uniform(-5, 9), 3), -0.0, 0.0, "NaN", *nulls]),
                "cents": draw.choice([f"{draw.randrange(9999) / 100:.2f}", *nulls]),
                "ts": draw.choice([*15 * [moment], *nulls]), "day": f"2026-01-{1 + draw.randrange(3):02d}",
                "yes": draw.choice([True, False, *nulls]),
            })  # fmt: skip
        path = folder / f"{batch}.json"
        path.write_text("\n".join(map(json.dumps, rows)))
        os.utime(path, (1_700_000_000 + batch,) * 2)
    return folder


@pytest.mark.parametrize("seed", range(FIRST, FIRST + MANY))
def test_a_composed_query_is_that_of_structured_streaming(
    spark: SparkSession, folders: list[Path], tmp_path: Path, seed: int
) -> None:
    """With every fourth two of four nodes die in the middle; every fourth is stopped and started again."""
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    place = tmp_path / "rows"
    place.mkdir()
    query = composed(_stream(spark, place), seed)
    writer = holdfast.writeStream(query.frame)
    if seed % 4 == 1:
        faults = parse_faults("kill node-1,node-2 at epoch 1")
        writer.resilience(nodes=4, parallelism=4, checkpoint_every=2, faults=faults, rejoin_after=0.5)
    files = sorted(folders[seed % 3].iterdir())
    ours: dict[int, Rows] = {}
    theirs: dict[int, Rows] = {}
    for part in [files[:2], files[2:]] if seed % 4 == 3 else [files]:
        for file in part:
            shutil.copy2(file, place)
        ours |= answers(writer, query.mode, tmp_path / "ours")
        theirs |= by_spark(query.frame, query.mode, tmp_path / "theirs")
    assert ours == theirs, query.text


def _stream(spark: SparkSession, place: Path) -> DataFrame:
    stream = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).option("allowNonNumericNumbers", True)
    return stream.json(str(place))
