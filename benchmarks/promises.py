"""What jobs promise before a failure against what they then say, over many random topologies in virtual time.

    .venv/bin/python benchmarks/promises.py [--jobs 1000] [--first 0] [--uneven]

Each job has a random topology, windows of random lengths, random replicas and a checkpoint every few epochs on two to
six nodes, of which some die together in one epoch. Prints how many made a promise (a job says nothing where room on the
nodes that are left may be short), how far the next answer was from it, and how often it fell below the floor that was
told before. Every tentative answer of a job is held against what it really lacks, window by window; one that says more
of itself ends the benchmark with its seed.

A promise is made before anybody has read the epoch. So it is exact where the stream is even; with ``--uneven`` rows
come in bursts and event time jumps and pauses, and the promises are off by as much as that makes of a difference.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "runtime"))


def main() -> None:
    from foretelling import kept

    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first job")
    parser.add_argument("--uneven", action="store_true", help="rows come in bursts, event time jumps and pauses")
    asked = parser.parse_args()
    if asked.jobs < 1:
        parser.error(f"--jobs must be at least 1, got {asked.jobs}")
    found = []
    for seed in range(asked.first, asked.first + asked.jobs):
        try:
            found += kept([seed], even=not asked.uneven)
        except AssertionError as error:
            raise SystemExit(f"seed {seed}: {error}") from None
        if (done := seed - asked.first + 1) % 100 == 0:
            print(f"{done} of {asked.jobs} jobs", file=sys.stderr)
    if not found:
        raise SystemExit("no job made a promise; ask for more --jobs")
    gaps = [abs(each.promised - each.achieved) for each in found]
    print(f"{asked.jobs} jobs, {len(found)} made a promise, {sum(each.promised < 1 for each in found)} of them below 1")
    print("no tentative answer said that it was more complete than it was")
    print(f"promised against achieved: median gap {statistics.median(gaps):.4f}, most {max(gaps):.4f}")
    off = [f"seed {e.seed} ({e.promised:.3f}, {e.achieved:.3f})" for e in found if abs(e.promised - e.achieved) > 0.02]
    print(f"off by more than 0.02: {len(off)}{'; ' if off else ''}{', '.join(off)}")
    spoken = [each for each in found if each.survived and each.floor is not None]
    under = [each.floor - each.achieved for each in spoken if each.floor is not None and each.achieved < each.floor]
    print(
        f"losses that a floor speaks of: {len(spoken)}; below it by more than 0.02: {sum(gap > 0.02 for gap in under)}"
    )


if __name__ == "__main__":
    main()
