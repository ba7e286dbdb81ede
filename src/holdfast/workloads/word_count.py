"""Word count: the running count of each word, words being what stands between spaces."""

from __future__ import annotations

import polars as pl
import pyarrow as pa

from holdfast import operators as op
from holdfast.operators import Pipeline
from holdfast.workloads import generated
from holdfast.workloads.expressions import sentence
from holdfast.workloads.files import InputFile
from holdfast.workloads.generated import Rows
from holdfast.workloads.picks import Pick, pick_text
from holdfast.workloads.workload import Options, Workload

WORDS, VOCABULARY, POWER = 8, 10_000, 4


def pipeline(parallelism: int = 2) -> Pipeline:
    """Each epoch lists the words that changed with their new count; a word's last row is its total."""
    return Pipeline(
        op.source("lines", op.flat_map(key=pl.col("text").str.extract_all(r"\S+")), parallelism=parallelism),
        op.step("count", op.aggregate("key", count=op.count()), "lines", parallelism=parallelism),
    )


def _expressions(options: Options) -> dict[str, str]:
    return {"text": sentence(WORDS, VOCABULARY, POWER)}


def _rows(rows: Rows, options: Options) -> pa.Table:
    return pa.table({"text": generated.sentence(rows, options.seed, WORDS, VOCABULARY, POWER)})


def _picks(file: InputFile, options: Options) -> tuple[Pick, ...]:
    return (pick_text(file, "text", options.column),)


WORD_COUNT = Workload(
    name="word-count",
    pipeline=pipeline,
    columns=("key", "count"),
    input=pa.schema({"text": pa.string()}),
    lanes=WORDS,
    vocabulary=VOCABULARY,
    expressions=_expressions,
    rows=_rows,
    picks=_picks,
)
