"""Nobody pulls the plug during a test, so waiting for the disk shows nothing; what is synced has its own test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(autouse=True, scope="session")
def no_waiting_for_the_disk() -> Iterator[None]:
    with mock.patch.object(os, "fsync", lambda _: None):
        yield
