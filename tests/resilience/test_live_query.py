"""One real Structured Streaming query, advised from its own progress. In a process of its own: it ends its Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql.functions import col
import holdfast

work = Path(sys.argv[1])
(work / "in").mkdir()
for part in range(3):
    rows = "\\n".join(json.dumps({"user": part * 500 + row}) for row in range(1000))
    (work / "in" / f"{part}.json").write_text(rows)
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1").getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
stream = spark.readStream.schema("user long").option("maxFilesPerTrigger", 1).json(str(work / "in"))
counts = stream.groupBy((col("user") % 100).alias("group")).count()
query = (
    counts.writeStream.outputMode("update").format("memory").queryName("counts")
    .option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True).start()
)
assert query.awaitTermination(120)
advice = holdfast.advise(query, sla=0.999, mtbf="30d", row_bytes="100B")
print(json.dumps({
    "best": advice.best, "derived": advice.derived, "assumed": advice.assumed, "batches": len(query.recentProgress)
}))
spark.stop()
"""


@pytest.mark.spark
def test_a_live_query_gets_advice(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["batches"] >= 3
    assert {"rate", "state", "checkpoint"} <= set(answer["derived"]) and answer["assumed"] == {}
    assert answer["best"] in ("active-periodic", "periodic")
