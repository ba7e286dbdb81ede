"""Queries that nobody wrote: composed from a grammar, each batch that of Structured Streaming.

Two hundred in every run, against the record of what Structured Streaming answers: all of them without Spark's loop and
executors (``in_process.py``), every twenty-fifth also with these. ``make long`` runs all of them by both, and others
``make fuzz-queries N=200 SEED=1000``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from composing import composed
from in_process import Script, Scripts
from pyspark.sql import DataFrame, SparkSession
from queries import EVENTS
from recorded import (
    AGAIN,
    AT_ONCE,
    MANY,
    SMALL,
    STREAMS,
    Record,
    asked,
    put,
    starts,
    stream_of,
    told,
    write_streams,
)
from side_by_side import answers, at_once

import holdfast
from holdfast.runtime.faults import parse_faults

pytestmark = pytest.mark.spark

CHOSEN = "HOLDFAST_QUERIES" in os.environ
"""Whether these are others than those of the record."""
FIRST, COUNT = int(os.environ.get("HOLDFAST_FIRST", "0")), int(os.environ.get("HOLDFAST_QUERIES", str(MANY)))
FOR_REAL = 25
"""One of so many is run as users do: with and without kills and restarts, over each stream."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_streams(tmp_path_factory.mktemp("streams"))


@pytest.fixture(scope="module")
def record(folders: list[Path]) -> Record:
    return Record(folders)


@pytest.fixture
def small(spark: SparkSession) -> Iterator[SparkSession]:
    before = {name: spark.conf.get(name, None) for name in SMALL}
    for name, value in SMALL.items():
        spark.conf.set(name, value)
    yield spark
    for name, was in before.items():
        spark.conf.unset(name) if was is None else spark.conf.set(name, was)


@pytest.fixture(scope="module")
def batches(spark: SparkSession, folders: list[Path]) -> list[list[DataFrame]]:
    """The rows of every micro-batch of each stream."""
    reader = spark.read.schema(EVENTS).option("allowNonNumericNumbers", True)
    return [
        [spark.createDataFrame(reader.json(str(file)).toArrow(), EVENTS) for file in sorted(folder.iterdir())]
        for folder in folders
    ]


def writer_of(frame: DataFrame, seed: int, killed: int) -> Any:
    """With one of so many queries two of four nodes die in the middle."""
    writer = holdfast.writeStream(frame)
    if seed % killed == 1:
        faults = parse_faults("kill node-1,node-2 at epoch 1")
        writer.resilience(nodes=4, parallelism=4, checkpoint_every=2, faults=faults, rejoin_after=0.5)
    return writer


def on_spark(spark: SparkSession, folders: list[Path], place: Path, seed: int) -> tuple[str, dict[str, list[str]]]:
    """What a query is, and what Holdfast answers to it as users run it."""
    rows, ours = place / f"{seed}" / "rows", dict[str, list[str]]()
    rows.mkdir(parents=True)
    query = composed(stream_of(spark, rows), seed)
    writer = writer_of(query.frame, seed, 4)
    for part in starts(seed, sorted(folders[seed % STREAMS].iterdir())):
        put(part, rows)
        got = answers(writer, query.mode, place / f"{seed}" / "store")
        ours |= {str(batch): told(rows) for batch, rows in got.items()}
    return query.text, ours


def grouped(seeds: Sequence[int], marks: Any = ()) -> list[Any]:
    """So many as run beside one another."""
    groups = [seeds[place : place + AT_ONCE] for place in range(0, len(seeds), AT_ONCE)]
    return [pytest.param(group, marks=marks, id=f"{group[0]}-{group[-1]}") for group in groups]


def test_a_record_of_something_else_is_no_answer(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert AGAIN in str(Record(folders).of(0, "another query"))
    assert AGAIN in str(Record(folders).of(MANY, "one more query"))
    monkeypatch.setattr("pyspark.__version__", "4.9.0")
    assert "4.9.0" in str(Record(folders).of(0, "any query"))


@pytest.mark.skipif(CHOSEN, reason="other queries than those of the record were asked for")
@pytest.mark.parametrize("seeds", grouped(range(MANY)))
def test_composed_queries_answer_what_structured_streaming_has_answered(
    small: SparkSession,
    folders: list[Path],
    batches: list[list[DataFrame]],
    record: Record,
    place: Path,
    seeds: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With every eighth two of four nodes die in the middle; every fourth is stopped and started again. For eight of
    sixteen all epochs but the first are small, and one task does all of each."""
    scripts = Scripts()

    def wrong(seed: int) -> list[str]:
        query = composed(stream_of(small, folders[seed % STREAMS]), seed)
        known = record.of(seed, query.text)
        if isinstance(known, str):
            return [f"{seed}: {query.text}: {known}"]
        store, ours, number = place / str(seed), dict[str, list[str]](), 0
        writer = writer_of(query.frame, seed, 8)
        for part, watermarks in zip(starts(seed, batches[seed % STREAMS]), known.watermarks, strict=True):
            scripts.of[f"{store}/spark"] = Script(part, number, watermarks)
            got = answers(writer, query.mode, store)
            ours |= {str(batch): told(rows) for batch, rows in got.items()}
            number += len(part)
        return [f"{seed}: {query.text}: {each}" for each in known.differences(ours)]

    with scripts.put_in(monkeypatch, small=seeds[0] % 16 >= 8):
        assert at_once(*(partial(wrong, seed) for seed in seeds)) == [[]] * len(seeds)


@pytest.mark.skipif(CHOSEN, reason="other queries than those of the record were asked for")
@pytest.mark.parametrize("seeds", grouped(range(0, MANY, FOR_REAL)))
def test_composed_queries_on_spark_answer_what_structured_streaming_has_answered(
    small: SparkSession, folders: list[Path], record: Record, place: Path, seeds: Sequence[int]
) -> None:
    """With every fourth two of four nodes die in the middle; every fourth is stopped and started again."""

    def wrong(seed: int) -> list[str]:
        text, ours = on_spark(small, folders, place, seed)
        known = record.of(seed, text)
        return [f"{seed}: {text}: {each}" for each in ([known] if isinstance(known, str) else known.differences(ours))]

    assert at_once(*(partial(wrong, seed) for seed in seeds)) == [[]] * len(seeds)


@pytest.mark.parametrize("seeds", grouped(range(FIRST, FIRST + COUNT), () if CHOSEN else pytest.mark.long))
def test_composed_queries_are_those_of_structured_streaming(
    small: SparkSession, folders: list[Path], record: Record, place: Path, seeds: Sequence[int]
) -> None:
    """And what Structured Streaming answers is what the record says."""

    def wrong(seed: int) -> list[str]:
        rows = place / f"rows-{seed}"
        rows.mkdir()
        query = composed(stream_of(small, rows), seed)
        theirs = asked(query, sorted(folders[seed % STREAMS].iterdir()), rows, place / f"log-{seed}", seed)
        found = [*theirs.differences(on_spark(small, folders, place, seed)[1])]
        if not CHOSEN and record.of(seed, query.text) != theirs:
            found.append(f"Structured Streaming answers otherwise than is written down; {AGAIN}")
        return [f"{seed}: {query.text}: {each}" for each in found]

    assert at_once(*(partial(wrong, seed) for seed in seeds)) == [[]] * len(seeds)
