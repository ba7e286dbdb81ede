"""Jobs of a test end with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import holdfast


@pytest.fixture
def begin() -> Iterator[Callable[..., holdfast.Job]]:
    """``holdfast.start``; what still runs when the test is over is stopped, and waited for up to a deadline."""
    started: list[holdfast.Job] = []

    def start(*given: Any, **options: Any) -> holdfast.Job:
        started.append(holdfast.start(*given, **options))
        return started[-1]

    yield start
    for job in started:
        if job.isActive:
            stopping = threading.Thread(target=job.stop, daemon=True)
            stopping.start()
            stopping.join(10)
