"""Where driver and nodes are one machine, states are brought to the store by processes of their own, at low priority.

A Spark task would take one of few cores from the epochs beside it. They speak JSON, a line for each request and answer.
To begin one costs most of a second of CPU and its memory stays, so all jobs of a driver share a few of them.
"""

from __future__ import annotations

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


class NotSaved(Exception):
    """A state could not be brought to the store; the message is the process's own word."""


class Pool:
    """Processes that serve one request after another, of whichever job; so many at most."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: list[subprocess.Popen[str]] = []
        self._taken = 0
        self._changed = threading.Condition()

    def begin(self) -> None:
        """Have one that waits, while nobody waits for it."""
        with self._changed:
            if self._waiting or self._taken == self._most:
                return
        if (process := self.take(lambda: True)) is not None:
            self.give_back(process)

    def take(self, needed: Callable[[], bool]) -> subprocess.Popen[str] | None:
        """One for a request, once there is one; None if it is not needed any more."""
        with self._changed:
            self._changed.wait_for(lambda: not needed() or self._taken < self._most)
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
        with self._changed:
            self._taken -= 1
            if process is not None and process.poll() is None:
                self._waiting.append(process)
            self._changed.notify_all()

    def look(self) -> None:
        """Whoever waits asks whether it is still needed."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Those that wait are not needed any more."""
        with self._changed:
            while self._waiting:
                process = self._waiting.pop()
                process.kill()
                process.wait()


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

    def begin(self) -> None:
        """Begin a process now, while nobody waits for it."""
        self._pool.begin()

    def save(self, wanted: Sequence[Upload]) -> Saved:
        """Bring all these to the store; NotSaved if the process cannot."""
        return Saved.from_json(self._asked({"save": [asdict(each) for each in wanted]}))

    def fold(self, task: str, chain: Sequence[FileEntry]) -> tuple[FileEntry, ...]:
        """A shorter chain of files for the same state of a task: see ``compaction.folded_chain``."""
        try:
            files = self._asked({"fold": task, "chain": [entry.to_json() for entry in chain]})
        except NotSaved as error:
            raise HoldfastError(f"task {task}: its files were not folded: {error}") from error
        return tuple(FileEntry.from_json(entry) for entry in files)

    def close(self) -> None:
        """End what is under way in the middle of it: what has no manifest does not exist."""
        self._closed = True
        with self._guard:
            if self._busy is not None:
                self._busy.kill()
                self._busy.wait()
        self._pool.look()
        if self._pool is not SHARED:
            self._pool.end()

    def _asked(self, request: Mapping[str, Any]) -> Any:
        with self._lock:
            process = self._pool.take(lambda: not self._closed)
            if process is None:
                raise NotSaved("the job has ended")
            try:
                answer = self._answer(process, {**request, "job": self._job})
            finally:
                self._pool.give_back(process)
        if not answer:
            raise NotSaved("the process that brings states to the store has ended")
        said = json.loads(answer)
        if "refused" in said:
            raise Unusable(said["refused"])
        if "error" in said:
            raise NotSaved(said["error"])
        return said["done"]

    def _answer(self, process: subprocess.Popen[str], request: Mapping[str, Any]) -> str:
        """Its word; nothing if it has ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        with self._guard:
            self._busy = process
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            return process.stdout.readline()
        except (OSError, ValueError):
            return ""
        finally:
            with self._guard:
                self._busy = None
