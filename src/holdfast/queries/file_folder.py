"""Whose a folder of files is: one query's alone, by a mark that names the query's store.

The files of a batch are in ``epoch=N``: two queries in one folder would overwrite each other's, and other files there
would keep Spark from reading them back. Its readers skip the mark, as any name that begins with ``_``.
"""

from __future__ import annotations

import re
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.errors import Invalid
from holdfast.queries import delivery
from holdfast.runtime.spark.hadoop import HadoopFolder
from holdfast.state import Damaged, Store
from holdfast.state.entries import document, parse_document
from holdfast.state.places import check_writable, on_disk

MARK, KIND = "_holdfast", "output-owner"
LISTED = "_spark_metadata"
"""Structured Streaming's list of the files it wrote: where it is, Spark reads no others."""
COLUMN = "epoch"
_EPOCH = re.compile(rf"{COLUMN}=(\d+)")


def refuse_column(columns: list[str]) -> None:
    """Invalid if a column has the name of the folders. Spark does not tell upper from lower case in names."""
    if (name := next((each for each in columns if each.lower() == COLUMN), None)) is not None:
        raise Invalid(
            f"column {name}: the files of a batch are in a folder {COLUMN}=N, so its values would be read back as N; "
            f"rename it, as by withColumnRenamed({name!r}, ...)"
        )


class FileFolder:
    """The folder at ``path``, any that Spark can write to."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._what = f"folder {path}"
        self._folder = HadoopFolder(spark, self._what, path)

    def check(self, store: Store) -> None:
        """Invalid if batches of this store must not, or cannot, be written there. Leaves nothing behind.

        A folder without a mark, of a version that made none, counts as the store's own unless it has epochs that the
        store has not delivered.
        """
        self._check_contents(store)
        if self._folder.local is not None:
            check_writable(self._what, Path(self._folder.local))

    def _check_contents(self, store: Store) -> None:
        names = self._folder.names()
        if LISTED in names:
            raise Invalid(
                f"{self._what} was written by Structured Streaming ({LISTED}), and spark.read shows only the files "
                "listed there; give a new folder"
            )
        if MARK in names:
            self._check_mark(store)
            return
        begun, within = store.exists(), self._within(store)
        if within and not begun:
            raise Invalid(
                f"{self._what}: the checkpointLocation {store.url} lies within it, where spark.read would take it for "
                "rows; give another folder, or one that begins with _"
            )
        seen = [name for name in names if name[0] not in "_." and name != within]
        if other := next((name for name in seen if not _EPOCH.fullmatch(name)), None):
            raise Invalid(
                f"{self._what} has files of others, {other}, and they could not be read together; give a new folder"
            )
        last = max((int(match[1]) for name in seen if (match := _EPOCH.fullmatch(name))), default=-1)
        if last > (delivery.given(store.files) + 1 if begun else -1):
            raise Invalid(
                f"{self._what} has {COLUMN}={last}, which this query has not written, and would overwrite; give a new "
                "folder"
            )

    def claim(self, store: Store) -> None:
        """Mark it as this store's, which this process holds; Invalid if another query was there first."""
        try:
            self._folder.create(MARK, document(store.files, KIND, {"url": store.url}))
        except FileExistsError:
            self._check_mark(store)

    def _check_mark(self, store: Store) -> None:
        try:
            body = parse_document(self._folder.url, KIND, MARK, self._folder.read(MARK))
        except Damaged as error:
            raise Invalid(f"{self._what}: {error}, so its owner is not known; give a new folder") from None
        if store.exists() and body["store"] == store.marker():
            return
        owner = body["url"] if body["url"] != store.url else f"{body['url']} (a store that was replaced since)"
        raise Invalid(
            f"{self._what} belongs to another query, whose checkpointLocation is {owner}; give a new folder, since the "
            "epochs of one would overwrite those of the other"
        )

    def _within(self, store: Store) -> str:
        """The part of the folder that leads to the store; nothing if that is elsewhere, or hidden from readers."""
        path = on_disk(store.url)
        if (path is None) != (self._folder.local is None):
            return ""
        inner = path if path is not None else Path(store.url.partition("://")[2])
        outer = Path(self._folder.local or self._folder.url.partition("://")[2])
        if not inner.is_relative_to(outer):
            return ""
        first = (*inner.relative_to(outer).parts, ".")[0]
        return first if first == "." or first[0] not in "_." else ""
