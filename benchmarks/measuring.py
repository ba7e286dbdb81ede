"""What benchmarks have in common: spread over repetitions, what else the machine does meanwhile, and JSON of it all."""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

QUIET = 0.1
"""A machine of which others take less than this share is quiet."""
FIRST = 30
"""Number of batches in which a query is young."""


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, least and most, to four digits."""
    found = sorted(values)
    each = {"median": statistics.median(found), "least": found[0], "most": found[-1]}
    return {name: float(f"{value:.4g}") for name, value in each.items()}


def spreads(runs: list[dict[str, Any]], *names: str) -> dict[str, dict[str, float]]:
    return {name: spread(run[name] for run in runs) for name in names}


def young_speed(seconds: list[float], rows: int) -> float:
    """Rows a second of the first thirty batches, or of as many as there are, without the one that starts processes."""
    young = seconds[1:FIRST] or seconds
    return rows * len(young) / sum(young)


def shown(found: dict[str, float], form: str = ",.0f") -> str:
    """``median (least-most)``"""
    return f"{found['median']:{form}} ({found['least']:{form}}-{found['most']:{form}})"


class Record:
    """What a command measured, when and where. ``pause`` is called between measurements, while none of ours runs."""

    def __init__(self, command: str, words: list[str]) -> None:
        paths = re.compile(r" --(json|environments)[ =]\S+")  # where things lie is nobody's business
        self._command = paths.sub("", " ".join([f"benchmarks/{command}", *words]))
        self._began = time.monotonic()
        self._others: list[float] = []

    def pause(self, seconds: float = 0.5) -> None:
        """Looks how much of the machine others take."""
        time.sleep(seconds)  # what ran last may still be ending
        before = _ticks()
        time.sleep(seconds)
        busy, idle = (now - then for now, then in zip(_ticks(), before, strict=True))
        self._others.append(busy / max(1, busy + idle))

    def to_json(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        others = statistics.median(self._others) if self._others else 0.0
        return {
            "command": self._command,
            "date": datetime.now(UTC).date().isoformat(),
            "cores": os.cpu_count(),
            "memory_gib": round(memory),
            "others": round(others, 2),
            "quiet": others < QUIET,
            "seconds": round(time.monotonic() - self._began),
            "rows": rows,
        }


def written(path: Path | None, document: dict[str, Any]) -> None:
    if path is not None:
        text = json.dumps(document, indent=1) + "\n"
        other = path.with_name(f".{path.name}.new")
        other.write_text(text, encoding="utf-8")
        other.replace(path)


def check(parser: argparse.ArgumentParser, asked: argparse.Namespace, skip: str, total: str) -> None:
    """Refuses counts below one, and measurements of which nothing would be left."""
    for name in ("repeat", "rows", total):
        given = getattr(asked, name, None)
        for value in given if isinstance(given, list) else [given]:
            if value is not None and value < 1:
                parser.error(f"--{name} must be at least 1, got {value}")
    left_out, of = getattr(asked, skip), getattr(asked, total)
    if not 0 <= left_out < of:
        parser.error(f"--{skip} must be below --{total} ({of}), got {left_out}")


def say(text: str) -> None:
    """Progress, beside what is measured."""
    print(text, file=sys.stderr, flush=True)


def _ticks() -> tuple[int, int]:
    """Busy and idle, of all cores together."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, idle
