"""Folders as Spark's own file systems see them: any path or URL that Hadoop knows."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import Invalid
from holdfast.runtime.spark.java import java
from holdfast.runtime.spark.shipping import first_cause


class HadoopFolder:
    """A folder at a path or URL. Invalid, named by ``what``, if Spark cannot look there.

    ``url``: in full; a path without a scheme is where ``fs.defaultFS`` says.
    """

    def __init__(self, spark: SparkSession, what: str, place: str) -> None:
        session: Any = spark._jsparkSession
        self._what = what
        self._path = java(spark.sparkContext).org.apache.hadoop.fs.Path
        try:
            root = self._path(place)
            self._system = root.getFileSystem(session.sessionState().newHadoopConf())
            self._root = self._system.makeQualified(root)
            self.url = str(self._root.toUri())
            self.local = str(self._root.toUri().getPath()) if self._system.getUri().getScheme() == "file" else None
        except Exception as error:  # py4j wraps whatever Hadoop throws
            raise self._refused("look there", error) from None

    def names(self) -> list[str]:
        """What is in the folder; nothing if it is not there."""
        try:
            if not self._system.exists(self._root):
                return []
            return sorted(str(each.getPath().getName()) for each in self._system.listStatus(self._root))
        except Exception as error:
            raise self._refused("list it", error) from None

    def _refused(self, verb: str, error: Exception) -> Invalid:
        return Invalid(f"{self._what}: Spark cannot {verb}: {first_cause(error)}")
