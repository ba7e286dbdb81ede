"""Spark's own shuffle between levels, with both sides held to chosen executors; and batches as Arrow, without rows.

Four things that PySpark has no public call for, reached through its gateway:
- ``SparkContext.makeRDD`` of (payload, [location]) pairs gives partitions that prefer a location, and a location
  ``executor_<host>_<id>`` means one executor;
- zipping a shuffled RDD with such an RDD hands that preference on to the reduce side;
- the product of an RDD and one that has a single record prefers the places of that record;
- ``Dataset.toArrowBatchRdd`` gives a batch as Arrow record batches, which Python workers read without unpickling a row.
Bundles cross as raw bytes: (slot as a long, bundle) pairs on the map side, bundles on the reduce side.
"""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from pyspark import SparkContext, serializers
from pyspark.core.rdd import RDD
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame

from holdfast.runtime.spark.java import java

Stage = Callable[[int, Iterable[bytes]], Iterable[bytes]]
"""What a level runs on each of its partitions: index and bundles in; one bundle for each slot of the next level out."""

Places = tuple[tuple[str, ...], ...]
"""Of each partition, where it would rather be; anywhere if that is empty."""
REMEMBERED = 64
"""So many arrangements of partitions over places are kept: a run has one for each of its levels."""
_TAG = b"."
_numbers = count(1)
_serializers: Any = serializers
"""PySpark's serializers have no types of their own."""


class BrokenOff(Exception):
    """What was to be read ended before its end. Whoever wrote it tells why; this is never the first cause."""


class Whole(NoOpSerializer):
    """Bytes as they come, up to the mark at their end.

    PySpark's own take a stream that breaks off, since Spark failed in the middle of a batch, for one that is over: a
    task would keep the rows before as if they were all.
    """

    def load_stream(self, stream: Any) -> Iterator[bytes]:
        try:
            while (length := _serializers.read_int(stream)) != _serializers.SpecialLengths.END_OF_DATA_SECTION:
                message = stream.read(length)
                if len(message) < length:
                    raise EOFError
                yield message
        except EOFError:
            raise BrokenOff("the rows of this task broke off") from None


class _Raw(Whole):
    """Hands the bytes of the locating side through as a batch of one."""

    def _load_stream_without_unbatching(self, stream: Any) -> Iterator[Any]:
        for message in self.load_stream(stream):
            yield [message]


@dataclass(frozen=True)
class _Keyed:
    """Puts the number of its slot before each bundle. A class, since a function within would be shipped as code."""

    stage: Stage

    def __call__(self, index: int, records: Iterable[bytes]) -> Iterator[bytes]:
        for slot, bundle in enumerate(self.stage(index, records)):
            yield _serializers.pack_long(slot)
            yield bundle


class Exchange:
    """Builds the one Spark job of a run: a first level, then shuffles to further ones."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        jvm = java(context)
        self._convert = jvm.scala.jdk.javaapi.CollectionConverters
        self._bytes = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
        self._java_rdd = jvm.org.apache.spark.api.java.JavaRDD
        self._from_rdd = self._java_rdd.fromRDD
        self._pairwise = jvm.PairwiseRDD
        self._partitioner = jvm.PythonPartitioner
        self._value_of_pair = jvm.PythonRDD.valueOfPair
        self._to_java = jvm.org.apache.spark.api.python.SerDeUtil.pythonToJava
        self._list = jvm.java.util.ArrayList
        self._pair = jvm.scala.Tuple2
        self._knowing = threading.Lock()  # runs of several kinds are laid out at once
        self._known: dict[tuple[bytes, Places], Any] = {}
        """What ``_at`` has made, the one that was needed last at the end."""

    def batch(self, frame: DataFrame, plan: Any = None, locations: Sequence[str] = ()) -> tuple[RDD[bytes], int]:
        """A batch as Arrow record batch messages, and the number of its partitions; read at one of these locations.

        ``plan``: where ``foreachBatch`` gave the frame, the plan that it copies every row of.
        """
        made: Any = frame._jdf
        java = self._from_rdd(made.toArrowBatchRdd(plan) if plan else made.toArrowBatchRdd(), self._bytes)
        count = java.getNumPartitions()
        if not count:  # an empty file: the epoch has a watermark all the same, and somebody must tell it
            java, count = self._context._jsc.parallelize(self._list(), 1), 1
        if locations:
            java = self._value_of_pair(self._at(b"", (tuple(locations),)).cartesian(java))
        return RDD(java, self._context, Whole()), count

    def in_a_row(self, level: RDD[bytes]) -> RDD[bytes] | None:
        """All partitions as one, which reads them one after the other; None if it would not be in their order.

        Where partitions prefer places, Spark takes those first that do.
        """
        java: Any = level._jrdd.coalesce(1)
        if java.partitions().get(0).preferredLocation().isDefined():
            return None
        return RDD(java, self._context, Whole())

    def settings_of(self, frame: DataFrame) -> None:
        """What this frame's session was told reaches its tasks, as with any query: by the properties of this thread."""
        session: Any = frame.sparkSession._jsparkSession
        told = self._convert.asJava(session.sessionState().conf().getAllConfs())
        # In one piece: to walk through a Java map takes three calls an entry.
        written = java(self._context).com.fasterxml.jackson.databind.ObjectMapper().writeValueAsString(told)
        for name, value in json.loads(written).items():
            if name.startswith("spark.sql."):
                self._context.setLocalProperty(name, value)

    def located(self, locations: Sequence[str | None]) -> RDD[bytes]:
        """One empty record for each location, on that location."""
        return RDD(self._at(b"", _each(locations)), self._context, Whole())

    def dealt(self, records: Sequence[bytes]) -> RDD[bytes]:
        """A partition for each record, anywhere."""
        return RDD(self._located(records, [[]] * len(records)), self._context, Whole())

    def shuffle(self, level: RDD[bytes], stage: Stage, partitions: int, locations: Sequence[str | None]) -> RDD[bytes]:
        """Run ``stage`` on a level and send its bundles to the slots of the next, which are at ``locations``.

        Every partition sends one bundle to every slot, so that a slot knows how many will come.
        """
        width = len(locations)

        mapped: Any = level.mapPartitionsWithIndex(_Keyed(stage), preservesPartitioning=True)
        mapped._bypass_serializer = True
        pairs = self._pairwise(mapped._jrdd.rdd()).asJavaPairRDD()
        # Equal numbers would be one partitioner to Spark, and between two levels of equal width it would not shuffle.
        partitioner = self._partitioner(width, next(_numbers))
        shuffled = self._value_of_pair(pairs.partitionBy(partitioner))
        if all(location is None for location in locations):
            return RDD(shuffled, self._context, Whole())
        # The pickled tags are made here and read by pyspark's own workers a moment later; nothing of it is stored.
        tags = pickle.dumps([_TAG] * partitions, protocol=3)
        anchor = self._to_java(self._at(tags, _each(locations)), True)
        pairwise = _serializers.PairDeserializer(_Raw(), Whole())
        zipped: RDD[Any] = RDD(anchor.zip(shuffled), self._context, pairwise)
        return zipped.mapPartitionsWithIndex(_second, preservesPartitioning=True)

    def collect(self, level: RDD[bytes], stage: Stage) -> list[bytes]:
        """Run ``stage`` on the last level and bring what it yields to the driver.

        By a socket of PySpark's. The gateway would save that, but waits 40 ms within every answer beyond 8 KB: its JVM
        side writes those in pieces, and each but the first waits until the one before is acknowledged.
        """
        return level.mapPartitionsWithIndex(stage).collect()

    def _at(self, payload: bytes, places: Places) -> Any:
        """The same payload at each of these places. Epochs ask for the same again and again: it is made once, since
        each place takes six calls through the gateway."""
        with self._knowing:
            made = self._known.pop((payload, places), None)
        made = made or self._located([payload] * len(places), places)
        with self._knowing:
            self._known[payload, places] = made
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
        return made

    def _located(self, payloads: Sequence[bytes], places: Sequence[Sequence[str]]) -> Any:
        """A partition for each payload, which prefers these places; anywhere if there are none."""
        pairs = self._list()
        for payload, wanted in zip(payloads, places, strict=True):
            names = self._list()
            for location in wanted:
                names.add(location)
            pairs.add(self._pair(bytearray(payload), self._convert.asScala(names).toSeq()))
        made = self._context._jsc.sc().makeRDD(self._convert.asScala(pairs).toSeq(), self._bytes)
        return self._java_rdd(made, self._bytes)


def _each(locations: Sequence[str | None]) -> Places:
    return tuple(() if location is None else (location,) for location in locations)


def _second(_: int, pairs: Iterable[Any]) -> Iterator[bytes]:
    for _tag, bundle in pairs:
        yield bundle
