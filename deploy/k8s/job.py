"""The job that the Deployment runs: put yours here. ``build`` starts it and returns it."""

import os
from pathlib import Path

import polars as pl

import holdfast
from holdfast import operators as op


def build() -> holdfast.Job:
    spark = holdfast.spark_session(os.environ["MASTER"], settings=settings())
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
    lines = numbers.selectExpr("concat('to be or not to be ', value % 10) AS value")
    pipeline = op.Pipeline(
        op.source("lines", op.flat_map(word=pl.col("value").str.split(" ")), parallelism=4),
        op.step("count", op.aggregate("word", count=op.count()), "lines", parallelism=4),
    )
    # Spark's own log of the stream is on a volume: in an s3:// store it would need hadoop-aws.
    return holdfast.start(
        lines,
        pipeline,
        store=os.environ["STORE"],
        spark_log=os.environ.get("SPARK_LOG"),
        nodes=4,
        budget=2.0,
        trigger="1 second",
    )


def settings() -> dict[str, str]:
    """What spark-submit would read from a file of properties: the lines of SPARK_PROPERTIES, name and value."""
    path = os.environ.get("SPARK_PROPERTIES")
    if not path:
        return {}
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    return {name: value.strip() for name, value in pairs}
