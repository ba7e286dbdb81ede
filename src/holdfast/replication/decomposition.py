"""A topology cut into sub-topologies, units and segments (paper 000, sections 4.1-4.3).

Sub-topologies are joined only by full streams, so what is chosen in one does not decide what connects in another. A
structured one has no full stream inside and is cut further into units, so that its segments (minimal complete trees
inside a unit) stay about as few as its tasks. In a full one every stream is full, and any live task connects to all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal

from holdfast.topology import Stream, Topology

Segment = tuple[int, ...]
"""Task indices (places in ``topology.tasks``), ascending."""

_Into = Mapping[str, Sequence[Stream]]
"""The streams that lead into each operator."""

CROWDED = 4
"""Segments per task above which a boundary is set whatever the partitioning: repeated diamonds would double them."""


@dataclass(frozen=True)
class Unit:
    """A part of a structured sub-topology and its segments."""

    operators: tuple[str, ...]
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class SubTopology:
    """Operators in topological order. ``links`` are the streams that join its units; a full one has neither."""

    kind: Literal["structured", "full"]
    operators: tuple[str, ...]
    units: tuple[Unit, ...] = ()
    links: tuple[Stream, ...] = ()


def decompose(topology: Topology, sink: str | None = None) -> tuple[SubTopology, ...]:
    """The sub-topologies of the whole, or of one query (its output operator and everything upstream), sources first.

    Operators joined by a stream that is not full belong together; what is left, joined by full streams alone, forms
    the full sub-topologies. Walks from the sinks that stop at full streams arrive at the same parts, and no split
    with full streams between the parts has fewer.
    """
    wanted = topology.upstream_of(sink) if sink is not None else frozenset(topology.operator)
    names = [operator.name for operator in topology.operators if operator.name in wanted]
    inside = [s for s in topology.streams if s.source in wanted and s.target in wanted]
    partial = [s for s in inside if s.partitioning != "full"]
    structured = {end for s in partial for end in (s.source, s.target)}
    full = [s for s in inside if s.source not in structured and s.target not in structured]
    parts = []
    for group in _connected(names, [*partial, *full]):
        if group[0] in structured:
            parts.append(_structured(topology, group, wanted))
        else:
            parts.append(SubTopology("full", group))
    return tuple(parts)


def _structured(topology: Topology, names: tuple[str, ...], wanted: Collection[str]) -> SubTopology:
    members = set(names)
    own = {
        name: [s for s in topology.inputs_of(name) if s.source in members and s.partitioning != "full"]
        for name in names
    }
    kept, links = _cut(topology, names, own)
    queries = {query.sink for query in topology.queries}
    units = []
    for group in _connected(names, [stream for name in names for stream in kept[name]]):
        within = {(s.source, s.target) for name in group for s in kept[name]}
        exits = [name for name in group if name in queries or _leads_out(topology, name, wanted, within)]
        units.append(Unit(group, _segments(topology, group, exits, kept)))
    return SubTopology("structured", names, tuple(units), tuple(links))


def _cut(topology: Topology, names: Sequence[str], streams: _Into) -> tuple[_Into, list[Stream]]:
    """Streams inside units, by where they lead, and streams that units are joined by.

    Several segments into one task must not meet a factor there: not the other inputs of a join, and not the several
    substreams out of a split. Then segments add up along a unit instead of multiplying.
    """
    splits = {s.source for own in streams.values() for s in own if s.partitioning == "split"}
    most = CROWDED * sum(topology.operator[name].parallelism for name in names)
    counts: dict[str, list[int]] = {}
    kept: dict[str, list[Stream]] = {}
    links: list[Stream] = []
    for name in names:
        join = topology.operator[name].inputs == "correlated" and len(topology.inputs_of(name)) > 1
        fans = {s: _fan(topology, s, counts[s.source]) for s in streams[name]}
        crowded = {s for s, fan in fans.items() if max(fan) > 1}
        cut = crowded if join or name in splits else set()
        counts[name] = _ending(topology, name, [fan for s, fan in fans.items() if s not in cut])
        if sum(counts[name]) > most:
            cut = crowded
            counts[name] = _ending(topology, name, [fan for s, fan in fans.items() if s not in cut])
        kept[name] = [s for s in fans if s not in cut]
        links += [s for s in fans if s in cut]
    return kept, links


def _fan(topology: Topology, stream: Stream, counts: Sequence[int]) -> list[int]:
    """How many segments come to each downstream task over this stream."""
    receivers = range(topology.operator[stream.target].parallelism)
    return [sum(counts[u] for u in topology.senders(stream, number)) for number in receivers]


def _ending(topology: Topology, name: str, fans: Sequence[Sequence[int]]) -> list[int]:
    """How many segments end in each task of an operator with these streams into it."""
    operator = topology.operator[name]
    if not fans:
        return [1] * operator.parallelism
    combine = prod if operator.inputs == "correlated" else sum
    return [combine(fan[number] for fan in fans) for number in range(operator.parallelism)]


def _leads_out(topology: Topology, name: str, wanted: Collection[str], within: Collection[tuple[str, str]]) -> bool:
    """Whether somebody outside of the unit waits for this operator's output: another unit, or nobody we know."""
    onward = [(s.source, s.target) for s in topology.outputs_of(name) if s.target in wanted]
    return not onward or any(ends not in within for ends in onward)


def _segments(topology: Topology, group: Sequence[str], exits: Sequence[str], kept: _Into) -> tuple[Segment, ...]:
    ending: dict[str, list[list[frozenset[int]]]] = {}
    for name in group:
        operator, start = topology.operator[name], topology.span[name].start
        streams = kept[name]
        ending[name] = []
        for number in range(operator.parallelism):
            own = frozenset((start + number,))
            choices = [
                [segment for u in topology.senders(s, number) for segment in ending[s.source][u]] for s in streams
            ]
            if not streams:
                found = [own]
            elif operator.inputs == "correlated":
                found = [own.union(*parts) for parts in product(*choices)]
            else:
                found = [own | segment for segments in choices for segment in segments]
            ending[name].append(found)
    unique = {tuple(sorted(segment)): None for name in exits for found in ending[name] for segment in found}
    return tuple(unique)


def _connected(names: Sequence[str], streams: Iterable[Stream]) -> list[tuple[str, ...]]:
    """Groups of operators joined by these streams; both groups and their members in the order of ``names``."""
    leader = {name: name for name in names}

    def find(name: str) -> str:
        while leader[name] != name:
            leader[name] = leader[leader[name]]
            name = leader[name]
        return name

    for stream in streams:
        leader[find(stream.target)] = find(stream.source)
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(find(name), []).append(name)
    return [tuple(group) for group in groups.values()]
