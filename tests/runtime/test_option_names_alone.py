"""Misspelt options of sources that are not here to be run."""

from __future__ import annotations

from typing import Any, cast

import pytest

from holdfast.runtime.spark.option_names import SOURCES, _misspelt

NOBODY = cast(Any, None)


@pytest.mark.parametrize(
    ("source", "given", "meant"),
    [
        ("kafka", ["startingOffset", "maxOffsetPerTrigger"], ["startingOffsets", "maxOffsetsPerTrigger"]),
        ("kafka", ["kafka.bootstrap.servers", "SUBSCRIBE", "kafkaConsumer.pollTimeoutMs", "topic"], []),
        ("socket", ["hosts", "Port"], ["host"]),
        ("rate", ["rowPerSecond", "rampupTime"], ["rowsPerSecond"]),
        ("delta", ["maxFilePerTrigger"], []),
    ],
)
def test_an_option_that_looks_like_another_is_found(source: str, given: list[str], meant: list[str]) -> None:
    """Whatever the case; settings of a client (with a dot) and sources that are not Spark's have names of their own."""
    assert [found for _, found in _misspelt(NOBODY, source, given)] == meant


def test_no_option_that_is_known_is_taken_for_another() -> None:
    for source, known in SOURCES.items():
        assert list(_misspelt(NOBODY, source, [name.upper() for name in known])) == []
