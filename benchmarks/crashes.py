"""SIGKILLs the driver at random moments, again and again, and compares the final output with a plain loop, row by row.

    .venv/bin/python benchmarks/crashes.py --kills 20 --seed 1

One job, one store. Every life of the job ends at a moment drawn from the seed: for a quarter of them up to eight
seconds after it began to look at its store, for the others up to two seconds after its first answer; either the
driver's Python alone, whose JVM and workers outlive it for a moment, or the whole process group at once. The last life
runs to the end. Says of each life how far it had come and what it left behind; exit code 1 if a row is missing, too
many, or different.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.workloads import Options
from kills import expected, found

EPOCHS_A_LIFE = 6


def left_behind(folder: Path) -> str:
    """What a life that was cut short had under way."""

    def names(pattern: str) -> set[str]:
        return {path.name for path in folder.glob(pattern)}

    epochs, staged = len(names("journal/commits/*.json")), len(names("output/staged/*.parquet"))
    begun = {path.parent.name for path in folder.glob("journal/*/*.arrow")}
    return f"{epochs} epochs in the journal, {len(begun)} folders of it, {staged} outputs staged"


def life(command: list[str], folder: Path, wait: float | None, since: str, whole_group: bool) -> bool:
    """Run until killed, ``wait`` seconds after its first event of this kind; True if it came to its end."""
    history = folder / "history.jsonl"
    size = history.stat().st_size if history.exists() else 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    try:
        while wait is not None and process.poll() is None:
            if history.exists() and f'"kind": "{since}"' in history.read_text(encoding="utf-8")[size:]:
                time.sleep(wait)
                if process.poll() is None:
                    (os.killpg if whole_group else os.kill)(process.pid, signal.SIGKILL)
                    process.wait()
                    return False
            time.sleep(0.005)
        _, error = process.communicate()
        if process.returncode:
            sys.exit(f"the job failed by itself: {error.decode()[-2000:]}")
        return True
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=200)
    asked = parser.parse_args()
    drawn = random.Random(asked.seed)
    options = Options(epochs=EPOCHS_A_LIFE * (asked.kills + 1), rate=asked.rate, seed=asked.seed)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-crashes-"))
    words = f"run word-count --nodes 2 --checkpoint-every 3 --epochs {options.epochs} --rate {options.rate}"
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", *words.split()]
    command += ["--seed", str(options.seed), "--out", str(folder), "--quiet"]
    killed = 0
    while killed < asked.kills:
        since, most = ("started", 8.0) if drawn.random() < 1 / 4 else ("answered", 2.0)
        wait = drawn.uniform(0, most)
        whole = drawn.random() < 0.5
        if life(command, folder, wait, since, whole):
            break
        killed += 1
        who = "driver, JVM and workers" if whole else "driver"
        when = "the start" if since == "started" else "the first answer"
        print(f"kill {killed}: {who} {wait:.2f} s after {when}; {left_behind(folder)}", flush=True)
    else:
        life(command, folder, None, "", True)
    same = found(folder) == expected(options)
    print(
        f"{killed} kills, {options.epochs} epochs: the final output is {'' if same else 'NOT '}that of a plain loop, "
        f"row by row{'' if same else f': {folder}'}"
    )
    if same:
        shutil.rmtree(folder)
    sys.exit(not same)


if __name__ == "__main__":
    main()
