"""Kills 1, 2, 3 or all 4 of four real executors at random epochs, run after run, and compares the final output.

    .venv/bin/python benchmarks/kills.py --runs 20 --seed 1

One ``local-cluster`` of four executors; each run is a job of its own with a random number of kills, random replicas and
a random epoch, drawn from the seed. The final output must be, row for row, that of a plain loop over the same rows.
Prints a line a run: who was killed and when, how long until the next answer and until everything was exact again. Ends
with the number of runs whose output was identical; exit code 1 if one was not.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.narrative import recoveries
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import spark_session, start
from holdfast.workloads import Options, workload

NODES = 4


def expected(options: Options) -> list[tuple[int, str, int]]:
    counts: Counter[str] = Counter()
    rows = []
    for epoch in range(options.epochs):
        words = [
            word for text in workload("word-count").batch(options, epoch).column(0).to_pylist() for word in text.split()
        ]
        counts.update(words)
        rows += [(epoch, word, counts[word]) for word in sorted(set(words))]
    return rows


def found(folder: Path) -> list[tuple[int, str, int]]:
    table = read_output(folder, "final")
    return sorted(zip(*(table[name].to_pylist() for name in ("epoch", "key", "count")), strict=True))


def seconds(measured: float | None) -> str:
    return "(not seen)" if measured is None else f"{measured:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--keep", action="store_true", help="keep the folder of every run")
    asked = parser.parse_args()
    drawn = random.Random(asked.seed)
    spark = spark_session(f"local-cluster[{NODES},1,1024]")
    backend = spark.sparkContext._jsc.sc().schedulerBackend()
    identical = 0
    for run in range(asked.runs):
        until = time.monotonic() + 120
        while backend.getExecutorIds().size() < NODES and time.monotonic() < until:
            time.sleep(0.1)
        options = Options(epochs=asked.epochs, rate=asked.rate, seed=drawn.randrange(2**31))
        victims = drawn.sample(range(NODES), 1 + run % NODES)
        when = drawn.randrange(1, asked.epochs - 2)
        names = ",".join(f"node-{number}" for number in sorted(victims))
        replicas = [f"count/{number}" for number in range(NODES) if drawn.random() < 0.4]
        folder = Path(tempfile.mkdtemp(prefix="holdfast-kills-"))
        job = start(
            workload("word-count").stream(spark, options), workload("word-count").pipeline(parallelism=NODES),
            store=folder, nodes=NODES, epochs=options.epochs, checkpoint_every=drawn.randrange(2, 6), replicas=replicas,
            faults=parse_faults(f"kill {names} at epoch {when}"),
        )  # fmt: skip
        job.awaitTermination(300)
        same = found(folder) == expected(options)
        identical += same
        for told in recoveries(read_history(folder)):
            print(
                f"run {run}: killed {', '.join(told.nodes)} at epoch {when}, replicas {len(replicas)}: "
                f"next answer after {seconds(told.answered_after)}, exact after {seconds(told.exact_after)}, "
                f"{'identical' if same else 'DIFFERENT: ' + str(folder)}",
                flush=True,
            )
        if asked.keep:
            print(f"run {run}: {folder}", flush=True)
        elif same:
            shutil.rmtree(folder, ignore_errors=True)
    spark.stop()
    print(f"{identical} of {asked.runs} runs: final output identical to that of a plain loop")
    sys.exit(identical < asked.runs)


if __name__ == "__main__":
    main()
