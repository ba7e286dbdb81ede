"""``holdfast.start``: a pipeline over streaming DataFrames, checked, put together and begun as a job."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import HoldfastError, Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.domains import Domains, Given
from holdfast.runtime.driver.config import Elasticity, JobConfig
from holdfast.runtime.driver.launch import launch
from holdfast.runtime.driver.ports import Listener, Ports, Sink
from holdfast.runtime.driver.requests import asked
from holdfast.runtime.faults import Fault, expand_faults
from holdfast.runtime.history.history import NAME, History
from holdfast.runtime.settings import RESTORE_WITHIN, RecoveryMode, Settings, within_of
from holdfast.runtime.spark.fault_player import FaultPlayer
from holdfast.runtime.spark.folders import PREFIX, claim, let_go
from holdfast.runtime.spark.idle import IdleEpochs
from holdfast.runtime.spark.job import Job
from holdfast.runtime.spark.loop import Loop
from holdfast.runtime.spark.nodes import HOME, Executors, LogicalNodes
from holdfast.runtime.spark.runner import SparkRunner
from holdfast.runtime.spark.session import is_local, nodes_of
from holdfast.runtime.spark.source import StreamSource
from holdfast.runtime.worker.worker import JobContext
from holdfast.state import Store, Sync, Writer
from holdfast.topology import Task


def start(
    stream: DataFrame | Mapping[str, DataFrame],
    pipeline: Pipeline,
    *,
    store: str | os.PathLike[str],
    nodes: int | None = None,
    epochs: int | None = None,
    bounded: bool = False,
    checkpoint_every: int | None = None,
    replicas: Iterable[Task | str] = (),
    budget: float | None = None,
    faults: Iterable[Fault] = (),
    rejoin_after: float | None = None,
    scheduler: str = "incremental",
    recovery: RecoveryMode = "incremental",
    capacity: float | None = None,
    parallel_recovery: int = 1,
    rebalance: bool = True,
    elastic: Elasticity = False,
    max_nodes: int | None = None,
    pool: int = 0,
    shed_above: float | None = None,
    answer_within: str | float | None = None,
    trigger: str | Mapping[str, Any] | None = None,
    verify: bool = False,
    memory_limit: int | None = None,
    sync: Sync | None = None,
    force: bool = False,
    allow_changed: Iterable[str] = (),
    outputs: bool = True,
    sink: Sink | None = None,
    listeners: Iterable[Listener] = (),
    ceiling: float = 1.0,
    patience: float = 10.0,
    domains: Given | Domains = None,
    survive: int | Literal["domain"] | None = None,
    name: str | None = None,
    watermarked: bool = False,
    into: Callable[[str], Job] = Job,
) -> Job:
    """Run a pipeline over a streaming DataFrame; several sources take one each, by name.

    ``store``: where checkpoints, journal and outputs go; starting again with the same store goes on where it stopped.
    ``nodes``: how many nodes to count on (all executors; one in local mode). ``epochs``: stop after so many;
    ``bounded``: nothing will ever follow them, so every window closes in the last one.
    ``replicas``: tasks that get a second live copy; or ``budget``: so many average tasks' worth of copies, chosen by
    the replication planner from declared rates and costs, and again from measured ones after a few epochs.
    ``faults``: what shall go wrong, for trials; ``rejoin_after``: seconds after which a lost logical node comes back.
    ``parallel_recovery``: a lost task whose state can be cut by key and that has a long replay before it comes back as
    so many tasks. ``rebalance``: nodes that carry little, since they came late, take tasks over from those with more.
    ``elastic``: scale operators out and in by the load that their tasks report, as a policy says (True: the usual one;
    a mapping: what departs from it), with up to ``max_nodes`` nodes; ``pool``: at least so many of them stand by
    without tasks. ``shed_above``: an epoch may take so many seconds; rows beyond that are left out and
    counted, for sources that cannot wait. ``answer_within``: when an epoch is not answered after such a time ("2s", or
    seconds), executors that are well answer tentatively for those that are silent, who are not given up for that;
    "never", or when None 2.5 times what epochs usually take, one second at least.
    ``trigger``: how often a micro-batch begins, such as "1 second"; as soon as possible when None; or what
    ``DataStreamWriter.trigger`` takes, such as ``{"availableNow": True}``.
    ``verify``: run every epoch twice and refuse a function whose answer differs. ``memory_limit``: bytes of state that
    a table may hold in memory before it spills. ``outputs``: False keeps no output files. ``force``: take the store
    over from a job that still holds it. ``allow_changed``: operators that do something else than they did when the
    store was written, and begin anew. ``sink``: called with each ``Output`` as it is published, in the driver: at least
    once, in order for each task, after a crash too. ``listeners``: called with every event of the history.
    ``patience``: seconds that lost tasks wait for new nodes before those that are left carry everything; ``ceiling``:
    the share of a node's capacity that they may fill until then. ``checkpoint_every``: so many epochs; when None ten,
    and fewer as long as the job is young: after 2 epochs, then whenever a fifth of all epochs is in none.
    ``domains``: what fails together: ``"host"``, a mapping of nodes or hosts to domains, a JSON or YAML file with one,
    or a script that is called with hosts and prints a domain for each; a copy of a task lives in another domain.
    ``survive``: a ``budget`` is spent so that the answer is worth the most whichever so many nodes are lost, or
    whichever domain (``"domain"``); when None two, or one where there are only two or three.
    ``name``: of the streaming query. ``watermarked``: sources with event time go by the watermark that Spark keeps for
    the stream (``withWatermark``). ``into``: makes the handle, given the store.
    """
    apart, within = domains if isinstance(domains, Domains) else Domains(domains), within_of(answer_within)
    streams = _streams(stream, pipeline)
    spark = next(iter(streams.values())).sparkSession
    settings = Settings(
        nodes=nodes or default_nodes(spark),
        checkpoint_every=10 if checkpoint_every is None else checkpoint_every,
        young=checkpoint_every is None,
        replicas=tuple(pipeline.topology.tasks_of(list(replicas))),
        scheduler=scheduler,
        recovery=recovery,
        capacity=capacity,
        parallel_recovery=parallel_recovery,
        rebalance=rebalance,
        standby=pool,
        ceiling=ceiling,
        survive=survive,
        restore_within=RESTORE_WITHIN if within is None else within,
    )
    if sink is not None and not outputs:
        raise Invalid("sink: it is handed what is published, so outputs must not be False")
    if bounded and epochs is None:
        raise Invalid("bounded: say how many epochs there are, epochs=...")
    place = Store(_absolute(store), sync)
    job = uuid.uuid4().hex[:12]
    local = tempfile.mkdtemp(prefix=f"{PREFIX}{job}-")
    config = JobConfig(
        job,
        pipeline,
        settings,
        epochs=epochs,
        budget=budget,
        outputs=outputs,
        allow_changed=tuple(allow_changed),
        verify=verify,
        memory_limit=memory_limit,
        shed_above=shed_above,
        answer_within=within,
        elastic=elastic,
        max_nodes=max_nodes or 0,
        pool=pool,
        patience=patience,
        force=force,
        owner=f"holdfast job {os.getpid()}",
        local=local,
        told={"master": str(spark.sparkContext.master), "trigger": trigger},
    )
    handle = into(place.url)
    triggers = {"processingTime": trigger} if isinstance(trigger, str) else dict(trigger or {})
    last = epochs - 1 if bounded and epochs is not None else None
    claim(local)
    try:
        _begin(
            handle, config, spark, streams, place, tuple(faults), rejoin_after, apart, triggers, last, sink, listeners,
            name, watermarked,
        )  # fmt: skip
    except BaseException:
        let_go(local)
        raise
    return handle


def _begin(
    handle: Job,
    config: JobConfig,
    spark: SparkSession,
    streams: Mapping[str, DataFrame],
    place: Store,
    faults: tuple[Fault, ...],
    rejoin_after: float | None,
    domains: Domains,
    trigger: Mapping[str, Any],
    last: int | None,
    sink: Sink | None,
    listeners: Iterable[Listener],
    name: str | None,
    watermarked: bool,
) -> None:
    """Wire the ports, launch, and wait until the stream has begun; what went wrong until then is raised."""
    directory = Path(place.url) if "://" not in place.url else Path(tempfile.mkdtemp(prefix="holdfast-history-"))
    nodes = _nodes(spark, config.settings.nodes, Path(config.local), rejoin_after, domains)
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
    if faults:
        names = [f"node-{number}" for number in range(config.settings.nodes)]
        here = domains.of(dict.fromkeys(names, HOME)) if isinstance(nodes, LogicalNodes) else None
        script = expand_faults(faults, names, config.epochs if config.epochs is not None else 2**62, here)
        player = FaultPlayer(
            script,
            nodes,
            place,
            lambda kind, fields: handle.driver.clock.post(lambda: handle.driver.note(kind, fields)),
        )

    def over(error: HoldfastError | None) -> None:
        loop.post(handle.driver.stop if error is None else lambda: handle.driver.fail(error))

    idle = IdleEpochs(place.files) if watermarked and config.pipeline.timed and _idles(spark) else None
    source = StreamSource(
        streams, f"{place.url}/spark", trigger, last, over, name, watermarked, idle, lambda: handle.driver.snapshot.head
    )
    left = list(asked(directory)) if "://" not in place.url else []
    ports = Ports(
        loop,
        loop,
        nodes,
        source,
        place,
        History(directory / NAME),
        runner,
        sink,
        (handle._notice, *listeners),
        player,
        (lambda: asked(directory)) if "://" not in place.url else None,
        handle._begun.set,
        ended,
    )
    try:
        driver = launch(config, ports)
    except BaseException:
        loop.close()
        raise
    loop.failed = driver.fail
    for each in left:
        told = each if isinstance(each, str) else f"request {each.name} ({each.operator} to {each.to} tasks)"
        driver.notes.append(f"{told}: it was left when no job was running")
    handle._attach(driver, source)
    loop.post(driver.begin)
    handle._await_begin()


def _absolute(store: str | os.PathLike[str]) -> str:
    """A store is one place: executors have working folders of their own, to which a relative path would lead."""
    text = os.fspath(store)
    return text if "://" in text else str(Path(text).absolute())


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


def _idles(spark: SparkSession) -> bool:
    """Whether epochs without rows are wanted, where the watermark has moved: Spark's own setting."""
    return spark.conf.get("spark.sql.streaming.noDataMicroBatches.enabled", "true") == "true"


def default_nodes(spark: SparkSession) -> int:
    """How many nodes to count on where nobody says: all executors, or one in local mode."""
    context = spark.sparkContext
    return nodes_of(str(context.master)) or int(context.getConf().get("spark.executor.instances", "1") or 1)
