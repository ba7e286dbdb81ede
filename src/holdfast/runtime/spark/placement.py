"""Whether a task runs where it was sent. Spark takes a place for a wish: it waits for it as long as it was told to.

A node's states are in its executor's folder, so whoever runs elsewhere must not work on them.
"""

from __future__ import annotations

import contextlib
from functools import cache
from itertools import pairwise
from pathlib import Path

from holdfast.runtime.spark.folders import executor_process
from holdfast.runtime.spark.nodes import EXECUTOR


class Misplaced(Exception):
    """Spark ran a task on another executor than the one it was sent to."""


@cache
def executor_here() -> str:
    """The executor that this process works for, as Spark numbers it; empty where nobody can tell.

    Spark does not tell its Python workers, but the JVM that they come from was started with it.
    """
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{executor_process()}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return next((value for name, value in pairwise(words) if name == "--executor-id"), "")
    return ""


def misplaced(place: str) -> str:
    """What is wrong, in one line, with a task for this place that runs in this process; empty if nothing is."""
    here, asked = executor_here(), place.rpartition("_")[2]
    if not place.startswith(EXECUTOR) or here in ("", asked):
        return ""
    return f"Spark ran it on executor {here} instead of {asked}: spark.locality.wait is too short for this cluster"
