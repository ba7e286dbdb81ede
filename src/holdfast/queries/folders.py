"""Files of a plain query: a folder for each epoch, published by one rename.

A driver writes an epoch into a hidden folder and renames it to ``epoch=N``, which fails if this query has published
the epoch before. Of two drivers that write the same epoch, one publishes it and the files of the other are deleted. So
readers see each row once, and an epoch whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import EEXIST, ENOTEMPTY
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import Invalid
from holdfast.queries.stateful import NotCovered
from holdfast.runtime.spark.java import java
from holdfast.state import Writer

HADOOP = ("hdfs", "viewfs")
"""Schemes of Hadoop whose rename of a folder is atomic and fails if the target exists."""
STAGED = ".holdfast"
"""Holds folders that are not published. Spark and Arrow skip names that begin with a dot."""
MARK = "_holdfast"
"""The file that names the query, in every published folder. Skipped by readers too."""
_ATTEMPT = re.compile(r"(?P<store>\w+)-(?P<token>\d+)-(?P<epoch>\d+)-\w+")


class Place(Protocol):
    """The folder of a query's files, by names from there."""

    def rename(self, name: str, target: str) -> bool:
        """Rename a folder atomically. Returns False, and changes nothing, if the target exists and is not empty."""
        ...

    def put(self, name: str, text: str) -> None: ...
    def read(self, name: str) -> str | None:
        """The content of a small file; None if there is no such file."""
        ...

    def list(self, name: str) -> list[str]: ...
    def delete(self, name: str) -> None:
        """Delete a folder with its content, as much of it as can be deleted."""
        ...


class EpochFolders:
    """Writes each epoch exactly once, as files below a path. Call ``begin`` before the first epoch."""

    def __init__(
        self, spark: SparkSession, format_: str, path: str, by: tuple[str, ...], options: Mapping[str, str]
    ) -> None:
        self._format = format_
        self._path = path.rstrip("/") or path
        self._by = by
        self._options = dict(options)
        self._place = place_of(spark, format_, path)
        self._store = ""
        self._token = 0
        self._guard: Callable[[], None] = lambda: None

    def begin(self, writer: Writer) -> None:
        """Write for this writer's query, and only as long as the writer is not superseded."""
        self._store, self._token, self._guard = writer.store.marker(), writer.token, writer.guard

    def __call__(self, frame: DataFrame, epoch: int) -> None:
        if not self._is_there(epoch):
            staged = self._staged(epoch)
            writer = frame.write.format(self._format).mode("error").options(**self._options)
            (writer.partitionBy(*self._by) if self._by else writer).save(f"{self._path}/{staged}")
            self._place.put(f"{staged}/{MARK}", json.dumps({"store": self._store, "epoch": epoch}))
            self._guard()
            self._name(staged, epoch)
        self._tidy(epoch)

    def _staged(self, epoch: int) -> str:
        """A new name for each attempt: tasks of an attempt that failed may still write to theirs."""
        return f"{STAGED}/{self._store}-{self._token}-{epoch}-{uuid.uuid4().hex[:12]}"

    def _is_there(self, epoch: int) -> bool:
        """Whether this query has published the epoch. Invalid if another query has."""
        mark = self._place.read(f"epoch={epoch}/{MARK}")
        if mark is None:
            return False
        if (store := _store_of(mark)) != self._store:
            raise Invalid(
                f"{self._path}/epoch={epoch}: another query has written this folder (the one with store {store}, this "
                f"one has store {self._store}): give each query a folder of its own"
            )
        return True

    def _name(self, staged: str, epoch: int) -> None:
        """Publish the epoch, unless this query has published it."""
        target = f"epoch={epoch}"
        while not self._place.rename(staged, target) and not self._is_there(epoch):
            # Written before folders were marked: Spark wrote into it under this name, so it may not be whole.
            self._place.rename(target, self._staged(epoch))

    def _tidy(self, epoch: int) -> None:
        """Delete what attempts at published epochs left, also those of older drivers: none of it can be published.

        Attempts at later epochs stay. An older driver may still publish one, and must not publish what is left of it.
        """
        for name in self._place.list(STAGED):
            found = _ATTEMPT.fullmatch(name)
            if found is None or found["store"] != self._store:
                continue
            if int(found["token"]) <= self._token and int(found["epoch"]) <= epoch:
                self._place.delete(f"{STAGED}/{name}")


def _store_of(mark: str) -> str:
    try:
        return str(json.loads(mark)["store"])
    except (ValueError, KeyError, TypeError):
        return "unknown"


def place_of(spark: SparkSession, format_: str, path: str) -> Place:
    """The folder at a path, as Hadoop resolves it. NotCovered if its rename is not atomic."""
    context: Any = spark.sparkContext
    session: Any = spark._jsparkSession
    names = java(context)
    root = names.org.apache.hadoop.fs.Path(path)
    try:
        files = root.getFileSystem(session.sessionState().newHadoopConf())
        scheme = str(files.getUri().getScheme())
    except Exception:  # py4j wraps whatever Hadoop throws
        raise Invalid(f"format {format_}: Spark has no file system for {path}") from None
    if scheme == "file":
        return OnDisk(Path(str(files.makeQualified(root).toUri().getPath())))
    if scheme not in HADOOP:
        others = " or ".join(f"{each}://" for each in HADOOP)
        raise NotCovered(
            f"format {format_} to {path} is not covered: an epoch is published by renaming its folder, which is not "
            f"atomic on {scheme}://; write to a disk or to {others}, or with foreachBatch"
        )
    return OnHadoop(context, files, root)


class OnDisk:
    """A folder on a disk that the driver and the executors share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def rename(self, name: str, target: str) -> bool:
        try:
            os.rename(self._root / name, self._root / target)  # noqa: PTH104 - its errors are those of the system call
        except OSError as error:
            if error.errno in (EEXIST, ENOTEMPTY):
                return False
            raise
        return True

    def put(self, name: str, text: str) -> None:
        (self._root / name).write_text(text, encoding="utf-8")

    def read(self, name: str) -> str | None:
        try:
            return (self._root / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def list(self, name: str) -> list[str]:
        with suppress(FileNotFoundError):
            return sorted(each.name for each in (self._root / name).iterdir())
        return []

    def delete(self, name: str) -> None:
        shutil.rmtree(self._root / name, ignore_errors=True)


class OnHadoop:
    """A folder on a file system of Hadoop. Its ``FileContext`` does not replace the target of a rename."""

    def __init__(self, context: Any, files: Any, root: Any) -> None:
        hadoop = java(context).org.apache.hadoop.fs
        self._path = hadoop.Path
        self._files = files
        self._root = root
        self._context = hadoop.FileContext.getFileContext(files.getUri(), files.getConf())
        kinds = getattr(hadoop, "Options$Rename")
        self._plainly = context._gateway.new_array(kinds, 1)
        self._plainly[0] = kinds.NONE

    def rename(self, name: str, target: str) -> bool:
        try:
            self._context.rename(self._at(name), self._at(target), self._plainly)
        except Py4JJavaError as error:
            if _thrown(error) == "FileAlreadyExistsException":
                return False
            raise
        return True

    def put(self, name: str, text: str) -> None:
        file = self._files.create(self._at(name), True)
        try:
            file.write(bytearray(text.encode()))
        finally:
            file.close()

    def read(self, name: str) -> str | None:
        try:
            file = self._files.open(self._at(name))
        except Py4JJavaError as error:
            if _thrown(error) == "FileNotFoundException":
                return None
            raise
        try:
            return bytes(file.readAllBytes()).decode()
        finally:
            file.close()

    def list(self, name: str) -> list[str]:
        try:
            found = self._files.listStatus(self._at(name))
        except Py4JJavaError as error:
            if _thrown(error) == "FileNotFoundException":
                return []
            raise
        return sorted(str(each.getPath().getName()) for each in found)

    def delete(self, name: str) -> None:
        with suppress(Py4JJavaError):
            self._files.delete(self._at(name), True)

    def _at(self, name: str) -> Any:
        return self._path(self._root, name)


def _thrown(error: Py4JJavaError) -> str:
    """The class of what Java threw, without its package."""
    thrown: Any = error.java_exception
    return str(thrown.getClass().getSimpleName())
