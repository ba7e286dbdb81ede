"""Where the time of an epoch goes, from the stream's trigger down to the operators' own work.

    .venv/bin/python benchmarks/epoch.py                          # an idle epoch through four levels
    .venv/bin/python benchmarks/epoch.py --query keyed-count --rows 4000000
    .venv/bin/python benchmarks/epoch.py --executors 2 --skip 200 --epochs 240

Medians over the warm epochs, in milliseconds, put together from Structured Streaming's own progress, the job's history,
Spark's event log and the reports of the workers. Each line is a part of the line above that is indented less.

What it taught, in this order: after every task Spark's Python workers collect garbage, and the next task waits for it;
with Arrow, polars and Holdfast to walk through that was 30 to 60 ms a level, more than half of an idle epoch, until the
modules were frozen before the fork (runtime/spark/daemon.py). The offset and commit logs cost 90 ms, half of it for
Hadoop's checksum files (runtime/spark/session.py). With four million rows it is Spark that turns rows into Arrow; the
counting itself is a tenth of that.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median, mode
from typing import Any

import throughput
from holdfast.runtime.history.history import read_history
from holdfast.runtime.messages import RunDone
from holdfast.runtime.spark import spark_session, start


def measured(query: str, rows: int, epochs: int, executors: int, skip: int) -> dict[str, Any]:
    logs, folder = (Path(tempfile.mkdtemp(prefix=f"holdfast-{what}-")) for what in ("log", "epoch"))
    spark = spark_session(
        f"local-cluster[{executors},1,1024]" if executors else "local[2]",
        settings={
            "spark.sql.streaming.numRecentProgressUpdates": "500",
            "spark.driver.memory": "6g",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": logs.as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        },
    )
    if query == "idle":
        stream, pipeline, nodes = throughput.keyed_stream(spark, rows), throughput.four_levels(), executors or 4
    else:
        make = throughput.keyed_stream if query == "keyed-count" else throughput.word_stream
        stream, pipeline, nodes = make(spark, rows), throughput.holdfast_pipeline(query), executors or 2
    job = start(stream, pipeline, store=folder, nodes=nodes, epochs=epochs, checkpoint_every=10**6)
    work: list[float] = []

    def watch(event: Any, _: Any) -> None:
        if isinstance(event, RunDone):
            work.append(sum(report.seconds for report in event.reports))

    job.driver.clock.post(lambda: job.driver.watchers.append(watch))
    job.awaitTermination()
    assert job._source is not None and job._source.query is not None
    progress = [entry["durationMs"] for entry in job._source.query.recentProgress if entry["numInputRows"]]
    history = list(read_history(folder))
    spark.stop()
    events = [json.loads(line) for file in logs.iterdir() for line in file.read_text().splitlines()]
    for made in (logs, folder):
        shutil.rmtree(made, ignore_errors=True)
    return {
        "progress": progress[skip:],
        "answered": [event["seconds"] * 1000 for event in history if event["kind"] == "answered"][skip:],
        "jobs": jobs(events)[skip:],
        "work": [seconds * 1000 for seconds in work][skip:],
    }


def jobs(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The Spark job of each epoch: how long it took, and of each stage how long its tasks did."""
    begun: dict[int, dict[str, Any]] = {}
    stages: dict[int, dict[str, Any]] = {}
    for event in events:
        match event["Event"]:
            case "SparkListenerJobStart" if "holdfast epoch" in event["Properties"].get("spark.job.description", ""):
                begun[event["Job ID"]] = {"start": event["Submission Time"], "stages": event["Stage IDs"]}
            case "SparkListenerJobEnd" if event["Job ID"] in begun:
                begun[event["Job ID"]]["end"] = event["Completion Time"]
            case "SparkListenerTaskEnd":
                info, stage = event["Task Info"], stages.setdefault(event["Stage ID"], {"tasks": []})
                stage["tasks"].append((info["Launch Time"], info["Finish Time"]))
            case "SparkListenerStageCompleted":
                info = event["Stage Info"]
                stage = stages.setdefault(info["Stage ID"], {"tasks": []})
                stage |= {"start": info["Submission Time"], "end": info["Completion Time"]}
    result = []
    for _, each in sorted(begun.items()):
        own = [stages[number] for number in sorted(each["stages"]) if stages.get(number, {}).get("tasks")]
        if "end" in each:
            tasks = [max(f for _, f in stage["tasks"]) - min(b for b, _ in stage["tasks"]) for stage in own]
            result.append({"total": each["end"] - each["start"], "tasks": tasks})
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--query", choices=["idle", "keyed-count", "word-frequency"], default="idle")
    parser.add_argument("--rows", type=int, help="rows of each batch (100 for idle, else 1,000,000)")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--skip", type=int, default=throughput.SKIPPED, help="epochs that are left out at first")
    parser.add_argument("--executors", type=int, default=0, help="so many of one core each, not local[2]")
    asked = parser.parse_args()
    rows = asked.rows or (100 if asked.query == "idle" else 1_000_000)
    if not 0 <= asked.skip < asked.epochs:
        parser.error(f"--skip must be below --epochs ({asked.epochs}), got {asked.skip}")
    if asked.executors < 0:
        parser.error(f"--executors must be 0 (one process) or more, got {asked.executors}")
    found = measured(asked.query, rows, asked.epochs, asked.executors, asked.skip)

    def line(depth: int, what: str, milliseconds: float) -> None:
        print(f"{'  ' * depth + what:<64}{milliseconds:8.1f}")

    def part(name: str) -> float:
        return float(median(entry.get(name, 0) for entry in found["progress"]))

    total, answered = part("triggerExecution"), median(found["answered"])
    spark = median(each["total"] for each in found["jobs"])
    stages = mode(len(each["tasks"]) for each in found["jobs"])
    alike = [each for each in found["jobs"] if len(each["tasks"]) == stages]
    print(f"{asked.query}, {rows:,} rows a batch, median of {len(found['progress'])} epochs, milliseconds")
    line(0, "a micro-batch, as Structured Streaming times it", total)
    line(1, "its offset log", part("walCommit"))
    line(1, "its commit log", part("commitOffsets"))
    line(1, "planning and offsets", part("queryPlanning") + part("latestOffset") + part("getBatch"))
    line(1, "handing the batch to Python", part("addBatch") - answered)
    line(1, "the epoch", answered)
    line(2, "arranging it in the driver: layout, journal commit, publishing", answered - spark)
    line(2, "the Spark job", spark)
    first = "ingest: rows to Arrow, sources, journal" + (" and all levels" if stages == 1 else "")
    for number in range(stages):
        line(3, f"level {number}" if number else first, median(each["tasks"][number] for each in alike))
    line(3, "scheduling around them", median(each["total"] - sum(each["tasks"]) for each in alike))
    line(0, "CPU of the operators' own work, all tasks together", median(found["work"]))


if __name__ == "__main__":
    main()
