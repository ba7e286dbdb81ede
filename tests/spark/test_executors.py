"""Real executors: placement, kills, and clusters of other kinds. Whole programs, since a process has one Spark."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from commands import expected_counts, final_counts, running, summary_of

from holdfast.runtime.history import read_history
from holdfast.workloads import Options

pytestmark = pytest.mark.spark

OPTIONS = Options(epochs=10, rate=300, seed=9)
COMMON = f"--epochs {OPTIONS.epochs} --rate {OPTIONS.rate} --seed {OPTIONS.seed}".split()


def test_half_of_the_executors_die_and_the_answer_is_exact(tmp_path: Path) -> None:
    summary = summary_of(
        "run", "word-count", *COMMON, "--master", "local-cluster[4,1,900]", "--parallelism", "4",
        "--checkpoint-every", "3", "--replicas", "count/0", "--fault", "kill node-1,node-2 at epoch 4",
        "--out", str(tmp_path),
    )  # fmt: skip
    assert final_counts(tmp_path) == expected_counts(OPTIONS)
    assert summary["failures"] == 1 and sorted(summary["nodes_lost"]) == ["node-1", "node-2"]  # type: ignore[call-overload]
    lost = next(event for event in read_history(tmp_path) if event["kind"] == "nodes lost")
    assert lost["epoch"] in (4, 5)


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """A standalone cluster on loopback: a master and two workers from the installed pyspark."""
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost",
                   "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}  # fmt: skip
    port = _free_port()
    log = (tmp_path / "cluster.log").open("w")

    def launch(*words: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([str(home / "bin" / "spark-class"), *words], env=environment, stdout=log, stderr=log)

    url = f"spark://localhost:{port}"
    here = ["--host", "localhost", "--webui-port", "0"]
    processes = [launch("org.apache.spark.deploy.master.Master", *here, "--port", str(port))]
    for number in range(2):
        folder = tmp_path / f"worker-{number}"
        size = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
        processes.append(launch("org.apache.spark.deploy.worker.Worker", *here, *size, url))
    until = time.monotonic() + 60
    while len(re.findall("Registering worker", (tmp_path / "cluster.log").read_text())) < 2:
        assert time.monotonic() < until, (tmp_path / "cluster.log").read_text()[-2000:]
        time.sleep(0.1)
    yield url
    for process in processes:
        process.kill()
        process.wait()
    log.close()


def test_a_standalone_cluster(standalone: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    summary_of(
        "run", "word-count", *COMMON, "--master", standalone, "--nodes", "2", "--parallelism", "2",
        "--out", str(folder),
    )  # fmt: skip
    assert final_counts(folder) == expected_counts(OPTIONS)
    joined = [event["nodes"] for event in read_history(folder) if event["kind"] == "nodes joined"]
    assert joined[0] == ["node-0", "node-1"]


def test_a_master_that_is_none_is_told_in_one_line() -> None:
    with running("run", "word-count", "--master", "lokal[2]") as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 2 and out == ""
    assert err.strip().splitlines()[-1].startswith("holdfast: --master lokal[2]: not a Spark master; expected local[*]")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
