"""Half of the nodes die: how soon is the next answer there, and when is it exact? Holdfast and Structured Streaming.

    .venv/bin/python benchmarks/failover.py                                  # 100,000 and 2,000,000 keys, both clusters
    .venv/bin/python benchmarks/failover.py --keys 100000 --cluster standalone --repeat 1
    .venv/bin/python benchmarks/failover.py --matrix [--workload top-k] [--pair 1,2] [--seeds 1]   # every workload

The same keyed count over the same stream on four nodes of one core each; two of them are killed with SIGKILL in the
middle of the run. ``standalone``: a master and four workers on loopback, and worker and executor of a node die
together, so that nobody comes in their place. ``local-cluster``: executors die and Spark starts new ones at once, which
take CPU from the survivors. Structured Streaming runs as it is set up by default, with the RocksDB state store and
changelog checkpointing and one shuffle partition a node.

An answer is a batch whose output is there: for Structured Streaming a batch that is written, for Holdfast output that
is published, tentative or final, with rows in it. It is exact and caught up when everything published for the newest
epoch is final. Every task of this query is a sink, so those that are left always have something to say.
Times are seconds after the kill.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from measuring import Record, spreads, written
from standalone import LOOPBACK, NODES, executors, kill, standalone


def kill_two(application: str, whole_nodes: bool) -> float:
    """SIGKILL two nodes at once; the moment."""
    return kill(application, sorted(executors(application))[1:3], whole_nodes)


def stream_of(spark: Any, keys: int, rows: int) -> Any:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", NODES)
    return stream.load().selectExpr(f"value % {keys} AS key")


def run_structured(master: str, keys: int, rows: int, kill_at: int, whole_nodes: bool, folder: Path) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "localhost")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "1g")
        .config("spark.sql.shuffle.partitions", str(NODES))
        .config("spark.sql.streaming.stateStore.providerClass", rocks)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    ended: list[tuple[int, float]] = []
    reached = threading.Event()

    def write(frame: Any, epoch: int) -> None:
        frame.write.mode("append").parquet(str(folder / "output"))
        ended.append((epoch, time.time()))
        if epoch >= kill_at:
            reached.set()

    counted = stream_of(spark, keys, rows).groupBy("key").count()
    query = (
        counted.writeStream.outputMode("update").foreachBatch(write)
        .trigger(processingTime="1 second").option("checkpointLocation", str(folder / "checkpoint")).start()
    )  # fmt: skip
    reached.wait(300)
    moment = kill_two(spark.sparkContext.applicationId, whole_nodes)
    until = time.monotonic() + 90
    while time.monotonic() < until and len([at for _, at in ended if at > moment]) < 4 and query.isActive:
        time.sleep(0.05)
    after = [at - moment for _, at in ended if at > moment]
    query.stop()
    spark.stop()
    return {"answer": after[0] if after else None, "exact": after[0] if after else None, "fidelity": 1.0}


def run_holdfast(
    master: str, keys: int, rows: int, kill_at: int, whole_nodes: bool, folder: Path, replicas: int
) -> dict[str, Any]:
    import pyarrow as pa

    from holdfast import operators as op
    from holdfast.runtime.spark import spark_session, start

    spark = spark_session(master, settings={"spark.executor.memory": "1g"})
    pipeline = op.Pipeline(
        op.source("keys", parallelism=2),
        op.step("counts", op.aggregate({"key": pa.int64()}, count=op.count()), "keys", parallelism=NODES),
    )
    events: list[dict[str, Any]] = []
    reached = threading.Event()

    def listen(event: dict[str, Any]) -> None:
        events.append({**event, "heard": time.time()})
        if event["kind"] == "answered" and event["epoch"] >= kill_at:
            reached.set()

    chosen = [f"counts/{number}" for number in range(replicas)]
    job = start(
        stream_of(spark, keys, rows), pipeline, store=folder / "store", nodes=NODES, trigger="1 second",
        checkpoint_every=10, replicas=chosen, listeners=[listen],
    )  # fmt: skip
    reached.wait(300)
    moment = kill_two(spark.sparkContext.applicationId, whole_nodes)

    until = time.monotonic() + 90
    told: dict[str, Any] = {"exact": None}
    while time.monotonic() < until and told["exact"] is None and job.isActive:
        time.sleep(0.05)
        told = since(moment, list(events))
    job.stop()
    spark.stop()
    return told


def since(moment: float, events: list[dict[str, Any]]) -> dict[str, Any]:
    """When the loss was noticed, when the next answer came, and when everything was exact again, after the kill."""
    later = [event for event in events if event["heard"] > moment]
    lost = next((number for number, event in enumerate(later) if event["kind"] == "nodes lost"), None)
    if lost is None:
        return {"noticed": None, "answer": None, "exact": None, "fidelity": None}
    epochs = [event for event in later[lost:] if event["kind"] == "epoch"]
    read = [e for e in later[lost:] if e["kind"] == "published" and e["rows"] > 0 and e["fidelity"] > 0]
    whole = [event for event in epochs if not event["absent"] and not event["tentative"]]
    return {
        "noticed": later[lost]["heard"] - moment,
        "answer": read[0]["heard"] - moment if read else None,
        "exact": whole[0]["heard"] - moment if whole else None,
        "fidelity": read[0]["fidelity"] if read else None,
    }


def once(system: str, cluster: str, keys: int, rows: int, kill_at: int, replicas: int) -> dict[str, Any]:
    """One run in this process, on a cluster of its own."""
    os.environ.update(
        {name: LOOPBACK[name] for name in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_HOME", "PYSPARK_PYTHON")}
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-failover-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        whole = cluster == "standalone"

        def go(master: str) -> dict[str, Any]:
            if system == "structured":
                return run_structured(master, keys, rows, kill_at, whole, folder)
            return run_holdfast(master, keys, rows, kill_at, whole, folder, replicas)

        if whole:
            with standalone(folder) as made:
                return go(made.url)
        return go(f"local-cluster[{NODES},1,1400]")


def apart(*arguments: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, "--one", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--keys", type=int, action="append")
    parser.add_argument("--cluster", choices=["standalone", "local-cluster"], action="append")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=0, help="replicate so many of the four tasks")
    parser.add_argument("--matrix", action="store_true", help="every workload, every pair of nodes; standalone")
    parser.add_argument("--workload", action="append", help="of the matrix; all of them if not given")
    parser.add_argument("--pair", action="append", help="of the matrix: nodes to kill, such as 1,2; else all six")
    parser.add_argument("--seeds", type=int, default=3, help="of the matrix: so many inputs")
    parser.add_argument("--rate", type=int, default=5000, help="of the matrix: rows an epoch")
    parser.add_argument("--no-replicas", action="store_true", help="of the matrix: only without replicas")
    parser.add_argument("--keep", type=Path, help="of the matrix: keep the store of every run in this folder")
    parser.add_argument("--json", type=Path, help="write what was found here; of the matrix a line a run, as it ends: "
                        "runs that are there already are not run again")  # fmt: skip
    parser.add_argument("--one", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    for option, value in (("--seeds", asked.seeds), ("--rate", asked.rate), ("--repeat", asked.repeat)):
        if value < 1:
            parser.error(f"{option} must be at least 1, got {value}")
    if asked.matrix:
        from holdfast.workloads import WORKLOADS
        from matrix import all_cases, all_pairs, recorded, run

        if unknown := [name for name in asked.workload or () if name not in WORKLOADS]:
            parser.error(f"--workload {unknown[0]}: there are {', '.join(WORKLOADS)}")
        if wrong := [pair for pair in asked.pair or () if not re.fullmatch(r"([0-3]),(?!\1)[0-3]", pair)]:
            parser.error(f"--pair {wrong[0]}: two different nodes of 0 to 3 are needed, such as 1,2")
        pairs = [(int(pair[0]), int(pair[2])) for pair in asked.pair or ()] or all_pairs()
        replicas = ["none"] if asked.no_replicas else ["none", "25 %"]
        cases = all_cases(asked.workload or list(WORKLOADS), pairs, asked.seeds, asked.rate, replicas)
        if asked.json is not None and not asked.json.absolute().parent.is_dir():
            parser.error(f"--json {asked.json}: there is no folder {asked.json.parent}; make it first")
        try:
            recorded(asked.json, cases)
        except (ValueError, KeyError, TypeError):
            parser.error(f"--json {asked.json}: a line of it is no run of a matrix; name another file")
        run(cases, (asked.cluster or ["standalone"])[0], asked.json, asked.keep)
        return
    if asked.one:
        system, cluster, *numbers = asked.one
        print(json.dumps(once(system, cluster, *map(int, numbers))))
        return
    heads = ("cluster", "keys", "system", "next answer", "fidelity", "exact", "answer ratio", "exact ratio")
    print("".join(f"{head:>16}" for head in heads))
    record, lines = Record("failover.py", sys.argv[1:]), []
    for cluster in asked.cluster or ["standalone", "local-cluster"]:
        for keys in asked.keys or [100_000, 2_000_000]:
            rows = max(20_000, keys // 10)
            found: dict[str, dict[str, float]] = {}
            spread_of: dict[str, dict[str, dict[str, float]]] = {}
            for system in ("structured", "holdfast"):
                runs = []
                for _ in range(asked.repeat):
                    record.pause()
                    run = apart(system, cluster, str(keys), str(rows), "13", str(asked.replicas))
                    runs.append({name: 90.0 if value is None else value for name, value in run.items()})
                spread_of[system] = spreads(runs, "answer", "exact", "fidelity")
                found[system] = {what: each["median"] for what, each in spread_of[system].items()}
            lines.append({"cluster": cluster, "keys": keys, "turns": asked.repeat, "systems": spread_of})
            for system, times in found.items():
                ratio = {what: found["structured"][what] / times[what] for what in ("answer", "exact")}
                cells = [
                    cluster,
                    f"{keys:,}",
                    system,
                    f"{times['answer']:.2f} s",
                    f"{times['fidelity']:.2f}",
                    f"{times['exact']:.2f} s",
                ]
                print(
                    "".join(f"{cell:>16}" for cell in [*cells, f"{ratio['answer']:.1f}x", f"{ratio['exact']:.1f}x"]),
                    flush=True,
                )
    written(asked.json, record.to_json(lines))


if __name__ == "__main__":
    main()
