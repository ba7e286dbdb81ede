"""Real faults: the nodes that carry an operator are killed while the job runs, replicas and recovery at work.

Nothing is lost in the end, so what is scored is what had been answered in time: the rows of epoch e as they could be
read, tentative or final, when epoch e + ``deadline`` was answered. The final output must be that of the golden run.
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.assessment.experiments import Design, Measured, Placed, Settings, Unit, positions_of
from holdfast.assessment.metrics import quality_score
from holdfast.assessment.recording import Recording, Subject, together_at
from holdfast.assessment.scores import affected
from holdfast.errors import HoldfastError, Invalid
from holdfast.runtime.history.history import read_history
from holdfast.runtime.history.narrative import recoveries
from holdfast.runtime.history.outputs import read_output
from holdfast.state import output
from holdfast.state.files import open_files
from holdfast.topology import Task

KILL = "kill"
DEADLINE = 2
"""The epoch after next."""


@dataclass(frozen=True, slots=True)
class Kill:
    """How nodes are killed, and by when answers count. ``nodes``: one for each task and replica by default.

    ``deadline``: the rows of an epoch count as they stand when so many more epochs have been answered; 0: its first
    answer. ``replicas`` or ``budget``: as of ``holdfast.start``. ``trigger``: how often an epoch begins.
    """

    deadline: int = DEADLINE
    nodes: int | None = None
    replicas: tuple[str, ...] = ()
    budget: float | None = None
    trigger: str | None = None

    def __post_init__(self) -> None:
        if self.deadline < 0:
            raise Invalid(f"--deadline: a number of epochs, 0 or more, is needed, got {self.deadline}")
        if self.nodes is not None and self.nodes < 2:
            raise Invalid(f"--nodes: at least 2 are needed, so that one is left, got {self.nodes}")
        if self.replicas and self.budget is not None:
            raise Invalid("--replicas and --budget: give one of them; a budget lets the planner choose the replicas")
        if self.budget is not None and not (math.isfinite(self.budget) and self.budget >= 0):
            raise Invalid(f"--budget: a number, 0 or more, is needed, got {self.budget}")


def kill_targets(subject: Subject, settings: Settings) -> dict[str, tuple[str, ...]]:
    """Every operator that lives on a node and that the query needs, or the groups asked for.

    Not those of the placement rules alone: an operator whose upstream is like it when rows are lost still has a state
    of its own to be restored. Sources have no node: Spark reads a batch wherever there is one.
    """
    topology = subject.pipeline.topology
    towards = topology.upstream_of(subject.query)
    living = [each.name for each in topology.operators if topology.inputs_of(each.name) and each.name in towards]
    if not settings.groups:
        return {name: (name,) for name in living}
    for name in (name for group in settings.groups for name in group):
        if name not in living:
            raise Invalid(f"--targets: {name!r} cannot be killed; operators that live on nodes: {', '.join(living)}")
    groups = [tuple(name for name in living if name in group) for group in settings.groups]
    return {"+".join(group): group for group in groups}


def at_epochs(recording: Recording, settings: Settings) -> Settings:
    """The settings with offsets where epochs begin, since that is when nodes are killed; never in the first one."""
    starts = recording.epoch_starts()
    places, _ = recording.clock()
    if len(starts) < 2:
        raise Invalid(f"--fault kill: at least 2 epochs with rows are needed, found {len(starts)}")
    asked = positions_of(settings, float(places[0]), float(places[-1]))
    chosen = [max((at for at in starts[1:] if at <= place), default=starts[1]) for place in asked]
    return replace(settings, offsets=tuple(dict.fromkeys(chosen)))


class KillJobs:
    """Every experiment is a Holdfast job of its own on Spark, in which nodes die."""

    name = "spark"

    def __init__(self, spark: Any, subject: Subject, plan: Design, kill: Kill, starts: Sequence[float]) -> None:
        from holdfast.runtime.spark.session import is_local

        if subject.stream is None:
            raise Invalid(f"{subject.name}: no stream for Spark is known, so nothing can be killed")
        self._spark, self._subject, self._plan, self._kill = spark, subject, plan, kill
        self._starts = list(starts)
        topology = subject.pipeline.topology
        living = [task for task in topology.tasks if topology.inputs_of(task.operator)]
        self._tasks = {
            target: [task for task in living if task.operator in operators]
            for target, operators in plan.targets.items()
        }
        local = is_local(spark.sparkContext.master)
        copies = len(kill.replicas) if kill.budget is None else math.ceil(kill.budget)
        self._nodes = kill.nodes or (len(living) + copies if local else None)
        for target, tasks in self._tasks.items():
            if self._nodes is not None and len(tasks) >= self._nodes:
                raise Invalid(
                    f"--nodes {self._nodes}: {target} has {len(tasks)} tasks and may live on all of them; "
                    f"use {len(tasks) + 1} or more"
                )

    def measure(self, units: Sequence[Unit]) -> Iterator[Measured]:
        return (self._measure(unit) for unit in units)

    def _measure(self, unit: Unit) -> Measured:
        from holdfast.runtime.spark import start

        subject, kill = self._subject, self._kill
        assert subject.stream is not None
        epoch = self._starts.index(self._plan.offsets[unit.offset])
        with tempfile.TemporaryDirectory(prefix="holdfast-assess-") as folder:
            store = Path(folder) / "job"
            watch = Watch(store, subject, kill.deadline, self._tasks[unit.target], epoch)
            job = start(
                subject.stream(self._spark),
                subject.pipeline,
                store=store,
                nodes=self._nodes,
                epochs=subject.epochs,
                bounded=subject.bounded,
                replicas=kill.replicas,
                budget=kill.budget,
                trigger=kill.trigger,
                listeners=[watch.heard],
            )
            watch.attend(job)
            job.awaitTermination()
            schema = self._plan.traces.golden.schema
            in_time = watch.in_time(schema)
            final = _placed(read_output(store, "final"), subject, schema)
            told = recoveries(read_history(store))
        found = self._plan.measure(unit, [in_time])
        golden = (self._plan.traces.golden, self._plan.traces.golden_at)
        score = self._plan.settings.score
        return replace(
            found,
            rows=(len(affected(*golden, *in_time)),),
            lost=tuple(dict.fromkeys(task for each in told for task in each.down)),
            promoted=tuple(dict.fromkeys(task for each in told for task in each.promoted)),
            seconds=max((each.exact_after for each in told if each.exact_after is not None), default=None),
            final_quality=float(quality_score(score.of(final[0]), score.of(golden[0]))),
            final_wrong=len(affected(*golden, *final)),
        )


class Watch:
    """Sees to it that nodes die when their epoch begins, and notes of every epoch what can be read at its deadline."""

    def __init__(self, store: Path, subject: Subject, deadline: int, tasks: Sequence[Task], epoch: int) -> None:
        self._store, self._subject, self._deadline = store, subject, deadline
        self._tasks, self._epoch = tasks, epoch
        self._seen: dict[int, Mapping[str, str]] = {}
        self._job: Any = None
        self._attended = threading.Event()

    def attend(self, job: Any) -> None:
        self._job = job
        self._attended.set()

    def heard(self, event: Mapping[str, Any]) -> None:
        """A listener of the job; ``answered`` comes in the stream's own thread, between two epochs."""
        if event["kind"] == "answered":
            self._note(event["epoch"] - self._deadline)
            if event["epoch"] == self._epoch - 1:
                self._strike()
        elif event["kind"] == "stopped":  # the stream is over: what is still due is due now
            for epoch in range(self._subject.epochs):
                self._note(epoch)

    def _note(self, epoch: int) -> None:
        if epoch < 0 or epoch in self._seen:
            return
        files = open_files(str(self._store))
        there = {**output.written(files, "tentative"), **output.written(files, "final")}
        query = self._subject.query
        self._seen[epoch] = {
            task: name for (of, task), name in there.items() if of == epoch and task.rpartition("/")[0] == query
        }

    def _strike(self) -> None:
        self._attended.wait()
        driver = self._job.driver
        homes = driver.snapshot.homes
        nodes = sorted({homes[task] for task in self._tasks if task in homes})
        driver.clock.post(lambda: driver.note("fault", {"fault": f"kill {','.join(nodes)} at epoch {self._epoch}"}))
        try:
            driver.ports.nodes.kill(nodes)
        except HoldfastError as error:
            failed = error
            driver.clock.post(lambda: driver.fail(failed))

    def in_time(self, schema: pa.Schema) -> Placed:
        """The rows of every epoch as they could be read at its deadline."""
        files = open_files(str(self._store))
        tables = []
        for epoch in range(self._subject.epochs):
            seen = self._seen.get(epoch, {})
            read = [pq.read_table(pa.BufferReader(files.read(seen[task]))) for task in sorted(seen)]
            rows = [each.select(schema.names).cast(schema) for each in read if each.num_rows]
            tables.append(pa.concat_tables(rows) if rows else schema.empty_table())
        return together_at(tables, self._subject.key)


def _placed(rows: pa.Table, subject: Subject, schema: pa.Schema) -> Placed:
    """The rows of the query, by epoch, without the columns that Holdfast added."""
    if not rows.num_rows:
        return together_at([schema.empty_table()] * subject.epochs, subject.key)
    mine = rows.filter(pa.compute.starts_with(rows["task"], f"{subject.query}/"))
    epochs, table = mine["epoch"].to_numpy(), mine.select(schema.names).cast(schema)
    return together_at([table.filter(pa.array(epochs == epoch)) for epoch in range(subject.epochs)], subject.key)
