"""A fuzz of malformed stores: every file of a real small store is changed in many ways, and everything that reads it
must give the right answer or refuse in words of its own.

    python tests/runtime/malformed_stores.py --count 1000 --seed 0     every file in 1,000 ways (make fuzz-stores)

The store is one of a job that lost a node, was scaled, and whose driver died: it has checkpoints, a journal that must
be replayed, outputs of both kinds, claims and a history. Two sorts of changes: damage, which the checksums must show;
and forgery, where whoever changed a document has put the right checksum under it. Forged values may lead to another
answer, but never out of the store and never to an error that is not ours. The first change of each file is that of
another store of the same pipeline, where that has one of this name.

Changes: malformed_changes.py. Readers: malformed_readers.py. Why not every change is read as a whole:
malformed_sharing.py.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from malformed_changes import Change, drawn
from malformed_readers import End, Hear, another, laid_out, matters, read, real, restarted, said
from malformed_sharing import Ear, Ends, Watch, on_disk

from holdfast.runtime.history.history import NAME
from holdfast.runtime.simulation.disk import Disk

READERS = ("said", "read", "restarted")
CHECKED = 50
"""Of so many ends that are known from others one is found out all the same."""
SIZES = re.compile(r"has \d+ bytes, \d+ were written")
"""Of a file that was cut or has grown, by how much makes no difference."""
UNSAID = re.compile(rf"{SIZES.pattern}|(?<= of Holdfast): .*", re.DOTALL)
"""Nor to a restart, which goes by the kind of error, why a document is none of ours."""
EVERY = 20.0
"""Seconds between lines that tell how far it is."""


class Looks:
    """Looks at changed stores in all ways. ``folder``: a store as it was, which is so again after every look."""

    def __init__(self, folder: Path, shares: bool = True) -> None:
        self._folder = folder
        self._shares = shares
        self._ends = {reader: Ends() for reader in READERS}
        self._known = 0
        self.ran: Counter[str] = Counter()

    def at(self, change: Change, readers: Sequence[str]) -> End:
        """What is wrong with what comes of a change; if nothing is, what a restart makes of it, or else the others."""
        ends: list[End] = []
        try:
            for name, data in change.files.items():
                (self._folder / name).write_bytes(data)
            for reader in readers:
                ends.append(self._end(reader, change))
                if ends[-1].told is not None:
                    return ends[-1]
        finally:
            for name in change.files:
                (self._folder / name).write_bytes(real().files[name])
        if "restarted" in readers:
            return ends[-1]
        return next((end for end in ends if end.how == "refused"), ends[0])

    def _end(self, reader: str, change: Change) -> End:
        files = {name: data for name, data in change.files.items() if reader != "restarted" or name != NAME}
        if not self._shares or NAME in files:  # the history is not read through questions
            return self._run(reader, change)
        ends, ear, sort = self._ends[reader], self._ear(reader, change), (change.forged, matters(change))
        if (known := ends.known(files, sort, ear)) is not None:
            self._known += 1
            if self._known % CHECKED:
                return known  # type: ignore[no-any-return]
        heard: list[Watch] = []

        def hear(disk: Disk | None) -> AbstractContextManager[Any]:
            heard.append(Watch(ear, disk))
            return heard[-1].installed()

        end = self._run(reader, change, hear)
        if known is not None and known != end:
            raise AssertionError(f"{change.told}: {reader}: {end}, though others that were told the same: {known}")
        ends.learn(files, sort, heard[0].steps, end)
        return end

    def _run(self, reader: str, change: Change, *hear: Hear) -> End:
        self.ran[reader] += 1
        match reader:
            case "said":
                return said(self._folder, change, *hear)
            case "read":
                return read(self._folder, *hear)
            case _:
                return restarted(change, *hear)

    def _ear(self, reader: str, change: Change) -> Ear:
        if reader == "restarted":
            return Ear(on_disk, UNSAID)
        paths = {f"{self._folder}/{name}" for name in change.files}
        return Ear(lambda files, name: f"{files.url}/{name}" in paths, SIZES)


@dataclass(frozen=True)
class Fuzzed:
    """A file that was changed in many ways: what came of them, and what did not hold, with what shows it again."""

    name: str
    ends: Counter[str]
    found: list[str] = field(default_factory=list)
    ran: Counter[str] = field(default_factory=Counter)


def fuzzed(name: str, count: int, seed: int, in_turn: bool = False, shares: bool = True) -> Fuzzed:
    """Change a file in so many ways. ``in_turn``: of the readers each change meets one, by its number.

    ``shares``: what a reader does is found out once for all changes that it cannot tell apart.
    """
    done = Fuzzed(name, Counter())
    with laid_out(real().files) as folder:
        looks = Looks(folder, shares)
        for number in range(count):
            change = drawn(name, Random(f"{seed} {name} {number}"), real().files)
            if number == 0 and name in another():
                change = Change(f"{name}: of another store", {name: another()[name]}, forged=name == NAME)
            end = looks.at(change, _readers(change, number if in_turn else None))
            done.ends[end.how] += 1
            if end.told is not None:
                forged = " (forged)" if change.forged else ""
                done.found.append(f"{change.told}{forged}: {end.told} [seed {seed} {number}]")
        done.ran.update(looks.ran)
    return done


def _readers(change: Change, turn: int | None) -> Sequence[str]:
    if set(change.files) == {NAME}:
        return READERS[:2]  # a restart does not read the history
    return READERS if turn is None else (READERS[turn % len(READERS)],)


def kind_of(name: str) -> str:
    """The kind of a file, by its folder; a file in none is one of its own."""
    return "/".join(part for part in name.split("/")[:-1] if part.isalpha()) or name


def summary(done: Sequence[Fuzzed]) -> Iterator[str]:
    """What came of the changes, by kind of file."""
    yield f"{'kind':22}{'files':>6}{'changes':>9}{'refused':>9}{'right answer':>14}{'harmless':>10}"
    for kind in sorted({kind_of(each.name) for each in done}):
        mine = [each for each in done if kind_of(each.name) == kind]
        ends = sum((each.ends for each in mine), Counter[str]())
        told = f"{ends['refused']:>9,}{ends['right answer']:>14,}{ends['harmless']:>10,}"
        yield f"{kind:22}{len(mine):>6}{ends.total():>9,}{told}"


def each_fuzzed(names: Sequence[str], count: int, seed: int, processes: int) -> Iterator[Fuzzed]:
    """Files as they are done, by so many processes."""
    if processes == 1:
        yield from (fuzzed(name, count, seed) for name in names)
        return
    # Processes of their own, not forks: Arrow has threads.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(fuzzed, name, count, seed) for name in names]
        for each in as_completed(waiting):
            yield each.result()


class OneLine(argparse.ArgumentParser):
    """Says in one line what is wrong with its options."""

    def error(self, message: str) -> NoReturn:
        print(f"malformed_stores: {message}", file=sys.stderr)
        sys.exit(2)


def at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"a whole number from {least} on is needed, got {text!r}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = OneLine(description="Change every file of a store in many ways.")
    parser.add_argument("--count", type=partial(at_least, 1), default=1000, help="ways for each file")
    parser.add_argument("--seed", type=partial(at_least, 0), default=0)
    parser.add_argument("--only", default="", help="files whose names contain this")
    parser.add_argument("--processes", type=partial(at_least, 1), default=os.cpu_count() or 1, help="at once")
    given = parser.parse_args(arguments)
    names = sorted(name for name in real().files if given.only in name)
    if not names:
        parser.error(f"--only {given.only}: no file has that in its name, there is {', '.join(sorted(real().files))}")
    began = told = time.monotonic()
    done: list[Fuzzed] = []
    for each in each_fuzzed(names, given.count, given.seed, min(given.processes, len(names))):
        done.append(each)
        for line in each.found:
            print(line, flush=True)
        now = time.monotonic()
        if now - told >= EVERY:
            told, spent = now, now - began
            rate, left = len(done) * given.count / spent, spent / len(done) * (len(names) - len(done))
            print(f"{len(done)} of {len(names)} files, {rate:.0f} changes/s, {left:.0f} s left", file=sys.stderr)
    for line in summary(done):
        print(line)
    found, total = sum(len(each.found) for each in done), len(names) * given.count
    print(f"{len(names)} files, {total:,} changes in {time.monotonic() - began:.0f} s: {found} do not hold")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
