"""A standalone Spark cluster on hosts of its own: Master, drivers, workers, and a host with the S3 server and the sink.

``cluster`` has one for as long as it is needed. Jobs on it are programs under ``holdfast supervise``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
from checker import Delivery
from collector import LISTENING
from network import PROJECT, Limits, Network

from object_store import BUCKET, KEY, SECRET

STORE, MASTER, DRIVER, STANDBY, *WORKERS = NAMES = ("store", "master", "driver", "standby", "w1", "w2", "w3", "w4")
LIMITS = {STORE: Limits(disk=2 * 2**30)} | {name: Limits(disk=256 * 2**20) for name in WORKERS}
HOME = Path(pyspark.__file__).parent
HERE = Path(__file__).resolve().parent
JOB = HERE / "counting_job.py"
SINK_PORT = 7000
DEADLINE = 150.0
DAEMON = "-Dspark.worker.timeout=6 -Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory=/tmp/master"
"""A worker is called lost after six seconds, and a Master that comes back knows its workers and jobs."""
COLLECTOR = str(HERE / "collector.py")
SERVICES = ("org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker", COLLECTOR)
CORES = 2


def start_fast() -> None:
    """Let JVMs start as tests have them (tests/conftest.py), also where no test runs: a cluster has a dozen."""
    classes = Path(sys.prefix, "spark.jsa")
    archive = f" -XX:SharedArchiveFile={classes}" if classes.is_file() else ""
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
        os.environ.setdefault(name, f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC{archive}")


class Stuck(Exception):
    """Something did not come in time; where to look is in the text."""


def until(what: str, done: Callable[[], Any], deadline: float = DEADLINE, pause: float = 0.05) -> Any:
    """What ``done`` gives once it gives something."""
    end = time.monotonic() + deadline
    while not (found := done()):
        if time.monotonic() > end:
            raise Stuck(f"{what}: not within {deadline:.0f} s")
        time.sleep(pause)
    return found


class Cluster:
    """``folder`` is shared by all hosts: logs, what the sink was given, and stores that are folders."""

    def __init__(self, folder: Path, lasting: bool = False) -> None:
        self.folder, self.logs, self.sinks = folder, folder / "logs", folder / "sinks"
        for each in (self.logs, self.sinks, folder / "stores"):
            each.mkdir(parents=True, exist_ok=True)
        self.endpoint = ""
        self.network = Network.up(NAMES, folder, LIMITS, lasting)
        try:
            self._start()
        except BaseException:
            self.network.down()
            raise

    def address(self, name: str) -> str:
        return self.network.hosts[name].address

    @property
    def url(self) -> str:
        return f"spark://{self.address(MASTER)}:7077"

    def env(self, name: str) -> dict[str, str]:
        return {
            "SPARK_HOME": str(HOME),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": f"{PROJECT / 'src'}",
            "SPARK_LOCAL_IP": self.address(name),
            "SPARK_LOCAL_HOSTNAME": self.address(name),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_JAVA_OPTS": f"{os.environ.get('SPARK_DAEMON_JAVA_OPTS', '')} {DAEMON}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def _start(self) -> None:
        own = [self.address(STORE), str(SINK_PORT), str(self.sinks)]
        self._begin(STORE, [sys.executable, COLLECTOR, *own])
        self.master()
        found = until("the S3 server", lambda: re.search(f"{LISTENING}(.*)\n", self._log(STORE)))
        self.endpoint = found[1]
        for name in WORKERS:
            self.worker(name)
        self.ready()

    def master(self) -> None:
        own = ["--host", self.address(MASTER), "--port", "7077", "--webui-port", "8080"]
        self._begin(MASTER, [str(HOME / "bin/spark-class"), SERVICES[0], *own])

    def worker(self, name: str) -> None:
        own = ["--host", self.address(name), "--cores", str(CORES), "--memory", "1300m", "--work-dir", "/tmp/work"]
        self._begin(name, [str(HOME / "bin/spark-class"), SERVICES[1], *own, self.url])

    def ready(self, free: bool = True) -> None:
        """Once the Master counts on all workers, and, if they should be free, has nothing to do."""
        until(f"{len(WORKERS)} workers", lambda: self._there(free), pause=0.2)

    def _there(self, free: bool) -> bool:
        ask = (
            f"import urllib.request as u; print(u.urlopen('http://{self.address(MASTER)}:8080/json/').read().decode())"
        )
        with contextlib.suppress(subprocess.SubprocessError, ValueError):
            told = json.loads(self.network.call(MASTER, [sys.executable, "-c", ask], timeout=10))
            return told["aliveworkers"] == len(WORKERS) and not (free and told["coresused"])
        return False

    def _begin(self, name: str, words: list[str]) -> None:
        self.network.begin(name, words, self.env(name), self.logs / name)

    def _log(self, name: str) -> str:
        return (self.logs / name).read_text(errors="replace")

    def strays(self, name: str) -> list[str]:
        """Processes on a host that are no part of the cluster itself: what jobs have begun."""
        found = []
        for process in self.network.hosts[name].processes():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
                if not any(each in SERVICES or Path(each).name == "weed" for each in words):
                    found.append(" ".join(words)[-200:])
        return found


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    made = Cluster(folder)
    try:
        yield made
    finally:
        made.network.down()


class Run:
    """A job: its supervisors by host, and what the sink has of it."""

    def __init__(self, on: Cluster, name: str, seed: int, store: str, hosts: tuple[str, ...], within: str) -> None:
        self.cluster, self.name, self.seed = on, name, seed
        by_url = store == "s3"
        self._env = {
            "CLUSTER_MASTER": on.url,
            "CLUSTER_SEED": str(seed),
            "CLUSTER_JOB": name,
            "CLUSTER_STORE": f"s3://{BUCKET}/{name}" if by_url else str(on.folder / "stores" / name),
            "CLUSTER_LOG": str(on.folder / "stores" / f"{name}-log") if by_url else "",
            "CLUSTER_WITHIN": within,
            "CLUSTER_JAVA": os.environ.get("SPARK_DAEMON_JAVA_OPTS", ""),
            "CLUSTER_SINK": on.address(STORE),
            "CLUSTER_SINK_PORT": str(SINK_PORT),
        }
        self._deliveries: list[Delivery] = []
        self._offset = 0
        self.supervisors: dict[str, subprocess.Popen[bytes]] = {}
        for host in hosts:
            self.supervise(host)

    def supervise(self, host: str) -> None:
        words = [sys.executable, "-m", "holdfast", "supervise", f"{JOB}:build", "--json"]
        env = {**self.cluster.env(host), **self._env}
        self.supervisors[host] = self.cluster.network.begin(host, words, env, self.log(host))

    def log(self, host: str) -> Path:
        return self.cluster.logs / f"{self.name}-{host}"

    def told(self, host: str) -> list[dict[str, Any]]:
        """What the supervisor on a host said."""
        found = []
        for line in self.log(host).read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "kind" in event:
                    found.append(event)
        return found

    def deliveries(self) -> list[Delivery]:
        """What the sink was given so far."""
        path = self.cluster.sinks / f"{self.name}.jsonl"
        if path.exists():
            with path.open("rb") as file:
                file.seek(self._offset)
                for line in file:
                    if line.endswith(b"\n"):
                        self._deliveries.append(Delivery.of(json.loads(line)))
                        self._offset += len(line)
        return self._deliveries

    def check(self) -> None:
        for host, process in self.supervisors.items():
            if process.poll() is not None:
                text = self.log(host).read_text(errors="replace")[-1500:]
                raise Stuck(f"the supervisor on {host} has ended with {process.returncode}:\n{text}")

    def stop(self) -> dict[str, int]:
        """End the job after the epoch at hand; who stands by is told first. Exit codes."""
        codes = {}
        for host, process in sorted(self.supervisors.items(), key=lambda item: item[0] == self._holder()):
            for inner in self.cluster.network.begun(process):
                os.kill(inner, signal.SIGTERM)
            codes[host] = process.wait(DEADLINE)
        return codes

    def _holder(self) -> str:
        said = self.deliveries()
        return said[-1].driver.partition(":")[0] if said else ""

    def held(self) -> dict[str, Any]:
        """Final rows and history, as a process on the network reads them from the store."""
        env = {**self.cluster.env(STANDBY), **self._env}
        found: dict[str, Any] = json.loads(self.cluster.network.call(STANDBY, [sys.executable, str(JOB)], env))
        return found
