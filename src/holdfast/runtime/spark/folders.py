"""Folders of nodes on a machine: each job has one, and whoever uses it holds a lock in it, which dies with the process.

So what a job left that was killed is told from what is in use, on every machine, and goes when the next job comes. An
executor's Python processes come and go, with every run that is called off: its folder is in use while its JVM lives,
whose number is written beside the lock.

An executor's folder is where Spark keeps what that executor shuffles: on its disks, in a container's volume, gone with
it. The driver does not know where that is, so it names such folders without a place; ``place`` gives them one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import zlib
from pathlib import Path

from holdfast.private import make_private
from holdfast.state.fence import Identity, is_running

PREFIX = "holdfast-nodes-"
ALIVE = ".alive"
DIRS = "SPARK_LOCAL_DIRS"
"""Spark tells its Python workers under this name where the executor's own files are, on one or several disks."""
NEAR = (f"{PREFIX}*", f"../blockmgr-*/{PREFIX}*", f"../../executor-*/blockmgr-*/{PREFIX}*",
        f"../../../spark-*/executor-*/blockmgr-*/{PREFIX}*")  # fmt: skip
"""Where folders of others may be, seen from ours: beside it, of other executors of this job, of other jobs."""

_held: dict[str, int] = {}
_opened: set[str] = set()


def place(folder: str) -> str:
    """Where a folder is on this machine: as it says, or under what Spark has for the executor that this runs in."""
    if Path(folder).is_absolute():
        return folder
    dirs = os.environ.get(DIRS, "").split(",")
    # An executor's states are on one disk, those of different executors on all of them.
    chosen = dirs[zlib.crc32(dirs[0].encode()) % len(dirs)] or tempfile.gettempdir()
    return str(Path(chosen) / folder)


def node_folder(folder: str) -> str:
    """Where a node's folder is; what the same executor had as a node before it was given up is of no use, and goes."""
    path = Path(place(folder))
    executor, _, life = path.name.partition(".")[2].partition(".")
    if life and folder not in _opened:
        _opened.add(folder)
        for other in path.parent.glob("*.*"):
            whose, _, earlier = other.name.partition(".")[2].partition(".")
            if whose == executor and int(earlier or 0) < int(life):
                shutil.rmtree(other, ignore_errors=True)
    return str(path)


def claim(folder: str) -> None:
    """Use this folder as long as this process lives, and clear away what nobody uses any more near it."""
    if folder in _held:
        return
    path = make_private(Path(place(folder)))
    descriptor = os.open(path / ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    owner = Identity.here(executor_process())
    os.pwrite(descriptor, f"{owner.host} {owner.process}".encode(), 0)
    _held[folder] = descriptor
    for near in NEAR:
        with contextlib.suppress(OSError):
            for other in path.parent.glob(near):
                if not other.samefile(path):
                    clear(other)


def let_go(folder: str) -> None:
    """This process is done with it; it goes with all that is in it."""
    descriptor = _held.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)
    shutil.rmtree(place(folder), ignore_errors=True)


def clear(folder: Path) -> bool:
    """Delete a folder that no living process has claimed; False if one has, or it is none of ours."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / ALIVE, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            host, _, process = os.pread(descriptor, 4096, 0).decode("utf-8", "replace").partition(" ")
            # Of a process in another container nobody here can tell.
            if process and (host != Identity.here().host or is_running(process)):
                return False
            shutil.rmtree(folder, ignore_errors=True)
            return True
        finally:
            os.close(descriptor)
    return False


def executor_process() -> int:
    """The JVM that this process works for; this process itself if it works for none."""
    number = os.getpid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while number > 1:
            if Path(f"/proc/{number}/comm").read_text().strip() == "java":
                return number
            number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    return os.getpid()
