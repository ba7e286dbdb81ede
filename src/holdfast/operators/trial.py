"""A pipeline tried out in this process, an epoch at a time: no Spark, no failures, nothing stored.

It follows the runtime's rules to the letter (prepare on the sender, rows routed by the hash of their key, senders in
order, watermarks, one state version an epoch), so it serves to try an operator and as the reference for real runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Invalid
from holdfast.operators.columns import microseconds
from holdfast.operators.contract import State
from holdfast.operators.pipeline import Input, Pipeline, Step
from holdfast.operators.timers import LAST
from holdfast.state import Routing, TaskState, hash_keys
from holdfast.topology import Stream, Task

Batches: TypeAlias = pa.Table | Mapping[str, pa.Table]


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one epoch gave: the rows of each query's operator, tasks in order; and what operators counted."""

    number: int
    outputs: Mapping[str, pa.Table]
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def output(self) -> pa.Table:
        """The rows of the only query."""
        if len(self.outputs) != 1:
            raise Invalid(f"output: the pipeline has {len(self.outputs)} queries ({', '.join(self.outputs)}); pick one")
        return next(iter(self.outputs.values()))


class Trial:
    """A pipeline and the state of its tasks; ``epoch`` moves it on by one. The first epoch is 0, as on Spark."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.number = -1
        self.states = {
            task: TaskState.empty(pipeline.by_name[task.operator].operator.tables, self.number)
            for task in pipeline.topology.tasks
        }
        self._watermarks: dict[Task, dict[str, int | None]] = {}
        self._stamps: dict[Task, int | None] = {}

    def epoch(self, batches: Batches, ends: bool = False, tentative: bool = False) -> Epoch:
        """One epoch over a batch for each source (or for the only one). ``ends``: no row will ever follow.

        ``tentative``: operators are told that rows are missing, here or in their state. Nothing is left out for it.
        """
        counters: dict[str, dict[str, int]] = {}
        outputs = self.advance(self._given(batches), ends, {}, counters, tentative)
        wanted = [query.sink for query in self.pipeline.topology.queries]
        answers = {
            name: together([outputs[task] for task in self.pipeline.topology.tasks if task.operator == name])
            for name in wanted
        }
        return Epoch(self.number, answers, {name: each for name, each in counters.items() if each})

    def advance(
        self,
        given: Mapping[str, pa.Table],
        ends: bool,
        known: Mapping[Task, tuple[pa.Table, int | None]],
        counters: dict[str, dict[str, int]],
        tentative: bool = False,
    ) -> dict[Task, pa.Table]:
        """The output of every task. Tasks whose output and watermark are ``known`` already do not run again."""
        self.number += 1
        outputs = {task: rows for task, (rows, _) in known.items()}
        self._stamps.update({task: stamp for task, (_, stamp) in known.items()})
        for operator in self.pipeline.topology.operators:
            step = self.pipeline.by_name[operator.name]
            for number in range(operator.parallelism):
                task = Task(operator.name, number)
                if task in known:
                    continue
                inputs = self._inputs(task, step, given, outputs)
                before, now = self._advance(task, step, inputs, ends)
                state = State(self.states[task].tables, task, self.number, now, before, tentative)
                answer = step.operator.process_inputs(inputs, state)
                outputs[task] = answer if answer is not None else pa.table({})
                changes = {name: view.change for name, view in state.views.items()}
                self.states[task] = self.states[task].apply(changes, self.number)
                counted = counters.setdefault(operator.name, {})
                for what, rows in state.counters.items():
                    counted[what] = counted.get(what, 0) + rows
        return outputs

    def run(self, epochs: Iterable[Batches], ends: bool = False) -> list[Epoch]:
        """Several epochs; ``ends`` says that nothing follows the last, so every window closes."""
        listed = list(epochs)
        return [self.epoch(batches, ends and place == len(listed) - 1) for place, batches in enumerate(listed)]

    def _given(self, batches: Batches) -> Mapping[str, pa.Table]:
        sources = [step.name for step in self.pipeline.sources]
        if isinstance(batches, Mapping):
            given = batches
        elif len(sources) == 1:
            given = {sources[0]: batches}
        else:
            raise Invalid(f"trial: give a batch for each source by name: {', '.join(sources)}")
        if unknown := [name for name in given if name not in sources]:
            raise Invalid(f"trial: {unknown[0]!r} is not a source; sources: {', '.join(sources)}")
        return given

    def _inputs(
        self, task: Task, step: Step, given: Mapping[str, pa.Table], outputs: Mapping[Task, pa.Table]
    ) -> dict[str, pa.Table]:
        if not step.inputs:
            rows = given.get(step.name, pa.table({}))
            return {step.name: rows.slice(*_share(rows.num_rows, task.number, step.parallelism))}
        inputs = {}
        for each in step.inputs:
            stream = self.pipeline.input(step.name, each.source)
            blocks = []
            for sender in self.pipeline.topology.senders(stream, task.number):
                rows = step.operator.prepare(each.source, outputs[Task(each.source, sender)])
                receivers = self.pipeline.topology.receivers(stream, sender)
                blocks.append(routed(rows, each, stream, receivers, task.number))
            inputs[each.source] = together(blocks)
        return inputs

    def _advance(
        self, task: Task, step: Step, shares: Mapping[str, pa.Table], ends: bool
    ) -> tuple[int | None, int | None]:
        """The task's watermark before this epoch and after it; what the task's receivers are told is noted beside it.

        A source says its latest event time less the delay. Of one input the newest word counts, over inputs the least.
        """
        if not step.inputs:
            self._stamps[task] = LAST if ends and step.event_time else _event_time(step, shares[step.name])
            return None, None
        newest: dict[str, int | None] = {}
        for each in step.inputs:
            stream = self.pipeline.input(step.name, each.source)
            senders = self.pipeline.topology.senders(stream, task.number)
            stamps = [self._stamps[Task(each.source, sender)] for sender in senders]
            newest[each.source] = _least(stamps) if each.source in self.pipeline.timed else _newest(stamps)
        if step.name not in self.pipeline.timed:
            self._stamps[task] = _newest(newest.values())
            return None, None
        known = self._watermarks.setdefault(task, dict.fromkeys(newest))
        before = _least(known.values())
        known.update({name: _newest([known[name], stamp]) for name, stamp in newest.items()})
        self._stamps[task] = _least(known.values())
        return before, self._stamps[task]


def _event_time(step: Step, rows: pa.Table) -> int | None:
    if not rows.num_rows or step.event_time is None:
        return None
    latest = pc.max(microseconds(rows, step.event_time, f"source {step.name}")).as_py()
    return None if latest is None else int(latest) - round(step.delay_seconds * 1e6)


def _newest(stamps: Iterable[int | None]) -> int | None:
    return max((stamp for stamp in stamps if stamp is not None), default=None)


def _least(stamps: Iterable[int | None]) -> int | None:
    listed = list(stamps)
    known = [stamp for stamp in listed if stamp is not None]
    return min(known) if len(known) == len(listed) else None


def routed(rows: pa.Table, given: Input, stream: Stream, receivers: range, task: int) -> pa.Table:
    """The rows of one sender that belong to a task."""
    if len(receivers) == 1 or not rows.num_rows:
        return rows
    if not given.key:
        return rows.slice(*_share(rows.num_rows, receivers.index(task), len(receivers)))
    full = stream.partitioning == "full"
    routing = Routing.weighted(stream.weights) if full else Routing.even(len(receivers))
    owners = routing.route(hash_keys(rows, given.key)) + receivers[0]
    return rows.filter(pa.array(np.asarray(owners) == task))


def together(blocks: Iterable[pa.Table]) -> pa.Table:
    """Blocks in order as one table; those without columns have no rows and are passed over."""
    whole = [block for block in blocks if block.num_columns]
    return pa.concat_tables(whole, promote_options="permissive") if whole else pa.table({})


def _share(rows: int, number: int, of: int) -> tuple[int, int]:
    start, stop = rows * number // of, rows * (number + 1) // of
    return start, stop - start
