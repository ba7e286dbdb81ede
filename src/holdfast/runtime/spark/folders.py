"""Folders of nodes on a machine: each job has one, and whoever uses it holds a lock in it, which dies with the process.

So what a job left that was killed is told from what is in use, on every machine, and goes when the next job comes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

PREFIX = "holdfast-nodes-"
ALIVE = ".alive"

_held: dict[str, int] = {}


def claim(folder: str) -> None:
    """Use this folder as long as this process lives, and clear away what nobody uses any more beside it."""
    if folder in _held:
        return
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path / ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    _held[folder] = descriptor
    for other in path.parent.glob(f"{PREFIX}*"):
        if other != path:
            clear(other)


def let_go(folder: str) -> None:
    """This process is done with it; it goes with all that is in it."""
    descriptor = _held.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)
    shutil.rmtree(folder, ignore_errors=True)


def clear(folder: Path) -> bool:
    """Delete a folder that no living process has claimed; False if one has, or it is none of ours."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / ALIVE, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            return True
        finally:
            os.close(descriptor)
    return False
