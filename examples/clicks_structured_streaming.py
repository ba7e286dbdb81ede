"""Clicks by page with Structured Streaming alone: python examples/clicks_structured_streaming.py FOLDER_OF_JSON_FILES

Where docs/tutorial.md begins; clicks_holdfast.py has one changed line.
"""

import sys

import holdfast

spark = holdfast.spark_session("local[2]")
clicks = (
    spark.readStream.schema("page string, country string, amount double")
    .option("maxFilesPerTrigger", 1)
    .json(sys.argv[1])
)
totals = clicks.where("country <> 'test'").groupBy("page").agg({"*": "count", "amount": "sum"})
query = totals.writeStream.format("memory").queryName("totals").outputMode("complete").start()
query.processAllAvailable()
query.stop()
for row in spark.table("totals").orderBy("page").collect():
    print(row["page"], row["count(1)"], round(row["sum(amount)"], 2))
