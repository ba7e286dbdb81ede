"""The coordinator: events in, instructions out. No clock, thread, file or Spark in it; one driver carries its word out.

It is composed of parts that each own their fields. Every part hears every event, and the facts that come of it; then
decisions, in a fixed order, compare what is with what should be. None asks which event woke it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from holdfast.elasticity import Sample
from holdfast.recovery import Node
from holdfast.runtime.coordinator.answering import Before
from holdfast.runtime.coordinator.facts import Fact, Said, Told
from holdfast.runtime.coordinator.lanes import Memory
from holdfast.runtime.coordinator.parts import Parts
from holdfast.runtime.coordinator.promising import replicas_within
from holdfast.runtime.coordinator.snapshot import Snapshot
from holdfast.runtime.messages import Event, Halt, Instruction, ReplicasPlanned
from holdfast.runtime.settings import Settings
from holdfast.runtime.shape import Shape, routing_of
from holdfast.topology import Topology


class Coordinator:
    """See the module. ``checkpoint`` and ``head``: the newest durable checkpoint and journalled epoch (-1: none).

    ``topology`` as declared; ``shape``: the one in force, ``saved``: the one that the checkpoint was written in.
    ``before``: what is there of outputs.
    ``scalable``: operators whose state can be cut; those whose streams allow it when None. ``memory``: what came with
    the epochs so far, and what operators remember of it; ``measured``: what an earlier one had.
    """

    def __init__(
        self,
        topology: Topology,
        settings: Settings,
        checkpoint: int = -1,
        head: int = -1,
        *,
        shape: Shape | None = None,
        saved: Shape | None = None,
        before: Before | None = None,
        scalable: Collection[str] | None = None,
        memory: Memory | None = None,
        measured: Mapping[str, Any] | None = None,
    ) -> None:
        self.halted = False
        self.parts = Parts.found(
            topology,
            settings,
            checkpoint,
            head,
            shape or Shape(),
            saved or Shape(),
            before or Before(),
            scalable,
            memory,
        )
        self.parts.measurements.recall(measured or {})

    @property
    def decisions(self) -> tuple[Callable[[Parts], Said], ...]:
        """What is decided after every event, in this order."""
        parts = self.parts
        return (
            self._raise,
            parts.rescaling.split,
            parts.recovering.place,
            parts.replicating.copy,
            parts.replicating.move,
            parts.members.release,
            parts.rescaling.advance,
            parts.recovering.gain,
            parts.answering.run,
            parts.standing_in.run,
            parts.recovering.replay,
            parts.rescaling.replay,
            parts.checkpointing.take,
        )

    def handle(self, event: Event) -> list[Instruction]:
        """What to do, now that this has happened."""
        out: list[Instruction] = []
        if self.halted:
            return out
        self._tell(event, out)
        self.halted = any(isinstance(said, Halt) for said in out)
        for decide in self.decisions:
            for said in decide(self.parts) if self.parts.acting and not self.halted else ():
                self._tell(said, out) if isinstance(said, Fact) else out.append(said)
        return out

    def _tell(self, told: Told, out: list[Instruction]) -> None:
        """Every part hears it; then every part hears what comes of it, one fact after the other."""
        facts: list[Fact] = []
        for part in self.parts.all:
            for said in part.hear(told, self.parts):
                facts.append(said) if isinstance(said, Fact) else out.append(said)
        for fact in facts:
            self._tell(fact, out)

    def _raise(self, parts: Parts) -> Said:
        """Copies that have not come to the checkpoint begin from it."""
        parts.assignment.raise_to(parts.checkpointing.durable, parts.answering.head, parts.runs.replaying)
        return ()

    def check(self) -> None:
        """Assert what must always hold; the message tells what does not."""
        wrong = [each for part in self.parts.all for each in part.check(self.parts)] if not self.halted else []
        if wrong:
            raise AssertionError("; ".join(wrong))

    # What others may know

    def snapshot(self) -> Snapshot:
        """Everything that others may know, as it is now."""
        return Snapshot.of(self.parts)

    @property
    def declared(self) -> Topology:
        return self.parts.declared

    @property
    def topology(self) -> Topology:
        return self.parts.assignment.topology

    @property
    def outputs(self) -> frozenset[str]:
        """The operators whose output somebody gets."""
        return self.parts.answering.outputs

    def measured(self) -> dict[str, Any]:
        """Rates and costs measured so far, as JSON."""
        return self.parts.measurements.to_json()

    def replicas_within(self, budget: float) -> Callable[[], ReplicasPlanned] | None:
        """Works out what to replicate within this budget and where, by what was measured so far; None: not now."""
        return replicas_within(self.parts, budget)

    def drift(self, then: Topology) -> float:
        """How much rates have changed since then, as a share of all rows."""
        return self.parts.measurements.drift(then)

    def rated(self) -> Topology:
        """The topology with the rates measured so far."""
        return self.parts.measurements.topology()

    def samples(self, operator: str) -> dict[int, Sample]:
        """How the load of an operator's tasks lies over their keys, by what they reported."""
        routing = routing_of(self.declared, self.parts.rescaling.shape, operator)
        return self.parts.measurements.samples(operator, routing)

    def loads(self, capacity: float) -> list[Node]:
        """The live nodes with what they carry, but for those that are leaving."""
        return self.parts.members.loads(capacity, self.parts)
