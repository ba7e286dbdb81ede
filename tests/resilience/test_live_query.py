"""One real Structured Streaming query, advised from its own progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from waiting import DEADLINE


@pytest.mark.spark
def test_a_live_query_gets_advice(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for part in range(3):
        rows = "\n".join(json.dumps({"user": part * 500 + row}) for row in range(1000))
        (tmp_path / "in" / f"{part}.json").write_text(rows, encoding="utf-8")
    stream = spark.readStream.schema("user long").option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
    counts = stream.groupBy((stream["user"] % 100).alias("group")).count()
    query = (
        counts.writeStream.outputMode("update").format("memory").queryName("advised_counts")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(DEADLINE)
    advice = holdfast.advise(query, sla=0.999, mtbf="30d", row_bytes="100B")
    assert len(query.recentProgress) >= 3
    assert {"rate", "state", "checkpoint"} <= set(advice.derived) and advice.assumed == {}
    assert advice.best in ("active-periodic", "periodic")
