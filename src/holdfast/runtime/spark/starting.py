"""``holdfast.start``: a pipeline over streaming DataFrames, checked, put together and begun as a job."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, Unpack

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import HoldfastError, Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.domains import Domains
from holdfast.runtime.driver.config import JobConfig
from holdfast.runtime.driver.launch import launch
from holdfast.runtime.driver.ports import Listener, Ports, Sink
from holdfast.runtime.driver.requests import Request, asked
from holdfast.runtime.driver.standby import storage_here, when_free
from holdfast.runtime.faults import expand_faults
from holdfast.runtime.history.history import NAME, History, remote_history
from holdfast.runtime.options import Flat, Group, Options
from holdfast.runtime.spark.fault_player import FaultPlayer
from holdfast.runtime.spark.folders import DIRS, PREFIX, claim, let_go
from holdfast.runtime.spark.foreign import refuse_checkpoint
from holdfast.runtime.spark.hadoop import HadoopFolder
from holdfast.runtime.spark.job import Job
from holdfast.runtime.spark.log import log_of
from holdfast.runtime.spark.loop import Loop
from holdfast.runtime.spark.narrowing import narrowed
from holdfast.runtime.spark.nodes import HOME, Executors, LogicalNodes
from holdfast.runtime.spark.option_names import source_notes
from holdfast.runtime.spark.runner import SparkRunner
from holdfast.runtime.spark.session import is_local, nodes_of
from holdfast.runtime.spark.shipping import as_bytes
from holdfast.runtime.spark.source import Edge, StreamSource
from holdfast.runtime.spark.warming import warm
from holdfast.runtime.worker.worker import JobContext
from holdfast.state import Store, Writer
from holdfast.state.files import Files
from holdfast.state.places import check_writable, on_disk

J = TypeVar("J", bound=Job)
_log = logging.getLogger("holdfast")
ASKED_EVERY = 5.0
"""Seconds between two looks for requests in a store by URL."""


def start(
    stream: DataFrame | Mapping[str, DataFrame],
    pipeline: Pipeline,
    *options: Group,
    store: str | os.PathLike[str],
    nodes: int | None = None,
    epochs: int | None = None,
    bounded: bool = False,
    trigger: str | Mapping[str, Any] | None = None,
    sink: Sink | None = None,
    listeners: Iterable[Listener] = (),
    name: str | None = None,
    watermarked: bool = False,
    **flat: Unpack[Flat],
) -> Job:
    """Run a pipeline over a streaming DataFrame; several sources take one each, by name.

    ``options``: a ``holdfast.Replication``, ``Failover``, ``Scaling``, ``Storage`` and ``Drill``, or some of them; each
    of their fields can also be given by its name, such as ``budget=2.0``.
    ``store``: where checkpoints, journal and outputs go; starting again with the same store goes on where it stopped.
    ``nodes``: how many nodes to count on (all executors; one in local mode). ``epochs``: stop after so many;
    ``bounded``: nothing will ever follow them, so every window closes in the last one.
    ``trigger``: how often a micro-batch begins, such as "1 second"; as soon as possible when None; or what
    ``DataStreamWriter.trigger`` takes, such as ``{"availableNow": True}``.
    ``sink``: called with each ``Output`` as it is published, in the driver: at least once, in order for each task,
    after a crash too. ``listeners``: called with every event of the history. ``name``: of the streaming query.
    ``watermarked``: sources with event time go by the watermark that Spark keeps for the stream (``withWatermark``).
    """
    triggers = {"processingTime": trigger} if isinstance(trigger, str) else trigger or {}
    edge = Edge(triggers, name, watermarked, False, sink, tuple(listeners), epochs, bounded)
    ours = Options().taking(options, flat, "start")
    streams = _streams(stream, pipeline)
    if not watermarked:  # Spark's watermark is kept by a column that nobody else may look at
        streams = {name: narrowed(frame, pipeline.columns_of(name)) for name, frame in streams.items()}

    def into(place: Store) -> Job:
        refuse_checkpoint(next(iter(streams.values())).sparkSession, os.fspath(store), place)
        return Job(place.url)

    return begin(streams, pipeline, store, nodes, ours, edge, into)


def begin(
    stream: DataFrame | Mapping[str, DataFrame],
    pipeline: Pipeline,
    store: str | os.PathLike[str],
    nodes: int | None,
    options: Options,
    edge: Edge,
    into: Callable[[Store], J],
    notes: Iterable[str] = (),
) -> J:
    """What ``start`` does, with a handle that ``into`` makes of the store. ``notes``: for the log and the history."""
    streams = _streams(stream, pipeline)
    options = options._replace(storage=storage_here(options.storage))
    spark = next(iter(streams.values())).sparkSession
    if edge.sink is not None and not options.storage.outputs:
        raise Invalid("sink: it is handed what is published, so outputs must not be False")
    place = Store(_absolute(store), options.storage.sync, options=options.storage.storage_options)
    log = log_of(spark, place.url, options.storage.spark_log)
    job = uuid.uuid4().hex[:12]
    local = _local_folder(spark, job)
    try:
        config = JobConfig.of(
            job,
            pipeline,
            default_nodes(spark) if nodes is None else nodes,
            options,
            epochs=edge.epochs,
            owner=f"holdfast job {os.getpid()}",
            local=local,
            watermarked=edge.watermarked,
            told={
                "master": str(spark.sparkContext.master),
                "trigger": edge.trigger.get("processingTime", edge.trigger or None),
            },
        )
        handle = into(place)
        notes = [*notes, *(note for frame in streams.values() for note in source_notes(frame))]
        for note in notes:
            _log.warning(note)
        launched = partial(_launched, handle, config, place, streams, edge, options, log, notes)
        warming = partial(_warm, spark, place.url, options.storage.storage_options or {}, pipeline)
        when_free(place, launched, warming) if options.storage.standby else launched()
    except BaseException:
        let_go(local)
        raise
    return handle


def _launched(
    handle: Job,
    config: JobConfig,
    place: Store,
    streams: Mapping[str, DataFrame],
    edge: Edge,
    options: Options,
    log: str,
    notes: Iterable[str],
) -> None:
    """Wire the ports, launch, and wait until the stream has begun; what went wrong until then is raised."""
    spark, drill, domains = next(iter(streams.values())).sparkSession, options.drill, options.replication.apart()
    _check_places(spark, place.url, options.storage.spark_log, log)
    nodes = _nodes(spark, config.settings.nodes, Path(config.local), drill.rejoin_after, domains)
    loop = Loop()

    def ended(error: HoldfastError | None) -> None:
        handle._finish(error)
        loop.close()

    def runner(context: JobContext, writer: Writer) -> SparkRunner:
        made = SparkRunner(spark, context, writer, isinstance(nodes, LogicalNodes))
        if isinstance(nodes, Executors):
            nodes.warm, nodes.clean = made.warm, made.clean
        return made

    player = None
    if drill.faults:
        names = [f"node-{number}" for number in range(config.settings.nodes)]
        here = domains.of(dict.fromkeys(names, HOME)) if isinstance(nodes, LogicalNodes) else None
        script = expand_faults(tuple(drill.faults), names, config.epochs if config.epochs is not None else 2**62, here)
        player = FaultPlayer(
            script,
            nodes,
            place,
            lambda kind, fields: handle.driver.clock.post(lambda: handle.driver.note(kind, fields)),
        )

    def over(error: HoldfastError | None) -> None:
        loop.post(handle.driver.stop if error is None else lambda: handle.driver.fail(error))

    token, head = (lambda: handle.driver.token), (lambda: handle.driver.snapshot.head)
    source = StreamSource(streams, log, edge, over, place, token, head, handle.pace)
    by_url = "://" in place.url
    ports = Ports(
        loop,
        loop,
        nodes,
        source,
        place,
        remote_history(place.files) if by_url else History(Path(place.url) / NAME),
        runner,
        edge.sink,
        (handle._notice, *edge.listeners),
        player,
        _requests(place.files, _fenced(handle), ASKED_EVERY if by_url else 0.0),
        handle._begun.set,
        ended,
    )
    try:
        driver = launch(config, ports)
    except BaseException:
        loop.close()
        ports.recorder.close()
        raise
    loop.failed = driver.fail
    handle._attach(driver, source)
    driver.notes += notes
    try:
        for each in asked(place.files):
            told = each if isinstance(each, str) else f"request {each.name} ({each.operator} to {each.to} tasks)"
            driver.notes.append(f"{told}: it was left when no job was running")
        loop.post(driver.begin)
    except Exception as error:
        loop.post(partial(driver.fail, error))  # it holds the store: it ends as any other
    handle._await_begin()


def _check_places(spark: SparkSession, store: str, given: str | None, log: str) -> None:
    """Invalid if the store or Spark's log cannot be written where they are to be."""
    if (folder := on_disk(store)) is not None:
        check_writable(f"store {store}", folder)
    if given is not None or folder is None:
        HadoopFolder(spark, f"store {store}" if given is None else f"spark_log {given}", log).make()


def _fenced(handle: Job) -> Callable[[], None]:
    def check() -> None:
        handle.driver.writer.check()  # a driver there is only once it was launched

    return check


def _requests(files: Files, check: Callable[[], None], every: float) -> Callable[[], Iterable[Request | str]]:
    """What other processes ask for, looked for so often at most: behind a URL each look is a request."""
    looked = float("-inf")

    def look() -> Iterable[Request | str]:
        nonlocal looked
        if time.monotonic() - looked < every:
            return ()
        looked = time.monotonic()
        return asked(files, check)

    return look


def _warm(spark: SparkSession, store: str, options: Mapping[str, Any], pipeline: Pipeline) -> None:
    """On a thread of its own: the store may become free meanwhile, and what is not warm by then need not be."""
    code = as_bytes(pipeline)  # here, where the job's context is made into bytes too: one at a time

    def work() -> None:
        with contextlib.suppress(Exception):  # what is wrong here is told when it is needed
            if warm(spark, store, options, code):
                _log.warning("ready to take over")

    threading.Thread(target=work, name="holdfast-warm", daemon=True).start()


def _local_folder(spark: SparkSession, job: str) -> str:
    """The folder of nodes: in local mode where Spark keeps its own files; else each executor knows its place."""
    context: Any = spark.sparkContext  # getConf() makes a copy, by hundreds of calls through the gateway
    if not is_local(str(context.master)):
        return f"{PREFIX}{job}"
    dirs = os.environ.get(DIRS) or context._conf.get("spark.local.dir")
    local = tempfile.mkdtemp(prefix=f"{PREFIX}{job}-", dir=dirs.split(",")[0] if dirs else None)
    claim(local)
    return local


def _absolute(store: str | os.PathLike[str]) -> str:
    """A store is one place: executors have working folders of their own, to which a relative path would lead."""
    text = os.fspath(store)
    path = on_disk(text)
    return text if path is None else str(path.absolute())


def _streams(stream: DataFrame | Mapping[str, DataFrame], pipeline: Pipeline) -> dict[str, DataFrame]:
    names = [step.name for step in pipeline.sources]
    given = dict(stream) if isinstance(stream, Mapping) else {names[0]: stream}
    if sorted(given) != sorted(names):
        raise Invalid(
            f"streams: the pipeline has sources {', '.join(names)}, got streams for {', '.join(given) or 'none'}"
        )
    for name, frame in given.items():
        if not isinstance(frame, DataFrame):
            raise Invalid(f"stream {name}: a streaming DataFrame is needed, got {type(frame).__name__}")
        if not frame.isStreaming:
            raise Invalid(f"stream {name}: this DataFrame is not streaming; use spark.readStream instead of spark.read")
    for step in pipeline.sources:
        if step.name in {query.sink for query in pipeline.topology.queries}:
            raise Invalid(f"query {step.name}: a source's own output cannot be a query; put a step behind it")
    return {name: given[name] for name in names}


def _nodes(
    spark: SparkSession, count: int, local: Path, rejoin_after: float | None, domains: Domains
) -> LogicalNodes | Executors:
    context = spark.sparkContext
    if is_local(str(context.master)):
        return LogicalNodes(count, context.defaultParallelism, local, rejoin_after, domains)
    return Executors(context, local, domains)


def default_nodes(spark: SparkSession) -> int:
    """How many nodes to count on where nobody says: all executors, or one in local mode."""
    context = spark.sparkContext
    return nodes_of(str(context.master)) or int(context.getConf().get("spark.executor.instances", "1") or 1)
