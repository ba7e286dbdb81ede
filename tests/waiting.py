"""How tests wait: for what must come to hold, and for as long as a busy machine may take.

A deadline is no expectation of speed. A wait ends as soon as its condition holds, so a long deadline costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE = 240.0
"""Seconds for any wait of a test; pytest gives up on the whole test later than that."""


def until(condition: Callable[[], bool], told: object = "the condition never held") -> None:
    """Return once the condition holds. ``told``: what the failure says if it never does, or a function of no arguments
    that says it.
    """
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, told() if callable(told) else told
        time.sleep(0.005)
