"""Where Structured Streaming keeps its own log of a stream, and that a store and a log belong together.

The log says which rows are which batch, the store what became of them. One without the other would count rows twice or
not at all, so a store knows the id of its query, which is in the log, and numbers that do not follow are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import Invalid
from holdfast.runtime.spark.java import java
from holdfast.state import fence
from holdfast.state.entries import SPARK_LOG, document, read_document
from holdfast.state.files import Files

FOLDER = "spark"
HADOOP = {"s3": "s3a"}
"""Schemes that Hadoop has under another name."""
WRITTEN_BY = "spark.sql.streaming.checkpointFileManagerClass"
RENAMING = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_starting = threading.Lock()


def log_of(spark: SparkSession, store: str, given: str | None) -> str:
    """The URL of Spark's log: what was given, else the folder ``spark`` of the store as Hadoop names it."""
    url = given if given is not None else f"{store}/{FOLDER}"
    scheme, separator, rest = url.partition("://")
    if not separator:
        return str(Path(url).absolute())
    scheme = HADOOP.get(scheme, scheme)
    context: Any = spark.sparkContext
    try:
        java(context).org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, context._jsc.hadoopConfiguration())
    except Exception:  # py4j wraps whatever Hadoop throws
        package = "hadoop-aws (spark.jars.packages)" if scheme == "s3a" else f"a file system for {scheme}://"
        other = "give another spark_log" if given is not None else 'or say where it shall be: spark_log="/shared/log"'
        raise Invalid(
            f"store {store}: Spark cannot keep its own log at {scheme}://{rest}; add {package} to Spark's class path, "
            f"{other}"
        ) from None
    return f"{scheme}://{rest}"


@contextmanager
def renaming(spark: SparkSession, log: str) -> Iterator[None]:
    """A query that is started meanwhile writes its log by plain renames, if that is on a local disk and nobody said
    how.

    What Spark takes otherwise does the same, looks whether the name is free and renames, but by Hadoop's other
    interface, which starts four processes for each file to find out that it is no link. On other file systems that one
    is right.
    """
    with _starting:  # one query at a time: the setting is the session's
        if spark.conf.get(WRITTEN_BY, None) is not None or not _on_disk(spark, log) or not _there(spark, RENAMING):
            yield
            return
        spark.conf.set(WRITTEN_BY, RENAMING)
        try:
            yield
        finally:
            spark.conf.unset(WRITTEN_BY)


def _on_disk(spark: SparkSession, log: str) -> bool:
    """Whether Hadoop has it on a local disk: where a path without a scheme is, ``fs.defaultFS`` says."""
    context: Any = spark.sparkContext
    session: Any = spark._jsparkSession
    try:
        path = context._jvm.org.apache.hadoop.fs.Path(log)
        return bool(path.getFileSystem(session.sessionState().newHadoopConf()).getUri().getScheme() == "file")
    except Exception:  # py4j wraps whatever Hadoop throws; Spark will say it better
        return False


def _there(spark: SparkSession, name: str) -> bool:
    context: Any = spark.sparkContext
    try:
        context._jvm.java.lang.Class.forName(name)
    except Exception:  # py4j wraps ClassNotFoundException: another Spark has it elsewhere
        return False
    return True


def belongs(files: Files, token: int, query: str, log: str, begun: bool) -> None:
    """Invalid if the store has epochs of another query than the one whose log this is. ``begun``: it has some.

    Fenced if ``token`` is not the newest writer's: then the store is another's to say whose log belongs to it.
    """
    content = document(files, "spark-log", {"query": query})
    fence.check(files, token)
    try:
        (files.create if begun else files.put)(SPARK_LOG, content, True)
        fence.check(files, token)
    except FileExistsError:
        known = read_document(files, "spark-log", SPARK_LOG)["query"]
        if known == query:
            return  # written before documents had the store's id: the same, in other bytes
        raise Invalid(
            f"store {files.url}: Spark's log at {log} is not the one that this store was written with (query {query}, "
            f"not {known}); give the log that belongs to it, or start with a new store"
        ) from None
