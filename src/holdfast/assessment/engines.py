"""What runs experiments: ``trial`` in this machine's processes without a JVM, ``spark`` as jobs on Spark.

Both run the same operators by the same rules and give the same scores. A trial branches off a recorded golden run; a
Spark job carries many experiments side by side through one pass over the stream.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from pickle import PicklingError
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from holdfast.assessment.experiments import Design, Measured, Placed, Settings, Unit, design
from holdfast.assessment.injection import EXPERIMENT, GATHERED, GOLDEN, side_by_side
from holdfast.assessment.recording import Recording, Subject, branch, record, together_at, traces_of
from holdfast.errors import Invalid, Unrecoverable

SIDE_BY_SIDE = 30
"""Experiments that one Spark job carries: more make its epochs longer, fewer waste passes over the stream."""
Targets = Mapping[str, tuple[str, ...]]


class Engine(Protocol):
    """Runs units and measures them, in any order."""

    name: str

    def measure(self, units: Sequence[Unit]) -> Iterator[Measured]: ...


def measure_by_trial(recording: Recording, plan: Design, unit: Unit) -> Measured:
    """All outages of a unit, each as a branch of the golden run; equal bursts run once."""
    key = recording.subject.key
    outputs = {burst: together_at(branch(recording, burst), key) for burst in dict.fromkeys(unit.bursts)}
    return plan.measure(unit, [outputs[burst] for burst in unit.bursts])


class TrialHere:
    """Experiments in this process, one after the other."""

    name = "trial"

    def __init__(self, recording: Recording, plan: Design) -> None:
        self._recording, self._plan = recording, plan

    def measure(self, units: Sequence[Unit]) -> Iterator[Measured]:
        return (measure_by_trial(self._recording, self._plan, unit) for unit in units)


class TrialProcesses(AbstractContextManager["TrialProcesses"]):
    """Experiments on all cores. Each process records the golden run for itself, from a subject that it makes."""

    name = "trial"

    def __init__(self, make: Callable[[], Subject], plan: Design, cores: int) -> None:
        try:
            ForkingPickler.dumps((make, plan.settings))
        except (PicklingError, AttributeError, TypeError) as error:
            raise Invalid(f"cores {cores}: other processes cannot be handed this subject ({error}); use 1") from None
        # Forked processes may deadlock in the thread pools of polars and Arrow, so processes are made anew; one thread
        # each, since there are as many of them as cores.
        self._threads = os.environ.get("POLARS_MAX_THREADS")
        os.environ["POLARS_MAX_THREADS"] = "1"
        begin = (make, plan.settings, dict(plan.targets), _golden(plan))
        self._pool = ProcessPoolExecutor(cores, mp_context=get_context("spawn"), initializer=_begin, initargs=begin)

    def measure(self, units: Sequence[Unit]) -> Iterator[Measured]:
        waiting: set[Future[Measured]] = {self._pool.submit(_measure, unit.key) for unit in units}
        try:
            while waiting:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for each in done:
                    yield each.result()
        except BrokenProcessPool:
            raise Unrecoverable(
                "a process of the campaign died, perhaps for want of memory: each of them holds the golden run; "
                "use fewer cores (what was measured is kept in --out)"
            ) from None
        finally:
            for each in waiting:
                each.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._threads is None:
            os.environ.pop("POLARS_MAX_THREADS", None)
        else:
            os.environ["POLARS_MAX_THREADS"] = self._threads


_here: dict[str, Any] = {}
"""A worker process's recording and design."""


def _golden(plan: Design) -> tuple[Placed, ...]:
    """The golden runs that every process must compare with, where they are not all the same."""
    return plan.traces.runs if plan.noisy else ()


def _begin(make: Callable[[], Subject], settings: Settings, targets: Targets, golden: tuple[Placed, ...]) -> None:
    _here["ready"] = partial(_made, make, settings, targets, golden)


def _made(
    make: Callable[[], Subject], settings: Settings, targets: Targets, golden: tuple[Placed, ...]
) -> tuple[Recording, Design]:
    recording = record(make())
    traces = traces_of(recording, {name for operators in targets.values() for name in operators})
    if golden:
        first, *more = golden
        traces = replace(traces, golden=first[0], golden_at=first[1], more=tuple(more))
    return recording, design(traces, settings, targets)


def _measure(key: tuple[str, int, int]) -> Measured:
    if "made" not in _here:  # here rather than in the initialiser, whose errors would break the pool
        _here["made"] = _here["ready"]()
    recording, plan = _here["made"]
    return measure_by_trial(recording, plan, plan.unit(*key))


class SparkJobs:
    """Experiments as Holdfast jobs on Spark, many in each."""

    name = "spark"

    def __init__(self, spark: Any, subject: Subject, plan: Design) -> None:
        if subject.stream is None:
            raise Invalid(f"{subject.name}: no stream for Spark is known; use the engine trial")
        self._spark, self._subject, self._plan = spark, subject, plan
        self._units = max(1, SIDE_BY_SIDE // len(plan.settings.outages))

    def measure(self, units: Sequence[Unit]) -> Iterator[Measured]:
        for first in range(0, len(units), self._units):
            yield from self._measure(units[first : first + self._units])

    def _measure(self, units: Sequence[Unit]) -> Iterator[Measured]:
        bursts = {
            f"{place}-{number}": burst
            for place, unit in enumerate(units)
            for number, burst in enumerate(unit.bursts)
            if burst not in unit.bursts[:number]
        }
        subject = self._subject
        carried = side_by_side(subject.pipeline, subject.query, bursts, subject.key)
        outputs = self._run(carried.pipeline)
        self._check(outputs[GOLDEN])
        for place, unit in enumerate(units):
            labels = [f"{place}-{unit.bursts.index(burst)}" for burst in unit.bursts]
            yield self._plan.measure(unit, [outputs[label] for label in labels])

    def _run(self, pipeline: Any) -> dict[str, tuple[pa.Table, Any]]:
        from holdfast.runtime.history.outputs import read_output
        from holdfast.runtime.spark import start

        subject = self._subject
        assert subject.stream is not None
        with tempfile.TemporaryDirectory(prefix="holdfast-assess-") as folder:
            store = Path(folder) / "job"
            job = start(
                subject.stream(self._spark),
                pipeline,
                store=store,
                epochs=subject.epochs,
                bounded=subject.bounded,
                checkpoint_every=subject.epochs + 1,
            )
            job.awaitTermination()
            rows = read_output(store, "final")
        return _split(rows, subject, self._plan.traces.golden.schema, pipeline)

    def _check(self, golden: Placed) -> None:
        if self._plan.noisy:
            return
        found, expected = (self._plan.settings.score.of(each) for each in (golden[0], self._plan.traces.golden))
        if abs(found - expected) > 1e-9 * max(1.0, abs(expected)):
            raise Invalid(
                f"{self._subject.name}: the golden score is {found:g} on Spark and {expected:g} without; "
                f"an operator's answer does not follow from its rows and state alone"
            )


def _split(rows: pa.Table, subject: Subject, schema: pa.Schema, pipeline: Any) -> dict[str, tuple[pa.Table, Any]]:
    """The rows of each experiment as the trial has them: by epoch, without the columns that Holdfast added."""
    labels = list(pipeline.by_name[GATHERED].operator.names.values())
    if not rows.num_columns:
        return {label: (schema.empty_table(), np.empty(0)) for label in labels}
    found = {}
    for label in labels:
        mine = rows.filter(pa.compute.equal(rows[EXPERIMENT], label))
        epochs = mine["epoch"].to_numpy()
        table = mine.select(schema.names).cast(schema)
        cut = [table.filter(pa.array(epochs == epoch)) for epoch in range(subject.epochs)]
        found[label] = together_at(cut, subject.key)
    return found
