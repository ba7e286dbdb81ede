"""State of executors is where Spark keeps its own, goes with who dies, and is gone at the end: on a local cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import DEADLINE

pytestmark = [pytest.mark.spark, pytest.mark.long]

PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path
import polars as pl
import holdfast
from holdfast import operators as op

root = Path(sys.argv[1])
spark = holdfast.spark_session("local-cluster[2,1,1024]", settings={"spark.local.dir": str(root / "disk")})
numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()
pipeline = op.Pipeline(
    op.source("numbers", op.map(key=(pl.col("value") % 7).cast(pl.String)), parallelism=2),
    op.step("count", op.aggregate("key", count=op.count()), "numbers", parallelism=2),
)
job = holdfast.start(numbers, pipeline, store=root / "store", nodes=2, trigger="300 milliseconds")

def folders():
    return sorted(map(str, (root / "disk").glob("spark-*/executor-*/blockmgr-*/holdfast-nodes-*")))

def until(condition):
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline and job.isActive, (folders(), job.status)
        time.sleep(0.1)
    return folders()

first = until(lambda: len(folders()) == 2)
modes = [oct(Path(each).stat().st_mode & 0o777) for each in first]
os.kill(job.driver.ports.nodes.process("node-1"), signal.SIGKILL)
second = until(lambda: len(set(folders()) & set(first)) == 1)
job.stop()
print(json.dumps({"first": first, "modes": modes, "second": second, "after": folders()}))
"""


def test_state_lives_with_spark_s_own_files_and_goes_with_them(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    words = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=2 * DEADLINE, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert all("/blockmgr-" in each for each in told["first"]), told
    assert told["modes"] == ["0o700", "0o700"]
    assert len(set(told["first"]) & set(told["second"])) == 1, "the dead executor's folder went"
    assert told["after"] == []
