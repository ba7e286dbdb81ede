"""A process that dies between any two file operations: after the n-th, every further one raises, as nothing runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
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
