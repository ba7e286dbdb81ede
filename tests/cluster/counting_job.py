"""The job that runs on a cluster of hosts: word counts, an epoch a second, each output given to the collector.

    holdfast supervise counting_job.py:build
    python counting_job.py                     # what its store holds: final rows, and the kinds of its history, as JSON

All that it must know is in the environment (``CLUSTER_...``), so that two hosts can start the same.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

import holdfast
from holdfast.runtime.driver.ports import Output
from holdfast.runtime.history.history import read_history
from holdfast.runtime.settings import within_of
from holdfast.workloads import Options, workload

RATE, PARALLELISM, NODES = 300, 4, 4
FOREVER = 100_000
ANSWERED_WITHIN = 5.0
"""Seconds that the collector has."""


class Collector:
    """A sink: whatever goes wrong on the way is raised, and the output is given again."""

    def __init__(self, address: str, port: int, job: str) -> None:
        self._where, self._job = (address, port), job
        self._driver = f"{socket.gethostname()}:{os.getpid()}"
        self._connection: Any = None

    def __call__(self, output: Output) -> None:
        rows = list(zip(output.table["key"].to_pylist(), output.table["count"].to_pylist(), strict=True))
        line = {"job": self._job, "driver": self._driver, "epoch": output.epoch, "task": output.task,
                "kind": output.kind, "fidelity": output.fidelity, "rows": rows}  # fmt: skip
        try:
            if self._connection is None:
                self._connection = socket.create_connection(self._where, ANSWERED_WITHIN).makefile("rwb", buffering=0)
            self._connection.write(json.dumps(line).encode() + b"\n")
            if self._connection.readline() != b"ok\n":
                raise ConnectionError("the collector hung up")
        except OSError:
            self._connection = None
            raise


def options() -> Options:
    return Options(rate=RATE, epochs=FOREVER, seed=int(os.environ["CLUSTER_SEED"]))


def build() -> holdfast.Job:
    """Four executors of one core, though every host has room for a second: a standby driver holds some too."""
    around = os.environ
    own = around["SPARK_LOCAL_IP"]
    settings = {
        "spark.driver.host": own, "spark.driver.bindAddress": own, "spark.driver.memory": "1g",
        "spark.executor.memory": "600m", "spark.executor.cores": "1", "spark.cores.max": str(NODES),
        "spark.executor.extraJavaOptions": around["CLUSTER_JAVA"],
    }  # fmt: skip
    spark = holdfast.spark_session(around["CLUSTER_MASTER"], settings=settings)
    counts = workload("word-count")
    within = within_of(around["CLUSTER_WITHIN"] or None, "CLUSTER_WITHIN")
    return holdfast.start(
        counts.stream(spark, options()), counts.pipeline(parallelism=PARALLELISM), store=around["CLUSTER_STORE"],
        nodes=NODES, budget=2.0, trigger="1 second", answer_within=within, spark_log=around["CLUSTER_LOG"] or None,
        sink=Collector(around["CLUSTER_SINK"], int(around["CLUSTER_SINK_PORT"]), around["CLUSTER_JOB"]),
    )  # fmt: skip


def held() -> dict[str, Any]:
    store = os.environ["CLUSTER_STORE"]
    table = holdfast.read_output(store, "final")
    rows = sorted(zip(*(table[name].to_pylist() for name in ("epoch", "key", "count")), strict=True))
    return {"rows": rows, "events": list(read_history(store))}


if __name__ == "__main__":
    json.dump(held(), sys.stdout, default=str)
