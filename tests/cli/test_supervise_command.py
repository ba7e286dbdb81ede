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
from holdfast.errors import Invalid
from holdfast.runtime.driver import standby
from holdfast.runtime.options import Storage
from holdfast.state import Store, Unusable
from waiting import DEADLINE, until

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


def test_pauses_are_known_after_any_number_of_crashes() -> None:
    pauses = Pauses(limit=10_000)
    assert all(pauses.crashed(0.0) is not None for _ in range(1100))


def test_who_finds_another_driver_again_and_again_waits_longer_and_never_gives_up() -> None:
    pauses = Pauses(first=1.0, ceiling=60.0, limit=2, well=60.0)
    waited = [pauses.superseded(ran) for ran in (0, 0, 0, *[0] * 20, 61)]
    assert waited[0] <= 1 < waited[2] and waited[-2] >= 30 and waited[-1] <= 1
    assert pauses.crashes == 0


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
    ("text", "kinds", "words"),
    [
        (
            "def build():\n    return None\n",
            ["started", "refused"],
            "must return the job that it starts, such as holdfast.start(...), got No",
        ),
        ("build = 3\n", ["refused"], "a function that starts the job and returns it is needed, got int"),
        ("def other():\n    pass\n", ["refused"], "has no 'build'"),
        ("raise ValueError('no folder')\n", ["refused"], "fails: ValueError: no folder"),
        (
            "from holdfast.errors import Invalid\ndef build():\n    raise Invalid('store x: this is a file')\n",
            ["started", "refused"],
            "store x: this is a file",
        ),
    ],
    ids=["none", "value", "name", "fails", "invalid"],
)
def test_what_the_user_got_wrong_is_not_tried_again(
    supervised: Callable[..., Supervised], text: str, kinds: list[str], words: str
) -> None:
    one = supervised(text)
    assert one.ended() == 2
    assert one.kinds() == kinds, "what was never begun is not called started"
    told = one.said()
    assert words in told and told.count("\n") == 1


def test_a_file_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "holdfast", "supervise", str(tmp_path / "none.py:build")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 2 and not done.stdout
    assert "no such file" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_stream_that_failed_is_started_again(supervised: Callable[..., Supervised]) -> None:
    text = (
        "from holdfast.errors import StreamEnded\n"
        "def fails():\n    raise StreamEnded('the stream ended: the queue is gone')\n\n"
        "def build():\n    note('built')\n    times = (HERE / 'notes').read_text().count('built')\n"
        "    return Job(fails if times == 1 else lambda: None)\n"
    )
    one = supervised(text, "--pause", "0.02")
    assert one.ended() == 0
    assert one.kinds() == ["started", "running", "crashed", "waiting", "started", "running", "ended"]
    assert one.events[2]["cause"] == "the stream ended: the queue is gone"


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


@pytest.mark.parametrize(
    "job",
    [
        "def stop(self):\n        raise RuntimeError('no last checkpoint')",
        "def exception(self):\n        return FAILED",
    ],
    ids=["raises", "tells"],
)
def test_a_job_that_fails_when_it_is_to_stop_is_no_success(supervised: Callable[..., Supervised], job: str) -> None:
    text = f"FAILED = RuntimeError('no last checkpoint')\n\nclass Failing(Job):\n    {job}\n\n"
    one = supervised(text + "def build():\n    return Failing()\n")
    until(lambda: bool(one.notes()), "the job never ran")
    one.process.terminate()
    assert one.ended() == 1
    assert one.events[-1]["kind"] == "stopped"
    assert one.events[-1]["cause"].startswith("RuntimeError: no last checkpoint")
    told = one.said()
    assert "it failed when it was to stop: RuntimeError: no last checkpoint" in told and told.count("\n") == 1


def test_a_job_that_is_told_to_stop_twice_stops_once(supervised: Callable[..., Supervised]) -> None:
    """As when the supervisor passes a signal on that the whole group had."""
    text = (
        "class Slow(Job):\n    def stop(self):\n        note('stopping')\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n        note('stopped')\n\n"
        "def build():\n    return Slow()\n"
    )
    one = supervised(text)
    until(lambda: bool(one.notes()), "the job never ran")
    one.process.terminate()
    assert one.ended() == 0
    assert one.notes()[1:] == ["stopping", "stopped"]


ORPHAN = """
import ctypes, os, subprocess, sys
from holdfast.cli import supervision

assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER: orphans fall to us, as to process 1
inner = "import os, time\\nif os.fork() == 0:\\n    time.sleep(0.2)\\n"
child = subprocess.Popen([sys.executable, "-c", inner], start_new_session=True)
child.wait()
supervision._clear_group(child.pid)
try:
    print("left:", os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("none left")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="who adopts orphans can be said on Linux")
def test_the_first_process_of_a_container_leaves_no_zombies() -> None:
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=DEADLINE, check=True)
    assert done.stdout.strip() == "none left"


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

    lease, behind = 2 * DEADLINE, 0.0
    store = Store(tmp_path / "store", clock=lambda: time.time() - behind, identity=Identity("another host", "1@1"))
    writer = store.writer("job", lease=lease)
    one = supervised(HOLDER.replace("STORE", str(tmp_path / "store")), "--lease", "2")
    until(lambda: "note" in one.kinds(), "it did not say that it waits")
    assert "running" not in one.kinds()
    # The last sign of life is as old as it takes for the lease to end in two seconds, however slow this machine is.
    behind, last = lease - 2.0, time.time()
    writer.beat()
    until(lambda: "running" in one.kinds(), "it never took over")
    assert time.time() - last >= 2.0
    one.process.terminate()
    assert one.ended() == 0


def test_who_stands_by_goes_on_while_the_store_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Any] = [True, Unusable("store s: cannot read it: Timeout")] * 2
    answers = [*answers, answers[1], False]

    def held(*_: object) -> bool:
        if isinstance(answer := answers.pop(0), Unusable):
            raise answer
        return bool(answer)

    monkeypatch.setattr(standby, "held", held)
    monkeypatch.setattr(standby, "LOOK_EVERY", 0.0)
    begun: list[str] = []
    standby.when_free(Store(tmp_path), lambda: begun.append("begun"))
    assert begun == ["begun"]
    assert caplog.text.count("cannot read it: Timeout: standing by until it answers") == 2
    answers = [Unusable("store s: cannot read it: Timeout")]
    with pytest.raises(Unusable):  # nobody has been seen there: this may never have been the store
        standby.when_free(Store(tmp_path), lambda: None)


def test_nobody_stands_by_where_a_claim_is_not_exclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    from unittest import mock

    for url in ("gs://bucket/job", "hdfs://host/job"):
        with pytest.raises(Invalid, match=r"nobody can stand by there.*give standby=False"):
            standby.when_free(Store(mock.Mock(url=url)), lambda: None)
    begun: list[int] = []
    standby.when_free(Store("memory://nobody-stands-by"), lambda: begun.append(1))
    assert begun == [1]


def test_a_supervised_job_does_not_take_its_store_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STANDBY", "1")
    with pytest.raises(Invalid, match="force: under HOLDFAST_STANDBY=1"):
        standby.storage_here(Storage(force=True))
    assert standby.storage_here(Storage(force=True, standby=False)).force
    monkeypatch.setenv("HOLDFAST_STANDBY", "0")
    assert standby.storage_here(Storage(force=True)).force


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
