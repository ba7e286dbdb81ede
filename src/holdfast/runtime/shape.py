"""The shape of a running job: which operators have other tasks by now than they were declared with, and whose keys.

Pure. A task whose interval of the ring stays keeps its number and goes on untouched; the others are *changed*: built
anew. A topology or a pipeline follows from what was declared and the shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from holdfast.elasticity import Sample, evenly
from holdfast.errors import Invalid
from holdfast.operators import Pipeline, Step
from holdfast.operators.pipeline import WATERMARK
from holdfast.state import KeyRange, Routing
from holdfast.topology import Stream, Task, Topology


@dataclass(frozen=True, slots=True)
class Shape:
    """``routings``: of operators that were scaled, others are as declared. ``born``: the version since which a changed
    task has the keys it has (0 for all others). ``done``: up to which epoch the output of its keys was published
    before, by the tasks that had them then.
    """

    version: int = 0
    routings: Mapping[str, Routing] = field(default_factory=dict)
    born: Mapping[Task, int] = field(default_factory=dict)
    done: Mapping[Task, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "routings": {name: routing.to_json() for name, routing in self.routings.items()},
            "born": {str(task): version for task, version in self.born.items()},
            "done": {str(task): epoch for task, epoch in self.done.items()},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Shape:
        try:
            shape = cls(
                int(content["version"]),
                {name: Routing.from_json(each) for name, each in content["routings"].items()},
                {_task(name): int(version) for name, version in content["born"].items()},
                {_task(name): int(epoch) for name, epoch in content["done"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Invalid(f"shape: expected version, routings, born and done, got {content!r:.200}") from error
        for name, routing in shape.routings.items():
            if sorted(routing.owners) != list(range(len(routing.owners))):
                raise Invalid(f"shape: the tasks of {name} must be numbered from 0 on, got {routing.owners!r:.100}")
        return shape

    def without(self, operators: Iterable[str]) -> Shape:
        """The same with these operators as declared."""
        gone = set(operators)
        return Shape(
            self.version,
            {name: routing for name, routing in self.routings.items() if name not in gone},
            {task: version for task, version in self.born.items() if task.operator not in gone},
            {task: epoch for task, epoch in self.done.items() if task.operator not in gone},
        )


def _task(written: str) -> Task:
    name, _, number = written.rpartition("/")
    return Task(name, int(number))


# Routings


def declared_routing(topology: Topology, name: str) -> Routing:
    """Who owns which keys of an operator as long as nobody scaled it."""
    count = topology.operator[name].parallelism
    full = next((stream for stream in topology.inputs_of(name) if stream.partitioning == "full"), None)
    return Routing.weighted(full.weights) if full is not None and count > 1 else Routing.even(count)


def routing_of(declared: Topology, shape: Shape, name: str) -> Routing:
    return shape.routings.get(name) or declared_routing(declared, name)


def renumbered(before: Routing, ranges: Sequence[KeyRange]) -> Routing:
    """The next version with these ranges, numbered so that as few tasks as possible change.

    A range that is there already keeps its number if it is still a number; one that begins where an old one began takes
    that one's; the rest take what is free, the lowest first.
    """
    same = dict(zip(before.ranges, before.owners, strict=True))
    begins = {part.lo: owner for part, owner in same.items()}
    owners: dict[KeyRange, int] = {}
    for part in ranges:
        if same.get(part, len(ranges)) < len(ranges):
            owners[part] = same[part]
    for part in ranges:
        wanted = begins.get(part.lo, len(ranges))
        if part not in owners and wanted < len(ranges) and wanted not in owners.values():
            owners[part] = wanted
    free = iter(sorted(set(range(len(ranges))) - set(owners.values())))
    numbers = tuple(owners[part] if part in owners else next(free) for part in ranges)
    return Routing(before.version + 1, tuple(ranges), numbers)


def resized(before: Routing, to: int, samples: Mapping[int, Sample] | None = None) -> Routing:
    """As even as it can be with so many tasks while every cut is kept (more) or none is new (fewer).

    Even by width, or by load if there are ``samples`` of the load of every task.
    """
    if not samples or set(samples) != set(before.owners):
        return renumbered(before, evenly(before, to).ranges)
    hashes = np.concatenate([hashes for hashes, _ in samples.values()])
    weights = np.concatenate([np.ones(len(h)) if w is None else w for h, w in samples.values()])
    return renumbered(before, evenly(before, to, hashes, weights).ranges)


def changed(before: Routing, after: Routing) -> tuple[int, ...]:
    """Numbers that own other keys afterwards, or have just come into being."""
    old = dict(zip(before.owners, before.ranges, strict=True))
    return tuple(sorted(n for n, part in zip(after.owners, after.ranges, strict=True) if old.get(n) != part))


def parents(before: Routing, part: KeyRange) -> tuple[int, ...]:
    """The tasks that owned some of these keys."""
    return tuple(owner for owner, _ in before.overlapping(part))


def grown(
    declared: Topology, shape: Shape, name: str, routing: Routing, version: int, published: Mapping[Task, int]
) -> Shape:
    """The shape in which this operator has this routing; ``published``: how far each old task's output had come."""
    before = routing_of(declared, shape, name)
    anew = changed(before, routing)
    there = set(routing.owners)

    def kept(marks: Mapping[Task, int]) -> dict[Task, int]:
        return {t: mark for t, mark in marks.items() if t.operator != name or t.number in there - set(anew)}

    of = dict(zip(routing.owners, routing.ranges, strict=True))
    done = {
        Task(name, number): max(published.get(Task(name, old), -1) for old in parents(before, of[number]))
        for number in anew
    }
    born = {Task(name, number): version for number in anew}
    return Shape(version, {**shape.routings, name: routing}, {**kept(shape.born), **born}, {**kept(shape.done), **done})


# What follows from a shape


def reshaped(declared: Topology, shape: Shape) -> Topology:
    """The topology in this shape. Rates and costs are shared out by keys, so that their sums stay."""
    if not shape.routings:
        return declared
    operators = []
    for operator in declared.operators:
        routing = shape.routings.get(operator.name)
        if routing is None:
            operators.append(operator)
            continue
        shares = _shares(declared_routing(declared, operator.name), routing)
        operators.append(
            replace(
                operator,
                parallelism=len(shares),
                rates=tuple(sum(operator.rates[old] * share for old, share in each) for each in shares),
                costs=tuple(sum(operator.costs[old] * share for old, share in each) for each in shares),
            )
        )
    index = {operator.name: operator.parallelism for operator in operators}
    domains = {
        name: tuple(task for task in tasks if task.number < index[task.operator])
        for name, tasks in declared.domains.items()
    }
    return Topology(
        tuple(operators), tuple(_stream(stream, shape) for stream in declared.streams), declared.queries, domains
    )


def _shares(before: Routing, after: Routing) -> list[list[tuple[int, float]]]:
    """For each task the share of each declared task's keys that it has."""
    shares: list[list[tuple[int, float]]] = [[] for _ in after.owners]
    for number, part in zip(after.owners, after.ranges, strict=True):
        for old, whole in zip(before.owners, before.ranges, strict=True):
            width = min(part.hi, whole.hi) - max(part.lo, whole.lo)
            if width > 0:
                shares[number].append((old, width / whole.width))
    return shares


def _stream(stream: Stream, shape: Shape) -> Stream:
    if stream.target in shape.routings:
        return replace(stream, partitioning="full", weights=_weights(shape.routings[stream.target]))
    return replace(stream, partitioning="full") if stream.source in shape.routings else stream


def _weights(routing: Routing) -> tuple[float, ...]:
    widths = {owner: part.width for owner, part in zip(routing.owners, routing.ranges, strict=True)}
    return tuple(widths[number] / 2**32 for number in range(len(widths)))


def reshaped_pipeline(pipeline: Pipeline, shape: Shape) -> Pipeline:
    """The pipeline in this shape: the same functions, other tasks."""
    if not shape.routings:
        return pipeline
    topology = reshaped(pipeline.topology, shape)

    def step(each: Step) -> Step:
        inputs = []
        for given in each.inputs:
            stream = next(s for s in topology.inputs_of(each.name) if s.source == given.source)
            inputs.append(replace(given, partitioning=stream.partitioning, weights=stream.weights))
        operator = topology.operator[each.name]
        return replace(each, parallelism=operator.parallelism, costs=operator.costs, inputs=tuple(inputs))

    return Pipeline(*(step(each) for each in pipeline.steps))


# What can be scaled


def why_not(topology: Topology, name: str) -> str | None:
    """What keeps an operator from being scaled, as far as streams tell; None if nothing does."""
    if name not in topology.operator:
        return f"operator {name!r}: unknown; operators: {', '.join(topology.operator)}"
    if not topology.inputs_of(name):
        return (
            f"operator {name}: a source is read wherever Spark has room and is not scaled; give its stream partitions"
        )
    weights = set()
    for stream in (*topology.inputs_of(name), *topology.outputs_of(name)):
        if stream.partitioning != "full" and topology.operator[stream.target].parallelism > 1:
            return (
                f"operator {name}: stream {stream} is {stream.partitioning}, so its tasks belong together in pairs; "
                f"only operators between full streams can be scaled"
            )
        if stream.target == name:
            weights.add(stream.weights)
    if len(weights) > 1 or any(weight <= 0 for each in weights for weight in each):
        return f"operator {name}: its input streams share out keys with different weights, or weights of 0"
    return None


def check_scalable(pipeline: Pipeline, name: str) -> None:
    """Invalid, naming the stream or the table, for an operator that cannot be scaled."""
    if why := why_not(pipeline.topology, name):
        raise Invalid(why)
    step = pipeline.by_name[name]
    tables = pipeline.state_schemas(name)
    for given in step.inputs:
        if not given.key:
            why = "its state cannot be cut" if tables else "rows that belong together would be parted and swapped"
            raise Invalid(
                f"operator {name}: stream {given.source} -> {name} has no key, so {why}; "
                f"say stream({given.source!r}, key=...)"
            )
    for table, schema in tables.items():
        if table != WATERMARK and stream_key(pipeline, name, schema.key.names) is None:
            raise Invalid(
                f"operator {name}, table {table!r}: its key ({', '.join(schema.key.names) or 'none'}) does not hold "
                f"the key of an input stream, so its rows cannot be cut"
            )


def scalable(pipeline: Pipeline) -> frozenset[str]:
    """The operators that can be scaled."""

    def can(name: str) -> bool:
        try:
            check_scalable(pipeline, name)
        except Invalid:
            return False
        return True

    return frozenset(step.name for step in pipeline.steps if can(step.name))


def stream_key(pipeline: Pipeline, name: str, columns: Sequence[str]) -> tuple[str, ...] | None:
    """The key of an input stream of an operator that these columns hold, by which its rows belong to tasks."""
    step = pipeline.by_name[name]
    for given in step.inputs:
        whole = step.parallelism == 1 or pipeline.input(name, given.source).partitioning == "full"
        if whole and given.key and set(given.key) <= set(columns):
            return given.key
    return None
