"""A job grows onto free cores of a standalone cluster while it is busy, and gives them back when it is not any more.

    .venv/bin/python benchmarks/growth.py
    .venv/bin/python benchmarks/growth.py --busy 60 --most 6
    .venv/bin/python benchmarks/growth.py --driver        # what the driver itself has to do: driver_growth.py
    .venv/bin/python benchmarks/growth.py --driver --only large        # a part of that
    .venv/bin/python benchmarks/growth.py --keys          # what an epoch costs as states grow: key_growth.py

A master and a worker on loopback; executors of one core. The job begins with ``--nodes`` executors; its rows cost much
for ``--busy`` seconds, and next to nothing afterwards. What happened when is told from its history: executors that
came, tasks that were split and merged, executors that were given back. In the end its output is compared, row for
row, with that of a plain loop.

Learned: a standalone master gives an application all there is at the start, unless dynamic allocation is on; and
``requestExecutors(1)`` lowers what it may have to one, since it counts from what was asked for before. See
``holdfast.runtime.spark.session.growing``.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyspark

import driver_growth
import key_growth
from holdfast import operators as op
from holdfast.operators import Pipeline
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.outputs import read_output

HOME = Path(pyspark.__file__).parent
KEYS, ROWS = 256, 4000


@contextmanager
def standalone(folder: Path, cores: int) -> Iterator[str]:
    """A master, and a worker with so many cores."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    loopback = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost", "SPARK_HOME": str(HOME)}
    environment = {**os.environ, **loopback, "PYSPARK_PYTHON": sys.executable}
    here = ["--host", "localhost", "--webui-port", "0"]
    url = f"spark://localhost:{port}"
    with (folder / "cluster.log").open("w") as log:

        def launch(kind: str, *words: str) -> subprocess.Popen[bytes]:
            command = [str(HOME / "bin/spark-class"), f"org.apache.spark.deploy.{kind}", *here, *words]
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

        size = ["--cores", str(cores), "--memory", f"{cores}g", "--work-dir", str(folder / "worker")]
        processes = [launch("master.Master", "--port", str(port)), launch("worker.Worker", *size, url)]
        try:
            until = time.monotonic() + 60
            while not re.search("Registering worker", (folder / "cluster.log").read_text()):
                if time.monotonic() > until:
                    sys.exit(f"no worker came within 60 s:\n{(folder / 'cluster.log').read_text()[-1000:]}")
                time.sleep(0.1)
            yield url
        finally:
            for process in processes:
                process.kill()
                process.wait()


def pipeline(until: float) -> Pipeline:
    """Counts by key whose rows cost about 0.1 ms of CPU each until then."""

    def keyed(batch: pa.Table) -> pa.Table:
        return pa.table({"key": pc.cast(pc.bit_wise_and(batch["value"], KEYS - 1), pa.int64())})

    def count(batch: pa.Table, state: op.State) -> pa.Table | None:
        if not batch.num_rows:
            return None
        if time.time() < until:
            ends = time.process_time() + batch.num_rows * 1e-4
            while time.process_time() < ends:
                pass
        came = Counter(batch["key"].to_pylist())
        keys = pa.table({"key": pa.array(came, pa.int64())})
        before = state.lookup(keys)["count"].to_pylist()
        after = [n + (held or 0) for n, held in zip(came.values(), before, strict=True)]
        answer = keys.append_column("count", pa.array(after, pa.int64()))
        state.update(answer)
        return answer

    schema = op.StateSchema(pa.schema([("key", pa.int64())]), pa.schema([("count", pa.int64())]))
    return Pipeline(
        op.source("rows", keyed, parallelism=2),
        op.step("counts", op.FunctionOperator(count, schema), op.stream("rows", key="key"), parallelism=2),
    )


def plainly(epochs: int) -> list[tuple[int, int, int]]:
    counts: Counter[int] = Counter()
    answers = []
    for epoch in range(epochs):
        keys = [value & (KEYS - 1) for value in range(epoch * ROWS, (epoch + 1) * ROWS)]
        counts.update(keys)
        answers += [(epoch, key, counts[key]) for key in sorted(set(keys))]
    return answers


def told(event: dict[str, Any]) -> str | None:
    match event["kind"]:
        case "nodes joined":
            return f"came: {', '.join(event['nodes'])}"
        case "nodes wanted":
            return f"asked for {event['count']} more: {'yes' if event['given'] else 'no'}"
        case "scaled":
            return f"{event['operator']} has {event['tasks']} tasks: {event['why']}"
        case "nodes leaving":
            return f"leaving: {', '.join(event['nodes'])} with {', '.join(event['tasks']) or 'nothing'}: {event['why']}"
        case "nodes released":
            return f"given back: {', '.join(event['nodes'])}; {event['alive']} are left"
        case "nodes lost" | "scaling aborted":
            return f"{event['kind']}: {event.get('reason', event.get('nodes'))}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description="A job that grows onto a standalone cluster and shrinks again.")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--most", type=int, default=3)
    parser.add_argument("--busy", type=float, default=40.0, help="seconds with much to do")
    parser.add_argument("--calm", type=float, default=60.0, help="seconds to wait at most until all is given back")
    parser.add_argument("--driver", action="store_true", help="seconds of driver work as jobs grow, without Spark")
    parser.add_argument(
        "--only", nargs="+", choices=driver_growth.PARTS, default=driver_growth.PARTS, help="parts of --driver"
    )
    parser.add_argument("--keys", action="store_true", help="an epoch of each operator as its state grows")
    parser.add_argument("--repeat", type=int, default=1, help="turns of --driver")
    parser.add_argument("--json", type=Path, help="of --driver and --keys: write what was found here")
    given = parser.parse_args()
    if given.json and not (given.keys or given.driver):
        parser.error("--json goes with --driver or --keys")
    if given.repeat < 1:
        parser.error(f"--repeat must be at least 1, got {given.repeat}")
    if given.keys and given.driver:
        parser.error("--driver and --keys are two measurements: give one of them")
    if given.keys:
        key_growth.main(path=given.json)
        return
    if given.driver:
        driver_growth.main(given.only, path=given.json, repeat=given.repeat)
        return
    from holdfast.runtime.spark import growing, spark_session, start

    with tempfile.TemporaryDirectory() as name, standalone(Path(name), given.most) as url:
        settings = {"spark.executor.cores": "1", "spark.executor.memory": "600m", "spark.driver.memory": "1g"}
        spark = spark_session(url, settings={**settings, **growing(url, given.nodes, given.most)})
        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
        policy = {"every": 2.0, "settle": 2.0, "threshold": 0.3, "low_reports": 3, "min_parallelism": 2}
        folder = Path(name) / "run"
        began = time.time()
        job = start(
            stream.load().select("value"), pipeline(began + given.busy), store=folder, nodes=given.nodes,
            max_nodes=given.most, checkpoint_every=10, elastic={**policy, "tasks_per_node": 2},
            trigger="500 milliseconds",
        )  # fmt: skip
        until = began + given.busy + given.calm
        while time.time() < until and job.isActive:
            released = any(event["kind"] == "nodes released" for event in read_history(folder))
            if time.time() > began + given.busy and released and len(job.status["nodes"]) == given.nodes:
                break
            time.sleep(0.5)
        job.stop()
        spark.stop()
        history = list(read_history(folder))
        print(f"\n{given.nodes} executor at first, at most {given.most}; busy for {given.busy:g} s")
        for event in history:
            if line := told(event):
                print(f"{event['time'] - began:7.1f} s  {line}")
        epochs = 1 + max(event["epoch"] for event in history if event["kind"] == "answered")
        table = read_output(folder, "final")
        rows = sorted(zip(*(table[column].to_pylist() for column in ("epoch", "key", "count")), strict=True))
        same = rows == plainly(epochs)
        print(f"{epochs} epochs; output equal to that of a plain loop, row for row: {'yes' if same else 'NO'}")


if __name__ == "__main__":
    main()
