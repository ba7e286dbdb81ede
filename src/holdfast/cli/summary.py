"""What a run says: notes while it starts, events as lines, and the summary at its end."""

from __future__ import annotations

import json
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console

from holdfast.cli.output import progress
from holdfast.runtime.history.history import read_history


class Log(StrEnum):
    display = "display"
    json = "json"


def say(text: str, log: Log) -> None:
    """To stderr; as a line of JSON where all lines are."""
    if log is Log.json:
        log_line({"time": round(time.time(), 6), "kind": "note", "text": text})
    else:
        progress.print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


def log_line(event: dict[str, Any]) -> None:
    print(json.dumps(event, default=str, allow_nan=False), file=sys.stderr, flush=True)


def summarise(folder: Path, name: str, seconds: float) -> dict[str, Any]:
    """What the history and the outputs of a run say."""
    rows = shed = failures = tentative_epochs = 0
    epochs: set[int] = set()
    lost: list[str] = []
    latencies = []
    recovered, over, lost_at = True, False, -1
    for event in read_history(folder):
        match event["kind"]:
            case "epoch":
                if event["epoch"] not in epochs:
                    rows += event["rows_in"]
                    shed += event.get("shed", 0)
                epochs.add(event["epoch"])
                tentative_epochs += event["tentative"] > 0
                recovered = not event["absent"] and not event["tentative"]
            case "stopped":
                over = True
            case "started":
                over = False
            case "nodes lost":
                failures += 1
                lost += event["nodes"]
                recovered = recovered and over  # what goes when the job has ended takes nothing with it
                lost_at = event["epoch"] if not over else lost_at
            case "answered":
                latencies.append(event["seconds"])
            case "checkpoint":
                recovered = recovered or event["epoch"] >= lost_at  # an older one was under way when nodes were lost
    ordered = sorted(latencies)
    return {
        "workload": name,
        "epochs": len(epochs),
        "rows": rows,
        "shed_rows": shed,
        "final_rows": _rows(folder / "output" / "final"),
        "tentative_rows": _rows(folder / "output" / "tentative"),
        "failures": failures,
        "nodes_lost": lost,
        "recovered": recovered,
        "tentative_epochs": tentative_epochs,
        "latency_median_s": ordered[len(ordered) // 2] if ordered else None,
        "latency_max_s": ordered[-1] if ordered else None,
        "seconds": round(seconds, 3),
        "out": str(folder),
    }


def _rows(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))


def print_summary(console: Console, summary: dict[str, Any]) -> None:
    console.print(
        f"{summary['epochs']} epochs, {summary['rows']:,} rows in, {summary['final_rows']:,} final and "
        f"{summary['tentative_rows']:,} tentative rows out, {summary['failures']} failures"
        + ("" if summary["recovered"] else ", not recovered"),
        highlight=False,
    )
    if summary["shed_rows"]:
        share = summary["shed_rows"] / (summary["shed_rows"] + summary["rows"])
        console.print(
            f"{summary['shed_rows']:,} rows ({share:.1%}) were left out to keep up: the output is that of the rest",
            highlight=False,
        )
    if summary["latency_median_s"] is not None:
        console.print(
            f"latency of an epoch: median {summary['latency_median_s']:.2f} s, most {summary['latency_max_s']:.2f} s",
            highlight=False,
        )
    console.print(f"output, history and summary in {summary['out']}", highlight=False, soft_wrap=True)
    if summary["interrupted"]:
        console.print("it was interrupted; the same command with that --out goes on", highlight=False, soft_wrap=True)
    console.print(f"holdfast report {summary['out']} makes a page of it", highlight=False, soft_wrap=True)
