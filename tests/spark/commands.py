"""For tests of whole programs: the command in a process of its own, and what its output must be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.runtime.history.outputs import read_output
from waiting import until

HOLDFAST = [sys.executable, "-c", "from holdfast.cli import main; main()"]


def final_counts(folder: Path) -> list[tuple[int, str, int]]:
    table = read_output(folder, "final")
    return sorted(zip(*(table[name].to_pylist() for name in ("epoch", "key", "count")), strict=True))


@contextmanager
def running(*arguments: str, program: Sequence[str] = HOLDFAST) -> Iterator[subprocess.Popen[str]]:
    """The command, in a process group of its own that is gone afterwards."""
    process = subprocess.Popen(
        [*program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def killed_when(condition: Callable[[], bool], *arguments: str) -> bool:
    """Start the command and SIGKILL it as soon as the condition holds; False if it had ended by then."""
    with running(*arguments, "--quiet") as process:
        until(lambda: process.poll() is not None or condition(), "the moment to kill never came")
        if process.poll() is not None:
            assert process.returncode == 0, process.communicate()[1][-3000:]
            return False
        process.kill()
        return True
