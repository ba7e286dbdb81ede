"""The process that ``holdfast supervise`` starts: it builds the job, waits for its end, and stops it when asked to.

What happens is told to the supervisor, one JSON object a line. When the supervisor is gone, the job stops too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from holdfast.cli.supervision import SUPERSEDED
from holdfast.errors import HoldfastError, Invalid
from holdfast.loading import loaded
from holdfast.state import Fenced, Held


class Supervised(Protocol):
    """What is needed of a job; ``holdfast.Job``, queries of ``holdfast.writeStream`` and Spark's own have it."""

    def awaitTermination(self) -> object: ...
    def stop(self) -> object: ...


class Telling(logging.Handler):
    """Lines to the supervisor, from any thread; also what Holdfast logs."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor

    def tell(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, **fields}, default=str).encode() + b"\n"
        with self.lock or contextlib.nullcontext(), contextlib.suppress(OSError):
            os.write(self._descriptor, line)

    def emit(self, record: logging.LogRecord) -> None:
        self.tell("note", text=record.getMessage())


def attempt(written: str, telling: Telling) -> int:
    """Run the job to its end; the exit code. SIGTERM stops it after the epoch at hand."""
    job: Supervised | None = None
    # As long as there is no job it is raised wherever it comes, also in a word to the JVM: nothing has begun yet.
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        build = _found(written)
        telling.tell("started")
        job = _built(build, written)
        telling.tell("running")
        _listen(job, telling)
        job.awaitTermination()
        return 0
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it was heard; who cannot wait kills
        error = _stopped(job)
    except Exception as failed:
        error = failed
    if error is None:
        return 0
    telling.tell("failed", cause=_cause(error, written))
    return 2 if isinstance(error, Invalid) else SUPERSEDED if isinstance(error, Held | Fenced) else 1


def _stopped(job: Any) -> Exception | None:
    """Stop the job, if there is one; what it failed with."""
    if job is None:
        return None
    try:
        job.stop()
        ended: Exception | None = job.exception() if hasattr(job, "exception") else None
    except Exception as failed:
        return failed
    return ended


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def _found(written: str) -> Callable[[], Any]:
    found = loaded(written, "job")
    if not callable(found):
        raise Invalid(f"job {written}: a function that starts the job and returns it is needed, got {_kind(found)}")
    build: Callable[[], Any] = found
    return build


def _built(build: Callable[[], Any], written: str) -> Supervised:
    job = build()
    if not hasattr(job, "awaitTermination") or not hasattr(job, "stop"):
        raise Invalid(
            f"job {written}: the function must return the job that it starts, such as holdfast.start(...), "
            f"got {_kind(job)}"
        )
    made: Supervised = job
    return made


def _listen(job: Any, telling: Telling) -> None:
    """The first answer is told: from then on readers have something."""
    said = threading.Event()

    def hear(event: dict[str, Any]) -> None:
        if event["kind"] == "answered" and not said.is_set():
            said.set()
            telling.tell("answered", epoch=event["epoch"])

    if hasattr(job, "add_listener"):
        job.add_listener(hear)


def _kind(value: object) -> str:
    return type(value).__name__


def _cause(error: Exception, written: str) -> str:
    """One line: what went wrong, and for an error of the user's own code where in their file."""
    if isinstance(error, HoldfastError):
        return " ".join(str(error).split())
    file = Path(written.rpartition(":")[0])
    lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if Path(at.filename).name == file.name]
    where = f" (line {lines[-1]} of {file.name})" if lines else ""
    return " ".join(f"{_kind(error)}: {_said(error)}".split()) + where


def _said(error: Exception) -> str:
    if "pyspark" not in sys.modules:
        return str(error)
    from holdfast.runtime.spark.shipping import first_cause

    return first_cause(error)


def _stop_when_alone(lifeline: int) -> None:
    """The other end is held by the supervisor alone: it closes when that ends, however it does."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def main(written: str, told: int, lifeline: int) -> int:
    os.set_inheritable(told, False)
    os.set_inheritable(lifeline, False)
    telling = Telling(told)
    logging.getLogger("holdfast").addHandler(telling)
    threading.Thread(target=_stop_when_alone, args=(lifeline,), name="holdfast-lifeline", daemon=True).start()
    sys.path.insert(0, str(Path(written.rpartition(":")[0]).absolute().parent))
    return attempt(written, telling)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
