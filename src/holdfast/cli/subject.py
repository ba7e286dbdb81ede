"""What ``holdfast assess`` is pointed at: a workload by name, or a pipeline in a Python file with an input."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.assessment.recording import Subject
from holdfast.errors import Invalid, instead
from holdfast.loading import loaded
from holdfast.operators import Pipeline
from holdfast.workloads import WORKLOADS, Options, workload
from holdfast.workloads.files import cut, open_input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = "key"
BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for on the command line; another process makes the same subject from it."""

    what: str
    options: Options
    parallelism: int | None
    key: str | None
    query: str


def subject_of(asked: Asked) -> Subject:
    """The subject; Invalid if there is no such workload, file or input."""
    if asked.what.partition(":")[0].endswith(".py"):
        return _from_file(asked)
    if asked.what not in WORKLOADS:
        told = instead(asked.what, WORKLOADS, "workloads")
        raise Invalid(f"{asked.what!r}: neither a workload nor a pipeline in a file, FILE.py:pipeline; {told}")
    chosen = workload(asked.what)
    chosen.check(asked.options)
    pipeline = chosen.pipeline() if asked.parallelism is None else chosen.pipeline(parallelism=asked.parallelism)
    key = asked.key
    if key is None and KEY in chosen.input.names and KEY in chosen.columns:
        key = KEY if pa.types.is_integer(chosen.input.field(KEY).type) else None
    return Subject(
        asked.what,
        pipeline,
        asked.options.epochs,
        partial(chosen.batch, asked.options),
        key,
        asked.query,
        asked.options.input is not None,
        lambda spark: chosen.stream(spark, asked.options),
    )


def _from_file(asked: Asked) -> Subject:
    made = loaded(asked.what, "pipeline")
    if callable(made):
        made = made() if asked.parallelism is None else made(parallelism=asked.parallelism)
    if not isinstance(made, Pipeline):
        raise Invalid(f"pipeline {asked.what}: a holdfast.Pipeline, or a function that makes one, is needed")
    batch = _input(asked)
    epochs = asked.options.epochs
    stream = partial(_stream, batch, epochs) if len(made.sources) == 1 else None
    return Subject(asked.what, made, epochs, batch, asked.key, asked.query, asked.options.input is not None, stream)


def _input(asked: Asked) -> Callable[[int], Any]:
    if asked.options.input is None:
        path = asked.what.partition(":")[0]
        try:
            function = loaded(f"{path}:{BATCH}", "input")
        except Invalid:
            raise Invalid(
                f"pipeline {asked.what}: no input; give --input FILE, or write {BATCH}(epoch) in {path}, which gives "
                f"the rows of an epoch as a pyarrow.Table"
            ) from None
        return partial(_called, function)
    file = open_input(asked.options.input)
    return partial(_slice, file, asked.options.epochs)


def _called(function: Callable[[int], Any], epoch: int) -> Any:
    return function(epoch)


def _slice(file: Any, epochs: int, epoch: int) -> pa.Table:
    return file.read(file.schema.names, *cut(file.rows, epochs, epoch))


def _stream(batch: Callable[[int], pa.Table], epochs: int, spark: SparkSession) -> DataFrame:
    """The epochs as Parquet files that Structured Streaming reads one by one, oldest first."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-epochs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for epoch in range(epochs):
        path = folder / f"{epoch:06d}.parquet"
        pq.write_table(batch(epoch), path)
        os.utime(path, (1_000_000 + epoch, 1_000_000 + epoch))
    schema = spark.read.parquet(str(folder)).schema
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder))
