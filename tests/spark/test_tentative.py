"""Tentative answers of real runs: from when, by whom, how complete they say they are, and what supersedes them.

Nodes are logical, in local mode. A capacity of one task to a node makes it plain who dies with which node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from promised import waiting_for
from total import Total

from holdfast import operators as op
from holdfast.operators import Pipeline
from holdfast.runtime.driver.ports import Output
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import start
from holdfast.state import Routing, hash_keys
from holdfast.workloads import Options
from holdfast.workloads.traffic_incidents import traffic
from waiting import DEADLINE

pytestmark = pytest.mark.spark

ROWS, KEYS, EPOCHS = 320, 64, 9
LOST, BACK = 3, 7


def keyed(batch: pa.Table) -> pa.Table:
    return pa.table({"key": pc.bit_wise_and(batch["value"], KEYS - 1), "value": batch["value"]})


def counting(function: Callable[[pa.Table], pa.Table] = keyed) -> Pipeline:
    """Four tasks count keys, and their output is a query; one task adds up what they say, and so is its."""
    counts = op.aggregate({"key": pa.int64()}, count=op.count())
    return Pipeline(
        op.source("rows", function, parallelism=2),
        op.step("counts", counts, op.stream("rows", key="key"), parallelism=4, priority=1.0),
        op.step("all", Total(), op.stream("counts", partitioning="merge"), priority=1.0),
    )


def owner(key: int, tasks: int) -> int:
    return int(Routing.even(tasks).route(hash_keys(pa.table({"key": pa.array([key], pa.int64())}), ["key"]))[0])


def plain_totals(without: int | None = None, since: int = EPOCHS) -> list[tuple[int, int, int]]:
    """(epoch, keys, sum) of ``all``, row by row; from epoch ``since`` on without what one task of counts says."""
    counts = dict.fromkeys(range(KEYS), 0)
    owned = {key for key in counts if without is not None and owner(key, 4) == without}
    keys = total = 0
    answers = []
    for epoch in range(EPOCHS):
        for value in range(epoch * ROWS, (epoch + 1) * ROWS):
            counts[value & (KEYS - 1)] += 1
        heard = [count for key, count in counts.items() if epoch < since or key not in owned]
        keys, total = keys + len(heard), total + sum(heard)
        answers.append((epoch, keys, total))
    return answers


@dataclass
class Ran:
    """A run with a failure, and what could be seen of it while it was going on."""

    folder: Path
    seen: dict[int, pa.Table] = field(default_factory=dict)
    """The latest view, as it was when an epoch had been answered."""
    handed: list[tuple[int, str, str, float]] = field(default_factory=list)
    """(epoch, task, kind, fidelity) in the order in which the sink got them."""

    @property
    def history(self) -> list[dict[str, Any]]:
        return list(read_history(self.folder))

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.history if event["kind"] == kind]

    def published(self, kind: str, epoch: int) -> list[dict[str, Any]]:
        return [event for event in self.events("published") if event["of"] == kind and epoch in event["epochs"]]


@pytest.fixture(scope="module")
def counted(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Tasks counts/0 to counts/3 on node-0 to node-3, all/0 on node-4, a replica of counts/1 on node-5.

    Nodes 1 and 2 go at epoch 3 and come back at epoch 7.
    """
    ran = Ran(tmp_path_factory.mktemp("counted"))
    seen = ran.folder.with_name("seen-until-back")
    waited = waiting_for(seen, BACK * ROWS, lambda batch: batch)

    def watch(event: dict[str, Any]) -> None:
        if event["kind"] == "answered":
            ran.seen[event["epoch"]] = read_output(ran.folder, "latest")
            if event["epoch"] == BACK - 1:
                seen.touch()  # until then nobody comes back who could make the answers final

    def hand(output: Output) -> None:
        ran.handed.append((output.epoch, output.task, output.kind, output.fidelity))

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2)
    script = f"kill node-1,node-2 at epoch {LOST}; join node-1,node-2 at epoch {BACK}"
    pipeline = counting(lambda batch: keyed(waited(batch)))
    job = start(
        numbers.load().select("value"), pipeline, store=ran.folder, nodes=6, capacity=1.0, epochs=EPOCHS,
        checkpoint_every=2, replicas=["counts/1"], faults=parse_faults(script), patience=600.0, sink=hand,
        listeners=[watch],
    )  # fmt: skip
    assert job.awaitTermination(DEADLINE), job.status
    yield ran


def of(table: pa.Table, task: str, epoch: int | None = None) -> list[dict[str, Any]]:
    rows = table.filter(pc.equal(table["task"], task)).to_pylist()
    return [row for row in rows if epoch is None or row["epoch"] == epoch]


def test_tentative_answers_begin_with_the_epoch_of_the_failure(counted: Ran) -> None:
    (lost,) = counted.events("nodes lost")
    assert (lost["nodes"], lost["epoch"], lost["down"]) == (["node-1", "node-2"], LOST, ["counts/2"])
    rows = of(read_output(counted.folder, "tentative"), "all/0")
    epochs = [row["epoch"] for row in rows]
    assert epochs == list(range(LOST, epochs[-1] + 1)) and epochs[-1] >= BACK - 1
    share = sum(owner(key, 4) == 2 for key in range(KEYS)) / KEYS
    assert 0 < share < 1
    alone = [row["fidelity"] for row in rows if row["epoch"] < BACK]
    assert alone == pytest.approx([1 - share] * len(alone))
    later = [row["fidelity"] for row in rows if row["epoch"] >= BACK]
    assert all(1 - share < fidelity < 1 for fidelity in later), "counts/2 answers from its checkpoint again"


def test_a_tentative_answer_is_what_those_who_are_left_make_of_their_rows(counted: Ran) -> None:
    rows = [row for row in of(read_output(counted.folder, "tentative"), "all/0") if row["epoch"] < BACK]
    expected = plain_totals(without=2, since=LOST)
    assert [(row["epoch"], row["keys"], row["sum"]) for row in rows] == expected[LOST : LOST + len(rows)]


def test_who_is_not_affected_answers_finally_in_the_same_epoch(counted: Ran) -> None:
    (tentative,) = counted.published("tentative", LOST)
    finals = [event for event in counted.published("final", LOST) if event["run"] == tentative["run"]]
    assert tentative["tasks"] == ["all/0"]
    assert [event["tasks"] for event in finals] == [["counts/0", "counts/1", "counts/3"]]
    answered = next(event for event in counted.events("epoch") if event["epoch"] == LOST)
    assert tentative["rows"] == len(of(read_output(counted.folder, "tentative"), "all/0", LOST)) > 0
    assert finals[0]["rows"] > 0 and tentative["fidelity"] == finals[0]["fidelity"] == answered["fidelity"]
    assert not of(read_output(counted.folder, "tentative"), "counts/0")


def test_the_latest_view_shows_tentative_rows_until_final_ones_are_there(counted: Ran) -> None:
    during = counted.seen[LOST + 1]
    assert [0 < row["fidelity"] < 1 for row in of(during, "all/0", LOST + 1)] == [True]
    assert {row["fidelity"] for row in of(during, "counts/0", LOST + 1)} == {1.0}
    assert not of(during, "counts/2", LOST + 1)
    after = read_output(counted.folder, "latest")
    assert set(after["fidelity"].to_pylist()) == {1.0}
    assert after.drop_columns(["fidelity"]).equals(read_output(counted.folder, "final"))


def test_the_sink_hears_the_tentative_answer_first_and_the_final_one_once(counted: Ran) -> None:
    heard = [(kind, fidelity) for epoch, task, kind, fidelity in counted.handed if (epoch, task) == (LOST, "all/0")]
    assert [kind for kind, _ in heard] == ["tentative", "final"]
    assert 0 < heard[0][1] < heard[1][1] == 1.0
    finals = [(epoch, task) for epoch, task, kind, _ in counted.handed if kind == "final"]
    assert sorted(finals) == sorted(
        {(e, t) for e in range(EPOCHS) for t in ("all/0", *(f"counts/{i}" for i in range(4)))}
    )


def test_a_promoted_replica_restores_and_replays_nothing(counted: Ran) -> None:
    (promoted,) = counted.events("promoted")
    assert (promoted["tasks"], promoted["epoch"]) == (["counts/1"], LOST)
    later = counted.history[counted.history.index(promoted) :]
    plans = [event for event in later if event["kind"] == "recovery plan"]
    assert plans and all("counts/1" not in event["recover"] for event in plans)
    behind = [task for event in later if event["kind"] == "replay" for task in event["tasks"]]
    assert "counts/2" in behind and "all/0" in behind
    # A new replica is made in time, from a checkpoint; that is a replay too, but none of a primary's.
    assert "counts/1" not in behind


def test_the_final_output_is_that_of_a_run_without_failure(counted: Ran) -> None:
    table = read_output(counted.folder, "final")
    got = [(row["epoch"], row["keys"], row["sum"]) for row in of(table, "all/0")]
    assert got == plain_totals()
    counts = table.filter(pc.starts_with(table["task"], "counts/"))
    assert counts.num_rows == EPOCHS * KEYS
    assert all(row["count"] == (row["epoch"] + 1) * ROWS // KEYS for row in counts.to_pylist())


BUSY = traffic(interval=0.25)
TRAFFIC = Options(rate=1500, epochs=EPOCHS, seed=4, partitions=2)


def jams(spark: Any, folder: Path, script: str, checkpoint_every: int = 2, **settings: Any) -> list[dict[str, Any]]:
    """A run of traffic incidents, a window every two epochs; its history."""
    pipeline = BUSY.pipeline(parallelism=2, window="2 seconds", every="2 seconds")
    job = start(
        BUSY.stream(spark, TRAFFIC), pipeline, store=folder, epochs=TRAFFIC.epochs,
        checkpoint_every=checkpoint_every, faults=parse_faults(script), **settings,
    )  # fmt: skip
    assert job.awaitTermination(DEADLINE), job.status
    return list(read_history(folder))


@pytest.fixture(scope="module")
def undisturbed(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    folder = tmp_path_factory.mktemp("undisturbed")
    jams(spark, folder, "", nodes=4)
    return read_output(folder, "final")


def test_half_of_a_join_is_no_answer(spark: Any, tmp_path: Path, undisturbed: pa.Table) -> None:
    """One of two tasks that know incidents is lost: the jams of its segments are missing, the others are all there."""
    tasks = [str(task) for task in BUSY.pipeline(parallelism=2).topology.tasks if task.operator != "events"]
    node = f"node-{tasks.index('incident/0')}"
    script = f"kill {node} at epoch {LOST}; join {node} at epoch {BACK}"
    history = jams(spark, tmp_path, script, nodes=len(tasks), capacity=1.0, patience=600.0)
    assert [event["down"] for event in history if event["kind"] == "nodes lost"] == [["incident/0"]]
    said = read_output(tmp_path, "tentative")
    assert {LOST + 1, BACK - 1} <= set(said["epoch"].to_pylist())
    assert all(0 < fidelity < 1 for fidelity in said["fidelity"].to_pylist())
    owners = Routing.even(2).route(hash_keys(undisturbed, ["segment"]))
    heard = undisturbed.filter(pa.array(np.asarray(owners) == 1))
    for epoch in (LOST + 1, BACK - 1):
        expected = heard.filter(pc.equal(heard["epoch"], epoch))
        got = said.filter(pc.equal(said["epoch"], epoch)).drop_columns(["fidelity"])
        assert 0 < expected.num_rows < sum(each == epoch for each in undisturbed["epoch"].to_pylist())
        assert got.to_pylist() == expected.to_pylist()
    assert read_output(tmp_path, "final").equals(undisturbed)


def test_half_of_the_nodes_with_a_replicated_path(spark: Any, tmp_path: Path, undisturbed: pa.Table) -> None:
    """Two of four nodes go; replicas of one path from the sources to the query keep it answering."""
    path = ["locations/1", "reports/0", "speed/1", "incident/1", "jam/1", "total/0"]
    # Windows close in this epoch, and without a checkpoint just before it what was lost has something to replay.
    closing = LOST + 1
    script = f"kill node-1,node-2 at epoch {closing}"
    history = jams(spark, tmp_path, script, 100, nodes=4, replicas=path, rejoin_after=4.0)
    promoted = [task for event in history if event["kind"] == "promoted" for task in event["tasks"]]
    assert promoted and set(promoted) <= set(path)
    epochs = {event["epoch"]: event["fidelity"] for event in history if event["kind"] == "epoch"}
    assert 0 < epochs[closing] < 1
    said = read_output(tmp_path, "tentative")
    assert closing in said["epoch"].to_pylist()
    assert all(0 < fidelity < 1 for fidelity in said["fidelity"].to_pylist())
    assert read_output(tmp_path, "final").equals(undisturbed)


def test_an_answer_is_stamped_by_the_rows_that_came_not_by_those_that_were_expected(spark: Any, tmp_path: Path) -> None:
    """A hundred rows come with each of five epochs, then two. The checkpoint is older than the loss; an epoch like the
    last one would have brought the answer nearer to the truth than it is.
    """
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).option("numPartitions", 1).load()
    stream = numbers.select("value").where("value < 500 or value % 50 = 0")
    counts = op.aggregate({"key": pa.int64()}, count=op.count())
    store, saved = tmp_path / "store", tmp_path / "saved"
    rows = op.source("rows", waiting_for(saved, 400))  # the fifth epoch comes when the checkpoint is there
    pipeline = Pipeline(rows, op.step("counts", counts, op.stream("rows", key="key")))
    # The only task with state begins on the first node.
    job = start(
        stream, pipeline, store=store, nodes=2, epochs=8, checkpoint_every=3, replicas=[],
        faults=parse_faults("kill node-0 at epoch 5"),
        listeners=[lambda event: saved.touch() if event["kind"] == "checkpoint" else None],
    )  # fmt: skip
    assert job.awaitTermination(DEADLINE), job.status
    events = list(read_history(store))
    lost = next(number for number, event in enumerate(events) if event["kind"] == "nodes lost")
    kept = max(event["epoch"] for event in events[:lost] if event["kind"] == "checkpoint")
    assert kept < 4, "nothing was missed"
    said = read_output(store, "tentative")
    truth = (100 * (kept + 1) + 2) / 502
    stamps = said.filter(pc.equal(said["epoch"], 5))["fidelity"].to_pylist()
    assert stamps == pytest.approx([truth] * len(stamps)) and stamps
    answer = next(event for event in events if event["kind"] == "epoch" and event["epoch"] == 5)
    assert answer["fidelity"] == pytest.approx(truth)
