"""A standalone cluster on loopback for benchmarks: a master, and workers that can be killed and come back."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

NODES = 4
COME = 180.0
"""Seconds that workers, and executors, have to come: much on a busy machine."""
HOME = Path(pyspark.__file__).parent
LOOPBACK = {
    **os.environ,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_LOCAL_HOSTNAME": "localhost",
    "SPARK_HOME": str(HOME),
    "PYSPARK_PYTHON": sys.executable,
}
CLASSES = Path(sys.prefix, "spark.jsa")
ARCHIVE = f"-XX:SharedArchiveFile={CLASSES}" if CLASSES.is_file() else ""
"""For JVMs that start when nothing is measured; make setup makes it."""


class Standalone:
    """``url``: of the master. A node is a worker and the executor below it."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "cluster.log"
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        self.url = f"spark://localhost:{port}"
        try:
            self._launch("org.apache.spark.deploy.master.Master", "--port", str(port))
            self.workers(NODES)
        except BaseException:
            self.close()
            raise

    def workers(self, count: int) -> None:
        """So many workers more."""
        before = self._registered()
        for _ in range(count):
            size = ["--cores", "1", "--memory", "1400m"]
            folder = ["--work-dir", str(self._folder / f"worker-{len(self._processes)}")]
            self._launch("org.apache.spark.deploy.worker.Worker", *size, *folder, self.url)
        until = time.monotonic() + COME
        while self._registered() < before + count:
            if time.monotonic() > until:
                sys.exit(f"no {count} workers within {COME:.0f} s; see {self._log}")
            time.sleep(0.1)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _registered(self) -> int:
        return len(re.findall("Registering worker", self._log.read_text()))

    def _launch(self, name: str, *words: str) -> None:
        with self._log.open("a") as log:
            command = [str(HOME / "bin/spark-class"), name, "--host", "localhost", "--webui-port", "0", *words]
            # What an executor that is killed leaves behind goes with the folder.
            left = {"SPARK_LOCAL_DIRS": str(self._folder / "local")}
            environment = {**LOOPBACK, **left, "SPARK_DAEMON_JAVA_OPTS": ARCHIVE}
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))


@contextmanager
def standalone(folder: Path) -> Iterator[Standalone]:
    cluster = Standalone(folder)
    try:
        yield cluster
    finally:
        cluster.close()


def executors(application: str) -> dict[str, int]:
    """Executor number to process number."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and application in words:
            found[words[words.index("--executor-id") + 1]] = int(folder.name)
    return found


def kill(application: str, chosen: Sequence[str], whole_nodes: bool) -> float:
    """SIGKILL these executors at once, or the workers above them too; the moment."""
    there = executors(application)
    victims = [there[each] for each in chosen]
    if whole_nodes:
        victims = [_parent(number) for number in victims] + victims
    moment = time.time()
    for number in victims:
        os.kill(number, signal.SIGKILL)
    return moment


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
