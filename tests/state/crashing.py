"""Processes that die at any file operation, machines that lose what was not synced, services that refuse once."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock


class Crash(BaseException):
    """The process is gone."""


class Operations:
    """Counts file operations and dies at the one numbered ``at`` (None: never)."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.count = 0

    def wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            if self.at is not None and self.count >= self.at:
                raise Crash
            self.count += 1
            return real(*args, **kwargs)

        return operation

    def torn_write(self, descriptor: int, data: Any) -> int:
        if self.at is not None and self.count >= self.at:
            _write(descriptor, data[: len(data) // 2])
            raise Crash
        self.count += 1
        return _write(descriptor, data)


_write = os.write


@contextlib.contextmanager
def dying(at: int | None) -> Iterator[Operations]:
    """Within, the ``at``-th file operation and all later ones raise Crash; a write that dies leaves half its bytes."""
    operations = Operations(at)
    with contextlib.ExitStack() as stack:
        for owner, name in (
            (os, "open"),
            (os, "link"),
            (os, "fsync"),
            (Path, "replace"),
            (Path, "unlink"),
            (Path, "mkdir"),
            (Path, "rmdir"),
        ):
            real = getattr(owner, name)
            stack.enter_context(mock.patch.object(owner, name, operations.wrap(real)))
        stack.enter_context(mock.patch.object(os, "write", operations.torn_write))
        yield operations


class Platter:
    """What is on the platter of a folder: all there was at first, then what was synced, files and names apart."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._held: list[int] = []
        for path in (root, *root.rglob("*")):
            self._held.append(os.open(path, os.O_RDONLY))
            if path.is_dir():
                self._sync_names(path)
            else:
                self._sync_bytes(path)

    def sync(self, descriptor: int) -> None:
        """What fsync does."""
        # Held open, so that the number of a file that is deleted is not given to another one.
        self._held.append(os.dup(descriptor))
        path = Path(f"/proc/self/fd/{descriptor}")
        if path.is_dir():
            self._sync_names(path)
        else:
            self._sync_bytes(path)

    def _sync_names(self, folder: Path) -> None:
        with os.scandir(folder) as entries:
            self._names[folder.stat().st_ino] = {entry.name: entry.inode() for entry in entries}

    def _sync_bytes(self, file: Path) -> None:
        self._bytes[file.stat().st_ino] = file.read_bytes()

    def after_power_loss(self, target: Path, draw: Random | None) -> Path:
        """The folder as it may be afterwards. Of what was not synced, nothing is left (None), or what is drawn."""
        self._rebuild(self.root, self.root.stat().st_ino, target, draw)
        return target

    def _rebuild(self, now: Path | None, number: int, target: Path, draw: Random | None) -> None:
        target.mkdir(parents=True)
        there: dict[str, int] = {}
        if now is not None:
            with os.scandir(now) as entries:
                there = {entry.name: entry.inode() for entry in entries}
        durable = self._names.get(number, {})
        for name in sorted({*there, *durable}):
            seen, kept = there.get(name), durable.get(name)
            chosen = kept if draw is None or draw.random() < 0.5 else seen
            if chosen is None:
                continue
            path = now / name if now is not None and chosen == seen else None
            if chosen in self._names or (path is not None and path.is_dir()):
                self._rebuild(path, chosen, target / name, draw)
            else:
                (target / name).write_bytes(self._left(chosen, path, draw))

    def _left(self, number: int, path: Path | None, draw: Random | None) -> bytes:
        if number in self._bytes:
            return self._bytes[number]
        whole = path.read_bytes() if path is not None and draw is not None else b""
        return whole[: draw.choice([0, len(whole) // 2, len(whole)])] if draw is not None else b""

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


@dataclass
class Cut:
    """A folder after an act was cut short at an operation, or ``finished``; and as a machine's crash may leave it."""

    root: Path
    finished: bool
    lost: list[Path]


def cut_everywhere(prepared: Path, act: Callable[[Path], None], scratch: Path, draws: int = 3) -> Iterator[Cut]:
    """``act`` on copies of a folder, dying at the first operation, at the second, ... and at last not at all.

    Each time also what a loss of power at that moment may leave: only what was synced, and some seeded draws.
    """
    at, finished = 0, False
    while not finished:
        root = scratch / f"cut-{at}"
        shutil.copytree(prepared, root)
        platter = Platter(root)
        with mock.patch.object(os, "fsync", platter.sync), dying(at):
            try:
                act(root)
                finished = True
            except Crash:
                pass
        draw: list[Random | None] = [None, *(Random(1000 * at + number) for number in range(draws))]
        lost = [platter.after_power_loss(scratch / f"lost-{at}-{n}", each) for n, each in enumerate(draw)]
        platter.close()
        yield Cut(root, finished, lost)
        for path in (root, *lost):
            shutil.rmtree(path)
        at += 1


class Refusing:
    """A service behind fsspec that answers its ``at``-th call with 503, once: before it has any effect, or after."""

    def __init__(self, system: Any, at: int, after: bool) -> None:
        self._system = system
        self._at = at
        self._after = after
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._system, name)
        if not callable(real) or name == "invalidate_cache":
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls != self._at:
                return real(*args, **kwargs)
            if self._after:
                with contextlib.suppress(FileNotFoundError, FileExistsError):
                    real(*args, **kwargs)
            raise OSError("503 Slow Down")

        return call
