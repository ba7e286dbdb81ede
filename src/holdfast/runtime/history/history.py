"""The history of a run: everything that happened, one JSON object a line, append-only. Reports are derived from it.

It is kept in parts, so that it does not grow for ever: ``history.jsonl`` is the newest, ``history-000007.jsonl`` and
the like are older. Each part begins with what a reader must know of the job. Of a store by URL: ``remote.py``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import Invalid
from holdfast.runtime.history import remote
from holdfast.state.files import Files, open_files
from holdfast.state.places import check_readable, on_disk

NAME = "history.jsonl"
PART_BYTES = 16 * 2**20
"""A part is closed when it has grown to this."""
PARTS = 16
"""So many closed parts are kept,"""
PART_AGE = 90 * 86400.0
"""and none that was closed so many seconds ago."""
CARRIED = "carried"
"""Marks an event that stands at the head of a part and was told in an earlier one."""
_PART = re.compile(r"history-(\d{6,})\.jsonl")


class History:
    """Appends events; one thread at a time."""

    def __init__(self, path: Path, part_bytes: int = PART_BYTES, parts: int = PARTS) -> None:
        self.path = path
        self._part_bytes, self._most = part_bytes, parts
        self._unwritten = b""
        self._started: dict[str, Any] | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_line(path)
        self._open()

    def add(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "started":
            self._started = dict(event)
        if self._file.closed:
            return
        if self._size >= self._part_bytes and not self._unwritten:
            self._rotate()
        self._unwritten += _line(event)
        self._write()

    def close(self) -> None:
        if not self._file.closed:
            self._write()
            self._file.close()

    def _open(self) -> None:
        self._file = os.fdopen(_no_link(str(self.path), os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0)
        self._size = self.path.stat().st_size

    def _write(self) -> None:
        """A disk that is full must not end the job: what it did not take is kept until it does."""
        with contextlib.suppress(OSError):
            while self._unwritten:
                written = os.write(self._file.fileno(), self._unwritten)
                self._size += written
                self._unwritten = self._unwritten[written:]

    def _rotate(self) -> None:
        with contextlib.suppress(OSError):
            closed = _parts(self.path.parent)
            number = _number(closed[-1]) + 1 if closed else 1
            self._file.close()
            self.path.rename(self.path.parent / f"history-{number:06d}.jsonl")
            for old in closed[: max(0, len(closed) + 1 - self._most)]:
                old.unlink(missing_ok=True)
            for old in _parts(self.path.parent)[:-1]:
                if time.time() - old.stat().st_mtime > PART_AGE:
                    old.unlink(missing_ok=True)
        self._open()
        if self._started is not None:
            self._unwritten += _line({**self._started, CARRIED: True})


def read_history(directory: str | Path, opened: Files | None = None) -> Iterator[dict[str, Any]]:
    """The events of a run, oldest first, across its parts. Lines that a crash has torn, or that are none, are left.

    ``opened``: the files of a store by URL, if they are at hand.
    """
    first = True
    for line in _lines(directory, opened):
        event = event_of(line)
        if event is not None and (first or CARRIED not in event):
            first = False
            event.pop(CARRIED, None)
            yield event


def _lines(directory: str | Path, opened: Files | None) -> Iterator[str | bytes]:
    if (folder := on_disk(str(directory))) is None:
        files = opened or open_files(str(directory))
        if not remote.parts(files):
            raise Invalid(f"{directory}: no {remote.FOLDER}/ here; give the store of a job, by its path or URL")
        yield from remote.lines(files)
        return
    check_readable(str(directory), folder)
    path = folder / NAME
    if not path.is_file():
        raise Invalid(f"{directory}: no {NAME} here; give the folder of a run (its --out)")
    for part in [*_parts(folder), path]:
        with (
            contextlib.suppress(FileNotFoundError),
            open(part, encoding="utf-8", errors="replace", opener=_no_link) as lines,
        ):
            yield from lines


def remote_history(files: Files) -> remote.RemoteHistory:
    """The history of a job whose store is behind a URL."""
    return remote.RemoteHistory(files, _line, CARRIED)


def event_of(line: str | bytes) -> dict[str, Any] | None:
    """The event that a line tells; None if it is torn or no event."""
    try:
        event = json.loads(line)
        if "\\u" in line if isinstance(line, str) else b"\\u" in line:
            # Half of a pair, which JSON can say and nothing can show.
            event = json.loads(json.dumps(event, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    whole = (
        isinstance(event, dict) and isinstance(event.get("kind"), str) and isinstance(event.get("time"), (int, float))
    )
    return event if whole else None


@contextlib.contextmanager
def understood(directory: str | Path) -> Iterator[None]:
    """Invalid for a history in which events lack what ours have: another program wrote it, or another version."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"an event has no {error}" if isinstance(error, KeyError) else str(error)
        raise Invalid(f"{directory}: {NAME} is not a history that this version of Holdfast writes: {what}") from None


def _line(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, default=str).encode() + b"\n"


def _parts(folder: Path) -> list[Path]:
    """The closed parts, oldest first."""
    return sorted((path for path in folder.glob("history-*.jsonl") if _PART.fullmatch(path.name)), key=_number)


def _number(path: Path) -> int:
    match = _PART.fullmatch(path.name)
    return int(match[1]) if match else 0


def _no_link(name: str, flags: int) -> int:
    """Opens a part. Links are not followed: they may lead out of the store."""
    try:
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise Invalid(f"{name} leads out of the store by a link; put a file there") from None


def _end_line(path: Path) -> None:
    """A crash may have left half a line: what follows begins a new one."""
    if path.exists() and path.stat().st_size:
        with open(path, "rb+", opener=_no_link) as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
