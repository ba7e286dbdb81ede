"""Real executors: placement, kills, and clusters of other kinds. Whole programs, since a process has one Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest
from commands import final_counts, running
from misplacing import ENOUGH, EPOCHS
from on_cores import all_at_work
from on_executors import counted

from holdfast.cli import main
from holdfast.cli.run import INTERRUPTED
from holdfast.runtime.driver.requests import answers, ask
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.narrative import Recovery, recoveries
from holdfast.runtime.history.outputs import read_output
from holdfast.workloads import Options
from plain_counts import expected_counts
from waiting import DEADLINE, until

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("programs")]

OPTIONS = Options(epochs=8, rate=300, seed=9)
RACKS = {"node-0": "a", "node-1": "b", "node-2": "b", "node-3": "a"}
LOST, FROZEN, CORES = 3, 6, 2
COMMON = f"--epochs {OPTIONS.epochs} --rate {OPTIONS.rate} --seed {OPTIONS.seed}".split()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A job on four executors, after one of tasks that wait for each other: its folder and its summary.

    Two of them die at once, those of one domain, and later one is frozen for a while.
    """
    folder = tmp_path_factory.mktemp("four")
    (folder / "racks.json").write_text(json.dumps(RACKS))
    program = [sys.executable, str(Path(__file__).with_name("on_cores.py")), "4", str(CORES), str(folder)]
    second = [
        "run", "word-count", *COMMON, "--master", f"local-cluster[4,{CORES},900]", "--parallelism", "4",
        "--checkpoint-every", "2", "--replicas", "count/0", "--domains", str(folder / "racks.json"),
        "--fault", f"kill domain b at epoch {LOST}", "--fault", f"unreachable node-0 at epoch {FROZEN} for 3s",
        "--answer-within", "1500ms",
        "--out", str(folder / "halved"), "--format", "json", "--quiet",
    ]  # fmt: skip
    with running(*second, program=program) as process:
        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err[-3000:]
    return folder, json.loads(out)


def failed(folder: Path) -> Recovery:
    """What came of the domain that was killed."""
    (failure,) = (each for each in recoveries(read_history(folder)) if each.epoch == LOST)
    return failure


def test_every_core_of_an_executor_works(four: tuple[Path, dict[str, object]]) -> None:
    all_at_work(four[0], 4, CORES)


def test_half_of_the_executors_die_and_the_answer_is_exact(four: tuple[Path, dict[str, object]]) -> None:
    folder, summary = four[0] / "halved", four[1]
    assert final_counts(folder) == expected_counts(OPTIONS)
    killed = {node for node, rack in RACKS.items() if rack == "b"}
    # The one that is frozen may be given up, if this machine is so busy that it is silent for longer than it is frozen.
    assert killed <= set(summary["nodes_lost"]) <= {*killed, "node-0"}  # type: ignore[call-overload]
    assert set(failed(folder).nodes) == killed


def test_a_lost_domain_is_answered_for_at_once_as_well_as_was_promised(four: tuple[Path, dict[str, object]]) -> None:
    folder = four[0] / "halved"
    failure = failed(folder)
    assert failure.down and failure.silent is None
    rows = read_output(folder, "tentative").to_pylist()
    assert rows and all(0 < row["fidelity"] <= 1 and row["epoch"] >= LOST for row in rows)
    assert {row["task"] for row in rows} >= set(failure.down), "lost tasks answer too, from the checkpoint"
    assert failure.promised is not None and failure.answered_fidelity is not None
    assert 0 < failure.promised < 1 and abs(failure.promised - failure.answered_fidelity) <= 0.02


def test_an_executor_that_is_frozen_keeps_nobody_waiting(four: tuple[Path, dict[str, object]]) -> None:
    events = list(read_history(four[0] / "halved"))
    at_hand = [event for event in events if event.get("epoch") == FROZEN]
    lates = (event for event in at_hand if event["kind"] == "answer late")
    late = next(event for event in lates if "node-0" in event["silent"])
    assert late["seconds"] >= 1.5
    exact = next(event for event in at_hand if event["kind"] == "answered")
    for stood_in in (event for event in at_hand if event["kind"] == "stood in"):  # unless nobody else was quick enough
        assert "node-0" in stood_in["silent"] and 0 < stood_in["fidelity"] <= 1
        assert late["time"] <= stood_in["time"] < exact["time"], "tentative while it is frozen, exact when it is back"
        assert any(e["kind"] == "published" and e["run"] == stood_in["run"] and e["of"] == "tentative" for e in events)


@pytest.mark.long
def test_scaling_goes_on_when_an_executor_with_new_tasks_or_one_with_old_ones_is_killed(tmp_path: Path) -> None:
    folder, program = tmp_path / "scaled", Path(__file__).with_name("on_executors.py")
    with running(str(folder), program=[sys.executable, str(program)]) as process:
        _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err[-3000:]
    events = list(read_history(folder))
    told = [e for e in events if e["kind"] in ("nodes lost", "scaling begun", "scaling aborted", "scaled")]
    assert [(e["kind"], e.get("tasks")) for e in told if e["kind"] == "scaled"] == [("scaled", 4), ("scaled", 3)]
    first, second = (e for e in told if e["kind"] == "nodes lost")
    aborted = [e for e in told if e["kind"] == "scaling aborted"]
    assert aborted[0]["reason"] == f"{first['nodes'][0]} was lost with new tasks on it" and aborted[0]["again"]
    assert aborted[1]["reason"].startswith(f"{second['nodes'][0]} was lost, and") and aborted[1]["again"]
    assert not first["down"] and second["down"]
    table = read_output(folder, "final")
    rows = sorted(zip(*(table[name].to_pylist() for name in ("epoch", "key", "count")), strict=True))
    done = [e["epoch"] for e in events if e["kind"] == "answered"]
    assert rows == counted(max(done) + 1)


@pytest.mark.long
def test_a_session_that_waits_for_no_place_goes_on_correctly_and_says_so(tmp_path: Path) -> None:
    folder, program = tmp_path / "misplaced", Path(__file__).with_name("misplacing.py")
    with running(str(folder), program=[sys.executable, str(program)]) as process:
        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err[-3000:]
    told = json.loads(out)
    assert len(told) >= ENOUGH and all("spark.locality.wait" in each["message"] for each in told)
    assert all("\n" not in each["message"] and each["tasks"] for each in told)
    table = read_output(folder, "final")
    rows = sorted(zip(*(table[name].to_pylist() for name in ("epoch", "key", "count")), strict=True))
    assert rows == counted(EPOCHS)


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
    log_of = (tmp_path / "cluster.log").read_text
    until(lambda: len(re.findall("Registering worker", log_of())) >= 2, lambda: log_of()[-2000:])
    yield url
    for process in processes:
        process.kill()
        process.wait()
    log.close()


@pytest.mark.long
def test_a_job_grows_onto_a_standalone_cluster(standalone: str, tmp_path: Path) -> None:
    """One executor at first, though two could be had; the second is asked for, comes, and takes a task."""
    folder = tmp_path / "run"
    arguments = f"--epochs 100000 --rate {OPTIONS.rate} --seed {OPTIONS.seed} --nodes 1 --max-nodes 2 --pool 1".split()
    with running(
        "run", "word-count", *arguments, "--master", standalone, "--parallelism", "1", "--out", str(folder), "--quiet"
    ) as process:
        _until(process, lambda: ["node-1"] in joined(folder))
        request = ask(folder, "count", 2)
        _until(process, lambda: any(each["kind"] == "scaled" for each in answers(folder, request.name)))
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE) == INTERRUPTED, process.communicate()[1][-3000:]
    assert joined(folder)[0] == ["node-0"]
    scaled = next(each for each in answers(folder, request.name) if each["kind"] == "scaled")
    assert "node-1" in scaled["new"].values()
    epochs = 1 + max(event["epoch"] for event in read_history(folder) if event["kind"] == "answered")
    assert final_counts(folder) == expected_counts(replace(OPTIONS, epochs=epochs))


def joined(folder: Path) -> list[list[str]]:
    there = (folder / "history.jsonl").exists()
    return [event["nodes"] for event in read_history(folder) if event["kind"] == "nodes joined"] if there else []


def _until(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    until(lambda: process.poll() is not None or condition())
    assert process.poll() is None, process.communicate()[1][-3000:]


def test_a_master_that_is_none_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["holdfast", "run", "word-count", "--master", "lokal[2]"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == 2 and out == ""
    assert err.strip().splitlines()[-1].startswith("holdfast: --master lokal[2]: not a Spark master; expected local[*]")


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
