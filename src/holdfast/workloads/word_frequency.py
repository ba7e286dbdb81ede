"""Word frequency: how often each word occurred in 30 seconds of 140-byte fragments (paper 002, section 6.2)."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from holdfast import operators as op
from holdfast.operators import Pipeline
from holdfast.workloads import generated
from holdfast.workloads.expressions import sentence, time
from holdfast.workloads.files import InputFile
from holdfast.workloads.generated import Rows
from holdfast.workloads.picks import TIME, Pick, pick_text, pick_time
from holdfast.workloads.workload import Options, Workload

WORDS, VOCABULARY, POWER = 20, 10_000, 4
"""Twenty words of six letters, each with a space behind it: 140 bytes."""


def pipeline(parallelism: int = 2, every: str = "5 seconds") -> Pipeline:
    """A splitter, which is the source's own operator, and a counter; a window's counts leave once, when it closes."""
    count = op.sliding("30 seconds", every, by="word", time="time", count=op.count())
    split = op.flat_map(word=pl.col("text").str.extract_all(r"\S+"), keep="time")
    return Pipeline(
        op.source("split", split, parallelism=parallelism, event_time="time"),
        op.step("count", count, "split", parallelism=parallelism),
    )


def _expressions(options: Options) -> dict[str, str]:
    return {"text": sentence(WORDS, VOCABULARY, POWER), "time": time(options.rate)}


def _rows(rows: Rows, options: Options) -> pa.Table:
    texts = generated.sentence(rows, options.seed, WORDS, VOCABULARY, POWER)
    return pa.table({"text": texts, "time": generated.times(rows, options.rate)})


def _picks(file: InputFile, options: Options) -> tuple[Pick, ...]:
    return pick_text(file, "text", options.column), pick_time(file, options.rate)


WORD_FREQUENCY = Workload(
    name="word-frequency",
    pipeline=pipeline,
    columns=("word", "start", "end", "count"),
    input=pa.schema({"text": pa.string(), "time": TIME}),
    lanes=WORDS,
    vocabulary=VOCABULARY,
    expressions=_expressions,
    rows=_rows,
    picks=_picks,
)
