"""Ctrl-C while Spark is at work: it must not break into a word to the JVM, cancel its jobs, or get lost in there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

FOREIGN = ("py4j", "pyspark")
_kept = threading.Event()


@contextmanager
def held() -> Iterator[None]:
    """An interrupt is raised in our own code, and kept for ``check`` in Spark's; a second is raised anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    _kept.clear()
    take()
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def take() -> None:
    """Hear interrupts; to be said again after Spark has started, as it then takes them for itself."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _heard)


def check() -> None:
    """KeyboardInterrupt, if one was kept."""
    if _kept.is_set():
        _kept.clear()
        raise KeyboardInterrupt


def _heard(number: int, frame: FrameType | None) -> None:
    again = _kept.is_set()
    while frame is not None and not again:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in FOREIGN:
            _kept.set()
            return
        frame = frame.f_back
    _kept.clear()
    raise KeyboardInterrupt
