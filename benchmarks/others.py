"""PyFlink and Bytewax on the same two queries, beside Structured Streaming, Holdfast and the limits of limit.py.

    .venv/bin/python benchmarks/others.py                        # both queries, three turns; about 15 minutes
    .venv/bin/python benchmarks/others.py --system bytewax --query keyed-count --repeat 1

The others are installed from PyPI, once, each into an environment of its own (``--environments``); one that cannot be
installed is left out, and why is said. Their programs are others_flink.py and others_bytewax.py; every answer is held
against what polars finds.

What is the same: the rows, the answer, two cores. What is not:
- Rows come from each system's own generator for keyed count (``value * 7919 % 100000``). The texts of word frequency
  Spark makes, Flink reads from CSV files, and Bytewax has in memory.
- Structured Streaming and Holdfast write answers as Parquet, batch by batch. Flink's go nowhere (a blackhole),
  Bytewax's into a dictionary. Flink's answer is checked in another run of the same query.
- Flink keeps state on the heap and makes an exactly-once checkpoint every ten seconds, Bytewax a snapshot every ten
  seconds; Structured Streaming and Holdfast make every batch durable before the next.
- Flink and Bytewax handle rows as they come, Flink's keyed count in mini-batches of a second: their latency is far less
  than that of a micro-batch, and is not measured here (latency.py has Spark's real-time mode).
- Rows per second of Flink include the start of the job in a warm JVM. Bytewax runs the user's Python for each row, and
  gets fewer rows.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import limit
import throughput
from holdfast.workloads import Options, workload
from measuring import Record, check, say, shown, spread, written

HERE = Path(__file__).resolve().parent
NEEDS = {"flink": "apache-flink==2.3.0", "bytewax": "bytewax==0.21.1"}
QUERIES = {"keyed-count": "stride-count", "word-frequency": "word-frequency"}
FEWER = {"keyed-count": 20, "word-frequency": 100}
"""Of the rows that the others get, Bytewax gets one in so many."""
SECONDS = 12
"""Of event time in the texts of word frequency."""


def environment(system: str, folder: Path) -> Path | str:
    """The Python of an environment that has the system, made if it is not there; or why it could not be."""
    made = folder / NEEDS[system].replace("==", "-")
    python, done = made / "bin" / "python", made / "installed"
    if not done.exists():
        say(f"installing {NEEDS[system]}, once")
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(made)],
            [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", NEEDS[system]],
        ):
            tried = subprocess.run(command, capture_output=True, text=True, check=False)
            if tried.returncode:
                return " ".join((tried.stderr.strip() or tried.stdout.strip()).splitlines()[-1].split())
        done.touch()
    return python


def texts(folder: Path, rate: int) -> pl.DataFrame:
    """So many texts a second of event time, as two files, and how often each word is in each window."""
    numbers = np.arange(rate * SECONDS, dtype=np.int64)
    made = pl.from_arrow(workload("word-frequency").rows(numbers, Options(rate=rate, seed=1)))
    assert isinstance(made, pl.DataFrame)
    (folder / "texts").mkdir()
    for part in range(2):
        made.select(number=pl.Series(numbers), text="text").gather_every(2, part).write_csv(
            folder / "texts" / f"{part}.csv", include_header=False
        )
    panes = made.select(start=pl.col("time").dt.epoch("s") // 5 * 5, word=pl.col("text").str.extract_all(r"\S+"))
    counted = panes.explode("word").group_by("start", "word").agg(n=pl.len())
    windows = [counted.with_columns(pl.col("start") - back) for back in range(0, 30, 5)]
    return pl.concat(windows).group_by("start", "word").agg(pl.col("n").sum())


def same(found: list[tuple[int, str, int]], right: pl.DataFrame) -> bool:
    return sorted(found) == sorted(right.select("start", "word", pl.col("n").cast(pl.Int64)).rows())


def flink(python: Path, query: str, rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-others-") as name:
        folder = Path(name)
        given = {"rows": rows, "keys": throughput.KEYS, "stride": throughput.STRIDE, "rate": rows // SECONDS}
        right = texts(folder, rows // SECONDS) if query == "word-frequency" else None
        (found,) = told([run(python, "others_flink.py", query, folder, given)])
        if right is None:
            counts = np.bincount(np.arange(rows, dtype=np.int64) * throughput.STRIDE % throughput.KEYS)
            met = counts[counts > 0]
            checked = found["answer"] == [len(met), rows, met.min().item(), met.max().item()]
        else:
            heads = ["start", "word", "n"]
            files = [each for each in (folder / "out").iterdir() if each.stat().st_size]
            came = pl.concat([pl.read_csv(each, has_header=False, new_columns=heads) for each in files])
            starts = pl.col("start").str.to_datetime("%Y-%m-%d %H:%M:%S%.f").dt.epoch("s")
            checked = same(came.with_columns(starts).rows(), right)
        return {"rows_per_second": rows / found["seconds"], "right": checked}


def bytewax(python: Path, query: str, rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="holdfast-others-") as name:
        folder = Path(name)
        given = {"rows": rows, "keys": throughput.KEYS, "stride": throughput.STRIDE, "rate": rows // SECONDS}
        right = texts(folder, rows // SECONDS) if query == "word-frequency" else None
        given["addresses"] = [f"127.0.0.1:{port}" for port in free_ports(2)]
        started = [run(python, "others_bytewax.py", query, folder, {**given, "process": each}) for each in range(2)]
        found = told(started)
        answer = {key: count for each in found for key, count in each["answer"].items()}
        if right is None:
            values = np.arange(rows, dtype=np.int64) * throughput.STRIDE % throughput.KEYS
            counts = np.bincount(values, minlength=throughput.KEYS)
            checked = answer == {str(key): count for key, count in enumerate(counts.tolist()) if count}
        else:
            rows_found = [(int(key.split()[0]), key.split()[1], count) for key, count in answer.items()]
            checked = same(rows_found, right)
        seconds = max(each["ended"] for each in found) - min(each["began"] for each in found)
        return {"rows_per_second": rows / seconds, "right": checked}


def run(python: Path, script: str, query: str, folder: Path, given: dict[str, Any]) -> subprocess.Popen[str]:
    command = [str(python), str(HERE / script), query, str(folder), json.dumps(given)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(started: list[subprocess.Popen[str]]) -> list[dict[str, Any]]:
    """The last line of each; if one fails, the others are ended."""
    found = []
    try:
        for each in started:
            out, error = each.communicate()
            if each.returncode:
                sys.exit(error[-2000:])
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for each in started:
            each.kill()
            each.wait()
    return found


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--query", choices=list(QUERIES), action="append")
    parser.add_argument("--system", choices=[*NEEDS, *limit.SYSTEMS], action="append")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows a batch; words of a batch for word-frequency")
    parser.add_argument("--batches", type=int, default=15, help="the others get as many rows as are in the warm ones")
    parser.add_argument("--skip", type=int, default=throughput.SKIPPED, help="batches that are left out at first")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--environments", type=Path, default=Path.home() / ".cache" / "holdfast" / "bench")
    parser.add_argument("--json", type=Path, help="write what was found here")
    asked = parser.parse_args()
    check(parser, asked, "skip", "batches")
    systems = asked.system or [*limit.SYSTEMS, *NEEDS]
    pythons: dict[str, Path] = {}
    missing: dict[str, str] = {}
    for system in [each for each in systems if each in NEEDS]:
        found = environment(system, asked.environments)
        if isinstance(found, str):
            missing[system] = found
            print(f"{system} is left out, {NEEDS[system]} does not install: {found}")
        else:
            pythons[system] = found
    record, rows = Record("others.py", sys.argv[1:]), []
    print(f"{'query':<16}{'system':>14}{'rows/s':>36}  answer")
    for query in asked.query or list(QUERIES):
        size = asked.rows // (limit.TEXTS if query == "word-frequency" else 1)
        total = size * (asked.batches - asked.skip)
        runs: dict[str, list[dict[str, Any]]] = {each: [] for each in systems if each not in missing}
        for turn in range(asked.repeat):
            for system, found_of in runs.items():
                record.pause()
                if system == "flink":
                    one = flink(pythons[system], query, total)
                elif system == "bytewax":
                    one = bytewax(pythons[system], query, max(SECONDS, total // FEWER[query]))
                else:
                    words = (QUERIES[query], str(size), str(asked.batches), "parquet", "10", str(asked.skip))
                    one = throughput.apart(system, *words)
                found_of.append(one)
                say(f"{query}, turn {turn + 1}/{asked.repeat}: {system} {one['rows_per_second']:,.0f} rows/s")
        told_of = {
            system: {
                "rows_per_second": spread(each["rows_per_second"] for each in found),
                "checked": all(each.get("right", True) for each in found) if system in NEEDS else None,
            }
            for system, found in runs.items()
        }
        rows.append({"query": query, "rows": size, "turns": asked.repeat, "systems": told_of})
        for system, each in told_of.items():
            right = {None: "", True: "right", False: "WRONG"}[each["checked"]]
            print(f"{query:<16}{system:>14}{shown(each['rows_per_second']):>36}  {right}", flush=True)
    written(asked.json, {**record.to_json(rows), "missing": missing})


if __name__ == "__main__":
    main()
