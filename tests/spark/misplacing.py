"""A program, since a process has one Spark: a job on two executors of a session that waits for no place.

    python misplacing.py FOLDER

Other Spark jobs take the executors' only cores all the time, until Spark has run tasks elsewhere than asked for a few
times; then the job has them alone. What its history says of it goes to stdout as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from on_executors import ROWS, counts

from holdfast.runtime.spark import spark_session, start

EPOCHS = 8
ENOUGH = 2
BUSY = 0.15


def busy(_: int, rows: Iterable[int]) -> Iterator[int]:
    time.sleep(BUSY)
    yield from rows


def main() -> None:
    settings = {
        "spark.locality.wait": "0s",
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
    }
    spark = spark_session("local-cluster[2,1,1024]", name="misplacing", settings=settings)
    told: list[dict[str, Any]] = []
    over = threading.Event()

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "misplaced":
            told.append({"tasks": event["tasks"], "message": event["message"]})
            if len(told) >= ENOUGH:
                over.set()

    def contend() -> None:
        context = spark.sparkContext
        while not over.is_set():
            context.parallelize(range(3), 3).mapPartitionsWithIndex(busy).count()

    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
    job = start(
        stream.load().select("value"), counts(), store=Path(sys.argv[1]), nodes=2, epochs=EPOCHS, checkpoint_every=3,
        listeners=[hear],
    )  # fmt: skip
    other = threading.Thread(target=contend, daemon=True)
    other.start()
    job.awaitTermination()
    over.set()
    other.join()
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main()
