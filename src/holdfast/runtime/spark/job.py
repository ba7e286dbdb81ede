"""``holdfast.start``: a pipeline over streaming DataFrames, as a job with a handle in the manner of StreamingQuery."""

from __future__ import annotations

import os
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import HoldfastError, Infeasible, Invalid
from holdfast.operators import Pipeline
from holdfast.runtime.coordinator import Coordinator
from holdfast.runtime.faults import Fault, expand_faults
from holdfast.runtime.history import NAME, History
from holdfast.runtime.migration import migrate, shapes
from holdfast.runtime.outputs import newest_final
from holdfast.runtime.processing import coordinated
from holdfast.runtime.requests import OUTCOMES
from holdfast.runtime.settings import Recovery, Settings
from holdfast.runtime.shape import Shape, check_scalable, scalable
from holdfast.runtime.shedding import Shedder
from holdfast.runtime.spark.cluster import Cluster, Executors, LogicalNodes
from holdfast.runtime.spark.demand import Demand, Elasticity, elastic_by, standby
from holdfast.runtime.spark.faulting import FaultPlayer
from holdfast.runtime.spark.session import is_local
from holdfast.runtime.spark.shell import Batch, Shell, Sink
from holdfast.runtime.worker import JobContext
from holdfast.state import Routing, Store, Sync, Writer
from holdfast.topology import Task, topology_to

PROGRESS_KEPT = 100
MEASURED_AFTER = 3
"""Epochs after which a budget is spent anew, on measured rates and costs."""
Listener = Callable[[dict[str, Any]], None]


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
        cluster.warm = shell.warm
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


class Job:
    """A running job, in the manner of pyspark's StreamingQuery."""

    def __init__(
        self,
        shell: Shell,
        streams: Mapping[str, DataFrame],
        store: str,
        epochs: int | None,
        trigger: str | None,
        budget: float | None = None,
        bounded: bool = False,
    ) -> None:
        self.id = shell.context.job
        self.store = store
        self.shell = shell
        self._streams = streams
        self._epochs = epochs
        self._trigger = trigger
        self._budget = budget
        self._last = epochs - 1 if bounded and epochs is not None else None
        self._epochs_here = 0
        self._query: StreamingQuery | None = None
        self._progress: deque[dict[str, Any]] = deque(maxlen=PROGRESS_KEPT)
        self._ended = threading.Event()
        self._enough = threading.Event()
        self._stop_lock = threading.Lock()
        self._latest: dict[str, Any] = {}
        shell.listeners.append(self._notice)

    # What StreamingQuery has

    @property
    def isActive(self) -> bool:
        return not self._ended.is_set()

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self._progress[-1] if self._progress else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return list(self._progress)

    @property
    def status(self) -> dict[str, Any]:
        standing = self.shell.coordinator.standing
        shadow = self.shell.coordinator.scaling.shadow
        down, behind = standing.down, standing.behind()
        if self._ended.is_set():
            message = "Stopped" if self.shell.error is None else f"Failed: {self.shell.error}"
        elif down:
            message = f"Recovering: {len(down)} tasks are down"
        elif any(copy.lane == "exact" for copy in behind):
            message = f"Recovering: {len(behind)} tasks are catching up"
        elif shadow is not None:
            message = f"Scaling {shadow.operator}"
        else:
            message = "Running"
        return {
            "message": message,
            "isTriggerActive": self.shell.coordinator.pending is not None,
            "isDataAvailable": bool(self._query is not None and self._query.status.get("isDataAvailable")),
            "epoch": standing.head,
            "checkpoint": standing.checkpoint,
            "nodes": sorted(standing.nodes),
            "down": [str(task) for task in down],
            "tasks": {operator.name: operator.parallelism for operator in self.shell.coordinator.topology.operators},
            "scaling": None if shadow is None else {"operator": shadow.operator, "tries": shadow.tries},
            "replicas": {
                str(task): {"node": home.node, "behind": standing.head - home.position}
                for task, home in standing.replicas.items()
            },
        }

    def exception(self) -> HoldfastError | None:
        """What ended the job, if it failed."""
        return self.shell.error if self._ended.is_set() else None

    def awaitTermination(self, timeout: float | None = None) -> bool:
        """Wait until the job ends, or for ``timeout`` seconds; raises what ended it, if it failed."""
        ended = self._ended.wait(timeout)
        if ended and self.shell.error is not None:
            raise self.shell.error
        return ended

    def stop(self) -> None:
        """Finish the epoch at hand, checkpoint, and end."""
        self._finish(checkpoint=True)

    def scale(self, operator: str, to: int, timeout: float = 60.0) -> dict[str, Any]:
        """Let an operator have so many tasks, out or in, while the job runs; results stay what they are.

        Waits until it is done and returns the event that tells of it; Infeasible, with the reason, when it was given
        up or ``timeout`` seconds have passed (it may still happen then). Invalid for an operator that cannot be scaled.
        """
        check_scalable(self.shell.context.pipeline, operator)
        if to < 1:
            raise Invalid(f"operator {operator}: needs at least 1 task, got {to}")
        if self._ended.is_set():
            raise Infeasible(f"operator {operator}: the job has ended")
        request, done = uuid.uuid4().hex[:12], threading.Event()
        said: list[dict[str, Any]] = []

        def hear(event: dict[str, Any]) -> None:
            if event.get("request") == request and event["kind"] in OUTCOMES and not event.get("again"):
                said.append(event)
                done.set()

        self.shell.listeners.append(hear)
        try:
            self.shell.scale(operator, to, request)
            until = time.monotonic() + timeout
            while not done.wait(0.05) and time.monotonic() < until and not self._ended.is_set():
                pass
        finally:
            self.shell.listeners.remove(hear)
        if not said:
            what = "the job ended before it was done" if self._ended.is_set() else f"not done after {timeout:g} s"
            raise Infeasible(f"operator {operator} to {to} tasks: {what}")
        if said[-1]["kind"] != "scaled":
            raise Infeasible(f"operator {operator} to {to} tasks: {said[-1]['reason']}")
        return said[-1]

    def add_listener(self, listener: Listener) -> None:
        """Call this with every event of the history as it happens: a dict with ``time`` and ``kind``."""
        self.shell.listeners.append(listener)

    # Inside

    def _begin(self, nodes: int) -> None:
        self.shell.clean_staged()
        self.shell.note("started", self._description(nodes))
        self.shell.start(nodes)
        if self._budget is not None:
            self.shell.tell(self.shell.coordinator.replicas_within(self._budget))
        frame, sources = _one_stream(self._streams)
        writing = frame.writeStream.foreachBatch(self._each(sources)).option(
            "checkpointLocation", f"{self.store}/spark"
        )
        if self._trigger is not None:
            writing = writing.trigger(processingTime=self._trigger)
        if self._epochs is not None and self.shell.coordinator.standing.head + 1 >= self._epochs:
            self._enough.set()
        else:
            self._query = writing.start()
        threading.Thread(target=self._attend, name="holdfast-job", daemon=True).start()

    def _description(self, nodes: int) -> dict[str, Any]:
        """What a reader of the history must know of the job to make sense of the rest."""
        settings = self.shell.coordinator.settings
        return {
            "job": self.id,
            "nodes": nodes,
            "epochs": self._epochs,
            "master": str(self.shell.spark.sparkContext.master),
            "topology": topology_to(self.shell.coordinator.topology),
            "scalable": _scalable(self.shell.context.pipeline),
            "settings": {
                "checkpoint_every": settings.checkpoint_every,
                "budget": self._budget,
                "replicas": [str(task) for task in settings.replicas],
                "scheduler": settings.scheduler,
                "recovery": settings.recovery,
                "capacity": settings.capacity,
                "parallel_recovery": settings.parallel_recovery,
                "rebalance": settings.rebalance,
                "trigger": self._trigger,
            },
        }

    def _each(self, sources: Mapping[str, str | None]) -> Callable[[DataFrame, int], None]:
        def each(frame: DataFrame, epoch: int) -> None:
            if self._enough.is_set():
                # Spark may begin one more batch before it hears that it should stop; it is left uncommitted.
                raise _Enough
            self.shell.epoch(Batch(frame, sources, epoch == self._last), epoch)
            self._epochs_here += 1
            if self._budget is not None and self._epochs_here == MEASURED_AFTER:
                self.shell.tell(self.shell.coordinator.replicas_within(self._budget))
            if self._epochs is not None and epoch + 1 >= self._epochs:
                self._enough.set()

        return each

    def _attend(self) -> None:
        """Wait for the end: enough epochs, an error, or the stream's own."""
        query = self._query
        while not self._enough.is_set() and self.shell.error is None:
            if query is not None and not query.isActive:
                break
            if self._enough.wait(0.05) or self._ended.is_set():
                break
        if query is not None and not query.isActive and not self._enough.is_set() and self.shell.error is None:
            failure = query.exception()
            if failure is not None and not self._ended.is_set():
                self.shell.fail(Invalid(f"the stream ended: {' '.join(str(failure).split())[:300]}"))
        self._finish(checkpoint=self.shell.error is None)

    def _finish(self, checkpoint: bool) -> None:
        with self._stop_lock:
            if self._ended.is_set():
                return
            if self._query is not None and self._enough.is_set():
                self._query.stop()
            elif self._query is not None:
                self._stop_between_epochs()
            self.shell.note("stopped", {"error": str(self.shell.error) if self.shell.error else None})
            self.shell.stop(checkpoint)
            self._ended.set()

    def _stop_between_epochs(self) -> None:
        """Let the epoch at hand come to its end: a stop is not a failure."""
        assert self._query is not None
        self._enough.set()
        until = time.monotonic() + 60
        while self.shell.coordinator.pending is not None and self.shell.error is None and time.monotonic() < until:
            time.sleep(0.02)
        self._query.stop()

    def _notice(self, event: dict[str, Any]) -> None:
        if event["kind"] == "epoch":
            self._latest = dict(event)
        elif event["kind"] == "answered" and self._latest.get("epoch") == event["epoch"]:
            seconds = max(event["seconds"], 1e-6)
            entry = {
                "id": self.id,
                "batchId": event["epoch"],
                "timestamp": event["time"],
                "numInputRows": self._latest["rows_in"],
                "processedRowsPerSecond": self._latest["rows_in"] / seconds,
                "durationMs": {"triggerExecution": round(seconds * 1000, 1)},
                "fidelity": self._latest["fidelity"],
                "tasks": {lane: self._latest[lane] for lane in ("exact", "tentative", "replicas", "absent")},
                "stateOperators": [
                    {"numRowsTotal": self._latest["state_rows"], "memoryUsedBytes": self._latest["state_bytes"]}
                ],
                "checkpointEpoch": self.shell.coordinator.standing.checkpoint,
            }
            self._progress.append(entry)


def _scalable(pipeline: Pipeline) -> dict[str, str | None]:
    """For each operator None, or why it cannot be scaled."""
    told: dict[str, str | None] = {}
    for step in pipeline.steps:
        try:
            check_scalable(pipeline, step.name)
            told[step.name] = None
        except Invalid as error:
            told[step.name] = str(error)
    return told


class _Enough(Exception):
    """Ends the stream from within when the epochs asked for are done."""


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


def _one_stream(streams: Mapping[str, DataFrame]) -> tuple[DataFrame, dict[str, str | None]]:
    """One DataFrame for all sources: as it is, or a union in which each source's rows are a struct of their own."""
    if len(streams) == 1:
        ((name, frame),) = streams.items()
        return frame, {name: None}
    columns = {name: f"source_{number}" for number, name in enumerate(streams)}
    union: DataFrame | None = None
    for name, frame in streams.items():
        packed = F.struct(*[F.col(f"`{column}`") for column in frame.columns])
        selected = frame.select(
            *[
                packed.alias(columns[other])
                if other == name
                else F.lit(None).cast(streams[other].schema).alias(columns[other])
                for other in streams
            ]
        )
        union = selected if union is None else union.union(selected)
    assert union is not None
    return union, dict(columns)


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
