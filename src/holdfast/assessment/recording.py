"""A golden run, kept: what every task sent in every epoch, and its state, so that faulty runs branch off from it.

A faulty run repeats nothing that it shares with the golden one: it begins in the epoch of the fault, computes only what
the target reaches, and ends as soon as its state is the golden one again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.assessment.experiments import Placed, Traces
from holdfast.assessment.faults import Burst, Floats, positions
from holdfast.assessment.injection import opened, raw_name, side_by_side
from holdfast.errors import HoldfastError, Invalid
from holdfast.operators import Pipeline, Trial
from holdfast.operators.columns import microseconds
from holdfast.operators.trial import Batches, together
from holdfast.state import TaskState
from holdfast.topology import Task


@dataclass(frozen=True)
class Subject:
    """What is assessed: a pipeline, its input by epoch, and the query whose output is scored.

    ``key``: the column with the ascending key; None: sections are epochs. ``stream``: for Spark, from a session to the
    streaming DataFrame with the same rows. ``bounded``: nothing follows the last epoch, so that every window closes.
    """

    name: str
    pipeline: Pipeline
    epochs: int
    batch: Callable[[int], Batches]
    key: str | None = None
    query: str = ""
    bounded: bool = False
    stream: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        queries = [query.sink for query in self.pipeline.topology.queries]
        if not self.query and len(queries) > 1:
            raise Invalid(f"{self.name}: it has {len(queries)} queries, say which one: {', '.join(queries)}")
        object.__setattr__(self, "query", self.query or queries[0])
        if self.query not in queries:
            raise Invalid(f"query {self.query!r}: not a query of {self.name}; queries: {', '.join(queries)}")


@dataclass
class Recording:
    """A golden run of a subject; ``sent[epoch]`` has the output and the watermark of every task."""

    subject: Subject
    pipeline: Pipeline
    sent: list[dict[Task, tuple[pa.Table, int | None]]] = field(default_factory=list)
    states: list[dict[Task, TaskState]] = field(default_factory=list)
    watermarks: list[dict[Task, dict[str, int | None]]] = field(default_factory=list)

    def output(self, epoch: int) -> pa.Table:
        return together([rows for task, (rows, _) in self.sent[epoch].items() if task.operator == self.subject.query])

    def inputs(self, name: str) -> Floats:
        """The positions, ascending, of all rows that reach an operator."""
        return np.sort(np.concatenate([*self._inputs(name), np.empty(0)]))

    def _inputs(self, name: str) -> list[Floats]:
        senders = {stream.source for stream in self.pipeline.topology.inputs_of(name)}
        return [
            positions(rows, self.subject.key, epoch, f"operator {name}, input {task.operator}")
            for epoch, sent in enumerate(self.sent)
            for task, (rows, _) in sent.items()
            if task.operator in senders
        ]

    def clock(self) -> tuple[Floats, Floats]:
        """Positions of the input, ascending, and the second in which each came: by event time, else by epoch."""
        places, seconds = [], []
        for step in self.subject.pipeline.sources:
            for epoch, sent in enumerate(self.sent):
                for task, (rows, _) in sent.items():
                    if task.operator == raw_name(step.name) and rows.num_rows:
                        at = positions(rows, self.subject.key, epoch, f"source {step.name}")
                        places.append(at)
                        seconds.append(_seconds(rows, step.event_time, step.name, at, epoch))
        if not places:
            return np.empty(0), np.empty(0)
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        return place[order], np.concatenate(seconds)[order]

    def epoch_starts(self) -> list[float]:
        """The first position of every epoch; an empty one begins where the one before it did."""
        sources = {raw_name(step.name) for step in self.subject.pipeline.sources}
        starts: list[float] = []
        for epoch, sent in enumerate(self.sent):
            first = [
                float(positions(rows, self.subject.key, epoch, f"source {task.operator}").min())
                for task, (rows, _) in sent.items()
                if task.operator in sources and rows.num_rows
            ]
            starts.append(min(first) if first else starts[-1] if starts else 0.0)
        return starts

    def first_epoch(self, position: float) -> int:
        """The first epoch with a row at this position or later."""
        sources = {raw_name(step.name) for step in self.subject.pipeline.sources}
        for epoch, sent in enumerate(self.sent):
            for task, (rows, _) in sent.items():
                if task.operator in sources and rows.num_rows:
                    at = positions(rows, self.subject.key, epoch, f"source {task.operator}")
                    if at.max() >= position:
                        return epoch
        return len(self.sent)


def _seconds(rows: pa.Table, column: str | None, name: str, at: Floats, epoch: int) -> Floats:
    if column is None:
        return np.full(len(at), float(epoch))
    return np.asarray(microseconds(rows, column, f"source {name}").fill_null(0), np.float64) / 1e6


def output_positions(table: pa.Table, key: str | None, epoch: int) -> Floats:
    """Where output rows stand: at their key, or all in the middle of their epoch."""
    if key is None:
        return np.full(table.num_rows, epoch + 0.5)
    return positions(table, key, epoch, "the output")


def together_at(tables: Sequence[pa.Table], key: str | None) -> Placed:
    """The output of all epochs as one table, and where each row stands."""
    places = [output_positions(table, key, epoch) for epoch, table in enumerate(tables)]
    return together(tables), np.concatenate([*places, np.empty(0)])


def traces_of(recording: Recording, operators: Iterable[str], more: tuple[Placed, ...] = ()) -> Traces:
    """What the golden run shows of these operators; ``more``: the outputs of further golden runs."""
    return Traces({name: recording.inputs(name) for name in operators}, *recording.clock(), *output_of(recording), more)


def output_of(recording: Recording) -> Placed:
    """The output of a golden run, and where its rows stand."""
    subject = recording.subject
    return together_at([recording.output(epoch) for epoch in range(subject.epochs)], subject.key)


def record(subject: Subject) -> Recording:
    """The golden run. All of it is held in memory: rows between operators, and the versions of their states."""
    trial = Trial(Pipeline(*opened(subject.pipeline)))
    recording = Recording(subject, trial.pipeline)
    for epoch in range(subject.epochs):
        with _told(f"{subject.name}: the golden run fails in epoch {epoch}"):
            given = _by_raw_source(subject, subject.batch(epoch))
            outputs = trial.advance(given, _ends(subject, epoch), {}, {})
        recording.sent.append({task: (rows, trial._stamps.get(task)) for task, rows in outputs.items()})
        recording.states.append(dict(trial.states))
        recording.watermarks.append({task: dict(each) for task, each in trial._watermarks.items()})
    return recording


def branch(recording: Recording, burst: Burst) -> list[pa.Table]:
    """The output of every epoch with this fault; golden tables themselves where nothing differs."""
    subject = recording.subject
    tables = [recording.output(epoch) for epoch in range(subject.epochs)]
    begin = recording.first_epoch(burst.start)
    if begin >= subject.epochs or burst.start >= burst.stop:
        return tables
    carried = side_by_side(subject.pipeline, subject.query, {"fault": burst}, subject.key, gather=False)
    trial = Trial(carried.pipeline)
    trial.number = begin - 1
    own = [task for task in trial.pipeline.topology.tasks if _is_own(task, carried.originals, carried.injectors)]
    twins = {
        task: Task(carried.originals[task.operator], task.number) for task in own if task.operator in carried.originals
    }
    for task in own:
        trial.states[task] = TaskState.empty(trial.pipeline.by_name[task.operator].operator.tables, begin - 1)
    if begin:
        trial.states |= {task: recording.states[begin - 1][twin] for task, twin in twins.items()}
        trial._watermarks |= {
            task: _renamed(recording.watermarks[begin - 1][twin], trial.pipeline, task)
            for task, twin in twins.items()
            if twin in recording.watermarks[begin - 1]
        }
    over = recording.first_epoch(burst.stop)
    for epoch in range(begin, subject.epochs):
        with _told(f"{subject.name}: with {burst.model} at {', '.join(burst.targets)} it fails in epoch {epoch}"):
            outputs = trial.advance({}, _ends(subject, epoch), recording.sent[epoch], {})
        answer = carried.answers["fault"]
        tables[epoch] = together([outputs[task] for task in own if task.operator == answer])
        if epoch >= over and _healed(recording, epoch, trial, own, twins):
            break
    return tables


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever a user's function raises, as one line."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        raise Invalid(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def _healed(recording: Recording, epoch: int, trial: Trial, own: list[Task], twins: Mapping[Task, Task]) -> bool:
    """Whether every copy is in the state of its twin, and no injector holds rows back: what follows is golden."""
    if any(trial.states[task].rows for task in own if task not in twins):
        return False
    return all(
        trial.states[task].tables == recording.states[epoch][twin].tables
        for task, twin in twins.items()
        if trial.states[task].tables
    )


def _is_own(task: Task, originals: Mapping[str, str], injectors: tuple[str, ...]) -> bool:
    return task.operator in originals or task.operator in injectors


def _renamed(known: Mapping[str, int | None], pipeline: Pipeline, task: Task) -> dict[str, int | None]:
    """Watermarks by input, under the names that the copy's inputs have; the order of inputs is the same."""
    names = [given.source for given in pipeline.by_name[task.operator].inputs]
    return dict(zip(names, known.values(), strict=True))


def _by_raw_source(subject: Subject, batches: Batches) -> dict[str, pa.Table]:
    names = [step.name for step in subject.pipeline.sources]
    if isinstance(batches, Mapping):
        return {raw_name(name): rows for name, rows in batches.items()}
    if len(names) != 1:
        raise Invalid(f"{subject.name}: give a batch for each source by name: {', '.join(names)}")
    return {raw_name(names[0]): batches}


def _ends(subject: Subject, epoch: int) -> bool:
    return subject.bounded and epoch == subject.epochs - 1
