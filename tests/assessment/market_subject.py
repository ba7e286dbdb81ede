"""A small market to assess, importable by other processes; and a pipeline without an ascending key."""

from __future__ import annotations

from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa

from holdfast import operators as op
from holdfast.assessment.experiments import Settings
from holdfast.assessment.recording import Subject
from holdfast.assessment.scores import as_score
from holdfast.workloads import Options, workload

MARKET = workload("bargain-discovery")


def market(rate: int = 2500, epochs: int = 6, seed: int = 2) -> Subject:
    options = Options(rate=rate, epochs=epochs, seed=seed)
    stream = lambda spark: MARKET.stream(spark, options)  # noqa: E731 - a Subject's stream is a function of a session
    return Subject("market", MARKET.pipeline(), epochs, partial(MARKET.batch, options), "key", stream=stream)


def small(**changes: Any) -> Settings:
    wanted: dict[str, Any] = {
        "score": as_score("total:gain"),
        "offsets": 2,
        "outages": (0.5, 1.0, 2.0),
        "repeat": 2,
        "sections": 48,
        "precision": 0.0,
    }
    return Settings(**{**wanted, **changes})


def doubled(epoch: int) -> pa.Table:
    return pa.table({"word": [f"w{(epoch + i) % 5}" for i in range(20)]})


def counting() -> Subject:
    """No key from source to sink: sections are epochs."""
    pipeline = op.Pipeline(
        op.source("words", op.map("word", long=pl.col("word").str.len_bytes())),
        op.step("count", op.aggregate("word", count=op.count()), "words"),
    )
    return Subject("counting", pipeline, 10, doubled)
