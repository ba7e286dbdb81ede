"""The driver is killed at bad moments; the next process goes on, and the final output is that of an undisturbed run.

At random ones, many times: benchmarks/crashes.py. In every run of all tests a driver is killed at its sink
(``test_promises_outside.py``), and the fuzzer kills one at any of its writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import final_counts, killed_when

from holdfast.workloads import Options
from plain_counts import expected_counts

pytestmark = pytest.mark.spark

OPTIONS = Options(epochs=12, rate=200, seed=5)


def arguments(folder: Path) -> tuple[str, ...]:
    options = f"--nodes 2 --epochs {OPTIONS.epochs} --rate {OPTIONS.rate} --seed {OPTIONS.seed} --checkpoint-every 3"
    return ("run", "word-count", *options.split(), "--out", str(folder))


def in_the_first_epoch(folder: Path) -> Callable[[], bool]:
    return lambda: any((folder / "journal").glob("*/*.arrow"))


def in_the_middle_of_a_checkpoint(folder: Path) -> Callable[[], bool]:
    """Files of states are there that no manifest names yet."""

    def condition() -> bool:
        files = sum(1 for _ in (folder / "state").glob("*/*.arrow"))
        return files % 2 == 1

    return condition


def before_publishing(folder: Path) -> Callable[[], bool]:
    return lambda: any((folder / "output" / "staged").glob("*.parquet"))


@pytest.mark.long
def test_a_killed_driver_loses_and_repeats_nothing(
    tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    moments = (in_the_first_epoch, in_the_middle_of_a_checkpoint, before_publishing)
    killed = [killed_when(moment(tmp_path), *arguments(tmp_path)) for moment in moments]
    assert all(killed[:2])
    code, out, err = command(*arguments(tmp_path), "--format", "json", "--quiet")
    assert code == 0, err
    summary: dict[str, Any] = json.loads(out)
    assert summary["epochs"] == OPTIONS.epochs
    assert final_counts(tmp_path) == expected_counts(OPTIONS)
