"""Fixtures for the whole project: one Spark for all tests that need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local Spark with two cores, on loopback alone, as Holdfast itself starts it."""
    from holdfast.runtime.spark import spark_session

    session = spark_session("local[2]", name="holdfast-tests", settings={"spark.sql.session.timeZone": "UTC"})
    yield session
    session.stop()
