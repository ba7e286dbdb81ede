"""A pipeline: operators with their functions, joined by streams; what ``holdfast.start`` runs.

Immutable and validated at construction. Its ``topology`` is the same model that planners and schedulers work on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from holdfast.errors import Invalid
from holdfast.operators.contract import FunctionOperator, Operator, as_operator, columns_read, description_of
from holdfast.operators.description import as_json
from holdfast.state import StateSchema, TaskState
from holdfast.topology import Operator as OperatorModel
from holdfast.topology import Partitioning, Query, Stream, Topology

WATERMARK = "_watermark"
"""The table in which an operator keeps, for each input stream, up to when it is complete."""
_WATERMARKS = StateSchema(pa.schema([("input", pa.string())]), pa.schema([("stamp", pa.int64())]))


@dataclass(frozen=True, slots=True)
class Input:
    """One input stream of a step. ``key``: columns whose hash leads rows to their task; without, rows are dealt out."""

    source: str
    key: tuple[str, ...] = ()
    partitioning: Partitioning | None = None
    weights: tuple[float, ...] = ()


def stream(
    source: str,
    key: str | Sequence[str] = (),
    partitioning: Partitioning | None = None,
    weights: Sequence[float] = (),
) -> Input:
    """The output of operator ``source`` as an input.

    Without a key, the columns that the operator groups by are the key. Keyed streams are `full` unless said otherwise;
    others are `one-to-one`, `merge` or `split`, as parallelism has it.
    """
    return Input(source, (key,) if isinstance(key, str) else tuple(key), partitioning, tuple(weights))


@dataclass(frozen=True, slots=True)
class Step:
    """An operator of a pipeline: its name, what it does, what it reads. No inputs: a source.

    A source's operator sees the rows of its streaming DataFrame and must be stateless. ``event_time`` names its time
    column and ``delay_seconds`` how long rows may be late. ``correlated``: an answer needs all inputs (a join).
    ``priority``: given, the output of this operator is a query; by default every sink of the graph is one.
    """

    name: str
    operator: Operator
    inputs: tuple[Input, ...] = ()
    parallelism: int = 1
    correlated: bool = False
    priority: float | None = None
    costs: tuple[float, ...] = ()
    event_time: str | None = None
    delay_seconds: float = 0.0


def source(
    name: str,
    operator: Operator | Callable[..., Any] | None = None,
    *,
    parallelism: int = 1,
    event_time: str | None = None,
    delay_seconds: float = 0.0,
    priority: float | None = None,
) -> Step:
    """Where a streaming DataFrame enters; ``operator`` is applied to its rows (as they are, when None)."""
    made = as_operator(operator) if operator is not None else as_operator(as_they_are)
    if made.tables:
        raise Invalid(f"source {name}: a source must be stateless; put the stateful operator behind it")
    if delay_seconds < 0:
        raise Invalid(f"source {name}: delay_seconds must be 0 or more, got {delay_seconds}")
    return Step(
        name,
        made,
        parallelism=parallelism,
        priority=priority,
        event_time=event_time,
        delay_seconds=delay_seconds,
    )


def step(
    name: str,
    operator: Operator | Callable[..., Any],
    inputs: Input | str | Iterable[Input | str],
    *,
    parallelism: int = 1,
    correlated: bool = False,
    priority: float | None = None,
    costs: Sequence[float] = (),
) -> Step:
    """An operator over one or more input streams."""
    listed = [inputs] if isinstance(inputs, (Input, str)) else list(inputs)
    if not listed:
        raise Invalid(f"operator {name}: name at least one input, or make it a source")
    made = as_operator(operator)
    streams = tuple(_keyed(stream(each) if isinstance(each, str) else each, made) for each in listed)
    return Step(name, made, streams, parallelism, correlated, priority, tuple(costs))


@dataclass(frozen=True)
class Pipeline:
    """Steps, upstream first or in any order; ``topology`` is what they form."""

    steps: tuple[Step, ...]

    def __init__(self, *steps: Step) -> None:
        object.__setattr__(self, "steps", tuple(steps))
        _ = self.topology, self.timed  # whatever is wrong is told now
        for each in steps:
            self._check_keys(each)
            if each.operator.together and each.parallelism > 1:
                raise Invalid(
                    f"operator {each.name}: without keys all rows meet at one task; parallelism must be 1, got "
                    f"{each.parallelism}"
                )
            if each.operator.tables and any(not given.key for given in each.inputs) and each.parallelism > 1:
                unkeyed = next(given.source for given in each.inputs if not given.key)
                if self.input(each.name, unkeyed).partitioning in ("full", "split"):
                    raise Invalid(
                        f"stream {unkeyed} -> {each.name}: a stateful operator with {each.parallelism} tasks needs a "
                        f"keyed stream; say stream({unkeyed!r}, key=...)"
                    )

    def _check_keys(self, each: Step) -> None:
        for given in each.inputs:
            if given.key and each.operator.by and each.parallelism > 1 and not set(given.key) <= set(each.operator.by):
                found, needed = ", ".join(given.key), ", ".join(each.operator.by)
                raise Invalid(
                    f"stream {given.source} -> {each.name}: it is keyed by {found}, which would spread rows with equal "
                    f"{needed} over tasks; key it by {needed}"
                )

    @cached_property
    def topology(self) -> Topology:
        parallelism = {each.name: each.parallelism for each in self.steps}
        operators = [
            OperatorModel(
                each.name,
                each.parallelism,
                costs=each.costs,
                inputs="correlated" if each.correlated else "independent",
                stateful=bool(each.operator.tables),
            )
            for each in self.steps
        ]
        streams = []
        for each in self.steps:
            for given in each.inputs:
                if given.source not in parallelism:
                    known = ", ".join(parallelism)
                    raise Invalid(
                        f"stream {given.source} -> {each.name}: unknown operator {given.source!r}; known: {known}"
                    )
                partitioning = given.partitioning or _partitioning(given, parallelism[given.source], each.parallelism)
                streams.append(Stream(given.source, each.name, partitioning, given.weights))
        queries = [Query(each.name, each.priority) for each in self.steps if each.priority is not None]
        return Topology(tuple(operators), tuple(streams), tuple(queries))

    @cached_property
    def by_name(self) -> Mapping[str, Step]:
        return {each.name: each for each in self.steps}

    def input(self, name: str, source: str) -> Stream:
        """The stream between these two operators."""
        return next(each for each in self.topology.inputs_of(name) if each.source == source)

    @cached_property
    def sources(self) -> tuple[Step, ...]:
        return tuple(each for each in self.steps if not each.inputs)

    def columns_of(self, source: str) -> frozenset[str] | None:
        """The columns of a source's rows that anybody looks at; None: perhaps all."""
        step = self.by_name[source]
        found = self._columns(step, source)
        return found if found is None or step.event_time is None else found | {step.event_time}

    def _columns(self, step: Step, stream: str) -> frozenset[str] | None:
        """What an operator, and whoever it passes its rows on to, looks at in one of its inputs."""
        found = frozenset() if _as_came(step) else columns_read(step.operator, stream)
        if found is None or not _passes(step):
            return found
        if step.name in {query.sink for query in self.topology.queries}:
            return None  # whoever reads its output may want all of them
        for each in self.steps:
            for given in each.inputs:
                if given.source == step.name:
                    if (more := self._columns(each, step.name)) is None:
                        return None
                    found |= more.union(given.key)
        return found

    @cached_property
    def timed(self) -> frozenset[str]:
        """Operators that keep a watermark: those that ask for it, and those where several timed streams meet."""
        with_time: set[str] = {each.name for each in self.sources if each.event_time}
        keeping: set[str] = set()
        for operator in self.topology.operators:
            each = self.by_name[operator.name]
            if any(given.source in with_time for given in each.inputs):
                with_time.add(each.name)
                if each.operator.event_time or len(each.inputs) > 1:
                    keeping.add(each.name)
            elif each.operator.event_time:
                raise Invalid(
                    f"operator {each.name}: it needs event time, but no source upstream of it names one; "
                    f"say source(..., event_time=COLUMN)"
                )
        return frozenset(keeping)

    def state_schemas(self, name: str) -> dict[str, StateSchema]:
        """The tables of an operator: its own, and the watermark if it keeps one."""
        tables = dict(self.by_name[name].operator.tables)
        return {**tables, WATERMARK: _WATERMARKS} if name in self.timed else tables

    def empty_state(self, name: str, epoch: int = -1) -> TaskState:
        """What a task of this operator knows before its first epoch."""
        return TaskState.empty(self.state_schemas(name), epoch)

    @cached_property
    def horizons(self) -> Mapping[str, int | None]:
        """How far back the answers of each operator with state look; see ``Operator.horizon``.

        By the watermark, which stays behind the newest rows by the longest delay of a source.
        """
        delay = max((round(each.delay_seconds * 1_000_000) for each in self.sources if each.event_time), default=0)
        return {
            each.name: None if each.operator.horizon is None else each.operator.horizon + delay
            for each in self.steps
            if self.state_schemas(each.name)
        }

    @cached_property
    def coordinated(self) -> Topology:
        """The topology as the coordinator sees it.

        A source costs nothing, since it is read wherever there is room; an operator that keeps a watermark has state.
        """
        return replace(
            self.topology,
            operators=tuple(
                replace(operator, stateful=bool(self.state_schemas(operator.name)))
                if self.topology.inputs_of(operator.name)
                else replace(operator, costs=(0.0,) * operator.parallelism)
                for operator in self.topology.operators
            ),
        )

    @cached_property
    def signature(self) -> dict[str, Any]:
        """What a store must fit, as JSON: for each operator its tasks, its inputs, its state tables and what it does.

        ``timed``: it keeps a watermark. ``prepares``: rows are changed by it before they are sent, and so journalled.
        ``columns``, of a source that sends rows as they came: those that are read of them, and journalled; null is all.
        """
        return {
            each.name: {
                "parallelism": each.parallelism,
                "inputs": {
                    given.source: {
                        "key": list(given.key),
                        "partitioning": self.input(each.name, given.source).partitioning,
                        "weights": list(self.input(each.name, given.source).weights),
                    }
                    for given in each.inputs
                },
                "tables": {name: schema.to_json() for name, schema in each.operator.tables.items()},
                "does": as_json(_does(each), each.name),
                "timed": each.name in self.timed,
                "prepares": type(each.operator).prepare is not Operator.prepare,
                **({} if each.inputs or not _passes(each) else {"columns": _sorted(self.columns_of(each.name))}),
            }
            for each in self.steps
        }


def _as_came(step: Step) -> bool:
    return isinstance(step.operator, FunctionOperator) and step.operator.function is as_they_are


def _passes(step: Step) -> bool:
    return _as_came(step) or bool(step.operator.passes)


def _sorted(columns: frozenset[str] | None) -> list[str] | None:
    return None if columns is None else sorted(columns)


def _does(each: Step) -> dict[str, Any]:
    does = dict(description_of(each.operator))
    if each.inputs:
        return does
    return {"kind": "source", "operator": does, "event_time": each.event_time, "delay_seconds": each.delay_seconds}


def _keyed(given: Input, operator: Operator) -> Input:
    """A partitioning that was chosen without a key is meant: each task then keeps its own part of every key."""
    return given if given.key or given.partitioning else replace(given, key=operator.by)


def _partitioning(given: Input, upstream: int, downstream: int) -> Partitioning:
    if given.key and downstream > 1:
        return "full"
    if upstream == downstream:
        return "one-to-one"
    return "merge" if upstream > downstream else "split"


def as_they_are(batch: Any) -> Any:
    """The rows of a source without an operator."""
    return batch
