"""Clicks by page with Holdfast: python examples/clicks_holdfast.py FOLDER STORE ["kill node-1 at epoch 1"]

The query of clicks_structured_streaming.py, kept alive when nodes die; the fault is there to see it.
"""

import sys

import holdfast
from holdfast.runtime.faults import parse_faults

folder, store, *faults = sys.argv[1:]
spark = holdfast.spark_session("local[2]")
clicks = (
    spark.readStream.schema("page string, country string, amount double").option("maxFilesPerTrigger", 1).json(folder)
)
totals = clicks.where("country <> 'test'").groupBy("page").agg({"*": "count", "amount": "sum"})
writer = holdfast.writeStream(totals).format("memory").queryName("totals").outputMode("complete")
writer.resilience(nodes=4, faults=parse_faults(faults), rejoin_after=0.5)
query = writer.option("checkpointLocation", store).start()
query.processAllAvailable()
query.stop()
for row in spark.table("totals").orderBy("page").collect():
    print(row["page"], row["count(1)"], round(row["sum(amount)"], 2))
