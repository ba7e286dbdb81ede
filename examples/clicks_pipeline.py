"""Clicks by page as a pipeline: python examples/clicks_pipeline.py FOLDER STORE ["kill node-1 at epoch 1"]

The same stream and the same totals as in clicks_holdfast.py, with operators in place of a query.
"""

import sys
from pathlib import Path

import polars as pl

import holdfast
from holdfast import operators as op
from holdfast.runtime.faults import parse_faults

folder, store, *faults = sys.argv[1:]
spark = holdfast.spark_session("local[2]")
clicks = (
    spark.readStream.schema("page string, country string, amount double").option("maxFilesPerTrigger", 1).json(folder)
)
pipeline = op.Pipeline(
    op.source("clicks", op.filter(pl.col("country") != "test"), parallelism=2),
    op.step("totals", op.aggregate("page", count=op.count(), sum=op.sum("amount", "double")), "clicks", parallelism=4),
)
job = holdfast.start(
    clicks,
    pipeline,
    store=store,
    nodes=4,
    epochs=len(list(Path(folder).glob("*.json"))),
    replicas=["totals/0"],
    faults=parse_faults(faults),
    rejoin_after=0.5,
)
job.awaitTermination()
rows = holdfast.read_output(store, view="final").to_pylist()
newest = {row["page"]: row for row in rows}  # an epoch lists the pages that changed, so the last row is the total
for page in sorted(newest):
    print(page, newest[page]["count"], round(newest[page]["sum"], 2))
