"""The sources on a real Spark: the same rows as without it, epoch by epoch, and the same again after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from holdfast.errors import Invalid
from holdfast.workloads import WORKLOADS, Options, workload
from holdfast.workloads.files import open_input
from waiting import DEADLINE

pytestmark = pytest.mark.spark


def run(frame: Any, checkpoint: Path, epochs: int) -> dict[int, pa.Table]:
    """The first epochs of a stream, each as a table; the query is stopped from within once they are there."""
    seen: dict[int, pa.Table] = {}

    def keep(batch: Any, epoch: int) -> None:
        if len(seen) == epochs:
            raise RuntimeError("enough")
        seen[epoch] = batch.toArrow()

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query = (writer.trigger(availableNow=True) if bounded(frame) else writer).start()
    try:
        query.awaitTermination(DEADLINE)
    except Exception as error:
        if "enough" not in str(error):
            raise
    finally:
        query.stop()
    return seen


def bounded(frame: Any) -> bool:
    return "holdfast-file" in frame._jdf.queryExecution().logical().toString()


def rows(table: pa.Table) -> list[str]:
    return sorted(str(row) for row in table.to_pylist())


def test_generated_columns_are_the_same_with_and_without_spark(spark: Any) -> None:
    numbers = spark.range(0, 2000).withColumnRenamed("id", "value")
    for name, each in WORKLOADS.items():
        options = Options(rate=1000, seed=-7)
        made = each.generated(numbers, options).toArrow()
        expected = pa.concat_tables([each.batch(options, 0), each.batch(options, 1)])
        assert rows(made.cast(expected.schema)) == rows(expected), name


def test_a_generated_stream_gives_rate_rows_an_epoch(spark: Any, tmp_path: Path) -> None:
    options = Options(rate=300, seed=5)
    each = workload("top-k")
    seen = run(each.stream(spark, options), tmp_path / "check", 2)
    assert {epoch: rows(table.cast(each.input)) for epoch, table in seen.items()} == {
        epoch: rows(each.batch(options, epoch)) for epoch in range(2)
    }


@pytest.mark.parametrize(("name", "kind"), [("hashtags", "parquet"), ("top-k", "csv")])
def test_a_file_is_read_once_in_as_many_epochs_as_asked_for(spark: Any, tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / f"input.{kind}"
    if kind == "parquet":
        tags = [[f"tag{i % 7}"] * (i % 3) for i in range(1003)]
        pq.write_table(
            pa.table({"time": range(1003), "user": ["u"] * 1003, "hashtags": tags}), path, row_group_size=100
        )
    else:
        path.write_text("page,time\n" + "".join(f"/p/{i % 13},{i // 100}\n" for i in range(1003)))
    options, each = Options(input=path, epochs=2), workload(name)
    seen = run(each.stream(spark, options), tmp_path / "check", 3)
    assert [seen[epoch].num_rows for epoch in sorted(seen)] == [501, 502]
    for epoch, table in seen.items():
        assert table.cast(each.input).equals(each.batch(options, epoch))


def test_a_restart_goes_on_at_the_row_where_the_last_run_stopped(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"line {number}\n" for number in range(6)))
    options = Options(input=path, epochs=3, partitions=1)
    stream = workload("word-count").stream
    first = run(stream(spark, options), tmp_path / "check", 1)
    second = run(stream(spark, options), tmp_path / "check", 9)
    seen = [(epoch, table["text"].to_pylist()) for each in (first, second) for epoch, table in each.items()]
    assert seen == [(epoch, [f"line {2 * epoch}", f"line {2 * epoch + 1}"]) for epoch in range(3)]


def planned(path: Path, epochs: int, parts: int = 2) -> Any:
    from holdfast.workloads.sources import FileStream

    file = open_input(path)
    return FileStream(file, workload("word-count").picks(file, Options(input=path)), epochs, parts)


def test_epochs_are_planned_one_by_one_and_partitions_hold_every_row_once(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\n")
    stream = planned(path, epochs=4)
    offset, texts = stream.initialOffset(), []
    while (following := stream.latestOffset(offset, stream.getDefaultReadLimit())) != offset:
        parts = stream.partitions(offset, following)
        texts.append([text for part in parts for batch in stream.read(part) for text in batch["text"].to_pylist()])
        offset = following
    assert texts == [[], ["a"], [], ["b"]]
    assert stream.latestOffset(stream.initialOffset(), ReadAllAvailable()) == offset


def test_a_file_that_changed_since_the_run_began_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("a\nb\n")
    offset = planned(path, epochs=2).initialOffset()
    path.write_text("something else")
    with pytest.raises(Invalid, match="the file changed since the run began: it had 4 bytes, now 14"):
        planned(path, epochs=2).latestOffset(offset, ReadAllAvailable())
