"""Where driver and nodes are one machine, states are brought to the store by processes of their own, at low priority.

A Spark task would take one of few cores from the epochs beside it. They speak JSON, a line for each request and answer.
To begin one costs most of a second of CPU and its memory stays, so all jobs of a driver share a few of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.worker.versions import Saved, Upload
from holdfast.state import Sync, Unusable
from holdfast.state.entries import FileEntry
from holdfast.state.writer import Chains

PATIENCE = 5.0
"""Seconds that a request waits for a process. Then it gets one beyond the limit: jobs whose stores hang would otherwise
keep all others from a checkpoint."""
REAPED = 5.0
"""Seconds that a process which was killed is waited for. One that hangs within the system does not end so soon."""


class NotSaved(Exception):
    """A state could not be brought to the store; the message is the process's own word."""


class Pool:
    """Processes that serve one request after another, of whichever job; so many, but for requests that hang."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[subprocess.Popen[str]] = []
        self._taken = 0
        self._changed = threading.Condition()

    def begin(self) -> None:
        """Have one that waits, while nobody waits for it."""
        with self._changed:
            if self._waiting or self._taken >= self._most:
                return
        if (process := self.take(lambda: True)) is not None:
            self.give_back(process)

    def take(self, needed: Callable[[], bool]) -> subprocess.Popen[str] | None:
        """One for a request, once there is one; None if it is not needed any more."""
        with self._changed:
            self._changed.wait_for(lambda: not needed() or self._taken < self._most, PATIENCE)
            if not needed():
                return None
            self._taken += 1
            while self._waiting:
                if (process := self._waiting.pop()).poll() is None:
                    return process
        try:
            command = [sys.executable, "-m", "holdfast.runtime.worker.uploading"]
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except BaseException:
            self.give_back(None)
            raise

    def give_back(self, process: subprocess.Popen[str] | None) -> None:
        """It, or None for one that has ended, serves its request no more. More than the limit are not kept."""
        with self._changed:
            self._taken -= 1
            kept = process is not None and process.poll() is None and len(self._waiting) < self._most
            if process is not None and kept:
                self._waiting.append(process)
            self._changed.notify_all()
        if process is not None and not kept:
            _end(process)

    def look(self) -> None:
        """Whoever waits asks whether it is still needed."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Those that wait are not needed any more."""
        with self._changed:
            while self._waiting:
                _end(self._waiting.pop())


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(REAPED)


SHARED = Pool(max(2, os.cpu_count() or 1))
"""For stores that are folders. Others are opened by what is in the environment, which may have changed since."""


class CheckpointProcess:
    """A job's way to such processes. One thing at a time."""

    def __init__(self, store: str, token: int, sync: Sync, options: Mapping[str, Any] | None = None) -> None:
        # By its input, not as an argument: those can be seen by everybody on the machine.
        self._job = {"store": store, "token": token, "sync": asdict(sync), "options": dict(options or {})}
        self._pool = Pool(1) if "://" in store else SHARED
        self._busy: subprocess.Popen[str] | None = None
        """The process that has a request of this job, as long as it has it."""
        self._guard = threading.Lock()
        self._lock = threading.Lock()
        self._closed = False
        self._called_off = 0
        """How often a save was: one that began before it is not needed any more."""

    def begin(self) -> None:
        """Begin a process now, while nobody waits for it."""
        self._pool.begin()

    def save(self, wanted: Sequence[Upload]) -> Saved:
        """Bring all these to the store; NotSaved if the process cannot."""
        before = self._called_off
        request = {"save": [asdict(each) for each in wanted]}
        return Saved.from_json(self._asked(request, lambda: not self._closed and self._called_off == before))

    def fold(self, chains: Chains) -> Chains:
        """Shorter chains of files for the same states, by task: see ``compaction.folded_chain``."""
        return {task: self._folded(task, chain) for task, chain in chains.items()}

    def _folded(self, task: str, chain: Sequence[FileEntry]) -> tuple[FileEntry, ...]:
        try:
            request = {"fold": task, "chain": [entry.to_json() for entry in chain]}
            files = self._asked(request, lambda: not self._closed)
        except NotSaved as error:
            raise HoldfastError(f"task {task}: its files were not folded: {error}") from error
        return tuple(FileEntry.from_json(entry) for entry in files)

    def cancel(self) -> None:
        """A save that is under way is called off, with the process that has it or that it waits for."""
        with self._guard:
            self._called_off += 1
            self._kill()
        self._pool.look()

    def close(self) -> None:
        """End what is under way in the middle of it: what has no manifest does not exist."""
        with self._guard:
            self._closed = True
            killed = self._kill()
        self._pool.look()
        if killed is not None:
            _end(killed)
        self._leave()

    def _kill(self) -> subprocess.Popen[str] | None:
        process, self._busy = self._busy, None
        if process is not None:
            process.kill()
        return process

    def _leave(self) -> None:
        if self._pool is not SHARED:
            self._pool.end()

    def _asked(self, request: Mapping[str, Any], needed: Callable[[], bool]) -> Any:
        with self._lock:
            process = self._pool.take(needed)
            said = self._heard(process, {**request, "job": self._job}, needed) if process is not None else None
        if said is None:
            raise NotSaved("the job has ended" if self._closed else "it was called off")
        if "refused" in said:
            raise Unusable(said["refused"])
        if "error" in said:
            raise NotSaved(said["error"])
        return said["done"]

    def _heard(
        self, process: subprocess.Popen[str], request: Mapping[str, Any], needed: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """What it says, None if nobody needs it any more. One that was not heard out would answer the next too."""
        fit = False
        try:
            with self._guard:
                fit = not needed()  # then nothing was asked of it
                self._busy = process
            if fit:
                return None
            said = self._answer(process, request)
            fit = said is not None
        finally:
            with self._guard:
                fit = fit and self._busy is process
                self._busy = None
            if not fit:
                _end(process)
            self._pool.give_back(process if fit else None)
            if self._closed:
                self._leave()
        return said if said is not None else {"error": "the process that brings states to the store has ended"}

    def _answer(self, process: subprocess.Popen[str], request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Its word, if that is a whole line of JSON."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            said = json.loads(line) if line.endswith("\n") else None
        except (OSError, ValueError):
            return None
        return said if isinstance(said, dict) else None
