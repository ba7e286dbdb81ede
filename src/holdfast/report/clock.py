"""The time of a run as a reader wants it: seconds since it began, without the hours between two sittings. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PAUSE = 2.0
"""How long a run that was stopped, or crashed, and went on later seems to have paused."""


def seconds(events: Sequence[dict[str, Any]]) -> list[float]:
    """For each event the seconds since the first one. A run that was started again seems to pause for PAUSE only."""
    if not events:
        return []
    shift = -float(events[0]["time"])
    now = float(events[0]["time"])
    told = []
    for event in events:
        time = max(now, float(event["time"]))  # the clock of a machine may be set back
        if event["kind"] == "started" and time - now > PAUSE:
            shift -= time - now - PAUSE
        now = time
        told.append(round(time + shift, 3))
    return told
