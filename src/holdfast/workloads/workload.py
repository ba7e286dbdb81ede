"""What a workload is: a pipeline, an input stream for it, and the options that both answer to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.workloads.files import InputFile, cut, open_input
from holdfast.workloads.generated import Rows
from holdfast.workloads.picks import Pick, read_picked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


MOST_EXPRESSWAYS = 1000
"""The numbers of cars and queries of more do not fit 32 bits."""


def _no_layers(_: Options) -> Sequence[Mapping[str, str]]:
    return ()


@dataclass(frozen=True, slots=True)
class Options:
    """Where rows come from. ``epochs``: how many there will be, known before the run, for files as for generators.

    With ``input`` the file is read once, to its end, in ``epochs`` of nearly equal row counts; more epochs than rows
    leave some empty. Without it ``rate`` rows an epoch are generated from ``seed``; an epoch is one second of event
    time. ``column`` names the file's column to read, where a workload cannot tell; ``rate`` is then the number of rows
    a second for files without a time. ``partitions``: how many Spark tasks read an epoch. ``expressways``: how many
    linear-road generates traffic for.
    """

    input: Path | str | None = None
    epochs: int = 10
    rate: int = 10_000
    seed: int = 0
    column: str | None = None
    partitions: int = 2
    expressways: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "rate", "partitions"):
            if getattr(self, name) < 1:
                raise Invalid(f"--{name}: at least 1 is needed, got {getattr(self, name)}")
        if not 1 <= self.expressways <= MOST_EXPRESSWAYS:
            raise Invalid(f"--expressways: 1 to {MOST_EXPRESSWAYS} are possible, got {self.expressways}")
        if not -(2**63) <= self.seed < 2**63:
            raise Invalid(f"--seed: a 64-bit integer is needed, got {self.seed}")
        if self.input is None and self.column is not None:
            raise Invalid(f"--column: it names a column of --input, but no input is given (got {self.column!r})")


@dataclass(frozen=True, slots=True)
class Workload:
    """A named pipeline with its input. ``columns`` are those of the output, ``input`` those of the stream.

    ``pipeline(parallelism=2)`` is what runs. Generated rows are given twice: as SQL text for each input column over
    ``value``, the row's number, ``u0``, ``u1`` ..., as many random draws as there are ``lanes``, and ``words``, those
    of the ``vocabulary`` (``expressions``); and as a function of row numbers without Spark (``rows``). Both give the
    same rows. ``layers`` are columns that the expressions build upon, each layer on those before. ``opened`` looks at a
    file, ``picks`` says which of its columns are read.
    """

    name: str
    pipeline: Callable[..., Pipeline]
    columns: tuple[str, ...]
    input: pa.Schema
    lanes: int
    vocabulary: int
    expressions: Callable[[Options], dict[str, str]]
    rows: Callable[[Rows, Options], pa.Table]
    picks: Callable[[InputFile, Options], tuple[Pick, ...]]
    layers: Callable[[Options], Sequence[Mapping[str, str]]] = _no_layers
    opened: Callable[[str | Path], InputFile] = open_input

    def check(self, options: Options) -> int:
        """The number of input rows; Invalid, before anything runs, if the input does not fit."""
        if options.input is None:
            return options.rate * options.epochs
        file = self.opened(options.input)
        self.picks(file, options)
        return file.rows

    def stream(self, spark: SparkSession, options: Options) -> DataFrame:
        """The input as a Structured Streaming source, which replays any epoch exactly."""
        from holdfast.workloads.sources import file_stream, numbered_stream

        if options.input is None:
            return self.generated(numbered_stream(spark, options.rate, options.partitions), options)
        file = self.opened(options.input)
        return file_stream(spark, file, self.picks(file, options), options.epochs, options.partitions)

    def generated(self, numbers: DataFrame, options: Options) -> DataFrame:
        """The rows of these numbers (column ``value``), computed on the JVM."""
        from holdfast.workloads.expressions import draws
        from holdfast.workloads.sources import computed

        drawn = draws(options.seed, self.lanes, self.vocabulary)
        return computed(numbers, [drawn, *self.layers(options)], self.expressions(options))

    def batch(self, options: Options, place: int) -> pa.Table:
        """The rows of epoch ``place``, counted from 0, without Spark: those that the stream gives, by row number."""
        if options.input is None:
            first = place * options.rate
            return self.rows(np.arange(first, first + options.rate), options).cast(self.input)
        file = self.opened(options.input)
        start, stop = cut(file.rows, options.epochs, place)
        return read_picked(file, self.picks(file, options), start, stop)
