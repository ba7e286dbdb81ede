"""Hashtags: the running count of each tag in a stream of posts (the kind of input that paper 004 is evaluated on)."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from holdfast import operators as op
from holdfast.operators import Pipeline
from holdfast.workloads import generated
from holdfast.workloads.expressions import rank, text, word
from holdfast.workloads.files import InputFile
from holdfast.workloads.generated import Rows
from holdfast.workloads.picks import Pick, pick_texts
from holdfast.workloads.workload import Options, Workload

MOST, VOCABULARY, POWER = 3, 5_000, 4


def pipeline(parallelism: int = 2) -> Pipeline:
    """Each epoch lists the tags that changed with their new count; a tag's last row is its total."""
    return Pipeline(
        op.source("posts", op.flat_map(key=pl.col("hashtags")), parallelism=parallelism),
        op.step("count", op.aggregate("key", count=op.count()), "posts", parallelism=parallelism),
    )


def _expressions(options: Options) -> dict[str, str]:
    tags = ", ".join(text(word(rank(lane, VOCABULARY, POWER))) for lane in range(MOST))
    return {"hashtags": f"slice(array({tags}), 1, cast({rank(MOST, MOST + 1, 2)} as int))"}


def _rows(rows: Rows, options: Options) -> pa.Table:
    words = generated.words(VOCABULARY)
    drawn = [generated.rank(generated.draw(rows, options.seed, lane), VOCABULARY, POWER) for lane in range(MOST)]
    number = generated.rank(generated.draw(rows, options.seed, MOST), MOST + 1, 2)
    flat = np.stack(drawn, axis=1)[np.arange(MOST) < number[:, None]]
    offsets = np.concatenate([[0], np.cumsum(number)]).astype(np.int32)
    return pa.table({"hashtags": pa.ListArray.from_arrays(pa.array(offsets), words.take(pa.array(flat)))})


def _picks(file: InputFile, options: Options) -> tuple[Pick, ...]:
    return (pick_texts(file, "hashtags", options.column),)


HASHTAGS = Workload(
    name="hashtags",
    pipeline=pipeline,
    columns=("key", "count"),
    input=pa.schema({"hashtags": pa.list_(pa.string())}),
    lanes=MOST + 1,
    vocabulary=VOCABULARY,
    expressions=_expressions,
    rows=_rows,
    picks=_picks,
)
