"""A driver that runs the queries of ``restart_queries.py`` at once, to be killed, or stopped and started again.

    restart_job.py ROOT dies EPOCH NAME...      killed when all of these have answered that epoch
    restart_job.py ROOT serves [NAME COUNT]     all of them, until it is killed: here, as soon as NAME has answered so
                                                many epochs, or by whoever started it

Killed when an epoch is answered means: before Spark can commit its batch. What serves tells on its output which epochs
are answered, and when all queries run. For each line of input it stops them all and starts them again.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from restart_queries import ALL, FILES, PIPELINE, begin

import holdfast
from holdfast.runtime.spark.source import StreamSource
from spark_settings import RETAINED, SETTINGS

RUNNING = "running"
MORE = 2
"""Epochs that the pipeline is started for, before it is started without end."""


def die() -> None:
    """With its JVM, which is of the same process group."""
    os.killpg(0, signal.SIGKILL)


def instead_of_release(answered: Callable[[StreamSource, int], bool]) -> None:
    """``answered`` is told of each epoch before the stream is, which is told unless it says so."""
    release = StreamSource.release

    def released(source: StreamSource, epoch: int) -> None:
        if answered(source, epoch):
            release(source, epoch)

    StreamSource.release = released  # type: ignore[method-assign]


def dies(root: Path, epoch: int, *names: str) -> None:
    lock, there = threading.Lock(), set[int]()

    def answered(source: StreamSource, at: int) -> bool:
        with lock:
            if at == epoch:
                there.add(id(source))
            if len(there) == len(names):
                die()
        return at != epoch

    instead_of_release(answered)
    for query in [begin(session(), root, name) for name in names]:
        query.awaitTermination()


def dies_after(name: str, count: int) -> None:
    seen = [0]

    def answered(source: StreamSource, epoch: int) -> bool:
        if source.query is not None and source.query.name == name:
            seen[0] += 1
            if seen[0] == count:
                die()
        return True

    instead_of_release(answered)


class Serving:
    """All queries at once; whatever ends by an error ends the process."""

    def __init__(self, root: Path) -> None:
        self._root, self._spark = root, session()
        self._queries: dict[str, Any] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        with ThreadPoolExecutor(len(ALL)) as pool:
            self._queries = dict(zip(ALL, pool.map(self._begun, ALL), strict=True))
        self._tell(RUNNING)

    def again(self, draw: random.Random) -> None:
        """Stopped in some order, some of them at once; the pipeline runs once more for a few epochs alone."""
        names = draw.sample(ALL, len(ALL))
        with ThreadPoolExecutor(draw.randint(1, len(ALL))) as pool:
            list(pool.map(lambda name: self._queries[name].stop(), names))
        head = self._queries[PIPELINE].status["epoch"]
        self._begun(PIPELINE, epochs=head + 1 + MORE).awaitTermination()
        self.start()

    def _begun(self, name: str, **options: Any) -> Any:
        def hear(event: dict[str, Any]) -> None:
            if event["kind"] == "answered":
                self._tell(f"{name}: {event['epoch']}")

        query = begin(self._spark, self._root, name, FILES[name], False, name, listeners=[hear], **options)
        threading.Thread(target=self._attend, args=(name, query), daemon=True).start()
        return query

    def _attend(self, name: str, query: Any) -> None:
        try:
            query.awaitTermination()
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def _tell(self, line: str) -> None:
        with self._lock:
            print(line, flush=True)


def serves(root: Path, *dying: str) -> None:
    if dying:
        dies_after(dying[0], int(dying[1]))
    serving = Serving(root)
    serving.start()
    for line in sys.stdin:
        serving.again(random.Random(line))


def session() -> SparkSession:
    return holdfast.spark_session("local[2]", name="restarts", settings=SETTINGS | RETAINED)


def main(root: str, what: str, *words: str) -> None:
    if what == "dies":
        dies(Path(root), int(words[0]), *words[1:])
    else:
        serves(Path(root), *words)


if __name__ == "__main__":
    main(*sys.argv[1:])
