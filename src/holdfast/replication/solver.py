"""The solver that exact planners use, HiGHS through scipy, kept from speaking where one JSON object is promised."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """HiGHS prints a line of its own to stdout, where one JSON object is promised: send it to nowhere meanwhile."""
    sys.stdout.flush()
    libc = ctypes.CDLL(None)
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
