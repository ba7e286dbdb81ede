"""A query over a broker that is a process of its own: NATS JetStream, read as examples/nats_clicks.py reads it."""

from __future__ import annotations

import os
import random
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast.errors import HoldfastError
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history
from waiting import DEADLINE, until

pytest.importorskip("nats", reason="nats-py is not there: pip install 'holdfast[nats]'")
ReadAllAvailable = pytest.importorskip(
    "pyspark.sql.streaming.datasource", reason="a source of this kind needs PySpark 4.2"
).ReadAllAvailable

EXAMPLE = Path(__file__).parents[3] / "examples" / "nats_clicks.py"
SERVER = os.environ.get("NATS_SERVER") or shutil.which("nats-server")
LIMIT = 100
BUSY = "Python worker failed to connect back"
"""Spark waits ten seconds for the Python process of a source: too few on a machine that is very busy."""
Totals = dict[tuple[str, str], tuple[int, float]]
pytestmark = pytest.mark.skipif(SERVER is None, reason="no nats-server: put one on the PATH, or name it in NATS_SERVER")


class Broker:
    """A server with JetStream on loopback; what it was told outlives it in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = free.getsockname()
        self.url = f"nats://127.0.0.1:{self._address[1]}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert SERVER is not None
        words = [SERVER, "-a", "127.0.0.1", "-p", str(self._address[1]), "-js", "-sd", str(self._folder)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log)
        log = self._folder / "log"
        until(self._listens, lambda: log.read_text(encoding="utf-8"))

    def _listens(self) -> bool:
        assert self._process is not None and self._process.poll() is None
        try:
            socket.create_connection(self._address, timeout=DEADLINE).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def come_back(self) -> None:
        """Not before somebody has come to where it listened, and has found nobody who speaks."""
        with socket.create_server(self._address) as door:
            door.settimeout(DEADLINE)
            door.accept()[0].close()
        self.start()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    folder = tmp_path / "broker"
    folder.mkdir()
    made = Broker(folder)
    try:
        made.start()
        yield made
    finally:
        made.kill()


@pytest.fixture
def example() -> dict[str, Any]:
    """What the example defines, as whoever copied it has it."""
    return runpy.run_path(str(EXAMPLE))


def some_clicks(seed: int, count: int) -> list[dict[str, Any]]:
    """Not in the order of their times, but none so late that it would be dropped; amounts add up exactly."""
    draw, made = random.Random(seed), []
    for number in range(count):
        second = 3600 + seed * 600 + number + draw.randrange(40)
        at = f"2026-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
        made.append({"page": draw.choice(["/", "/cart", "/help"]), "amount": draw.randrange(40) / 4, "time": at})
    return made


def counted(clicks: list[dict[str, Any]]) -> Totals:
    """By page and minute, in a plain loop."""
    found: Totals = defaultdict(lambda: (0, 0.0))
    for click in clicks:
        key = (click["time"][11:16], click["page"])
        found[key] = (found[key][0] + 1, found[key][1] + click["amount"])
    return dict(found)


class Answers:
    """What foreachBatch got: the newest of each group, and the numbers of the batches in the order of their coming."""

    def __init__(self) -> None:
        self.newest: Totals = {}
        self.numbers: list[int] = []

    def __call__(self, batch: DataFrame, number: int) -> None:
        self.numbers.append(number)
        for row in batch.selectExpr("date_format(minute, 'HH:mm') AS minute", "page", "n", "amount").collect():
            self.newest[row.minute, row.page] = (row.n, row.amount)


def writer(example: dict[str, Any], spark: SparkSession, broker: Broker, answers: Answers, store: Path) -> Any:
    totals = example["totals"](example["clicks"](spark, broker.url, LIMIT))
    writing = holdfast.writeStream(totals).outputMode("update").foreachBatch(answers)
    return writing.option("checkpointLocation", str(store))


def begun(writing: Any, answers: Answers) -> Any:
    """A query that has given a batch, or has ended; begun again if the machine was too busy for Spark to begin it."""
    known, end = len(answers.numbers), time.monotonic() + DEADLINE
    while True:
        query = writing.start()
        try:
            while len(answers.numbers) == known and not query.awaitTermination(0.02):
                assert time.monotonic() < end, "no batch came"
            return query
        except HoldfastError as error:
            if BUSY not in str(error) or time.monotonic() > end:
                raise


def reader(example: dict[str, Any], broker: Broker, **options: str) -> Any:
    return example["Reader"]({"url": broker.url, "stream": example["STREAM"], **options})


def sequences(reader: Any, after: int, last: int) -> list[int]:
    """Of what is read behind a message up to another, a partition after the other."""
    parts = reader.partitions({"sequence": after}, {"sequence": last})
    return [row["sequence"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("partitions", ["1", "3", "50"])
def test_partitions_have_each_message_once_without_those_that_were_deleted(
    example: dict[str, Any], broker: Broker, partitions: str
) -> None:
    example["publish"](broker.url, some_clicks(0, 40))
    reading = reader(example, broker, partitions=partitions)
    assert sequences(reading, 0, 40) == list(range(1, 41)) and sequences(reading, 7, 20) == list(range(8, 21))
    assert sequences(reading, 40, 40) == []
    for sequence in (12, 13, 14, 39, 40):
        example["asked"](broker.url, lambda stream, gone=sequence: stream.delete_msg(example["STREAM"], gone))
    assert sequences(reading, 10, 40) == [11, *range(15, 39)] and sequences(reading, 38, 40) == []


def test_a_batch_has_at_most_so_many_messages(example: dict[str, Any], broker: Broker) -> None:
    reading = reader(example, broker, maxMessagesPerBatch="30")
    example["publish"](broker.url, some_clicks(0, 40))
    start, limit = reading.initialOffset(), reading.getDefaultReadLimit()
    assert start == {"sequence": 0} and reading.latestOffset(start, limit) == {"sequence": 30}
    assert reading.latestOffset(start, ReadAllAvailable()) == {"sequence": 40}
    reading.prepareForTriggerAvailableNow()
    example["publish"](broker.url, some_clicks(1, 5))
    assert [reading.latestOffset({"sequence": at}, limit)["sequence"] for at in (0, 30, 40)] == [30, 40, 40]


def test_a_broker_that_is_away_is_waited_for(example: dict[str, Any], broker: Broker) -> None:
    example["publish"](broker.url, some_clicks(0, 40))
    reading = reader(example, broker)
    parts = reading.partitions({"sequence": 0}, {"sequence": 40})
    broker.kill()
    back = threading.Thread(target=broker.come_back)
    back.start()
    assert [batch.num_rows for part in parts for batch in reading.read(part)] == [20, 20]
    back.join()


def test_a_stream_that_was_made_anew_is_refused(example: dict[str, Any], broker: Broker) -> None:
    example["publish"](broker.url, some_clicks(0, 40))
    example["asked"](broker.url, lambda stream: stream.delete_stream(example["STREAM"]))
    example["publish"](broker.url, some_clicks(0, 7))
    reading = reader(example, broker)
    with pytest.raises(LookupError, match="message 40 was there before, and now the last is 7: this is another"):
        reading.latestOffset({"sequence": 40}, reading.getDefaultReadLimit())


@pytest.mark.long
@pytest.mark.spark
def test_a_node_dies_the_query_stops_and_goes_on(
    spark: SparkSession, example: dict[str, Any], broker: Broker, tmp_path: Path
) -> None:
    first, more, answers = some_clicks(1, 550), some_clicks(2, 230), Answers()
    example["publish"](broker.url, first)
    writing = writer(example, spark, broker, answers, tmp_path / "store").trigger(availableNow=True)
    writing.resilience(nodes=3, faults=parse_faults("kill node-1 at epoch 2"), checkpoint_every=3, rejoin_after=0.5)
    begun(writing, answers).awaitTermination()
    assert any(event["kind"] == "nodes lost" for event in read_history(tmp_path / "store"))
    assert answers.newest == counted(first)
    known = len(answers.numbers)
    assert known >= 6, "a hundred messages a batch"
    example["publish"](broker.url, more)
    begun(writing, answers).awaitTermination()
    assert answers.newest == counted(first + more)
    assert len(answers.numbers) >= known + 3 and answers.numbers == list(range(len(answers.numbers)))


@pytest.mark.long
@pytest.mark.spark
def test_a_query_that_is_stopped_in_the_middle_goes_on_there(
    spark: SparkSession, example: dict[str, Any], broker: Broker, tmp_path: Path
) -> None:
    first, more, answers = some_clicks(7, 1000), some_clicks(9, 130), Answers()
    example["publish"](broker.url, first)
    writing = writer(example, spark, broker, answers, tmp_path / "store")
    begun(writing, answers).stop()
    assert 0 < len(answers.numbers) < 10, "it was to be stopped before it had read all"
    example["publish"](broker.url, more)
    begun(writing.trigger(availableNow=True), answers).awaitTermination()
    assert answers.newest == counted(first + more) and answers.numbers == list(range(len(answers.numbers)))


@pytest.mark.long
@pytest.mark.spark
def test_the_broker_is_killed_and_comes_back(
    spark: SparkSession, example: dict[str, Any], broker: Broker, tmp_path: Path
) -> None:
    first, more, answers = some_clicks(3, 250), some_clicks(4, 150), Answers()
    example["publish"](broker.url, first)
    writing = writer(example, spark, broker, answers, tmp_path / "store").trigger(processingTime="50 milliseconds")
    query = begun(writing, answers)
    try:
        query.processAllAvailable()
        assert answers.newest == counted(first)
        broker.kill()
        broker.come_back()
        example["publish"](broker.url, more)
        query.processAllAvailable()
    finally:
        query.stop()
    assert answers.newest == counted(first + more) and answers.numbers == list(range(len(answers.numbers)))


@pytest.mark.long
@pytest.mark.spark
def test_messages_that_the_broker_no_longer_has_end_the_query(
    spark: SparkSession, example: dict[str, Any], broker: Broker, tmp_path: Path
) -> None:
    answers = Answers()
    example["publish"](broker.url, some_clicks(5, 50))
    writing = writer(example, spark, broker, answers, tmp_path / "store").trigger(availableNow=True)
    begun(writing, answers).awaitTermination()
    example["publish"](broker.url, some_clicks(6, 50))
    example["asked"](broker.url, lambda stream: stream.purge_stream(example["STREAM"], seq=81))
    with pytest.raises(HoldfastError, match="messages 51 to 80 are gone; the first that there is: 81"):
        begun(writing, answers)


@pytest.mark.long
@pytest.mark.spark
def test_the_example_as_it_stands(
    spark: SparkSession,
    example: dict[str, Any],
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Twice with the same store: what it publishes the second time is added to what it knew."""
    newest: Totals = {}
    to_come = [1000, 400]
    while to_come:
        words = [broker.url, str(tmp_path / "store"), "--publish", str(to_come.pop(0))]
        monkeypatch.setattr(sys, "argv", [EXAMPLE.name, *words])
        try:
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        except HoldfastError as error:
            assert BUSY in str(error)
            to_come.insert(0, 0)
        for line in capsys.readouterr().out.splitlines():
            _, minute, page, n, amount = line.split()
            newest[minute, page] = (int(n), float(amount))
    assert newest == counted(example["samples"](0, 1400))
