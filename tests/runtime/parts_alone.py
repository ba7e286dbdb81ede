"""Parts without a coordinator: as a store was found, with what they say as a list."""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.runtime.coordinator.answering import Before
from holdfast.runtime.coordinator.facts import Fact, Told
from holdfast.runtime.coordinator.parts import Part, Parts
from holdfast.runtime.messages import Instruction, NodeInfo, Record, Report, Work
from holdfast.runtime.settings import Settings
from holdfast.runtime.shape import Shape
from holdfast.topology import Topology

Kind = TypeVar("Kind")
Words = list[Instruction | Fact]


def found(topology: Topology, checkpoint: int = -1, head: int = -1, **settings: Any) -> Parts:
    """The parts of a coordinator that has heard nothing yet."""
    return Parts.found(topology, Settings(**settings), checkpoint, head, Shape(), Shape(), Before(), None)


def heard(part: Part, told: Told, parts: Parts) -> Words:
    """What this part alone says to it, all told."""
    return list(part.hear(told, parts))


def only(kind: type[Kind], said: Words) -> Kind:
    chosen = [each for each in said if isinstance(each, kind)]
    assert len(chosen) == 1, f"one {kind.__name__} was expected in {said}"
    return chosen[0]


def kinds(said: Words) -> list[str]:
    """Names of what was said; records by what they record."""
    return [each.kind if isinstance(each, Record) else type(each).__name__ for each in said]


def nodes(*names: str, of: str = "1") -> dict[str, NodeInfo]:
    return {name: NodeInfo(of) for name in names}


def report(work: Work, status: Any = "committed", **named: Any) -> Report:
    reached = work.last if status == "committed" else work.start
    return Report(work.task, work.lane, work.node, status, reached, message=f"it is {status}", **named)
