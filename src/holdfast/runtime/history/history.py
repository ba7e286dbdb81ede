"""The history of a run: everything that happened, one JSON object a line, append-only. Reports are derived from it."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import Invalid

NAME = "history.jsonl"


class History:
    """Appends events, each with its number and its time in seconds since the epoch (or of a virtual clock)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_line(path)
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._unwritten = b""

    def add(self, time: float, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        event = {"time": round(time, 6), "kind": kind, **fields}
        line = json.dumps(event, default=str)
        with self._lock:
            if not self._file.closed:
                self._unwritten += line.encode() + b"\n"
                self._write()
        return event

    def _write(self) -> None:
        """A disk that is full must not end the job: what it did not take is kept until it does."""
        with contextlib.suppress(OSError):
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self._file.fileno(), self._unwritten) :]

    def close(self) -> None:
        with self._lock:
            self._write()
            self._file.close()


def read_history(directory: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a run, oldest first. A line that a crash has torn is passed over, as is what is no event."""
    path = Path(directory) / NAME
    if not path.is_file():
        raise Invalid(f"{directory}: no {NAME} here; give the folder of a run (its --out)")
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if (
                isinstance(event, dict)
                and isinstance(event.get("kind"), str)
                and isinstance(event.get("time"), (int, float))
            ):
                yield event


@contextlib.contextmanager
def understood(directory: str | Path) -> Iterator[None]:
    """Invalid for a history in which events lack what ours have: another program wrote it, or another version."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"an event has no {error}" if isinstance(error, KeyError) else str(error)
        raise Invalid(f"{directory}: {NAME} is not a history that this version of Holdfast writes: {what}") from None


def _end_line(path: Path) -> None:
    """A crash may have left half a line: what follows begins a new one."""
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.write(b"\n")
