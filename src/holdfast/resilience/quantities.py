"""Quantities as people write them: ``90s``, ``10m``, ``1d``; ``2GiB``; ``50MB/s``. Seconds and bytes inside.

Every reader takes the name of what it reads (an option, a field), so that its one-line refusal names the place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from holdfast.errors import Invalid

SECONDS: Mapping[str, float] = {
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 7 * 86400.0,
    "y": 365 * 86400.0,
}
BYTES: Mapping[str, float] = {
    "B": 1.0,
    "kB": 1e3,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
    "TiB": 2.0**40,
}
SHORTEST, LONGEST = 1e-9, 1e6 * SECONDS["y"]
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_PART = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+)\s*")
_RATE = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]+)\s*/\s*([A-Za-z]+)\s*")


def duration(text: str, name: str) -> float:
    """Seconds in ``90s``, ``1.5h`` or ``1h30m``; more than 0, and within what squares of it can be reckoned with."""
    wanted = f"a duration such as 90s, 10m, 1h30m or 1d (units: {', '.join(SECONDS)})"
    seconds = _sum_of_parts(text, SECONDS)
    if seconds is None:
        raise Invalid(f"{name}: expected {wanted}, got {text!r}")
    if seconds > 0 and not SHORTEST <= seconds <= LONGEST:
        raise Invalid(f"{name}: must be from a nanosecond to a million years, got {text!r}")
    return _positive(seconds, text, name)


def size(text: str, name: str) -> float:
    """Bytes in ``512MiB`` or ``2GB``; more than 0."""
    count = _sum_of_parts(text, BYTES)
    if count is None:
        raise Invalid(f"{name}: expected a size such as 512MiB or 2GB (units: {', '.join(BYTES)}), got {text!r}")
    return _positive(count, text, name)


def rate(text: str, name: str) -> float:
    """Bytes a second in ``50MB/s`` or ``1TiB/d``; more than 0."""
    match = _RATE.fullmatch(text)
    if match is None or match[2] not in BYTES or match[3] not in SECONDS:
        raise Invalid(f"{name}: expected a rate such as 50MB/s or 1TiB/d, got {text!r}")
    return _positive(float(match[1]) * BYTES[match[2]] / SECONDS[match[3]], text, name)


def is_size(text: str) -> bool:
    """Whether this is written as a size, and not as a duration."""
    match = _PART.fullmatch(text)
    return match is not None and match[2] in BYTES


def number(text: str, name: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        raise Invalid(f"{name}: expected a number, got {text!r}") from None
    if not math.isfinite(value):
        raise Invalid(f"{name}: expected a finite number, got {text!r}")
    return value


def say_duration(seconds: float) -> str:
    """The largest unit that gives at least 1, in three digits: ``1.5h``."""
    if seconds == 0:
        return "0s"
    for unit in ("y", "d", "h", "m", "s"):
        if abs(seconds) >= SECONDS[unit]:
            return f"{seconds / SECONDS[unit]:.3g}{unit}"
    return f"{seconds / SECONDS['ms']:.3g}ms"


def say_size(count: float) -> str:
    """In binary units and three digits: ``1.91MiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(count) >= BYTES[unit]:
            return f"{count / BYTES[unit]:.3g}{unit}"
    return f"{count:.3g}B"


def _sum_of_parts(text: str, units: Mapping[str, float]) -> float | None:
    """The sum of ``1h30m`` in the unit of 1, or None where something is left over or a unit is unknown."""
    at, total = 0, 0.0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or match[2] not in units:
            return None
        total += float(match[1]) * units[match[2]]
        at = match.end()
    return total if at else None


def _positive(value: float, text: str, name: str) -> float:
    if not 0 < value < math.inf:
        raise Invalid(f"{name}: must be more than 0 and finite, got {text!r}")
    return value
