"""Queries by name: each run by Structured Streaming and by Holdfast over the same micro-batches, batch by batch."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from queries import KILLED, NAMED, RESTARTED, Streams
from side_by_side import BATCHES, Rows, answers, at_once, by_spark

import holdfast
from holdfast.queries import NotCovered
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history

pytestmark = pytest.mark.spark

SHORT = {"tumbling", "sql", "left, conditions on one side and on both"}
"""In every run; the others by ``make long``."""
CASES = [pytest.param(name, marks=[] if name in SHORT else [pytest.mark.long]) for name in NAMED]
Both = tuple[dict[int, Rows], dict[int, Rows]]


@pytest.mark.parametrize("name", CASES)
def test_every_batch_is_that_of_structured_streaming(streams: Streams, place: Path, name: str) -> None:
    """In each mode that is allowed; the others are refused by both."""
    query = NAMED[name]
    frame = query.make(streams)
    for mode in {"append", "update", "complete"}.difference(query.modes):
        with pytest.raises(NotCovered, match=f"outputMode {mode}"):
            answers(holdfast.writeStream(frame), mode, place / "refused")
        with pytest.raises(AnalysisException):
            by_spark(frame, mode, place / "refused")

    def both(mode: str) -> Both:
        ours = answers(holdfast.writeStream(frame), mode, place / mode / "ours")
        return ours, by_spark(frame, mode, place / mode / "theirs")

    runs: list[Callable[[], Both]] = [lambda mode=mode: both(mode) for mode in query.modes]  # type: ignore[misc]
    for ours, theirs in at_once(*runs):
        assert ours == theirs
        assert len(ours) >= BATCHES and any(ours.values())


@pytest.mark.long
@pytest.mark.parametrize("name", KILLED)
def test_two_of_four_nodes_die_and_batches_stay_what_they_are(streams: Streams, place: Path, name: str) -> None:
    frame, mode = NAMED[name].make(streams), KILLED[name]
    writer, faults = holdfast.writeStream(frame), parse_faults("kill node-1,node-2 at epoch 2")
    writer.resilience(nodes=4, parallelism=4, checkpoint_every=3, faults=faults, rejoin_after=0.5)
    ours, theirs = at_once(
        lambda: answers(writer, mode, place / "ours"), lambda: by_spark(frame, mode, place / "theirs")
    )
    assert ours == theirs
    assert any(event["kind"] == "nodes lost" for event in read_history(place / "ours"))


@pytest.mark.long
@pytest.mark.parametrize("name", RESTARTED)
def test_a_query_that_is_stopped_goes_on(spark: SparkSession, root: Path, place: Path, name: str) -> None:
    """It has half of the batches, is started again, and has the rest; Structured Streaming likewise."""
    mode, rows = RESTARTED[name], place / "streams"
    ours: dict[int, Rows] = {}
    theirs: dict[int, Rows] = {}
    for first in (0, BATCHES // 2):
        for file in sorted(root.glob("*/*.json")):
            if first <= int(file.stem) < first + BATCHES // 2:
                (rows / file.parent.name).mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, rows / file.parent.name)
        frame = NAMED[name].make(Streams(spark, rows))
        before = len(ours)
        ours |= answers(holdfast.writeStream(frame), mode, place / "ours")
        theirs |= by_spark(frame, mode, place / "theirs")
        assert ours == theirs and len(ours) >= before + BATCHES // 2
