"""The source of a job on a stream that only looks like Spark's: who waits for whom when something is refused."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from holdfast.errors import HoldfastError, Invalid
from holdfast.runtime.driver.ports import Retry
from holdfast.runtime.spark.log import RENAMING, WRITTEN_BY, belongs, renaming
from holdfast.runtime.spark.source import Edge, StreamSource
from holdfast.state import Store, Unusable
from holdfast.state.entries import checksum, document, read_document
from holdfast.state.origin import Origin
from waiting import DEADLINE


class Stream:
    """A query with one batch, on a thread of its own; ``stop`` returns when that has come to its end, as Spark's."""

    id = "this"

    def __init__(self) -> None:
        self.writeStream = self.sparkSession = self
        self.schema = None
        self.conf = SimpleNamespace(get=lambda *_: "somebody said how")
        self.raised: BaseException | None = None
        self.watermark = 0

    def foreachBatch(self, each: Callable[[Any, int], None]) -> Stream:
        def run() -> None:
            try:
                each(self, 0)
            except BaseException as error:
                self.raised = error

        self.thread = threading.Thread(target=run, daemon=True)
        return self

    def option(self, *_: str) -> Stream:
        return self

    def start(self) -> Stream:
        self.thread.start()
        return self

    def stop(self) -> None:
        self.thread.join()
        self.stopped = True

    stopped = False

    @property
    def isActive(self) -> bool:
        return not self.stopped

    def createDataFrame(self, *_: object) -> Stream:
        return self


class Execution:
    """What the source asks of Spark's execution."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def last(self) -> Any:
        return SimpleNamespace(executedPlan=lambda: None)

    def went_by(self, last: Any) -> int:
        return 0

    def planned(self, batch: int, last: Any, by: int | None) -> Origin:
        return Origin(batch, ("end",), by=by)

    def watermark(self) -> int:
        return self._stream.watermark

    def observe(self, last: Any, before: Sequence[int | None]) -> tuple[int, tuple[int | None, ...]]:
        return self._stream.watermark, (self._stream.watermark,)

    def nothing_there(self) -> bool:
        return True

    def committed(self, batch: int) -> bool:
        return True


class Sourced:
    """A source that is open, with what it has offered and what it has ended with."""

    def __init__(self, store: Store, head: int = -1) -> None:
        self.stream, self.epochs = Stream(), list[int]()
        self.ended = list[HoldfastError | None]()
        self.store = store
        frame: Any = self.stream
        token = store.writer("job").token
        self.source = StreamSource(
            {"rows": frame},
            "log",
            Edge({}, watermarked=True, idles=True),
            self.ended.append,
            store,
            lambda: token,
            lambda: head,
            lambda: None,
        )

    def open(self) -> None:
        self.source.open(self._offered, None)

    def _offered(self, epoch: int, _: object, origin: Origin) -> None:
        threading.Thread(target=self._answer, args=(epoch,), daemon=True).start()

    def _answer(self, epoch: int) -> None:
        self.epochs.append(epoch)
        self.stream.watermark += 1 if epoch == 0 else 0
        self.source.origin(epoch, True)
        if epoch == 1:
            self.source.close(None)
        self.source.release(epoch)

    def through(self) -> None:
        """Until it has ended, Spark's query too."""
        assert self.source.thread is not None
        self.source.thread.join(DEADLINE)
        assert not self.source.thread.is_alive(), "it waits for ever"
        assert self.stream.stopped


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr("holdfast.runtime.driver.durable.AGAIN", Retry(first=0.001, most=0.001))
    monkeypatch.setattr("holdfast.runtime.spark.source.StreamExecution", Execution)
    return Store(tmp_path)


def refuse(store: Store, name: str, taken: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of the puts of files whose name begins so, three are refused behind so many that are not; their numbers."""
    real, tries, refused = store.files.put, itertools.count(), list[int]()

    def put(path: str, data: bytes, sync: bool) -> None:
        if path.startswith(name) and taken <= (number := next(tries)) < taken + 3:
            refused.append(number)
            raise Unusable("503 Slow Down")
        real(path, data, sync)

    monkeypatch.setattr(store.files, "put", put)
    return refused


def test_a_log_that_is_refused_ends_a_stream_that_has_a_batch_at_hand(store: Store) -> None:
    sourced = Sourced(store, head=4)
    store.files.put("spark-log.json", document(store.files, "spark-log", {"query": "another"}), True)
    sourced.open()
    sourced.through()
    assert [type(error) for error in sourced.ended] == [Invalid]
    assert str(sourced.stream.raised) == str(sourced.ended[0])
    assert sourced.epochs == []


def test_a_log_is_known_by_a_document_from_before_these_had_the_id_of_the_store(store: Store) -> None:
    files = store.files
    store.writer("job").close()
    older = json.loads(document(files, "spark-log", {"query": "this"}))
    del older["store"], older["checksum"]
    plain = json.dumps(older, sort_keys=True, separators=(",", ":")).encode()
    files.put("spark-log.json", json.dumps({**older, "checksum": checksum(plain)}).encode(), True)
    belongs(files, 1, "this", "log", begun=True)
    with pytest.raises(Invalid, match=r"query another, not this"):
        belongs(files, 1, "another", "log", begun=True)


def test_a_store_that_is_out_of_reach_for_a_while_holds_the_stream_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sourced = Sourced(store)
    refused = refuse(store, "spark-log.json", 0, monkeypatch)
    sourced.open()
    sourced.through()
    assert sourced.ended == [] and sourced.epochs == [0, 1] and refused == [0, 1, 2]
    assert read_document(store.files, "spark-log", "spark-log.json")["query"] == "this"


def test_an_epoch_without_rows_is_written_down_when_the_store_is_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    sourced = Sourced(store)
    refused = refuse(store, "cursor/idle-", 1, monkeypatch)
    sourced.open()
    sourced.through()
    assert sourced.ended == [] and sourced.epochs == [0, 1] and refused == [1, 2, 3]
    (written,) = store.files.list("cursor")
    assert read_document(store.files, "idle", f"cursor/{written}")["epochs"] == [[0, 1, 1000]]


def test_a_job_that_ends_meanwhile_does_not_wait_for_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    sourced = Sourced(store)
    asked = threading.Event()

    def add(*_: object) -> None:
        asked.set()
        raise Unusable("503 Slow Down")

    monkeypatch.setattr("holdfast.runtime.driver.durable.AGAIN", Retry(first=3600.0, most=3600.0))
    monkeypatch.setattr("holdfast.runtime.spark.idle.IdleEpochs.add", add)
    sourced.open()
    assert asked.wait(DEADLINE)
    sourced.source.close(None)
    sourced.through()
    assert sourced.ended == [] and sourced.epochs == [0]


@pytest.mark.parametrize(
    ("log", "default", "said", "known", "expected"),
    [
        ("/store/spark", "file", None, True, RENAMING),
        ("file:///store/spark", "hdfs", None, True, RENAMING),
        ("file:/store/spark", "hdfs", None, True, RENAMING),
        ("/store/spark", "hdfs", None, True, None),
        ("/store/spark", "file", "another", True, "another"),
        ("/store/spark", "file", None, False, None),
        ("hdfs://name/store/spark", "file", None, True, None),
        ("s3a://bucket/store/spark", "file", None, True, None),
        ("unknown://store/spark", "file", None, True, None),
    ],
)
def test_a_log_on_a_local_disk_is_written_by_plain_renames(
    log: str, default: str, said: str | None, known: bool, expected: str | None
) -> None:
    settings = {WRITTEN_BY: said} if said is not None else {}

    def look_up(name: str) -> None:
        if not known:
            raise RuntimeError(f"ClassNotFoundException: {name}")

    def path(named: str) -> SimpleNamespace:
        def system(hadoop: str) -> SimpleNamespace:
            scheme = named.partition(":")[0] if ":" in named else hadoop
            if scheme == "unknown":
                raise RuntimeError('UnsupportedFileSystemException: No FileSystem for scheme "unknown"')
            return SimpleNamespace(getUri=lambda: SimpleNamespace(getScheme=lambda: scheme))

        return SimpleNamespace(getFileSystem=system)

    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(Class=SimpleNamespace(forName=look_up))))
    jvm.org = SimpleNamespace(apache=SimpleNamespace(hadoop=SimpleNamespace(fs=SimpleNamespace(Path=path))))
    state = SimpleNamespace(sessionState=lambda: SimpleNamespace(newHadoopConf=lambda: default))
    conf = SimpleNamespace(get=settings.get, set=settings.__setitem__, unset=settings.pop)
    session = SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(_jvm=jvm), _jsparkSession=state)
    before = dict(settings)
    with renaming(cast(SparkSession, session), log):
        assert settings.get(WRITTEN_BY) == expected
    assert settings == before, "other queries of the session are not concerned"


@pytest.mark.spark
@pytest.mark.parametrize(("default", "expected"), [("file:///", RENAMING), ("viewfs://cluster/", None)])
def test_hadoop_is_asked_where_a_path_without_a_scheme_is(
    spark: Any, tmp_path: Path, default: str, expected: str | None
) -> None:
    session = spark.newSession()
    session.conf.unset(WRITTEN_BY)
    session.conf.set("fs.defaultFS", default)
    session.conf.set("fs.viewfs.mounttable.cluster.link./", tmp_path.as_uri())
    with renaming(session, "/store/spark"):
        assert session.conf.get(WRITTEN_BY, None) == expected
