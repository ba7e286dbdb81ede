"""Queries that nobody wrote: composed from a grammar, each batch that of Structured Streaming.

Some of them in every run, two hundred by ``make long``, more by ``make fuzz-queries N=200 SEED=1000``.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from composing import composed
from pyspark.sql import SparkSession
from queries import EVENTS
from side_by_side import Rows, answers, at_once, by_spark

import holdfast
from holdfast.runtime.faults import parse_faults

pytestmark = pytest.mark.spark

FIRST, MANY = int(os.environ.get("HOLDFAST_FIRST", "0")), int(os.environ.get("HOLDFAST_QUERIES", "200"))
SHORT = MANY if "HOLDFAST_QUERIES" in os.environ else 16
"""So many in every run, all of them by make long."""
AT_ONCE = 4
"""So many run beside one another: while one waits others go on."""
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


@pytest.fixture
def interpreted(spark: SparkSession) -> Iterator[SparkSession]:
    """Both run Spark's expressions as they are: to compile them for fifty rows takes a quarter of all the time."""
    settings = {
        "spark.sql.shuffle.partitions": "1", "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.adaptive.enabled": "false",
    }  # fmt: skip
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        assert value is not None
        spark.conf.set(name, value)


GROUPS = [
    pytest.param(first, marks=[pytest.mark.long] if first >= FIRST + SHORT else [])
    for first in range(FIRST, FIRST + MANY, AT_ONCE)
]


@pytest.mark.parametrize("first", GROUPS)
def test_composed_queries_are_those_of_structured_streaming(
    interpreted: SparkSession, folders: list[Path], place: Path, first: int
) -> None:
    """With every fourth two of four nodes die in the middle; every fourth is stopped and started again."""
    seeds = range(first, min(first + AT_ONCE, FIRST + MANY))
    compared = at_once(*(partial(_compared, interpreted, folders[seed % 3], place / str(seed), seed) for seed in seeds))
    assert [text for same, text in compared if not same] == []


def _compared(spark: SparkSession, folder: Path, place: Path, seed: int) -> tuple[bool, str]:
    """Whether every batch is the same, and what the query was."""
    (place / "rows").mkdir(parents=True)
    stream = spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).option("allowNonNumericNumbers", True)
    query = composed(stream.json(str(place / "rows")), seed)
    writer = holdfast.writeStream(query.frame)
    if seed % 4 == 1:
        faults = parse_faults("kill node-1,node-2 at epoch 1")
        writer.resilience(nodes=4, parallelism=4, checkpoint_every=2, faults=faults, rejoin_after=0.5)
    files = sorted(folder.iterdir())
    ours: dict[int, Rows] = {}
    theirs: dict[int, Rows] = {}
    for part in [files[:2], files[2:]] if seed % 4 == 3 else [files]:
        for file in part:
            shutil.copy2(file, place / "rows")
        ours |= answers(writer, query.mode, place / "ours")
        theirs |= by_spark(query.frame, query.mode, place / "theirs")
    return ours == theirs, f"{seed}: {query.text}"
