"""Folders as Spark's own file systems see them: any path or URL that Hadoop knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import Invalid
from holdfast.runtime.spark.java import java
from holdfast.runtime.spark.shipping import first_cause
from holdfast.state import Unusable
from holdfast.state.files import LocalFiles

EXCLUSIVE = "fs.option.create.conditional.overwrite"
"""Asks Hadoop (3.4.2 and later) for a conditional put, where an object store has it; others leave it out."""


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

    def make(self) -> None:
        """The folder, with those that it is in."""
        try:
            made = self._system.mkdirs(self._root)
        except Exception as error:
            raise self._refused("make it", error) from None
        if not made:
            raise Invalid(f"{self._what}: Spark cannot make it: the file system refused {self.url}")

    def names(self) -> list[str]:
        """What is in the folder; nothing if it is not there. Invalid if it is a file."""
        try:
            if not self._system.exists(self._root):
                return []
            if not self._system.getFileStatus(self._root).isDirectory():
                raise Invalid(f"{self._what} is a file, give a folder")
            return sorted(str(each.getPath().getName()) for each in self._system.listStatus(self._root))
        except Invalid:
            raise
        except Exception as error:
            raise self._refused("list it", error) from None

    def read(self, name: str) -> bytes:
        """A small file of the folder."""
        try:
            stream = self._system.open(self._path(self._root, name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()
        except Exception as error:
            raise self._refused(f"read {name}", error) from None

    def create(self, name: str, data: bytes) -> None:
        """A small new file; FileExistsError if other bytes have the name. The folder is made if it is not there.

        On the local disk of two at once exactly one succeeds. Elsewhere the file system decides: HDFS and object stores
        with conditional puts let one succeed; where a file is looked for and then written, it is read again, so two
        succeed only if both had done that before either had written all.
        """
        if self.local is not None:
            self._create_here(name, data)
            return
        failed: Exception | None = None
        try:
            builder = self._system.createFile(self._path(self._root, name)).overwrite(False).recursive()
            stream = builder.opt(EXCLUSIVE, True).build()
            stream.write(data)
            stream.close()
        except Exception as error:
            failed = error
        if name not in self.names():
            raise self._refused(f"write {name}", failed or FileNotFoundError(name)) from None
        if self.read(name) != data:
            raise FileExistsError(name)

    def _create_here(self, name: str, data: bytes) -> None:
        assert self.local is not None
        try:
            LocalFiles(Path(self.local)).create(name, data, True)
        except Unusable as error:
            raise Invalid(f"{self._what}: cannot write {name}: {_reason(error)}") from None

    def _refused(self, verb: str, error: Exception) -> Invalid:
        return Invalid(f"{self._what}: Spark cannot {verb}: {first_cause(error)}")


def _reason(error: Unusable) -> str:
    cause = error.__cause__
    return (cause.strerror if isinstance(cause, OSError) else None) or str(error)
