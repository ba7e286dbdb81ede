"""Options of Spark's own sources and files, by name. Spark takes any other in silence, and it does nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.runtime.spark.java import java, scala_object

FILES = (
    "path",
    # FileStreamOptions of Spark 4.3, which has no list of them
    "maxFilesPerTrigger", "maxBytesPerTrigger", "maxCachedFiles", "maxFileAge", "latestFirst", "fileNameOnly",
    "cleanSource", "sourceArchiveDir", "discardCachedInputRatio",
    # FileSourceOptions of Spark 4.3
    "ignoreCorruptFiles", "ignoreMissingFiles", "ignoredPathSegmentRegex", "archivePathFilter",
)  # fmt: skip
"""Of any source of files, beside those of ``INDEX`` and of its format."""
SOURCES = {
    "rate": ("rowsPerSecond", "rampUpTime", "numPartitions"),  # RateStreamProvider
    "rate-micro-batch": (  # RatePerMicroBatchProvider
        "rowsPerBatch", "numPartitions", "startTimestamp", "advanceMillisPerBatch",
    ),
    "socket": ("host", "port", "numPartitions", "includeTimestamp"),  # TextSocketSourceProvider
    "kafka": (  # KafkaSourceProvider
        "assign", "subscribe", "subscribePattern", "startingOffsets", "endingOffsets", "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp", "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestampStrategy",
        "failOnDataLoss", "minPartitions", "maxRecordsPerPartition", "maxOffsetsPerTrigger", "minOffsetsPerTrigger",
        "maxTriggerDelay", "groupIdPrefix", "includeHeaders",
    ),
}  # fmt: skip
"""Of sources that are no files, with the class in Spark 4.3 that reads them."""
INDEX = "execution.datasources.FileIndexOptions"
FORMATS = {
    "avro": "avro.AvroOptions",
    "csv": "catalyst.csv.CSVOptions",
    "json": "catalyst.json.JSONOptions",
    "orc": "execution.datasources.orc.OrcOptions",
    "parquet": "execution.datasources.parquet.ParquetOptions",
    "text": "execution.datasources.text.TextOptions",
    "xml": "catalyst.xml.XmlOptions",
}
"""Objects of ``org.apache.spark.sql`` that list their options themselves."""
NEAR = 0.75
"""How much alike two names are, of 1, for one to be meant by the other."""


def source_notes(frame: DataFrame) -> list[str]:
    """What to say of options that a source of Spark's does not know, where they look like ones that it does."""
    return [
        f"option {option} of source {name} is not known and does nothing; did you mean {meant}?"
        for name, given in _sources(frame)
        for option, meant in _misspelt(frame.sparkSession, name, given)
    ]


def _misspelt(spark: SparkSession, source: str, given: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Options with the names that are meant; none for a source that is not Spark's."""
    known: tuple[str, ...] = SOURCES.get(source, FILES)
    left = unknown(given, known) if source in SOURCES or source in FORMATS else []
    if left and source in FORMATS:
        known += (*declared(spark, INDEX), *declared(spark, FORMATS[source]))
        left = unknown(left, known)
    for option in left:
        if (meant := near(option, known)) is not None:
            yield option, meant


def unknown(given: Iterable[str], known: Iterable[str]) -> list[str]:
    """Names that are not known in upper or lower case. Those with a dot are settings of Hadoop, Parquet or Kafka."""
    there = {name.lower() for name in known}
    return [name for name in given if name.lower() not in there and "." not in name]


def near(option: str, known: Iterable[str]) -> str | None:
    """The name that this one looks like."""
    names = {name.lower(): name for name in known}
    found = get_close_matches(option.lower(), names, n=1, cutoff=NEAR)
    return names[found[0]] if found else None


def declared(spark: SparkSession, path: str) -> list[str]:
    """The options that an object of Spark's lists; none if this Spark has it elsewhere."""
    package, _, name = path.rpartition(".")
    found: Any = java(spark.sparkContext).org.apache.spark.sql
    try:
        for part in package.split("."):
            found = getattr(found, part)
        return str(scala_object(found, name).getAllOptions().mkString("\n")).splitlines()
    except Exception:  # py4j wraps what the JVM throws; a hint is no reason not to start
        return []


def _sources(frame: DataFrame) -> Iterator[tuple[str, list[str]]]:
    """The format of each streaming source, and the names of its options."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    for place in range(leaves.size()):
        leaf = leaves.apply(place)
        match str(leaf.getClass().getSimpleName()):
            case "StreamingRelation":
                source = leaf.dataSource()
                yield str(source.className()).lower(), str(source.options().keys().mkString("\n")).splitlines()
            case "StreamingRelationV2":
                given = leaf.extraOptions().asCaseSensitiveMap()
                yield str(leaf.sourceName()).lower(), sorted(str(name) for name in given.keySet())
