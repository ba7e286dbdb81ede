"""Injection: an operator put into the pipeline in front of the target; the job itself is unchanged.

Any number of experiments run side by side in one pass over the stream: what lies upstream of a target is shared with
the golden run, what lies downstream of it is copied for each experiment. One last step gathers the answers of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from holdfast.assessment.faults import Burst, FaultModel, positions, struck
from holdfast.errors import Invalid
from holdfast.operators import Input, Operator, Pipeline, State, StateSchema, Step
from holdfast.operators.trial import together

GATHERED = "gathered"
EXPERIMENT = "experiment"
GOLDEN = ""
_HELD = StateSchema(pa.schema({"epoch": pa.int64()}), pa.schema({"rows": pa.binary()}))


class Injector(Operator):
    """Passes rows on, except for what the fault does to those within the burst."""

    def __init__(self, start: float, stop: float, model: FaultModel, key: str | None) -> None:
        self.start, self.stop, self.model, self.key = start, stop, model, key
        if model.kind == "delay":
            self.tables = {"state": _HELD}

    def process(self, batch: pa.Table, state: State) -> pa.Table:
        places = positions(batch, self.key, state.epoch, f"injection in front of {state.task.operator}")
        hit = (places >= self.start) & (places < self.stop)
        state.count("struck", int(hit.sum()))
        answer = struck(batch, hit, self.model, state.epoch) if batch.num_columns else batch
        return self._delayed(batch, hit, places, answer, state) if self.model.kind == "delay" else answer

    def _delayed(
        self, batch: pa.Table, hit: np.ndarray, places: np.ndarray, passed: pa.Table, state: State
    ) -> pa.Table:
        over = bool((places >= self.stop).any()) if self.key is not None else state.epoch + 1 >= self.stop
        held = [_from_bytes(rows.as_py()) for rows in state.scan().sort_by("epoch").column("rows")]
        mine = batch.filter(pa.array(hit)) if batch.num_columns else batch
        if over:
            if held:
                state.delete(state.scan().select(["epoch"]))
            return together([*held, mine, passed])
        if mine.num_rows:
            state.update(pa.table({"epoch": [state.epoch], "rows": pa.array([_to_bytes(mine)], pa.binary())}))
        return passed


class Relabelled(Operator):
    """An operator whose inputs have other names here; it sees them by the names it knows."""

    def __init__(self, operator: Operator, names: Mapping[str, str]) -> None:
        self.operator, self.names = operator, dict(names)
        self.tables, self.by, self.event_time = operator.tables, operator.by, operator.event_time

    def prepare(self, stream: str, batch: pa.Table) -> pa.Table:
        return self.operator.prepare(self.names[stream], batch)

    def process_inputs(self, inputs: Mapping[str, pa.Table], state: State) -> pa.Table | None:
        return self.operator.process_inputs({self.names[name]: rows for name, rows in inputs.items()}, state)


class Gather(Operator):
    """The answers of all experiments as one table, each row with the name of its experiment."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)

    def process_inputs(self, inputs: Mapping[str, pa.Table], state: State) -> pa.Table | None:
        blocks = [
            rows.append_column(EXPERIMENT, pa.repeat(pa.scalar(self.names[name]), rows.num_rows))
            for name, rows in inputs.items()
            if rows.num_columns
        ]
        return together(blocks) if blocks else None


class _Same(Operator):
    def process(self, batch: pa.Table, state: State) -> pa.Table:
        return batch


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A pipeline that carries experiments. ``answers``: the operator with each one's answer; the golden one's is "".

    ``originals``: the golden operator that each copied one was copied from; injectors are not among them.
    """

    pipeline: Pipeline
    answers: Mapping[str, str]
    originals: Mapping[str, str]
    injectors: tuple[str, ...]


def raw_name(source: str) -> str:
    """The name of the bare input of a source, in front of which nothing can be placed."""
    return f"{source}.input"


def opened(pipeline: Pipeline) -> tuple[Step, ...]:
    """The steps with every source cut in two, its bare input and what it makes of that: faults get in between."""
    steps: list[Step] = []
    for each in pipeline.steps:
        if each.inputs:
            steps.append(replace(each, priority=None))
            continue
        raw = raw_name(each.name)
        steps.append(replace(each, name=raw, operator=_Same(), priority=None))
        own = Relabelled(each.operator, {raw: each.name})
        given = (Input(raw, (), "one-to-one"),)
        steps.append(Step(each.name, own, given, each.parallelism, each.correlated, None, each.costs))
    return tuple(steps)


def side_by_side(
    pipeline: Pipeline, query: str, bursts: Mapping[str, Burst], key: str | None, gather: bool = True
) -> SideBySide:
    """The pipeline, with a faulty copy for each burst of all that its targets reach on the way to ``query``."""
    steps = list(opened(pipeline))
    golden = {each.name: each for each in steps}
    towards = pipeline.topology.upstream_of(query)
    answers, originals, injectors = {GOLDEN: query}, {}, []
    for label, burst in bursts.items():
        for target in burst.targets:
            if target not in pipeline.by_name:
                raise Invalid(f"operator {target!r}: unknown; operators are {', '.join(pipeline.by_name)}")
            if target not in towards:
                raise Invalid(f"operator {target}: nothing of it reaches {query}, whose output is assessed")
        reached = _downstream(pipeline, burst.targets) & towards
        for step in [each for each in golden.values() if each.name in reached]:
            copy, front = _copied(step, golden, label, burst, reached, key)
            steps += [*front, copy]
            originals[copy.name] = step.name
            injectors += [each.name for each in front]
        answers[label] = _copy_name(query, label)
    if gather:
        names = {name: label for label, name in answers.items()}
        parallelism = golden[query].parallelism
        inputs = tuple(Input(name, (), "one-to-one") for name in names)
        steps.append(Step(GATHERED, Gather(names), inputs, parallelism, priority=1.0))
    return SideBySide(Pipeline(*steps), answers, originals, tuple(injectors))


def injected(pipeline: Pipeline, burst: Burst, key: str | None) -> Pipeline:
    """The pipeline with injectors in front of the burst's targets, and nothing else changed: one run, one fault."""
    steps = list(opened(pipeline))
    front: list[Step] = []
    for place, step in enumerate(steps):
        if step.name in burst.targets:
            inputs, injectors = _guarded(step, {each.name: each for each in steps}, "fault", burst, key)
            names = {new.source: old.source for new, old in zip(inputs, step.inputs, strict=True)}
            steps[place] = replace(step, inputs=inputs, operator=Relabelled(step.operator, names))
            front += injectors
    priorities = {query.sink: query.priority for query in pipeline.topology.queries}
    return Pipeline(*front, *(replace(each, priority=priorities.get(each.name)) for each in steps))


def _copied(
    step: Step, golden: Mapping[str, Step], label: str, burst: Burst, reached: frozenset[str], key: str | None
) -> tuple[Step, list[Step]]:
    """A step's copy for an experiment, and the injectors in front of it if it is a target."""
    inputs = tuple(
        replace(given, source=_copy_name(given.source, label)) if given.source in reached else given
        for given in step.inputs
    )
    front: list[Step] = []
    if step.name in burst.targets:
        inputs, front = _guarded(replace(step, inputs=inputs), golden, label, burst, key)
    names = {new.source: old.source for new, old in zip(inputs, step.inputs, strict=True)}
    own = Relabelled(step.operator, names)
    return replace(step, name=_copy_name(step.name, label), operator=own, inputs=inputs), front


def _guarded(
    step: Step, golden: Mapping[str, Step], label: str, burst: Burst, key: str | None
) -> tuple[tuple[Input, ...], list[Step]]:
    """The inputs of a target led through injectors, one for each of its streams, as parallel as their sender."""
    front = []
    for given in step.inputs:
        sender = given.source.removesuffix(f"@{label}")
        name = f"{given.source}>{step.name}@{label}"
        operator = Injector(burst.start, burst.stop, burst.model, key)
        led = (Input(given.source, (), "one-to-one"),)
        front.append(Step(name, operator, led, golden[sender].parallelism))
    return tuple(replace(given, source=each.name) for given, each in zip(step.inputs, front, strict=True)), front


def _copy_name(name: str, label: str) -> str:
    return f"{name}@{label}"


def _downstream(pipeline: Pipeline, names: Sequence[str]) -> frozenset[str]:
    found = list(names)
    for name in found:
        found += [stream.target for stream in pipeline.topology.outputs_of(name) if stream.target not in found]
    return frozenset(found)


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def _from_bytes(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
