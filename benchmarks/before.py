"""This tree against an earlier commit: throughput, idle epochs and failover, measured by turns in one run.

    .venv/bin/python benchmarks/before.py a8ff31d                      # everything, three turns, about 20 minutes
    .venv/bin/python benchmarks/before.py a8ff31d --only throughput --rows 200000 --repeat 5
    .venv/bin/python benchmarks/before.py 211f713 --only parts         # where the time of an idle epoch went, and goes

Each measurement is a process of its own with the benchmark script of its own commit, from a work tree that is made for
it and removed afterwards; failover.py is this tree's for both, as earlier ones killed at another moment. Prints medians
with the least and the most of both sides, and the ratio of the medians: above 1 this tree is better.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
SKIPPED = "5"
"""Batches that are left out at first."""


@contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """A work tree of a commit, for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="holdfast-before-") as folder:
        tree = Path(folder) / "tree"
        done = subprocess.run(
            ["git", "-C", str(HERE), "worktree", "add", "--detach", str(tree), commit],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{commit}: no work tree could be made of it: {' '.join(done.stderr.split())}")
        try:
            yield tree
        finally:
            subprocess.run(["git", "-C", str(HERE), "worktree", "remove", "--force", str(tree)], check=False)


def told(tree: Path, script: str, words: list[str]) -> list[str]:
    """What a tree's own script prints; failover.py is this tree's, on the other's package."""
    paths = {"PYTHONPATH": str(tree / "src"), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, str((HERE if script == "failover.py" else tree) / "benchmarks" / script), *words]
    done = subprocess.run(command, env={**os.environ, **paths}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{script} {' '.join(words)} in {tree}: {done.stderr[-2000:]}")
    return done.stdout.splitlines()


def one(tree: Path, script: str, words: list[str]) -> dict[str, Any]:
    """One measurement. Since throughput.py has --skip, it wants to be told."""
    if script == "throughput.py" and words[0] != "idle":
        words = words + ([SKIPPED] if '"--skip"' in (tree / "benchmarks" / script).read_text() else [])
    found: dict[str, Any] = json.loads(told(tree, script, ["--one", *words])[-1])
    return found


def parts(trees: tuple[Path, Path], epochs: int, repeat: int) -> None:
    """The lines of epoch.py of both sides, medians over the turns; a part that only one side has stands alone."""
    found: tuple[dict[str, list[float]], dict[str, list[float]]] = ({}, {})
    for side in [0, 1] * repeat:
        for line in told(trees[side], "epoch.py", ["--epochs", str(epochs)])[1:]:
            name, _, milliseconds = line.rstrip().rpartition(" ")
            found[side].setdefault(name.rstrip(), []).append(float(milliseconds))
    print("an idle epoch through four levels: milliseconds")
    for name in dict.fromkeys([*found[0], *found[1]]):
        cells = (f"{statistics.median(each[name]):.0f}" if name in each else "-" for each in found)
        print(f"{name:<72}" + "".join(f"{cell:>10}" for cell in cells))


def compare(
    what: str, trees: tuple[Path, Path], script: str, words: list[str], keys: dict[str, str], repeat: int
) -> None:
    """Alternate; a line for each of ``keys``, which says whether more or less of it is better.

    A ``MOMENT`` in the words is that of the turn, alike for both sides: spread over all of an epoch.
    """
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = ([], [])
    for turn in range(repeat):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            moment = str((turn + 0.5) / repeat)
            found[side].append(one(trees[side], script, [word.replace('"MOMENT"', moment) for word in words]))
    for key, better in keys.items():
        before, now = ([float(run[key]) for run in runs if run.get(key) is not None] for runs in found)
        if not before or not now:
            print(f"{what:<34}{key:<18} {len(before)} of {repeat} before, {len(now)} of {repeat} now", flush=True)
            continue
        old, new = statistics.median(before), statistics.median(now)
        ratio = new / old if better == "more" else old / new
        cells = [f"{mid:,.3g} ({min(all_):,.3g} to {max(all_):,.3g})" for mid, all_ in ((old, before), (new, now))]
        print(f"{what:<34}{key:<18}{cells[0]:>34}{cells[1]:>34}{ratio:>8.2f}x", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("--only", choices=["throughput", "idle", "failover", "parts"], action="append")
    parser.add_argument("--rows", type=int, action="append", help="rows a batch: 200000 and 1000000 if not given")
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--keys", type=int, default=100_000, help="keys of the failover")
    parser.add_argument("--executors", type=int, default=0, help="of the idle epoch: so many of one core, not local[2]")
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    if asked.repeat < 1 or asked.batches < 8:
        parser.error("--repeat must be 1 or more, --batches 8 or more")
    known = ["git", "-C", str(HERE), "rev-parse", "--verify", "--quiet", f"{asked.commit}^{{commit}}"]
    if subprocess.run(known, capture_output=True, check=False).returncode:
        parser.error(f"no commit {asked.commit!r} in {HERE}; git log --oneline has those to compare with")
    wanted = asked.only or ["throughput", "idle", "failover"]
    print(f"{'':<34}{'':<18}{'before':>34}{'now':>34}{'ratio':>9}")
    with tree_of(asked.commit) as tree:
        trees = (tree, HERE)
        if "parts" in wanted:
            parts(trees, asked.batches, asked.repeat)
        for rows in (asked.rows or [200_000, 1_000_000]) if "throughput" in wanted else ():
            words = ["holdfast", "keyed-count", str(rows), str(asked.batches), "parquet", "10"]
            keys = {"rows_per_second": "more", "cpu": "less"}
            compare(f"keyed-count, {rows:,} rows", trees, "throughput.py", words, keys, asked.repeat)
        if "idle" in wanted:
            words = ["idle", str(asked.batches + 20)]
            words += [str(asked.executors)] if asked.executors else []
            compare("idle epoch, four levels", trees, "throughput.py", words, {"median": "less"}, asked.repeat)
        if "failover" in wanted:
            rows = max(20_000, asked.keys // 10)
            turn = {"system": "holdfast", "settings": "same", "interval": 1.0, "keys": asked.keys, "rows": rows,
                    "moment": "MOMENT", "victims": [1, 2], "epochs": 13, "seconds": 0}  # fmt: skip
            words = ["local-cluster[4,1,1400]", json.dumps(turn)]
            keys = {"answer": "less", "fidelity": "more", "exact": "less"}
            compare(f"failover, {asked.keys:,} keys", trees, "failover.py", words, keys, asked.repeat)


if __name__ == "__main__":
    main()
