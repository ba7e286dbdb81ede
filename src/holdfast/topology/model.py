"""The model: operators, streams, queries and the tasks they unfold into. Pure values, validated once, at construction.

Tasks are indexed operator by operator in topological order; arrays elsewhere follow that index.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import Invalid

Partitioning = Literal["one-to-one", "split", "merge", "full"]
Inputs = Literal["independent", "correlated"]
PARTITIONINGS: tuple[Partitioning, ...] = ("one-to-one", "split", "merge", "full")
INPUTS: tuple[Inputs, ...] = ("independent", "correlated")

MOST_TASKS = 1_000_000
"""Of one operator. More is a slip of the keyboard, and would fill the memory before anybody sees it."""


class Task(NamedTuple):
    """One parallel instance of an operator, written ``O3/0``."""

    operator: str
    number: int

    def __str__(self) -> str:
        return f"{self.operator}/{self.number}"


@dataclass(frozen=True, slots=True)
class Operator:
    """A node of the logical graph. ``rates`` and ``costs`` have one entry a task; a single number stands for all."""

    name: str
    parallelism: int = 1
    rates: tuple[float, ...] = ()
    costs: tuple[float, ...] = ()
    inputs: Inputs = "independent"
    stateful: bool = False

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name or "," in self.name or self.name != self.name.strip():
            raise Invalid(f"operator {self.name!r}: a name is needed, without '/', ',' or spaces around it")
        if self.parallelism < 1:
            raise Invalid(f"operator {self.name}: parallelism must be at least 1, got {self.parallelism}")
        if self.parallelism > MOST_TASKS:
            raise Invalid(f"operator {self.name}: parallelism must be at most {MOST_TASKS}, got {self.parallelism}")
        if self.inputs not in INPUTS:
            raise Invalid(f"operator {self.name}: inputs must be one of {', '.join(INPUTS)}, got {self.inputs!r}")
        for what in ("rates", "costs"):
            values = _per_task(f"operator {self.name}: {what}", getattr(self, what), self.parallelism)
            object.__setattr__(self, what, values)


@dataclass(frozen=True, slots=True)
class Stream:
    """An edge between two operators. ``weights``: the share of the keys that each downstream task owns."""

    source: str
    target: str
    partitioning: Partitioning
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.partitioning not in PARTITIONINGS:
            expected = ", ".join(PARTITIONINGS)
            raise Invalid(f"stream {self}: partitioning must be one of {expected}, got {self.partitioning!r}")

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Query:
    """An operator whose output users consume."""

    sink: str
    priority: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.priority) or self.priority < 0:
            raise Invalid(f"query {self.sink}: priority must be a finite number, 0 or more, got {self.priority}")


@dataclass(frozen=True)
class Topology:
    """Operators, streams and queries: a DAG, immutable. ``domains`` names groups of tasks that fail together."""

    operators: tuple[Operator, ...]
    streams: tuple[Stream, ...] = ()
    queries: tuple[Query, ...] = ()
    domains: Mapping[str, tuple[Task, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.operators:
            raise Invalid("operators: at least one is needed, got none")
        names = [operator.name for operator in self.operators]
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise Invalid(f"operator {twice}: this name is given twice; names must differ")
        object.__setattr__(self, "operators", tuple(self.operators))
        object.__setattr__(self, "streams", tuple(self._checked(stream) for stream in self.streams))
        pairs = [(stream.source, stream.target) for stream in self.streams]
        if len(set(pairs)) < len(pairs):
            twice_pair = next(pair for i, pair in enumerate(pairs) if pair in pairs[:i])
            raise Invalid(f"stream {' -> '.join(twice_pair)}: given twice; one stream joins two operators")
        object.__setattr__(self, "operators", self._sorted())
        self._check_reached()
        self._check_queries()
        self._check_domains()

    def _checked(self, stream: Stream) -> Stream:
        for end in (stream.source, stream.target):
            if end not in self.operator:
                raise Invalid(f"stream {stream}: unknown operator {end!r}; known: {_some(self.operator)}")
        if stream.source == stream.target:
            raise Invalid(f"stream {stream}: an operator cannot feed itself; the graph must have no cycle")
        n1, n2 = self.operator[stream.source].parallelism, self.operator[stream.target].parallelism
        fits, needs = {
            "one-to-one": (n1 == n2, "equal parallelism"),
            "merge": (n1 > n2, "more upstream than downstream tasks"),
            "split": (n1 < n2, "fewer upstream than downstream tasks"),
            "full": (True, ""),
        }[stream.partitioning]
        if not fits:
            raise Invalid(f"stream {stream}: {stream.partitioning} needs {needs}, got {n1} and {n2}")
        weights = _per_task(f"stream {stream}: weights", stream.weights, n2)
        if sum(weights) <= 0:
            raise Invalid(f"stream {stream}: weights must not all be 0")
        return Stream(stream.source, stream.target, stream.partitioning, weights)

    def _sorted(self) -> tuple[Operator, ...]:
        """Operators in topological order, ties in the order given (Kahn)."""
        waiting = {operator.name: 0 for operator in self.operators}
        for stream in self.streams:
            waiting[stream.target] += 1
        order = [name for name, count in waiting.items() if count == 0]
        for name in order:
            for stream in self.outputs_of(name):
                waiting[stream.target] -= 1
                if waiting[stream.target] == 0:
                    order.append(stream.target)
        if len(order) < len(waiting):
            raise Invalid(f"streams: the graph must have no cycle, found {' -> '.join(self._a_cycle(set(order)))}")
        return tuple(self.operator[name] for name in order)

    def _a_cycle(self, acyclic: set[str]) -> list[str]:
        name = next(operator.name for operator in self.operators if operator.name not in acyclic)
        path: list[str] = []
        while name not in path:
            path.append(name)
            name = next(stream.source for stream in self.inputs_of(name) if stream.source not in acyclic)
        return [name, *reversed(path[path.index(name) :])]

    def _check_reached(self) -> None:
        for operator in self.operators:
            fed = bool(self.inputs_of(operator.name))
            if not fed and self.streams and not self.outputs_of(operator.name):
                raise Invalid(f"operator {operator.name}: no source reaches it; it has no stream in or out")
            if not fed and operator.inputs == "correlated":
                raise Invalid(f"operator {operator.name}: no source reaches it; correlated inputs need a stream in")

    def _check_queries(self) -> None:
        queries = tuple(self.queries) or tuple(Query(operator.name) for operator in self.sinks)
        sinks = [query.sink for query in queries]
        for i, sink in enumerate(sinks):
            if sink not in self.operator:
                raise Invalid(f"query {sink}: unknown operator {sink!r}; known: {_some(self.operator)}")
            if sink in sinks[:i]:
                raise Invalid(f"query {sink}: this operator is named by two queries; one query an operator")
        if sum(query.priority for query in queries) <= 0:
            raise Invalid("queries: at least one needs a priority above 0, all are 0")
        object.__setattr__(self, "queries", queries)

    def _check_domains(self) -> None:
        domains = {str(name): tuple(tasks) for name, tasks in self.domains.items()}
        owner: dict[Task, str] = {}
        for name, tasks in domains.items():
            for task in tasks:
                if task not in self.index:
                    raise Invalid(f"domain {name}: unknown task {task}; {self._hint(task)}")
                if task in owner:
                    raise Invalid(f"domain {name}: task {task} is already in domain {owner[task]}; one domain a task")
                owner[task] = name
        object.__setattr__(self, "domains", domains)

    # The graph

    @cached_property
    def operator(self) -> Mapping[str, Operator]:
        return {operator.name: operator for operator in self.operators}

    @cached_property
    def _into(self) -> Mapping[str, tuple[Stream, ...]]:
        return _grouped(self.operators, self.streams, lambda stream: stream.target)

    @cached_property
    def _out_of(self) -> Mapping[str, tuple[Stream, ...]]:
        return _grouped(self.operators, self.streams, lambda stream: stream.source)

    def inputs_of(self, name: str) -> tuple[Stream, ...]:
        return self._into[name]

    def outputs_of(self, name: str) -> tuple[Stream, ...]:
        return self._out_of[name]

    def upstream_of(self, name: str) -> frozenset[str]:
        """The names of this operator and of every operator whose output reaches it."""
        found, waiting = {name}, [name]
        while waiting:
            for stream in self.inputs_of(waiting.pop()):
                if stream.source not in found:
                    found.add(stream.source)
                    waiting.append(stream.source)
        return frozenset(found)

    @property
    def sources(self) -> tuple[Operator, ...]:
        return tuple(operator for operator in self.operators if not self.inputs_of(operator.name))

    @property
    def sinks(self) -> tuple[Operator, ...]:
        return tuple(operator for operator in self.operators if not self.outputs_of(operator.name))

    # Tasks

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        return tuple(Task(operator.name, i) for operator in self.operators for i in range(operator.parallelism))

    @cached_property
    def index(self) -> Mapping[Task, int]:
        """The place of each task in ``tasks``."""
        return {task: place for place, task in enumerate(self.tasks)}

    @cached_property
    def span(self) -> Mapping[str, slice]:
        """Where each operator's tasks stand in ``tasks``."""
        spans, start = {}, 0
        for operator in self.operators:
            spans[operator.name] = slice(start, start + operator.parallelism)
            start += operator.parallelism
        return spans

    @cached_property
    def rates(self) -> NDArray[np.float64]:
        return np.array([rate for operator in self.operators for rate in operator.rates])

    @cached_property
    def costs(self) -> NDArray[np.float64]:
        return np.array([cost for operator in self.operators for cost in operator.costs])

    def senders(self, stream: Stream, receiver: int) -> range:
        """Indices of the upstream tasks that feed downstream task ``receiver`` of this stream."""
        n1, n2 = self.operator[stream.source].parallelism, self.operator[stream.target].parallelism
        match stream.partitioning:
            case "one-to-one":
                return range(receiver, receiver + 1)
            case "merge":
                return range(-(-receiver * n1 // n2), -(-(receiver + 1) * n1 // n2))
            case "split":
                return range(receiver * n1 // n2, receiver * n1 // n2 + 1)
            case "full":
                return range(n1)

    def receivers(self, stream: Stream, sender: int) -> range:
        """Indices of the downstream tasks that upstream task ``sender`` of this stream feeds."""
        n1, n2 = self.operator[stream.source].parallelism, self.operator[stream.target].parallelism
        match stream.partitioning:
            case "one-to-one":
                return range(sender, sender + 1)
            case "merge":
                return range(sender * n2 // n1, sender * n2 // n1 + 1)
            case "split":
                return range(-(-sender * n2 // n1), -(-(sender + 1) * n2 // n1))
            case "full":
                return range(n2)

    def task(self, written: str) -> Task:
        """The task written ``O3/0``; Invalid says what would be right."""
        name, slash, number = written.strip().rpartition("/")
        if not slash or not number.isdecimal():
            raise Invalid(f"task {written.strip()!r}: write OPERATOR/NUMBER, such as {self.tasks[0]}")
        task = Task(name, int(number))
        if task not in self.index:
            raise Invalid(f"unknown task {task}; {self._hint(task)}")
        return task

    def tasks_of(self, written: str | Iterable[str | Task]) -> tuple[Task, ...]:
        """Tasks from ``"O1/0,O2/1"``, or from a sequence of such names; duplicates are refused."""
        parts: Sequence[str | Task]
        parts = [part for part in written.split(",") if part.strip()] if isinstance(written, str) else list(written)
        tasks = tuple(self.task(str(part)) for part in parts)
        if len(set(tasks)) < len(tasks):
            raise Invalid(f"task {next(t for i, t in enumerate(tasks) if t in tasks[:i])}: named twice")
        return tasks

    def mask(self, tasks: Iterable[Task]) -> NDArray[np.bool_]:
        """A boolean for each task: is it among these?"""
        marks = np.zeros(len(self.tasks), np.bool_)
        marks[[self.index[task] for task in tasks]] = True
        return marks

    def _hint(self, task: Task) -> str:
        if task.operator in self.operator:
            return f"{task.operator} has tasks 0 to {self.operator[task.operator].parallelism - 1}"
        near = get_close_matches(task.operator, self.operator, n=1)
        return (f"did you mean {near[0]}/{task.number}? " if near else "") + f"operators: {_some(self.operator)}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but probably not meant."""
        wanted = {query.sink for query in self.queries}
        return tuple(
            f"operator {sink.name}: a sink that no query names; its output counts for nothing"
            for sink in self.sinks
            if sink.name not in wanted
        )


def _per_task(what: str, values: Sequence[float], count: int) -> tuple[float, ...]:
    """One finite number, 0 or more, for each task; all 1 when nothing is said."""
    if len(values) not in (0, count):
        raise Invalid(f"{what} must have {count} entries, one for each task, got {len(values)}")
    for value in values:
        if not math.isfinite(value) or value < 0:
            raise Invalid(f"{what} must be finite and 0 or more, got {value}")
    return tuple(float(value) for value in values) or (1.0,) * count


def _grouped(
    operators: Iterable[Operator], streams: Iterable[Stream], key: Callable[[Stream], str]
) -> Mapping[str, tuple[Stream, ...]]:
    groups: dict[str, list[Stream]] = {operator.name: [] for operator in operators}
    for stream in streams:
        groups[key(stream)].append(stream)
    return {name: tuple(members) for name, members in groups.items()}


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
