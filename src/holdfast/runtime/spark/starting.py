"""``holdfast.start``: a pipeline over streaming DataFrames, checked, put together and begun as a job."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.coordinator import Coordinator
from holdfast.runtime.faults import Fault, expand_faults
from holdfast.runtime.history import NAME, History
from holdfast.runtime.migration import migrate, shapes
from holdfast.runtime.outputs import newest_final
from holdfast.runtime.processing import coordinated
from holdfast.runtime.settings import Recovery, Settings
from holdfast.runtime.shape import Shape, scalable
from holdfast.runtime.shedding import Shedder
from holdfast.runtime.spark.cluster import Cluster, Executors, LogicalNodes
from holdfast.runtime.spark.demand import Demand, Elasticity, elastic_by, standby
from holdfast.runtime.spark.faulting import FaultPlayer
from holdfast.runtime.spark.job import Job, Listener
from holdfast.runtime.spark.publishing import Sink
from holdfast.runtime.spark.session import is_local
from holdfast.runtime.spark.shell import Shell
from holdfast.runtime.worker import JobContext
from holdfast.state import Routing, Store, Sync, Writer
from holdfast.topology import Task


def start(
    stream: DataFrame | Mapping[str, DataFrame],
    pipeline: Pipeline,
    *,
    store: str | os.PathLike[str],
    nodes: int | None = None,
    epochs: int | None = None,
    bounded: bool = False,
    checkpoint_every: int = 10,
    replicas: Iterable[Task | str] = (),
    budget: float | None = None,
    faults: Iterable[Fault] = (),
    rejoin_after: float | None = None,
    scheduler: str = "incremental",
    recovery: Recovery = "incremental",
    capacity: float | None = None,
    parallel_recovery: int = 1,
    rebalance: bool = True,
    elastic: Elasticity = False,
    max_nodes: int | None = None,
    pool: int = 0,
    shed_above: float | None = None,
    trigger: str | None = None,
    verify: bool = False,
    memory_limit: int | None = None,
    sync: Sync | None = None,
    force: bool = False,
    outputs: bool = True,
    sink: Sink | None = None,
    listeners: Iterable[Listener] = (),
    patience: float = 10.0,
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
    counted, for sources that cannot wait. ``trigger``: how often a micro-batch begins, such as "1 second"; as soon as
    possible when None.
    ``verify``: run every epoch twice and refuse a function whose answer differs. ``memory_limit``: bytes of state that
    a table may hold in memory before it spills. ``outputs``: False keeps no output files. ``force``: take the store
    over from a job that still holds it. ``sink``: called with (table, epoch, "final" or "tentative", fidelity) for each
    output as it is published, in the driver.
    """
    streams = _streams(stream, pipeline)
    spark = next(iter(streams.values())).sparkSession
    settings = Settings(
        nodes=nodes or _default_nodes(spark),
        checkpoint_every=checkpoint_every,
        replicas=tuple(pipeline.topology.tasks_of(list(replicas))),
        scheduler=scheduler,
        recovery=recovery,
        capacity=capacity,
        parallel_recovery=parallel_recovery,
        rebalance=rebalance,
        standby=pool,
    )
    if budget is not None and settings.replicas:
        raise Invalid("replicas and budget: give one of them; a budget lets the planner choose the replicas")
    if sink is not None and not outputs:
        raise Invalid("sink: it is handed what is published, so outputs must not be False")
    if max_nodes is not None and max_nodes < settings.nodes + pool:
        raise Invalid(f"max_nodes must be at least nodes and pool together, {settings.nodes + pool}, got {max_nodes}")
    shedder = Shedder(shed_above) if shed_above is not None else None
    if bounded and epochs is None:
        raise Invalid("bounded: say how many epochs there are, epochs=...")
    if epochs is not None and epochs < 1:
        raise Invalid(f"epochs must be at least 1, got {epochs}")
    place = Store(store, sync)
    if "://" not in place.url:
        # Executors have working folders of their own: what is relative is relative to the driver's.
        place = Store(Path(place.url).absolute(), sync)
    writer = place.writer(f"holdfast job {os.getpid()}", force=force)
    try:
        return _started(
            streams, pipeline, spark, settings, place, writer,
            epochs=epochs, trigger=trigger, verify=verify, memory_limit=memory_limit, sink=sink,
            listeners=listeners, patience=patience, budget=budget, faults=tuple(faults), rejoin_after=rejoin_after,
            outputs=outputs, bounded=bounded, elastic=elastic, max_nodes=max_nodes or settings.nodes + pool, pool=pool,
            shedder=shedder,
        )  # fmt: skip
    except BaseException:
        writer.close()
        raise


def _started(
    streams: Mapping[str, DataFrame],
    pipeline: Pipeline,
    spark: SparkSession,
    settings: Settings,
    place: Store,
    writer: Writer,
    *,
    epochs: int | None,
    trigger: str | None,
    verify: bool,
    memory_limit: int | None,
    sink: Sink | None,
    listeners: Iterable[Listener],
    patience: float,
    budget: float | None,
    faults: tuple[Fault, ...],
    rejoin_after: float | None,
    outputs: bool,
    bounded: bool,
    elastic: Elasticity,
    max_nodes: int,
    pool: int,
    shedder: Shedder | None,
) -> Job:
    found = migrate(place, writer, pipeline)
    journal = place.journal_epochs()
    head = max([found, *journal])
    if missing := [epoch for epoch in range(found + 1, head + 1) if epoch not in journal]:
        raise Invalid(
            f"store {place.url}: epoch {missing[0]} is not in the journal, so epoch {head} cannot be replayed"
        )
    shape, saved = shapes(place, writer, pipeline, found)
    coordinator = Coordinator(
        coordinated(pipeline),
        settings,
        found,
        head,
        shape=shape,
        saved=saved,
        published=newest_final(place.files) if outputs else {},
        scalable=scalable(pipeline),
    )
    job = uuid.uuid4().hex[:12]
    local = Path(tempfile.mkdtemp(prefix=f"holdfast-{job}-"))
    context = JobContext(
        job,
        pipeline,
        place.url,
        writer.token,
        str(local),
        coordinator.outputs if outputs else frozenset(),
        place.sync,
        verify,
        memory_limit,
    )
    directory = Path(place.url) if "://" not in place.url else Path(tempfile.mkdtemp(prefix="holdfast-history-"))
    cluster = _cluster(spark, settings.nodes, local, rejoin_after)
    shell = Shell(
        spark, coordinator, context, writer, cluster, History(directory / NAME),
        journalled={epoch: _journalled(place.journal_extra(epoch)) for epoch in journal if epoch > found},
        extra={"signature": pipeline.signature}, patience=patience, sink=sink,
    )  # fmt: skip
    demand = Demand(
        shell,
        directory if "://" not in place.url else None,
        elastic_by(elastic, coordinator, settings.nodes, max_nodes) if elastic else None,
        standby(pool, settings.nodes, max_nodes),
        max_nodes,
    )
    if isinstance(cluster, Executors):
        cluster.warm = shell.jobs.warm
    shell.demand = demand
    shell.shedder = shedder
    if faults:
        names = [f"node-{number}" for number in range(settings.nodes)]
        script = expand_faults(faults, names, epochs if epochs is not None else 2**62)
        shell.player = FaultPlayer(script, cluster, place, shell.note)
    handle = Job(shell, streams, place.url, epochs, trigger, budget, bounded)
    for listener in listeners:
        handle.add_listener(listener)
    handle._begin(settings.nodes)
    demand.provide_nodes()
    return handle


def _journalled(extra: Mapping[str, Any]) -> tuple[int, Shape]:
    """The parts of a journalled epoch, and the shape in which they were cut, of which only the routing counts."""
    routings = {name: Routing.from_json(each) for name, each in extra.get("routings", {}).items()}
    return int(extra["pieces"]), Shape(routings=routings)


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


def _cluster(spark: SparkSession, nodes: int, local: Path, rejoin_after: float | None) -> Cluster:
    context = spark.sparkContext
    if is_local(str(context.master)):
        return LogicalNodes(nodes, context.defaultParallelism, local, rejoin_after)
    return Executors(context, local)


def _default_nodes(spark: SparkSession) -> int:
    context = spark.sparkContext
    master = str(context.master)
    if is_local(master):
        return 1
    if master.startswith("local-cluster["):
        return int(master.removeprefix("local-cluster[").partition(",")[0])
    return int(context.getConf().get("spark.executor.instances", "1") or 1)
