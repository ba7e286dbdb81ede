"""Supervision: a job in a child process, started again after a crash, with pauses that grow, until it ends by itself.

It knows nothing of Spark. What the child tells and what was done about it goes to one listener, event by event.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import IO, Any

Say = Callable[[str, dict[str, Any]], None]
INVALID = 2
SUPERSEDED = 75
"""Exit code of a child that found another driver at the store."""
KILLED = 137
"""Exit code, as shells know it."""
STOPPED = (0, -signal.SIGTERM, -signal.SIGINT)
"""Of a child that was asked to stop: it did, or there was nothing yet to stop."""
LINGER = 10.0
"""Seconds that what a child started may take to go after it."""


@dataclass
class Pauses:
    """How long to wait before a job that crashed is started again.

    The first pause is ``first`` seconds, each further one twice as long, ``ceiling`` at most, and each is shortened by
    up to half at random, so that jobs that crash together do not come back together. A job that ran for ``well``
    seconds begins anew. After ``limit`` crashes in a row there is no further pause. One that finds another driver at
    the store waits in the same way, as often as it takes.
    """

    first: float = 1.0
    ceiling: float = 60.0
    limit: int = 5
    well: float = 60.0
    seed: int = 0
    crashes: int = field(default=0, init=False)
    turns: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    def crashed(self, ran: float) -> float | None:
        """Seconds to wait after a crash of a job that ran for so many; None if it was one crash too many."""
        self.crashes = 1 if ran >= self.well else self.crashes + 1
        return None if self.crashes >= self.limit else self._after(self.crashes)

    def superseded(self, ran: float) -> float:
        """Seconds to wait after a job that ran for so many has found another driver at its store."""
        self.turns = 1 if ran >= self.well else self.turns + 1
        return self._after(self.turns)

    def _after(self, times: int) -> float:
        longest = min(self.ceiling, self.first * 2.0 ** min(times - 1, 60))
        return longest * (1.0 - self._random.random() / 2)


class Supervisor:
    """Starts the job that ``written`` names. ``environment``: what its process has beside this one's.

    ``quiet``: what the job prints goes to stderr, since stdout has the events.
    """

    def __init__(
        self, written: str, pauses: Pauses, say: Say, environment: Mapping[str, str], quiet: bool = False
    ) -> None:
        self._written = written
        self._pauses = pauses
        self._say = say
        self._environment = {**os.environ, **environment}
        self._quiet = quiet
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: int | None = None
        self._killed = False
        self._awake = threading.Event()

    def run(self) -> int:
        """Until the job ends, is stopped, is refused, or crashes once too often; the exit code."""
        failed = None
        handlers = {number: signal.signal(number, self._heard) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            while self._asked is None:
                code, ran, cause = self._attempt()
                if self._asked is not None:
                    failed = None if self._killed or code in STOPPED else cause
                    break
                if code == 0:
                    self._say("ended", {})
                    return 0
                if code == INVALID:
                    self._say("refused", {"cause": cause})
                    return INVALID
                if code == SUPERSEDED:
                    self._say("superseded", {"cause": cause})
                    self._awake.wait(self._pauses.superseded(ran))
                    continue
                self._say("crashed", {"cause": cause, "code": code, "ran_s": round(ran, 3)})
                pause = self._pauses.crashed(ran)
                if pause is None:
                    self._say("gave up", {"crashes": self._pauses.crashes, "cause": cause})
                    return 1
                self._say("waiting", {"seconds": round(pause, 3), "crashes": self._pauses.crashes})
                self._awake.wait(pause)
        finally:
            for number, before in handlers.items():
                signal.signal(number, before)
        if failed is not None:
            self._say("stopped", {"killed": False, "cause": failed})
            return 1
        self._say("stopped", {"killed": self._killed})
        return KILLED if self._killed else 130 if self._asked == signal.SIGINT else 0

    def _attempt(self) -> tuple[int, float, str]:
        """One life of the child: its exit code, for how long the job ran, and what ended it."""
        reading, told = os.pipe()
        lifeline, ours = os.pipe()
        command = [sys.executable, "-m", "holdfast.cli.supervised", self._written, str(told), str(lifeline)]
        self._child = child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr if self._quiet else None,
            env=self._environment,
            pass_fds=(told, lifeline),
            start_new_session=True,  # what a terminal sends to all is for us to pass on, once
        )
        os.close(told)
        os.close(lifeline)
        if self._asked is not None:
            self._pass_on()  # it was asked for while the child was being made
        heard = _Heard(os.fdopen(reading, "rb"), child.pid, self._say)
        code = child.wait()
        ended = time.monotonic()
        _clear_group(child.pid)
        heard.end()
        os.close(ours)
        ran = 0.0 if heard.running is None else ended - heard.running
        return code, ran, heard.cause or _exit_words(code)

    def _heard(self, number: int, _: object) -> None:
        if self._asked is None:
            self._asked = number
            self._awake.set()
            self._pass_on()
        elif self._child is not None and self._child.poll() is None:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _pass_on(self) -> None:
        if self._child is not None and self._child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(signal.SIGTERM)


class _Heard:
    """What a child tells, passed on as it comes. It has started when it has found the function that starts its job."""

    def __init__(self, lines: IO[bytes], process: int, say: Say) -> None:
        self._process = process
        self.cause = ""
        self.running: float | None = None
        self._lines = lines
        self._say = say
        self._thread = threading.Thread(target=self._read, name="holdfast-heard", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._thread.join(LINGER)

    def _read(self) -> None:
        with self._lines:
            for line in self._lines:
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    kind = event.pop("kind")
                    if kind == "failed":
                        self.cause = event["cause"]
                        continue
                    if kind == "started":
                        event["process"] = self._process
                    if kind == "running":
                        self.running = time.monotonic()
                    self._say(kind, event)


def _clear_group(group: int) -> None:
    """What the child started (a JVM, Python workers) ends with it; what does not is ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        for number in (0, signal.SIGKILL):
            until = time.monotonic() + LINGER
            while time.monotonic() < until:
                os.killpg(group, number)
                _reap(group)
                time.sleep(0.05)


def _reap(group: int) -> None:
    """In a container we may be the first process, to which children fall whose parent has gone: theirs is the group
    until somebody asks how they ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"its process was ended by {name}"
