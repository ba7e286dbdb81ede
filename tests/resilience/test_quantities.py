"""Quantities as people write them, and the one line they get for others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.resilience.quantities import (
    duration,
    is_size,
    number,
    rate,
    say_duration,
    say_size,
    size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1d", 86400), ("1h30m", 5400), ("1.5h", 5400), ("250ms", 0.25), (" 2 w ", 1209600)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text, "--window") == seconds


@pytest.mark.parametrize(
    ("text", "count"), [("2GiB", 2 * 2**30), ("50MB", 50e6), ("1kB", 1000), ("512B", 512), ("1.5TiB", 1.5 * 2**40)]
)
def test_sizes(text: str, count: float) -> None:
    assert size(text, "--checkpoint") == count
    assert is_size(text)


def test_rates() -> None:
    assert rate("50MB/s", "--rate") == 50e6
    assert rate("86.4GB/d", "--rate") == pytest.approx(1e6)


@pytest.mark.parametrize("text", ["", "10", "ten minutes", "10 minutes", "1d2", "5GB", "nan s", "1h 30"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(Invalid, match="--window: expected a duration such as 90s"):
        duration(text, "--window")


@pytest.mark.parametrize("text", ["0s", "-5m", "1e999d", "1e-12s", "2e6y"])
def test_durations_are_positive_and_within_reason(text: str) -> None:
    with pytest.raises(Invalid, match=r"--window: must be (more than 0|from a nanosecond to a million years)"):
        duration(text, "--window")


@pytest.mark.parametrize("text", ["50MB", "50/s", "MB/s", "50MB/fortnight", "0MB/s"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(Invalid, match="--rate: "):
        rate(text, "--rate")


def test_what_is_no_size_or_number() -> None:
    with pytest.raises(Invalid, match="--checkpoint: expected a size"):
        size("10m", "--checkpoint")
    for text in ("x", "nan", "inf"):
        with pytest.raises(Invalid, match="--sla: expected a"):
            number(text, "--sla")


@settings(deadline=None, derandomize=True)
@given(st.floats(1e-3, 1e10))
def test_what_is_said_can_be_read(seconds: float) -> None:
    assert duration(say_duration(seconds), "x") == pytest.approx(seconds, rel=0.01)
    assert size(say_size(seconds + 1), "x") == pytest.approx(seconds + 1, rel=0.01)
