"""Clicks of a broker by page and minute: python examples/nats_clicks.py nats://127.0.0.1:4222 STORE [--publish 1000]

Needs `pip install 'holdfast[nats]'`, PySpark 4.2 and a NATS server with JetStream (`nats-server -js`). The source is a
Python data source as Spark has them; the query does not know of it, and Holdfast does not either.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import nats
import pyarrow as pa
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.client import JetStreamContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

import holdfast

STREAM = "clicks"
PATIENCE = 30.0
"""Seconds that a broker may be away. Longer, and the query ends; started again, it goes on."""
AT_ONCE = 500
ROWS = pa.schema({"sequence": pa.int64(), "subject": pa.string(), "value": pa.binary()})


def asked(url: str, question: Callable[[JetStreamContext], Awaitable[Any]]) -> Any:
    """What a broker answers, which may be away for a while: Spark gives up on a source that fails once."""

    async def ask() -> Any:
        connection = await nats.connect(url, allow_reconnect=False, connect_timeout=5, error_cb=unheard)
        try:
            return await question(connection.jetstream())
        finally:
            await connection.close()

    async def unheard(error: Exception) -> None:
        """It is raised too."""

    until = time.monotonic() + PATIENCE
    while True:
        try:
            return asyncio.run(ask())
        except nats.js.errors.NotFoundError:
            raise
        except (nats.errors.Error, OSError) as error:
            if time.monotonic() > until:
                raise ConnectionError(f"{url}: no answer for {PATIENCE:.0f} s: {error}") from error
            time.sleep(0.2)


@dataclass
class Range(InputPartition):
    """Messages by their sequence numbers, both included."""

    first: int
    last: int


class JetStream(DataSource):
    """Options: ``url``, ``stream``, ``maxMessagesPerBatch``, and ``partitions``, into which a batch is divided."""

    @classmethod
    def name(cls) -> str:
        return "jetstream"

    def schema(self) -> str:
        return "sequence bigint, subject string, value binary"

    def streamReader(self, schema: StructType) -> "Reader":
        return Reader(self.options)


class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An offset is the sequence number of the last message read. The stream keeps messages, so any can be read again.

    All but ``read`` is called on the driver.
    """

    def __init__(self, options: Any) -> None:
        self._url, self._stream = options["url"], options["stream"]
        self._limit = int(options.get("maxMessagesPerBatch", "10000"))
        self._partitions = int(options.get("partitions", "2"))
        self._target: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"sequence": max(self._known().first_seq, 1) - 1}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._known().last_seq

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        read = start["sequence"]
        last = self._known(read, read).last_seq
        last = last if self._target is None else min(last, self._target)
        return {"sequence": max(read, last if isinstance(limit, ReadAllAvailable) else min(last, read + self._limit))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[Range]:
        first, last = start["sequence"] + 1, end["sequence"]
        self._known(first - 1, last)
        size = max(1, -(-(last - first + 1) // self._partitions))
        return [Range(at, min(at + size - 1, last)) for at in range(first, last + 1, size)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor."""
        assert isinstance(partition, Range)
        found = asked(self._url, lambda stream: messages(stream, self._stream, partition.first, partition.last))
        yield pa.RecordBatch.from_pylist(found, schema=ROWS)

    def _known(self, read: int = 0, last: int = 0) -> Any:
        """The first and the last message of the stream, which must still have those behind ``read`` up to ``last``."""
        known = asked(self._url, lambda stream: stream.stream_info(self._stream)).state
        if last > known.last_seq:
            told = f"message {last} was there before, and now the last is {known.last_seq}: this is another stream"
            raise LookupError(f"stream {self._stream}: {told}")
        if read < last and read + 1 < known.first_seq:
            gone = f"messages {read + 1} to {min(last, known.first_seq - 1)} are gone"
            raise LookupError(f"stream {self._stream}: {gone}; the first that there is: {known.first_seq}")
        return known


async def messages(stream: JetStreamContext, name: str, first: int, last: int) -> list[dict[str, Any]]:
    """Those from ``first`` to ``last`` that nobody has deleted."""
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first, ack_policy=AckPolicy.NONE,
        mem_storage=True, inactive_threshold=PATIENCE,
    )  # fmt: skip
    reading = await stream.pull_subscribe("", stream=name, config=config)
    information = await reading.consumer_info()
    found, behind = [], information.num_pending
    while behind and first <= last:
        for message in await reading.fetch(min(AT_ONCE, last - first + 1), timeout=5):
            known = message.metadata
            first, behind = known.sequence.stream + 1, known.num_pending
            if first <= last + 1:
                found.append({"sequence": first - 1, "subject": message.subject, "value": message.data})
    await stream.delete_consumer(name, information.name)
    return found


def clicks(spark: SparkSession, url: str, limit: int = 200) -> DataFrame:
    """A stream like any other; from Kafka it would be format("kafka") with its own options."""
    spark.dataSource.register(JetStream)
    source = spark.readStream.format("jetstream").options(url=url, stream=STREAM, maxMessagesPerBatch=limit)
    value = F.from_json(F.col("value").cast("string"), "page string, amount double, time timestamp")
    return source.load().select(value.alias("click")).select("click.*")


def totals(clicks: DataFrame) -> DataFrame:
    """An ordinary windowed aggregate."""
    groups = clicks.withWatermark("time", "2 minutes").groupBy(F.window("time", "1 minute"), "page")
    summed = groups.agg(F.count("*").alias("n"), F.sum("amount").alias("amount"))
    return summed.select(F.col("window.start").alias("minute"), "page", "n", "amount")


def samples(known: int, count: int) -> list[dict[str, Any]]:
    """Clicks behind the first ``known``, four a second."""
    made = []
    for number in range(known, known + count):
        draw, at = random.Random(number), datetime(2026, 1, 1, 12) + timedelta(seconds=number // 4)
        page = draw.choice(["/", "/cart", "/help"])
        made.append({"page": page, "amount": draw.randrange(40) / 4, "time": f"{at.isoformat()}Z"})
    return made


def made_stream(url: str) -> int:
    """The stream is there, and has so many messages."""
    return int(asked(url, lambda stream: stream.add_stream(name=STREAM, subjects=[STREAM])).state.last_seq)


def publish(url: str, made: Sequence[dict[str, Any]]) -> None:
    """Each has an id, by which the broker knows one that is sent again because its receipt was lost."""
    sender = uuid4().hex

    async def send(stream: JetStreamContext) -> None:
        for number, click in enumerate(made):
            await stream.publish(STREAM, json.dumps(click).encode(), headers={"Nats-Msg-Id": f"{sender}-{number}"})

    made_stream(url)
    asked(url, send)


def show(batch: DataFrame, number: int) -> None:
    for row in batch.orderBy("minute", "page").collect():
        print(number, f"{row.minute:%H:%M}", row.page, row.n, row.amount)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("store")
    parser.add_argument("--publish", type=int, default=0, metavar="N", help="so many messages of its own first")
    given = parser.parse_args()
    publish(given.url, samples(made_stream(given.url), given.publish))
    spark = holdfast.spark_session("local[2]")
    query = (
        holdfast.writeStream(totals(clicks(spark, given.url)))
        .outputMode("update")
        .foreachBatch(show)
        .resilience(nodes=4, budget=1.0)
        .option("checkpointLocation", given.store)
        .trigger(availableNow=True)  # what there is now; without it, until query.stop()
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
