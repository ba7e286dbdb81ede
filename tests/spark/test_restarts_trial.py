"""A driver of six queries and a pipeline is killed again and again, and stopped and started, while files come.

What each epoch must have is worked out by a plain loop over the batches that Spark planned (``planned.py``). Other
counts: HOLDFAST_KILLS=5 HOLDFAST_STOPS=2 HOLDFAST_SEED=1 pytest -m long tests/spark/test_restarts_trial.py
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import planned
import pytest
from restart_job import RUNNING
from restart_queries import ALL, FILES, QUERIES, Sink, begin, differences, drop, still_open, sunk

pytestmark = [pytest.mark.spark, pytest.mark.long]

KILLS, STOPS, SEED = (
    int(os.environ.get(f"HOLDFAST_{name}", count)) for name, count in (("KILLS", 40), ("STOPS", 10), ("SEED", 36))
)
DEADLINE = 300.0
"""Seconds for anything to happen."""
QUIET = 1.0
"""Seconds without an answer after which another file comes, unless a query has this many to read."""
BACKLOG = 4


class Driver:
    """A process that runs all queries; files come while it is waited for."""

    def __init__(self, process: subprocess.Popen[str], said: Path, feed: Callable[[], None]) -> None:
        self.process = process
        self._said, self._feed = said, feed
        self._lines: list[str] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def count(self, begins: str) -> int:
        """Lines that begin with this."""
        with self._changed:
            return sum(line.startswith(begins) for line in self._lines)

    def wait(self, until: Callable[[], bool]) -> bool:
        """Whether it came to be so; if not, the driver was killed."""
        deadline = time.monotonic() + DEADLINE
        while not until():
            if self.process.poll() is not None:
                assert self.process.returncode == -signal.SIGKILL, f"{self._said}:\n{self._said.read_text()[-5000:]}"
                return False
            assert time.monotonic() < deadline, f"{self._said}:\n{self._said.read_text()[-5000:]}"
            if self._quiet() and self._lines:
                self._feed()
        return True

    def _quiet(self) -> bool:
        with self._changed:
            before = len(self._lines)
            return not self._changed.wait_for(lambda: len(self._lines) > before, QUIET)

    def go_on(self, seconds: float) -> None:
        """Whatever happens in this time."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def again(self, seed: int) -> None:
        runs = self.count(RUNNING)
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seed}\n")
        self.process.stdin.flush()
        assert self.wait(lambda: self.count(RUNNING) > runs), "it was killed"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()


class Trial:
    """``killed``: how often in each way; ``idle``: epochs without rows that a store has told of."""

    def __init__(self, root: Path, seed: int) -> None:
        self._root, self.draw, self._files, self._drivers = root, random.Random(seed), 0, 0
        self.idle: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self.more()

    def more(self) -> None:
        drop(self._root, self._files)
        self._files += 1

    def feed(self) -> None:
        """One more file if all queries have read most of them."""
        if all(self._files - planned.taken(self._root / "stores" / name / "spark") < BACKLOG for name in ALL):
            self.more()

    @contextmanager
    def driver(self, *dying: str) -> Iterator[Driver]:
        """Killed at the end, if it was not before."""
        for _ in range(self.draw.randrange(4)):
            self.more()
        program = [sys.executable, str(Path(__file__).with_name("restart_job.py")), str(self._root), "serves", *dying]
        paths = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths}
        self._drivers += 1
        said = self._root / f"driver-{self._drivers}.txt"
        with said.open("w") as errors:
            process = subprocess.Popen(
                program,
                text=True,
                start_new_session=True,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        try:
            yield Driver(process, said, self.feed)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def killed(self) -> str:
        """One life of a driver, and how it ended."""
        how = self.draw.choice(["not committed", "not committed", "answered", "running", "starting"])
        name, count = self.draw.choice(ALL), self.draw.randint(1, 4)
        with self.driver(*((name, str(count)) if how == "not committed" else ())) as driver:
            match how:
                case "not committed":
                    assert not driver.wait(lambda: False)
                    log = self._root / "stores" / name / "spark"
                    assert newest(log / "offsets") > newest(log / "commits") or self._ends_idle(name), name
                case "answered":
                    assert driver.wait(lambda: driver.count(f"{name}: ") >= count)
                case "running":
                    assert driver.wait(lambda: driver.count(RUNNING) > 0)
                    driver.go_on(self.draw.uniform(0, 3))
                case "starting":
                    driver.go_on(self.draw.uniform(3, 12))
        return f"{how}, {name}, {count}"

    def stopped(self, times: int) -> None:
        with self.driver() as driver:
            assert driver.wait(lambda: driver.count(RUNNING) > 0)
            for _ in range(times):
                name = self.draw.choice(ALL)
                answers = driver.count(f"{name}: ") + self.draw.randint(1, 3)
                assert driver.wait(lambda: driver.count(f"{name}: ") >= answers)  # noqa: B023
                driver.again(self.draw.randrange(1_000_000))

    def check(self, whole: bool = False) -> list[str]:
        """What differs by now."""
        wrong: list[str] = []
        for name in ALL:
            store = self._root / "stores" / name
            if (store / "spark" / "offsets").exists():
                self.idle[name] |= planned.idle(store)
                wrong += differences(self._root, name, self.idle[name], whole)
        return wrong

    def _ends_idle(self, name: str) -> bool:
        """The newest epoch has no rows, and is none of Spark's."""
        log = self._root / "stores" / name / "spark"
        behind = planned.idle(self._root / "stores" / name)
        return any(batch == newest(log / "offsets") for batch, _ in behind)


def newest(folder: Path) -> int:
    return max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=-1)


@pytest.mark.timeout(3 * 3600)
def test_killed_and_stopped_again_and_again(retaining: Any, tmp_path: Path) -> None:
    trial, done = Trial(tmp_path, SEED), []
    stops = sorted(trial.draw.randrange(KILLS + 1) for _ in range(STOPS))
    for number in range(KILLS + 1):
        if times := stops.count(number):
            trial.stopped(times)
            done.append(f"stopped {times} times")
            assert not (wrong := trial.check()), "\n".join([*done, *wrong])
        if number < KILLS:
            done.append(trial.killed())
            assert not (wrong := trial.check()), "\n".join([*done, *wrong])
    trial.more()
    for query in [begin(retaining, tmp_path, name, FILES[name]) for name in ALL]:
        assert query.awaitTermination(DEADLINE)
    wrong = trial.check(whole=True)
    wrong += [each for name in QUERIES for each in still_open(tmp_path, name, trial.idle[name])]
    assert not wrong, "\n".join([*done, *wrong])
    print(f"\nseed {SEED}, {KILLS} kills, {STOPS} stops", *done, sep="\n")
    for name in ALL:
        print(f"{name}: epochs and rows", *(_size(each) for each in sunk(tmp_path, name).values()))


def _size(epochs: dict[int, planned.Answer]) -> tuple[int, int]:
    return max(epochs) + 1, sum(map(len, epochs.values()))


def test_structured_streaming_answers_as_the_reference(retaining: Any, tmp_path: Path) -> None:
    """By its own batches without rows, which close windows when nothing comes."""
    for number in range(12):
        drop(tmp_path, number)
    running = []
    for name, query in QUERIES.items():
        frame = query.make(retaining, tmp_path / "rows", FILES[name])
        writer = frame.writeStream.outputMode(query.mode).foreachBatch(Sink(tmp_path, name).batch)
        log = tmp_path / "stores" / name / "spark"
        running.append(writer.option("checkpointLocation", str(log)).trigger(availableNow=True).start())
    for each in running:
        assert each.awaitTermination(int(DEADLINE))
    assert not (wrong := [each for name in QUERIES for each in differences(tmp_path, name, ())]), "\n".join(wrong)
