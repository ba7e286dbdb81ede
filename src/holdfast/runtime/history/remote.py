"""The history of a run whose store is behind a URL, where nothing can be appended: small files, the newest put again.

Each driver has files of its own, named by when it began, so that one that was given up changes nobody else's.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.state.files import Files

FOLDER = "history"
PART_BYTES = 64 * 2**10
"""So much is put again at most for one more event,"""
PARTS = 256
"""so many parts are kept, the oldest go first,"""
EVERY = 5.0
"""and this many seconds lie between two puts, but for events that somebody waits for."""
AT_ONCE = frozenset({"started", "stopped", "scaled", "scaling begun", "scaling refused", "scaling aborted"})
_PART = re.compile(r"\d{15}-[0-9a-f]{8}-\d{6}\.jsonl")


class RemoteHistory:
    """Appends events; a thread of its own puts them into the store. What the store does not take is put again later."""

    def __init__(self, files: Files, line: Any, carried: str) -> None:
        self._files = files
        self._line, self._carried = line, carried
        self._label = f"{time.time_ns() // 1_000_000:015d}-{uuid.uuid4().hex[:8]}"
        self._parts = parts(files)
        self._number = 0
        self._part: list[bytes] = []
        self._full: list[tuple[int, bytes]] = []
        self._started: dict[str, Any] | None = None
        self._dirty = self._urgent = self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="holdfast-history-put", daemon=True)
        self._thread.start()

    def add(self, event: Mapping[str, Any]) -> None:
        with self._changed:
            if event["kind"] == "started":
                self._started = dict(event)
            if sum(map(len, self._part)) >= PART_BYTES:
                self._full.append((self._number, b"".join(self._part)))
                self._number += 1
                self._part = [self._line({**self._started, self._carried: True})] if self._started else []
            self._part.append(self._line(event))
            self._dirty = True
            self._urgent |= event["kind"] in AT_ONCE
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._dirty or self._closed)
                self._changed.wait_for(lambda: self._urgent or self._closed, EVERY)
                ended, last = self._closed, ended
                parts = [*self._full, (self._number, b"".join(self._part))] if self._dirty else []
                self._dirty = self._urgent = False
            try:
                for number, data in parts:
                    name = f"{FOLDER}/{self._label}-{number:06d}.jsonl"
                    self._files.put(name, data, False)
                    with self._changed:
                        self._full = [each for each in self._full if each[0] != number]
                    self._parts = [*(each for each in self._parts if each != name), name]
                if gone := self._parts[:-PARTS]:
                    self._files.delete_many(gone)
                    self._parts = self._parts[-PARTS:]
            except HoldfastError:
                with self._changed:
                    self._dirty = True  # whoever writes what counts tells of the trouble
                    self._changed.wait_for(lambda: self._closed, EVERY)
            if last or (ended and not self._dirty):  # what was refused at the end is put once more
                return


def parts(files: Files) -> list[str]:
    """The parts there are, oldest first."""
    return sorted(f"{FOLDER}/{name}" for name in files.list(FOLDER) if _PART.fullmatch(name))


def lines(files: Files) -> Iterator[bytes]:
    """What they say, line by line."""
    for name in parts(files):
        try:
            yield from files.read(name).to_pybytes().splitlines()
        except FileNotFoundError:
            continue
