"""Counts words, and goes on counting when machines fail: python examples/word_count.py [FOLDER OF TEXT FILES]"""

import sys
import tempfile

import polars as pl

import holdfast
from holdfast import operators as op

spark = holdfast.spark_session("local[2]")
if len(sys.argv) > 1:
    lines = spark.readStream.text(sys.argv[1])
else:
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
    lines = numbers.selectExpr("concat('to be or not to be ', value % 10) AS value")

pipeline = op.Pipeline(
    op.source("lines", op.flat_map(word=pl.col("value").str.split(" ")), parallelism=2),
    op.step("count", op.aggregate("word", count=op.count()), "lines", parallelism=2),
)
job = holdfast.start(lines, pipeline, store=tempfile.mkdtemp(), epochs=3, sink=lambda out: print(out.table.to_pylist()))
job.awaitTermination()
