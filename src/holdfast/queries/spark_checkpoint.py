"""A checkpoint of Structured Streaming: how far its query has come, and its state then. It is never written to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import Invalid
from holdfast.runtime.spark.java import java
from holdfast.runtime.spark.shipping import first_cause
from holdfast.state.entries import HEADER

LOGS = ("offsets", "commits")
FORMAT = "spark.sql.streaming.aggregation.stateFormatVersion"
READ = "2"
"""The format of an aggregate's state that is read here: Spark's own since 2.4."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a query stands: the last batch that it committed, the watermark of that batch in microseconds, how many
    sources it has if that is told, and whether the next batch was planned already.
    """

    batch: int
    watermark: int
    sources: int | None
    planned: bool


class SparkCheckpoint:
    """At any place that Spark can read. What is not there, or is of another kind, is refused by its name."""

    def __init__(self, spark: SparkSession, place: str) -> None:
        self._spark = spark
        self.place = place if ":/" in place else str(Path(place).absolute())
        session: Any = spark._jsparkSession
        self._path = java(spark.sparkContext).org.apache.hadoop.fs.Path
        self._root = self._path(self.place)
        try:
            self._files = self._root.getFileSystem(session.sessionState().newHadoopConf())
            there = self._files.exists(self._root)
        except Exception as error:
            raise Invalid(f"checkpoint {place}: it cannot be read: {first_cause(error)}") from None
        if not there:
            raise Invalid(f"checkpoint {place}: nothing is there; give the checkpointLocation of the old query")
        names = self._names("")
        if HEADER in names:
            raise Invalid(f"checkpoint {place}: this is a Holdfast store; holdfast.writeStream goes on from it")
        if missing := [name for name in ("metadata", *LOGS, "state") if name not in names]:
            raise Invalid(
                f"checkpoint {place}: {missing[0]} is missing; the checkpointLocation of a query with state has it; "
                f"found {', '.join(sorted(names)) or 'nothing'}"
            )

    def copy_log(self, target: Path) -> Position:
        """What Structured Streaming needs to go on from here, in another folder: all of a checkpoint but the state."""
        before = self._listed()
        for name in ("metadata", *LOGS, "sources"):
            self._copy(name, target / name)
        if self._listed() != before:
            raise self._in_use("its log grew while it was copied")
        position = self._position(target)
        newest = position.batch + position.planned
        for name in LOGS:
            for each in (target / name).iterdir():
                if int(each.name) > newest:
                    raise Invalid(f"checkpoint {self.place}: {name}/{each.name} follows batch {newest} with a gap")
        return position

    def check_stopped(self, log: Path) -> None:
        """Refused if a query of this session writes into it, or one of another has gone on since the log was copied."""
        try:
            number = json.loads((log / "metadata").read_text())["id"]
        except (KeyError, TypeError, ValueError):
            raise Invalid(f"checkpoint {self.place}: metadata is torn or is not Spark's") from None
        if any(query.id == number for query in self._spark.streams.active):
            raise self._in_use(f"query {number} runs in this session")
        copied = {name: {each.name for each in (log / name).iterdir()} for name in LOGS}
        if self._listed() != copied:
            raise self._in_use("it has gone on meanwhile")

    def state(self, batch: int) -> DataFrame:
        """The state as it was when a batch was committed: columns key, value and partition_id."""
        try:
            found = self._spark.read.format("state-metadata").load(self.place).collect()
            operators = sorted({(row.operatorId, row.operatorName) for row in found})
            if [name for _, name in operators] != ["stateStoreSave"]:
                told = ", ".join(name for _, name in operators) or "none that says what it is"
                raise Invalid(
                    f"checkpoint {self.place}: one aggregate (stateStoreSave) is needed; operators with state: {told}"
                )
            oldest = min(int(row.minBatchId) for row in found)
            if batch < oldest:
                raise Invalid(f"checkpoint {self.place}: the state of batch {batch} is gone, it begins with {oldest}")
            reader = self._spark.read.format("statestore").option("operatorId", operators[0][0])
            return reader.option("batchId", batch).load(self.place)
        except Invalid:
            raise
        except Exception as error:
            raise Invalid(f"checkpoint {self.place}: its state cannot be read: {first_cause(error)}") from None

    def _position(self, log: Path) -> Position:
        batches = {name: sorted(int(each.name) for each in (log / name).iterdir()) for name in LOGS}
        if not batches["commits"]:
            raise Invalid(
                f"checkpoint {self.place}: no batch was committed, so there is nothing to import; "
                "start holdfast.writeStream with an empty store"
            )
        last = batches["commits"][-1]
        if last not in batches["offsets"]:
            raise Invalid(f"checkpoint {self.place}: batch {last} was committed, but offsets/{last} is missing")
        facts, sources = self._offsets(log / "offsets" / str(last))
        version = facts["conf"].get(FORMAT, READ)
        if version != READ:
            raise Invalid(f"checkpoint {self.place}: its state has format {version} ({FORMAT}), format {READ} is read")
        return Position(last, int(facts["batchWatermarkMs"]) * 1000, sources, last + 1 in batches["offsets"])

    def _offsets(self, file: Path) -> tuple[Mapping[str, Any], int | None]:
        """What a batch was planned with, and how many sources there are; the first line is the version."""
        try:
            version, *lines = file.read_text().splitlines()
            facts = json.loads(lines[0])
            if not isinstance(facts["conf"], dict) or int(facts["batchWatermarkMs"]) < 0:
                raise ValueError(lines[0])
        except (IndexError, KeyError, TypeError, ValueError):
            raise Invalid(f"checkpoint {self.place}: offsets/{file.name} is torn or is not Spark's") from None
        return facts, len(lines) - 1 if version == "v1" else None

    def _listed(self) -> dict[str, set[str]]:
        return {name: {each for each in self._names(name) if each.isdecimal()} for name in LOGS}

    def _names(self, folder: str) -> set[str]:
        """What is in a folder, but for what Hadoop keeps beside files."""
        place = self._path(self._root, folder) if folder else self._root
        names = (str(each.getPath().getName()) for each in self._files.listStatus(place))
        return {name for name in names if not name.startswith(".")}

    def _copy(self, name: str, target: Path) -> None:
        source = self._path(self._root, name)
        if not self._files.exists(source):
            return  # only some sources keep a log of their own
        if self._files.getFileStatus(source).isDirectory():
            target.mkdir(parents=True)
            numbered = name in LOGS
            for each in sorted(self._names(name)):
                if each.isdecimal() or not numbered:
                    self._copy(f"{name}/{each}", target / each)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        self._files.copyToLocalFile(False, source, self._path(str(target)), True)
        with target.open("rb") as file:
            os.fsync(file.fileno())

    def _in_use(self, why: str) -> Invalid:
        return Invalid(f"checkpoint {self.place}: it is in use: {why}; stop the old query first")
