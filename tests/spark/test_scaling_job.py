"""Scaling on Spark: a job that is scaled out and in, with nodes that die around it, answers as one that never was."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from commands import HOLDFAST
from test_job import ROWS, counting, expected, finished, keyed, numbers, totals

from holdfast import operators as op
from holdfast.errors import Infeasible, Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import Job, start
from holdfast.state import Store
from holdfast.state.verify import verify
from holdfast.topology import Task
from waiting import DEADLINE, until

pytestmark = pytest.mark.spark


def counts_only(parallelism: int = 2) -> Pipeline:
    """The scaled operator is the sink: its tasks' output files change names."""
    return Pipeline(
        op.source("rows", keyed, parallelism=2),
        op.step(
            "counts",
            op.aggregate({"key": pa.int64()}, count=op.count()),
            op.stream("rows", key="key"),
            parallelism=parallelism,
        ),
    )


def at_epochs(
    job: Job, actions: dict[int, Callable[[], object]], when_scaled: dict[int, Callable[[], object]] | None = None
) -> None:
    """Let these happen, in a thread of their own, once the epochs are answered, or once there are so many tasks."""
    pending = {("answered", epoch): action for epoch, action in actions.items()}
    pending |= {("scaled", tasks): action for tasks, action in (when_scaled or {}).items()}

    def hear(event: dict[str, Any]) -> None:
        told = (event["kind"], event.get("tasks" if event["kind"] == "scaled" else "epoch"))
        if told[0] in ("answered", "scaled") and told in pending:
            threading.Thread(target=pending.pop(told), daemon=True).start()

    job.add_listener(hear)


def reached(job: Job, condition: Callable[[], bool]) -> None:
    """Wait until the condition holds; a job that ends before that ends the wait too."""
    until(lambda: condition() or not job.isActive, lambda: (job.status, kinds(Path(job.store))))
    assert condition(), (job.exception(), job.status, kinds(Path(job.store)))


def kinds(folder: Path) -> list[str]:
    return [event["kind"] for event in read_history(folder)]


def lost(events: Iterable[Mapping[str, Any]]) -> set[str]:
    """Nodes that were lost. Losses that are seen by one look are one event."""
    return {node for event in events if event["kind"] == "nodes lost" for node in event["nodes"]}


def rows(folder: Path) -> list[tuple[int, int, int]]:
    table = read_output(folder, "final")
    return sorted(zip(*(table[name].to_pylist() for name in ("epoch", "key", "count")), strict=True))


def running_counts(epochs: int) -> list[tuple[int, int, int]]:
    counts: dict[int, int] = {}
    answers = []
    for epoch in range(epochs):
        changed = set()
        for value in range(epoch * ROWS, (epoch + 1) * ROWS):
            counts[value & 15] = counts.get(value & 15, 0) + 1
            changed.add(value & 15)
        answers += [(epoch, key, counts[key]) for key in changed]
    return sorted(answers)


def asks(job: Job, operator: str, to: int) -> Callable[[], None]:
    driver = job.driver
    assert driver.autoscaler is not None
    scale = driver.autoscaler.scale
    return lambda: driver.clock.post(lambda: scale(operator, to, f"to-{to}"))


def test_scaled_out_and_in_with_nodes_that_die_the_answers_stay(spark: Any, tmp_path: Path) -> None:
    job = start(numbers(spark), counts_only(), store=tmp_path, nodes=3, checkpoint_every=4, rejoin_after=0.2)
    over = threading.Event()
    seen: list[dict[str, Any]] = []
    job.add_listener(seen.append)
    kill = job.driver.ports.nodes.kill
    at_epochs(
        job,
        {1: asks(job, "counts", 4), 3: lambda: kill(["node-1"])},
        {4: lambda: [asks(job, "counts", 1)(), kill(["node-0"])], 1: asks(job, "counts", 3), 3: over.set},
    )
    reached(job, lambda: over.is_set() and lost(list(seen)) == {"node-0", "node-1"})
    job.stop()
    done = job.status["epoch"] + 1
    assert rows(tmp_path) == running_counts(done)
    told = [event for event in read_history(tmp_path) if event["kind"] == "scaled"]
    assert [event["tasks"] for event in told] == [4, 1, 3]
    assert lost(read_history(tmp_path)) == {"node-0", "node-1"}
    assert verify(Store(tmp_path)).whole


def test_a_scaled_job_goes_on_in_its_shape_after_a_restart(spark: Any, tmp_path: Path) -> None:
    job = start(numbers(spark), counting(), store=tmp_path, nodes=2, checkpoint_every=2)
    reached(job, lambda: job.status["epoch"] >= 0)
    job.scale("counts", 3, timeout=DEADLINE)
    job.stop()
    done = job.status["epoch"] + 1
    assert totals(tmp_path) == expected(done)
    again = start(numbers(spark), counting(), store=tmp_path, nodes=2, epochs=done + 3, checkpoint_every=2)
    assert again.status["tasks"]["counts"] == 3
    finished(again)
    assert totals(tmp_path) == expected(done + 3)
    # Another parallelism in the code is meant: the store is migrated, from the shape it is in.
    last = finished(start(numbers(spark), counting(parallelism=4), store=tmp_path, nodes=2, epochs=done + 5))
    assert last.status["tasks"]["counts"] == 4
    assert totals(tmp_path) == expected(done + 5)


def test_what_cannot_be_scaled_is_said_at_once(spark: Any, tmp_path: Path) -> None:
    job = start(numbers(spark), counting(), store=tmp_path, epochs=3)
    with pytest.raises(Invalid, match="has no key, so its state cannot be cut"):
        job.scale("all", 2)
    with pytest.raises(Invalid, match="a source is read wherever"):
        job.scale("rows", 2)
    with pytest.raises(Invalid, match="unknown; operators: rows, counts, all"):
        job.scale("nobody", 2)
    with pytest.raises(Invalid, match="needs at least 1 task, got 0"):
        job.scale("counts", 0)
    finished(job)
    with pytest.raises(Infeasible, match="the job has ended"):
        job.scale("counts", 2)


def test_the_command_scales_a_job_that_runs(
    spark: Any, tmp_path: Path, command: Callable[..., tuple[int, str, str]]
) -> None:
    job = start(numbers(spark), counting(), store=tmp_path, nodes=2, checkpoint_every=5)
    try:
        asked = [*HOLDFAST, "scale", str(tmp_path), "counts", "--to", "3", "--format", "json"]  # another process does
        done = subprocess.run(asked, capture_output=True, text=True, timeout=DEADLINE, check=True)
        assert json.loads(done.stdout)["tasks"] == 3
        assert job.status["tasks"]["counts"] == 3
        _, out, _ = command("scale", str(tmp_path), "counts", "--to", "3")
        assert out.strip() == "counts has 3 tasks already"
        code, _, err = command("scale", str(tmp_path), "all", "--to", "2")
        assert code == 2 and "has no key, so its state cannot be cut" in err
        head = job.scale("counts", 1, timeout=DEADLINE)["epoch"]
        reached(job, lambda: job.status["epoch"] >= 0)  # the first may be answered only now
    finally:
        job.stop()
    answered = totals(tmp_path)
    assert len(answered) > head and answered == expected(len(answered))
    code, _, err = command("scale", str(tmp_path), "counts", "--to", "2")
    assert code == 2 and "no job is running here" in err


def test_a_busy_job_scales_itself_out_onto_standby_nodes(spark: Any, tmp_path: Path) -> None:
    """With a threshold that anything exceeds, and no more than three tasks."""
    policy = {"every": 0.5, "settle": 0.5, "threshold": 0.0005, "reports": 1, "low_reports": 50, "max_parallelism": 3}
    job = start(
        numbers(spark), counting(), store=tmp_path, nodes=2, max_nodes=4, pool=1, checkpoint_every=5, elastic=policy
    )
    try:
        reached(job, lambda: bool(job.status["tasks"]["counts"] == 3))
        assert len(job.status["nodes"]) >= 3
        # The new tasks are on the node that stood by, at least one of them.
        assert "node-2" in job.driver.snapshot.homes.values()
    finally:
        job.stop()
    answered = totals(tmp_path)
    assert answered == expected(len(answered))
    assert "above 0%" in next(e["why"] for e in read_history(tmp_path) if e["kind"] == "scaled")


def test_a_long_replay_comes_back_as_two_tasks_and_nothing_is_said_twice(spark: Any, tmp_path: Path) -> None:
    job = start(
        numbers(spark), counts_only(), store=tmp_path, nodes=4, epochs=18, checkpoint_every=100, parallel_recovery=2,
        faults=parse_faults("kill node-1 at epoch 12"),
    )  # fmt: skip
    assert job.driver.snapshot.homes[Task("counts", 1)] == "node-1"
    finished(job)
    told = [event for event in read_history(tmp_path) if event["kind"] == "recovering in parallel"]
    assert told and all("counts/1" in each["tasks"] for each in told)
    assert job.status["tasks"]["counts"] > 2
    assert rows(tmp_path) == running_counts(18)


def test_a_job_that_has_less_to_do_merges_tasks_and_gives_nodes_back(spark: Any, tmp_path: Path) -> None:
    policy = {"every": 0.3, "settle": 0.1, "threshold": 1.0, "low_reports": 2, "min_parallelism": 2}
    job = start(numbers(spark), counts_only(), store=tmp_path, nodes=2, max_nodes=3, checkpoint_every=5, elastic=policy)
    back = threading.Event()
    job.add_listener(lambda event: back.set() if event["kind"] == "nodes released" else None)
    try:
        job.driver.ports.nodes.grow(1)
        job.scale("counts", 4, timeout=DEADLINE)
        reached(job, back.is_set)
        assert len(job.status["nodes"]) == 2
        head = job.status["epoch"]
        reached(job, lambda: job.status["epoch"] >= head + 3)
    finally:
        job.stop()
    assert rows(tmp_path) == running_counts(job.status["epoch"] + 1)
    told = list(read_history(tmp_path))
    assert next(event["tasks"] for event in told if event["kind"] == "scaled") == 4
    released = next(event for event in told if event["kind"] == "nodes released")
    assert len(released["nodes"]) == 1 and "nodes lost" not in kinds(tmp_path)
