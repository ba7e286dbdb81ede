"""``holdfast supervise``: what is restarted and what is not, how pauses grow, how signals travel, who takes over.

The jobs here are small classes without a Spark; the supervisor, its child process and the store's fence are the real
ones.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.supervision import Pauses
from holdfast.state import Store

DEADLINE = 60.0
JOB = '''
import os, signal, sys, threading
from pathlib import Path

HERE = Path(__file__).parent

def note(text):
    with (HERE / "notes").open("a") as file:
        file.write(text + "\\n")

class Job:
    """Runs until it is stopped, unless something else is asked for."""

    def __init__(self, ends=None):
        self.ended, self.ends = threading.Event(), ends

    def awaitTermination(self):
        if self.ends is not None:
            return self.ends()
        note(f"waits {os.getpid()}")
        self.ended.wait()

    def stop(self):
        note("stops")
        self.ended.set()

class Stubborn(Job):
    def stop(self):
        note("never stops")
        threading.Event().wait()
'''


class Supervised:
    """The command with a job of this text, its events as they come."""

    def __init__(self, folder: Path, text: str, *options: str) -> None:
        self.folder = folder
        (folder / "job.py").write_text(JOB + text)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "supervise", str(folder / "job.py:build"), "--json", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.events: list[dict[str, Any]] = []
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]

    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def ended(self) -> int:
        code = self.process.wait(DEADLINE)
        self._reading.join(DEADLINE)
        return code

    def said(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read()


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    started: list[Supervised] = []

    def start(text: str, *options: str, name: str = "one") -> Supervised:
        folder = tmp_path / name
        folder.mkdir()
        started.append(Supervised(folder, text, *options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_pauses_grow_to_a_ceiling_with_jitter_from_a_seed() -> None:
    pauses = Pauses(first=1.0, ceiling=5.0, limit=100, seed=7)
    waited = [pauses.crashed(0.0) for _ in range(6)]
    for pause, longest in zip(waited, (1, 2, 4, 5, 5, 5), strict=True):
        assert pause is not None and longest / 2 <= pause <= longest
    again, other = (Pauses(first=1.0, ceiling=5.0, limit=100, seed=seed) for seed in (7, 8))
    assert [again.crashed(0.0) for _ in range(6)] == waited
    assert [other.crashed(0.0) for _ in range(6)] != waited


def test_a_job_that_ran_well_begins_anew_and_one_that_does_not_is_given_up() -> None:
    pauses = Pauses(first=1.0, limit=3, well=60.0)
    assert [pauses.crashed(ran) is None for ran in (0, 0, 61, 0, 59)] == [False, False, False, False, True]


def test_a_crash_loop_ends_with_the_last_cause_in_one_line(supervised: Callable[..., Supervised]) -> None:
    one = supervised(
        "def build():\n    note('built')\n    raise RuntimeError('no such topic\\nclicks')\n",
        "--crashes",
        "2",
        "--pause",
        "0.02",
    )
    assert one.ended() == 1
    assert one.kinds() == ["started", "crashed", "waiting", "started", "crashed", "gave up"]
    assert one.notes() == ["built"] * 2
    told = one.said().splitlines()
    assert len(told) == 1
    assert "given up after 2 crashes in a row; the last: RuntimeError: no such topic" in told[0]
    assert "of job.py)" in told[0]


def test_a_process_that_is_killed_is_started_again_and_a_job_that_ends_is_done(
    supervised: Callable[..., Supervised],
) -> None:
    text = (
        "def die():\n    os.kill(os.getpid(), signal.SIGKILL)\n\n"
        "def build():\n    note('built')\n    times = (HERE / 'notes').read_text().count('built')\n"
        "    return Job(die if times == 1 else lambda: None)\n"
    )
    one = supervised(text, "--pause", "0.02")
    assert one.ended() == 0
    assert one.kinds() == ["started", "running", "crashed", "waiting", "started", "running", "ended"]
    assert one.events[2]["cause"] == "its process was ended by SIGKILL"
    assert one.said() == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "def build():\n    return None\n",
            "must return the job that it starts, such as holdfast.start(...), got a No",
        ),
        ("build = 3\n", "a function that starts the job and returns it is needed, got a int"),
        ("def other():\n    pass\n", "has no 'build'"),
        (
            "from holdfast.errors import Invalid\ndef build():\n    raise Invalid('store x: this is a file')\n",
            "store x: this is a file",
        ),
    ],
    ids=["none", "value", "name", "invalid"],
)
def test_what_the_user_got_wrong_is_not_tried_again(
    supervised: Callable[..., Supervised], text: str, words: str
) -> None:
    one = supervised(text)
    assert one.ended() == 2
    assert one.kinds() == ["started", "refused"]
    told = one.said()
    assert words in told and told.count("\n") == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_stops_the_job_gracefully(
    supervised: Callable[..., Supervised], number: signal.Signals, code: int
) -> None:
    one = supervised("def build():\n    return Job()\n")
    until(lambda: bool(one.notes()), "the job never ran")
    one.process.send_signal(number)
    assert one.ended() == code
    assert one.notes()[1:] == ["stops"]
    assert one.events[-1]["kind"] == "stopped" and not one.events[-1]["killed"]


def test_a_second_signal_kills_and_leaves_nothing(supervised: Callable[..., Supervised]) -> None:
    one = supervised("def build():\n    return Stubborn()\n")
    until(lambda: bool(one.notes()), "the job never ran")
    child = int(one.notes()[0].split()[1])
    one.process.terminate()
    until(lambda: len(one.notes()) == 2, "the job was never asked to stop")
    one.process.terminate()
    assert one.ended() == 137
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_signal_during_a_pause_ends_it(supervised: Callable[..., Supervised]) -> None:
    one = supervised("def build():\n    raise RuntimeError('no')\n", "--pause", "600", "--longest-pause", "600")
    until(lambda: "waiting" in one.kinds(), "it never paused")
    one.process.terminate()
    assert one.ended() == 0


def test_a_job_whose_supervisor_is_killed_stops(supervised: Callable[..., Supervised]) -> None:
    one = supervised("def build():\n    return Job()\n")
    until(lambda: bool(one.notes()), "the job never ran")
    one.process.kill()
    until(lambda: len(one.notes()) == 2, "the job went on alone")
    assert one.notes()[1] == "stops"


HOLDER = """
from holdfast.runtime.options import Storage
from holdfast.runtime.driver.standby import storage_here, when_free
from holdfast.state import Store

def build():
    job, store, chosen = Job(), Store("STORE"), storage_here(Storage())
    def begin():
        job.writer = store.writer("job", lease=chosen.lease)
        note(f"holds with token {job.writer.token} for {chosen.lease:g} s")
    when_free(store, begin)
    return job
"""


def test_the_second_waits_for_the_first_and_takes_over(supervised: Callable[..., Supervised], tmp_path: Path) -> None:
    text = HOLDER.replace("STORE", str(tmp_path / "store"))
    first = supervised(text, "--lease", "30", name="first")
    until(lambda: any(note.startswith("waits") for note in first.notes()), "the first never ran")
    second = supervised(text, "--lease", "30", name="second")
    until(lambda: "note" in second.kinds(), "the second did not say that it waits")
    assert second.events[-1]["text"].endswith("is held by another job: standing by")
    assert second.notes() == []
    # Both processes of the first at once, as when its host is gone; the store tells by the process, on one machine.
    child = next(event["process"] for event in first.events if event["kind"] == "started")
    os.kill(first.process.pid, signal.SIGKILL)
    os.killpg(child, signal.SIGKILL)
    until(lambda: "running" in second.kinds(), "the second never took over")
    assert second.notes()[0] == "holds with token 2 for 30 s"
    second.process.terminate()
    assert second.ended() == 0


def test_a_driver_on_another_host_is_waited_for_until_its_lease_ends(
    supervised: Callable[..., Supervised], tmp_path: Path
) -> None:
    from holdfast.state.fence import Identity

    store = Store(tmp_path / "store", identity=Identity("another host", "1@1"))
    writer = store.writer("job", lease=2.0)
    one = supervised(HOLDER.replace("STORE", str(tmp_path / "store")), "--lease", "2")
    last = 0.0

    def waits() -> bool:
        nonlocal last
        last = time.time()
        writer.beat()
        return "note" in one.kinds()

    until(waits, "it did not say that it waits")
    until(lambda: "running" in one.kinds(), "it never took over")
    assert time.time() - last >= 2.0
    one.process.terminate()
    assert one.ended() == 0


def test_a_driver_that_was_superseded_stands_by(supervised: Callable[..., Supervised], tmp_path: Path) -> None:
    text = (
        "from holdfast.state import Fenced\n"
        "def fenced():\n    raise Fenced('store s: writer 1 was superseded by writer 2')\n\n"
        "def build():\n    note('built')\n"
        "    times = (HERE / 'notes').read_text().count('built')\n"
        "    return Job(fenced if times == 1 else None)\n"
    )
    one = supervised(text, "--crashes", "1", "--pause", "0.02")
    until(lambda: one.kinds().count("running") == 2, "it did not come back")
    assert one.kinds() == ["started", "running", "superseded", "started", "running"]
    one.process.terminate()
    assert one.ended() == 0
