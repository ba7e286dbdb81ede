"""Where driver and nodes are one machine, states are brought to the store by a process of its own, at low priority.

A Spark task would take one of few cores from the epochs beside it. It speaks JSON, a line for each request and answer.
To begin one costs most of a second of CPU, so one whose job has ended waits for the next job of this driver.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.runtime.worker.versions import Saved, Upload
from holdfast.state import Sync, Unusable
from holdfast.state.entries import FileEntry


class NotSaved(Exception):
    """A state could not be brought to the store; the message is the process's own word."""


SPARE = 4
"""So many wait for a next job at most."""
_spare: list[subprocess.Popen[str]] = []
"""For stores that are folders. Others are opened by what is in the environment, which may have changed since."""
_sparing = threading.Lock()


class CheckpointProcess:
    """The process, begun at the latest when it is needed, and again should it end. One thing at a time."""

    def __init__(self, store: str, token: int, sync: Sync, options: Mapping[str, Any] | None = None) -> None:
        # By its input, not as an argument: those can be seen by everybody on the machine.
        self._job = {"store": store, "token": token, "sync": asdict(sync), "options": dict(options or {})}
        self._folder = "://" not in store
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def begin(self) -> None:
        """Begin the process now, while nobody waits for it."""
        with self._lock:
            self._begun()

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
        """Let it go, or end it in the middle of something: what has no manifest does not exist."""
        self._closed = True
        quiet = self._lock.acquire(blocking=False)
        try:
            if self._process is None or (quiet and self._spared(self._process)):
                return
            self._process.kill()
            self._process.wait()
        finally:
            if quiet:
                self._lock.release()

    def _spared(self, process: subprocess.Popen[str]) -> bool:
        with _sparing:
            spared = self._folder and len(_spare) < SPARE and process.poll() is None
            if spared:
                _spare.append(process)
                self._process = None
        return spared

    def _asked(self, request: Mapping[str, Any]) -> Any:
        with self._lock:
            process = self._begun()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps({**request, "job": self._job}) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except (OSError, ValueError):
                answer = ""
        if not answer:
            raise NotSaved("the process that brings states to the store has ended")
        said = json.loads(answer)
        if "refused" in said:
            raise Unusable(said["refused"])
        if "error" in said:
            raise NotSaved(said["error"])
        return said["done"]

    def _begun(self) -> subprocess.Popen[str]:
        if self._closed:
            raise NotSaved("the job has ended")
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "holdfast.runtime.worker.uploading"]
            self._process = self._taken() or subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        return self._process

    def _taken(self) -> subprocess.Popen[str] | None:
        """One that waits, if it is alive."""
        with _sparing:
            while self._folder and _spare:
                if (process := _spare.pop()).poll() is None:
                    return process
        return None
