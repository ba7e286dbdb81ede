"""A job on Spark: exact output, restarts, errors that help, and logical nodes that die. One Spark for all of it."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.datasource import DataSource, SimpleDataSourceStreamReader
from total import Total

from holdfast import Drill, Replication
from holdfast import operators as op
from holdfast.errors import Invalid, StreamEnded
from holdfast.operators import Pipeline
from holdfast.runtime.driver.ports import Output
from holdfast.runtime.driver.publishing import SinkFailed
from holdfast.runtime.driver.running import RunFailed
from holdfast.runtime.faults import parse_faults
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.outputs import read_output
from holdfast.runtime.spark import Job, start
from holdfast.state import Store
from holdfast.state.files import LocalFiles
from waiting import DEADLINE, until

pytestmark = pytest.mark.spark

ROWS = 400


def numbers(spark: Any, rows: int = ROWS) -> Any:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2)
    return stream.load().select("value")


def keyed(batch: pa.Table) -> pa.Table:
    return pa.table({"key": pc.cast(pc.bit_wise_and(batch["value"], 15), pa.int64()), "value": batch["value"]})


def counting(parallelism: int = 2, function: Callable[[pa.Table], pa.Table] = keyed) -> Pipeline:
    """Source, keyed counts, and a total over all keys: three levels, two of them with state."""
    return Pipeline(
        op.source("rows", function, parallelism=2),
        op.step(
            "counts",
            op.aggregate({"key": pa.int64()}, count=op.count()),
            op.stream("rows", key="key"),
            parallelism=parallelism,
        ),
        op.step("all", Total(), "counts"),
    )


def expected(epochs: int, rows: int = ROWS) -> list[tuple[int, int, int]]:
    """(epoch, keys, sum) of Total, worked out row by row."""
    counts: dict[int, int] = {}
    keys = total = 0
    answers = []
    for epoch in range(epochs):
        changed = set()
        for value in range(epoch * rows, (epoch + 1) * rows):
            counts[value & 15] = counts.get(value & 15, 0) + 1
            changed.add(value & 15)
        keys += len(changed)
        total += sum(counts[key] for key in changed)
        answers.append((epoch, keys, total))
    return answers


def totals(folder: Path) -> list[tuple[int, int, int]]:
    table = read_output(folder, "final")
    return list(zip(*(table[name].to_pylist() for name in ("epoch", "keys", "sum")), strict=True))


def finished(job: Job, seconds: float = DEADLINE) -> Job:
    assert job.awaitTermination(seconds), job.status
    return job


@pytest.fixture
def jobs() -> Iterator[list[Job]]:
    """Jobs to stop, whatever happens."""
    started: list[Job] = []
    yield started
    for job in started:
        if job.isActive:
            job.stop()


def test_the_final_output_is_that_of_a_plain_loop(spark: Any, tmp_path: Path) -> None:
    job = finished(start(numbers(spark), counting(), store=tmp_path, nodes=2, epochs=6, checkpoint_every=3))
    assert totals(tmp_path) == expected(6)
    assert job.exception() is None
    assert not job.isActive
    assert [entry["batchId"] for entry in job.recentProgress] == list(range(6))
    assert job.lastProgress is not None and job.lastProgress["numInputRows"] == ROWS
    kinds = [event["kind"] for event in read_history(tmp_path)]
    assert kinds.count("epoch") == 6 and "checkpoint" in kinds
    assert read_output(tmp_path, "tentative").num_rows == 0


def test_a_stopped_job_goes_on_where_it_was(spark: Any, tmp_path: Path) -> None:
    finished(start(numbers(spark), counting(), store=tmp_path, epochs=3))
    finished(start(numbers(spark), counting(), store=tmp_path, epochs=7))
    assert totals(tmp_path) == expected(7)
    finished(start(numbers(spark), counting(), store=tmp_path, epochs=7))
    assert totals(tmp_path) == expected(7)


def test_stop_ends_between_epochs_and_loses_nothing(spark: Any, tmp_path: Path, jobs: list[Job]) -> None:
    job = start(numbers(spark), counting(), store=tmp_path)
    jobs.append(job)
    until(lambda: len(job.recentProgress) >= 3 or not job.isActive, lambda: job.status)
    job.stop()
    done = totals(tmp_path)
    assert done == expected(len(done)) and len(done) >= 3
    finished(start(numbers(spark), counting(), store=tmp_path, epochs=len(done) + 2))
    assert totals(tmp_path) == expected(len(done) + 2)


def test_lost_nodes_are_recovered_exactly(spark: Any, tmp_path: Path) -> None:
    faults = parse_faults(["kill node-1 at epoch 3", "kill node-0,node-2 at epoch 6", "join node-0 after 1s"])
    finished(
        start(
            numbers(spark), counting(3), Drill(faults, rejoin_after=2.0), Replication(replicas=["counts/1"]),
            store=tmp_path, nodes=3, epochs=12, checkpoint_every=4,
        )
    )  # fmt: skip
    assert totals(tmp_path) == expected(12)
    kinds = [event["kind"] for event in read_history(tmp_path)]
    assert kinds.count("nodes lost") >= 2
    assert "recovery plan" in kinds


def test_all_nodes_lost_at_once(spark: Any, tmp_path: Path) -> None:
    faults = parse_faults("kill node-0,node-1 at epoch 4")
    finished(
        start(numbers(spark), counting(), store=tmp_path, nodes=2, epochs=8, checkpoint_every=3, faults=faults,
              rejoin_after=0.5)
    )  # fmt: skip
    assert totals(tmp_path) == expected(8)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(spark: Any, tmp_path: Path) -> None:
    faults = parse_faults("damage checkpoint at epoch 6; kill node-0,node-1 at epoch 7")
    finished(
        start(
            numbers(spark), counting(), store=tmp_path, nodes=2, epochs=10, checkpoint_every=2, faults=faults,
            rejoin_after=0.5,
        )
    )  # fmt: skip
    assert totals(tmp_path) == expected(10)
    events = list(read_history(tmp_path))
    assert any(event["kind"] == "damaged" and event["file"] for event in events)
    assert any(event["kind"] == "checkpoint lost" for event in events)


def test_a_full_store_holds_the_stream_up_and_loses_nothing(spark: Any, tmp_path: Path) -> None:
    """Full until somebody has been refused, twice."""

    def make_room(event: dict[str, Any]) -> None:
        if event["kind"] == "store unusable":
            LocalFiles(tmp_path).fill(0.0)

    faults = parse_faults("fill store at epoch 3 for 600s; fill store at epoch 6 for 600s")
    finished(
        start(
            numbers(spark), counting(), store=tmp_path, nodes=2, epochs=9, checkpoint_every=2, faults=faults,
            listeners=[make_room],
        )
    )  # fmt: skip
    assert totals(tmp_path) == expected(9)
    events = list(read_history(tmp_path))
    refused = [event["message"] for event in events if event["kind"] == "store unusable"]
    assert refused and all("No space left" in message for message in refused)
    assert len(refused) == len([event for event in events if event["kind"] == "store usable"])


def test_an_overloaded_job_sheds_counts_what_it_shed_and_answers_exactly_for_the_rest(
    spark: Any, tmp_path: Path
) -> None:
    finished(start(numbers(spark, 4000), counting(), store=tmp_path, nodes=2, epochs=6, shed_above=0.01))
    events = [event for event in read_history(tmp_path) if event["kind"] == "epoch"]
    assert all(event["rows_in"] + event["shed"] == 4000 for event in events)
    assert events[0]["shed"] == 0 and all(event["shed"] > 0 for event in events[1:])
    assert all(event["fidelity"] == pytest.approx(event["rows_in"] / 4000) for event in events)
    states = [Store(tmp_path).restore(f"counts/{number}", 5)[0] for number in range(2)]
    counted = sum(sum(state.tables["state"].to_table()["count"].to_pylist()) for state in states)
    assert counted == sum(event["rows_in"] for event in events)


def test_a_function_that_raises_names_itself_and_can_be_mended(spark: Any, tmp_path: Path) -> None:
    bad = ROWS * 2 + 7

    def fragile(batch: pa.Table) -> pa.Table:
        if bad in batch["value"].to_pylist():
            raise ValueError("cannot digest this")
        return keyed(batch)

    class Fragile(op.Operator):
        def process(self, batch: pa.Table, state: op.State) -> pa.Table | None:
            return fragile(batch)

    def pipeline(middle: op.Operator) -> Pipeline:
        base = counting()
        return Pipeline(
            op.source("rows", keyed, parallelism=2),
            op.step("check", middle, "rows", parallelism=2),
            op.step("counts", base.by_name["counts"].operator, op.stream("check", key="key"), parallelism=2),
            op.step("all", Total(), "counts"),
        )

    job = start(numbers(spark), pipeline(Fragile()), store=tmp_path, epochs=5)
    with pytest.raises(RunFailed) as caught:
        job.awaitTermination(DEADLINE)
    message = str(caught.value)
    assert "operator check, task check/" in message
    assert "epoch 2" in message
    assert "ValueError: cannot digest this" in message
    assert json.loads(message.partition("sample row: ")[2])["value"] == bad
    assert totals(tmp_path) == expected(2)

    class Mended(Fragile):
        def process(self, batch: pa.Table, state: op.State) -> pa.Table | None:
            return keyed(batch)

    finished(start(numbers(spark), pipeline(Mended()), store=tmp_path, epochs=5))
    assert totals(tmp_path) == expected(5)


def test_an_answer_that_differs_the_second_time_is_refused_on_request(spark: Any, tmp_path: Path) -> None:
    class Dice(op.Operator):
        def process(self, batch: pa.Table, state: op.State) -> pa.Table | None:
            return pa.table({"drawn": [time.perf_counter_ns()]})

    pipeline = Pipeline(op.source("rows"), op.step("dice", Dice(), "rows"))
    job = start(numbers(spark), pipeline, store=tmp_path, epochs=2, verify=True)
    with pytest.raises(RunFailed, match=r"operator dice.*epoch 0.*run twice gave different output"):
        job.awaitTermination(DEADLINE)


def test_other_parallelism_is_migrated_and_other_keys_are_refused(spark: Any, tmp_path: Path) -> None:
    finished(start(numbers(spark), counting(2), store=tmp_path, epochs=3))
    finished(start(numbers(spark), counting(3), store=tmp_path, epochs=5))
    assert totals(tmp_path) == expected(5)
    other = Pipeline(
        op.source("rows", keyed),
        op.step("counts", op.aggregate({"value": pa.int64()}, count=op.count()), "rows", parallelism=3),
        op.step("all", Total(), "counts"),
    )
    with pytest.raises(Invalid, match=r"operator counts was count\(\) by key, is count\(\) by value now"):
        start(numbers(spark), other, store=tmp_path, epochs=6)
    gone = Pipeline(op.source("rows", keyed), op.step("all", Total(), "rows"))
    with pytest.raises(Invalid, match="operator counts has state there"):
        start(numbers(spark), gone, store=tmp_path, epochs=6)
    finished(start(numbers(spark), counting(3), store=tmp_path, epochs=6))
    assert totals(tmp_path) == expected(6)


def test_a_second_job_on_the_same_store_is_refused(spark: Any, tmp_path: Path, jobs: list[Job]) -> None:
    jobs.append(start(numbers(spark), counting(), store=tmp_path))
    with pytest.raises(Exception, match="held by holdfast job"):
        start(numbers(spark), counting(), store=tmp_path)


def test_two_sources_meet_in_one_operator(spark: Any, tmp_path: Path) -> None:
    class Pair(op.Operator):
        def process_inputs(self, inputs: Any, state: op.State) -> pa.Table | None:
            return pa.table({"left": [inputs["left"].num_rows], "right": [pc.sum(inputs["right"]["twice"]).as_py()]})

    pipeline = Pipeline(
        op.source("left"), op.source("right"), op.step("pair", Pair(), ["left", "right"], correlated=True)
    )
    right = numbers(spark, 10).selectExpr("value * 2 AS twice")
    finished(start({"left": numbers(spark), "right": right}, pipeline, store=tmp_path, epochs=3))
    table = read_output(tmp_path, "final")
    assert table["left"].to_pylist() == [ROWS] * 3
    assert table["right"].to_pylist() == [sum(2 * v for v in range(10 * e, 10 * e + 10)) for e in range(3)]


def test_a_sink_gets_every_output_once(spark: Any, tmp_path: Path) -> None:
    got: list[tuple[int, str, float, int]] = []
    finished(
        start(
            numbers(spark), counting(), store=tmp_path, epochs=4,
            sink=lambda out: got.append((out.epoch, out.kind, out.fidelity, out.table["sum"][0].as_py())),
        )
    )  # fmt: skip
    assert got == [(epoch, "final", 1.0, total) for epoch, _, total in expected(4)]


@pytest.mark.usefixtures("offered_at_once")
def test_what_a_sink_raises_is_what_ends_the_job(spark: Any, tmp_path: Path) -> None:
    def sink(output: Output) -> None:
        raise ZeroDivisionError(f"no room for epoch {output.epoch}\nnor for the next")

    job = start(numbers(spark), counting(), store=tmp_path, sink=sink)
    with pytest.raises(SinkFailed, match=r"final output of \S+ in epoch 0: ZeroDivisionError: no room for epoch 0"):
        job.awaitTermination(DEADLINE)
    assert job.status["message"].startswith("Failed: the sink was given the final output")


def test_what_a_stream_itself_fails_with_is_told_in_one_line(spark: Any, tmp_path: Path) -> None:
    """The source's own exception, without frames of those who passed it on."""

    class Gone(DataSource):
        """A source whose queue is not there any more."""

        def schema(self) -> str:
            return "value string"

        def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
            class Reader(SimpleDataSourceStreamReader):
                def initialOffset(self) -> dict[str, int]:
                    raise ValueError("the queue is gone")

            return Reader()

    spark.dataSource.register(Gone)
    pipeline = Pipeline(op.source("rows"), op.step("once", op.deduplicate("value"), "rows"))
    job = start(spark.readStream.format("Gone").load(), pipeline, store=tmp_path)
    told = r"^the stream ended: ValueError: the queue is gone \(test_job\.py, line \d+, in initialOffset\)$"
    with pytest.raises(StreamEnded, match=told) as caught:
        job.awaitTermination(DEADLINE)
    assert isinstance(caught.value.__cause__, ValueError) and str(caught.value.__cause__) == "the queue is gone"
    assert "py4j" not in "".join(traceback.format_exception(caught.value))


def test_what_is_typed_wrong_is_told_in_one_line(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="this DataFrame is not streaming"):
        start(spark.range(3), counting(), store=tmp_path)
    with pytest.raises(Invalid, match="a streaming DataFrame is needed, got int"):
        start(3, counting(), store=tmp_path)
    with pytest.raises(Invalid, match="the pipeline has sources rows, got streams for lines"):
        start({"lines": numbers(spark)}, counting(), store=tmp_path)
    with pytest.raises(Invalid, match="unknown task counts/7"):
        start(numbers(spark), counting(), store=tmp_path, replicas=["counts/7"])
    with pytest.raises(Invalid, match="a source's own output cannot be a query"):
        start(numbers(spark), Pipeline(op.source("rows")), store=tmp_path)
    with pytest.raises(Invalid, match="recovery must be one of"):
        start(numbers(spark), counting(), store=tmp_path, recovery="magic")
    with pytest.raises(Invalid, match="start 'budgets': did you mean budget"):
        start(numbers(spark), counting(), store=tmp_path, budgets=2.0)
