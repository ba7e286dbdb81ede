"""Nothing is lost in silence: what a job meets in its sink, in changed code and in an object store."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from promised import (
    KILLED_AT,
    ROWS,
    counting,
    events,
    expected,
    finished,
    numbers,
    passing,
    totals,
)
from refusing_files import HOST, MARKER, RefusingFiles

import holdfast
from holdfast import operators as op
from holdfast.errors import HoldfastError, Invalid
from waiting import DEADLINE, until

pytestmark = pytest.mark.spark

Begin = Callable[..., holdfast.Job]
HERE = Path(__file__).parent


def test_a_sink_that_fails_now_and_then_gets_every_row(spark: Any, tmp_path: Path, begin: Begin) -> None:
    calls = 0
    epochs: dict[str, list[int]] = defaultdict(list)
    rows: list[int] = []

    def sink(output: Any) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise ConnectionError("the warehouse is away")
        assert (output.kind, output.fidelity) == ("final", 1.0)
        epochs[str(output.task)].append(output.epoch)
        rows.extend(output.table["value"].to_pylist())

    finished(begin(numbers(spark, 80), passing(), store=tmp_path, nodes=2, epochs=5, sink=sink))
    assert set(rows) == set(range(400))
    assert {task: sorted(set(seen)) for task, seen in epochs.items()} == {f"kept/{n}": [*range(5)] for n in range(2)}
    assert all(seen == sorted(seen) for seen in epochs.values())


@pytest.mark.usefixtures("offered_at_once")
def test_a_sink_that_always_fails_ends_the_job(spark: Any, tmp_path: Path, begin: Begin) -> None:
    def sink(output: Any) -> None:
        raise ConnectionError("the warehouse is away")

    job = begin(numbers(spark), counting(), store=tmp_path, epochs=5, sink=sink)
    with pytest.raises(HoldfastError, match=r"sink.*the warehouse is away") as caught:
        finished(job)
    assert "epoch 0" in str(caught.value) and "all/0" in str(caught.value)
    assert job.exception() is caught.value


def test_a_sink_goes_on_where_a_killed_driver_left_it(spark: Any, tmp_path: Path, begin: Begin) -> None:
    store, delivered = tmp_path / "store", tmp_path / "delivered"
    program = [sys.executable, str(HERE / "promised.py"), str(store), str(delivered)]
    known = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        program, start_new_session=True, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": known}
    ) as process:
        try:
            _, said = process.communicate(timeout=DEADLINE)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, said[-3000:]
    assert delivered.read_text().split() == [str(epoch) for epoch in range(KILLED_AT)]
    got: list[int] = []
    finished(begin(numbers(spark), counting(), store=store, epochs=6, sink=lambda output: got.append(output.epoch)))
    assert totals(store) == expected(6)
    assert got in ([*range(KILLED_AT, 6)], [*range(KILLED_AT - 1, 6)])


def test_a_sink_that_blocks_does_not_hide_a_lost_node(spark: Any, tmp_path: Path, begin: Begin) -> None:
    blocked, release, left = threading.Event(), threading.Event(), threading.Event()

    def sink(output: Any) -> None:
        blocked.set()
        assert release.wait(DEADLINE)
        left.set()

    def told(kind: str) -> bool:
        assert not job.awaitTermination(0)  # raises what ended it
        return bool(events(tmp_path, kind))

    job = begin(numbers(spark), counting(), store=tmp_path, nodes=2, epochs=4, sink=sink, rejoin_after=0.3)
    try:
        until(lambda: blocked.is_set() or not job.isActive, lambda: job.status)
        job.driver.ports.nodes.kill(["node-1"])
        until(lambda: told("nodes lost"), "a loss is not seen while the sink blocks")
        assert not left.is_set()
    finally:
        release.set()
    finished(job)
    assert totals(tmp_path) == expected(4)


def doubled(batch: pa.Table) -> pa.Table:
    value = batch["value"]
    key = pc.cast(pc.bit_wise_and(value, 15), pa.int64())
    return pa.table({"key": key, "value": value, "twice": pc.multiply(value, 2)})


def adding(
    function: Callable[..., Any] = op.sum,
    column: str = "value",
    size: str = "100 seconds",
    weights: tuple[float, float] = (1, 1),
    partitioning: Any = "full",
) -> op.Pipeline:
    """Sums by key and windows beside them."""
    key = {"key": pa.int64()}
    stream = op.stream("rows", key="key", weights=weights, partitioning=partitioning)
    return op.Pipeline(
        op.source("rows", doubled, parallelism=2, event_time="value"),
        op.step("totals", op.aggregate(key, total=function(column)), stream, parallelism=2),
        op.step("windows", op.tumbling(size, by=key, time="value", count=op.count()), "rows"),
    )


@pytest.fixture(scope="module")
def added(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which two epochs were added up."""
    folder = tmp_path_factory.mktemp("added")
    finished(holdfast.start(numbers(spark), adding(), store=folder, epochs=2))
    return folder


@pytest.fixture
def store(added: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copytree(added, tmp_path / "store"))
    shutil.rmtree(tmp_path / "store", ignore_errors=True)


@pytest.mark.parametrize(
    ("operator", "change"),
    [
        ("totals", {"function": op.max}),
        ("totals", {"column": "twice"}),
        ("windows", {"size": "200 seconds"}),
        ("totals", {"weights": (3, 1)}),
        ("totals", {"partitioning": "one-to-one"}),
    ],
    ids=["function", "column", "window", "weights", "partitioning"],
)
def test_state_that_does_not_fit_the_code_is_refused_by_name(
    spark: Any, store: Path, begin: Begin, operator: str, change: dict[str, Any]
) -> None:
    with pytest.raises(Invalid, match=rf"operator {operator}\b"):
        finished(begin(numbers(spark), adding(**change), store=store, epochs=3))


def test_an_operator_that_may_change_begins_anew(spark: Any, store: Path, begin: Begin) -> None:
    pipeline = adding(column="twice")
    finished(begin(numbers(spark), pipeline, store=store, epochs=4, allow_changed=["totals"]))
    table = holdfast.read_output(store, "final")
    last = table.filter(pc.and_(pc.equal(table["epoch"], 3), pc.is_valid(table["total"])))
    plain = {key: sum(2 * value for value in range(2 * ROWS, 4 * ROWS) if value & 15 == key) for key in range(16)}
    assert dict(zip(last["key"].to_pylist(), last["total"].to_pylist(), strict=True)) == plain
    closed = table.filter(pc.is_valid(table["count"]))
    assert sum(closed["count"].to_pylist()) == 15 * 100  # windows go on as they were: the last is open


@pytest.fixture
def object_store(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a store behind RefusingFiles, which every process knows as one knows an installed filesystem."""
    plugin = tmp_path / "plugins" / "refusing_files-1.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: refusing-files\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[fsspec.specs]\nviewfs = refusing_files:RefusingFiles\n")
    known = os.pathsep.join([str(plugin.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", known)
    monkeypatch.setitem(spark.sparkContext.environment, "PYTHONPATH", known)
    fsspec.register_implementation("viewfs", RefusingFiles, clobber=True)
    spark.sparkContext._jsc.hadoopConfiguration().set("fs.viewfs.mounttable.tests.linkMergeSlash", "file:///")
    return tmp_path / "store"


def test_an_object_store_that_refuses_an_output_once_gets_it(spark: Any, object_store: Path, begin: Begin) -> None:
    object_store.mkdir()
    marker = object_store / MARKER
    marker.touch()
    url = f"{HOST}{object_store}"
    finished(begin(numbers(spark), counting(), store=url, epochs=3))
    assert not marker.exists()
    assert totals(object_store) == expected(3)
