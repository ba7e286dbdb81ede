"""Jobs at places where no store can be: refused in one line at both doors, and by the command; nothing is left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_job import counting, finished, numbers

import holdfast
from holdfast.errors import Invalid

pytestmark = [pytest.mark.spark, pytest.mark.skipif(sys.platform != "linux", reason="/proc and /sys are Linux's")]
PLACES = {
    "a root that is not there and cannot be made": (
        "/proc/nowhere/job",
        "cannot be written: No such file or directory",
    ),
    "a root that takes no folders": ("/sys/job", "cannot be written: "),
    "a root that is a file": ("{}/file/job", "file is a file"),
    "no client for HDFS": ("hdfs://host/job", "libhdfs"),
    "one slash": ("hdfs:/job", "a URL has two slashes"),
    "nobody's scheme": ("foo://host/job", "Protocol not known: foo"),
}


def begun(spark: Any, door: str, store: str, **options: Any) -> Any:
    if door == "start":
        return holdfast.start(numbers(spark), counting(), store=store, nodes=1, epochs=1, **options)
    writer = holdfast.writeStream(numbers(spark).groupBy("value").count()).outputMode("update").format("noop")
    return writer.option("checkpointLocation", store).resilience(**options).start()


@pytest.mark.parametrize("name", PLACES)
def test_a_place_where_no_store_can_be(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for variable in ("JAVA_HOME", "HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.setenv(variable, "/nowhere")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    store, told = PLACES[name][0].format(tmp_path), PLACES[name][1]
    for door in ("writeStream", "start"):
        with pytest.raises(Invalid, match=f"^store {store}: .*{told}") as error:
            begun(spark, door, store)
        assert "\n" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_log_that_spark_cannot_write(spark: Any, tmp_path: Path) -> None:
    for door in ("writeStream", "start"):
        with pytest.raises(Invalid, match=r"^spark_log /proc/nowhere/log: Spark cannot make it: ") as error:
            begun(spark, door, str(tmp_path / "job"), spark_log="/proc/nowhere/log")
        assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []


def test_a_run_is_kept_in_a_folder(
    spark: Any, command: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for out in ("s3://bucket/run", "hdfs:/run", "/proc/nowhere/run"):
        code, said, told = command("run", "word-count", "--epochs", "1", "--rate", "10", "--out", out)
        assert (code, said) == (2, "") and len(told.splitlines()) == 1 and "--out" in told
    assert list(tmp_path.iterdir()) == []


def test_a_log_elsewhere_is_made(spark: Any, tmp_path: Path) -> None:
    finished(begun(spark, "start", str(tmp_path / "job"), spark_log=str(tmp_path / "logs" / "job")))
    assert (tmp_path / "logs" / "job" / "offsets").is_dir()
