"""A pipeline tried out in this process, epoch by epoch; no Spark, nothing stored: python examples/try_a_pipeline.py"""

import pyarrow as pa

from holdfast import operators as op

pipeline = op.Pipeline(
    op.source("sales", parallelism=2),
    op.step("totals", op.aggregate("item", sold=op.sum("amount")), "sales", parallelism=2),
    op.step("best", op.top_k(2, "sold", "item", rising=True), "totals"),
)
trial = op.Trial(pipeline)
for batch in (
    {"item": ["tea", "coffee", "tea"], "amount": [3, 2, 1]},
    {"item": ["cocoa", "coffee"], "amount": [5, 1]},
):
    epoch = trial.epoch(pa.table(batch))
    print(f"epoch {epoch.number}:", ", ".join(f"{row['item']} {row['sold']}" for row in epoch.output.to_pylist()))
