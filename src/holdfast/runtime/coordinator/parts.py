"""The parts of the coordinator under their names. Each reads the others; none but itself changes its fields."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from holdfast.runtime.coordinator.answering import Answering, Before
from holdfast.runtime.coordinator.assignment import Assignment
from holdfast.runtime.coordinator.checkpointing import Checkpointing
from holdfast.runtime.coordinator.facts import Said, Told
from holdfast.runtime.coordinator.giving_up import GivingUp
from holdfast.runtime.coordinator.lanes import Memory
from holdfast.runtime.coordinator.ledger import Ledger
from holdfast.runtime.coordinator.measurements import Measurements
from holdfast.runtime.coordinator.membership import Membership
from holdfast.runtime.coordinator.recovering import Recovering
from holdfast.runtime.coordinator.replicating import Replicating
from holdfast.runtime.coordinator.rescaling import Rescaling
from holdfast.runtime.coordinator.runs import Runs
from holdfast.runtime.coordinator.standing_in import StandingIn
from holdfast.runtime.settings import Settings
from holdfast.runtime.shape import Shape, reshaped
from holdfast.topology import Topology


class Part(Protocol):
    """``hear``: take in what happened, and say what follows at once. ``check``: what is wrong; nothing, ever."""

    def hear(self, told: Told, parts: Parts) -> Said: ...

    def check(self, parts: Parts) -> Iterable[str]: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """``declared``: the topology as it was before anything was scaled."""

    declared: Topology
    settings: Settings
    members: Membership
    assignment: Assignment
    runs: Runs
    answering: Answering
    standing_in: StandingIn
    giving_up: GivingUp
    recovering: Recovering
    replicating: Replicating
    rescaling: Rescaling
    checkpointing: Checkpointing
    measurements: Measurements

    @classmethod
    def found(
        cls,
        declared: Topology,
        settings: Settings,
        checkpoint: int,
        head: int,
        shape: Shape,
        saved: Shape,
        before: Before,
        scalable: Collection[str] | None,
        memory: Memory | None = None,
    ) -> Parts:
        """As a store was found: see the coordinator."""
        topology = reshaped(declared, shape)
        outputs = frozenset({query.sink for query in topology.queries} | {sink.name for sink in topology.sinks})
        return cls(
            declared,
            settings,
            Membership(),
            Assignment(topology),
            Runs(),
            Answering(outputs, head, shape.done, before),
            StandingIn(),
            GivingUp(),
            Recovering(settings, checkpoint, head),
            Replicating(settings.replicas, declared, topology, shape, checkpoint),
            Rescaling(declared, scalable, shape),
            Checkpointing(checkpoint, saved),
            Measurements(topology, memory or Memory(Ledger({}), {}), settings.capacity is None),
        )

    @property
    def all(self) -> tuple[Part, ...]:
        """In the order in which they hear: who is there, which copies live, what ran, and then who decides by it."""
        return (
            self.members,
            self.assignment,
            self.runs,
            self.answering,
            self.standing_in,
            self.giving_up,
            self.recovering,
            self.replicating,
            self.rescaling,
            self.checkpointing,
            self.measurements,
        )

    @property
    def acting(self) -> bool:
        """Whether anything can begin: somebody is there, and no shape is on its way to the store."""
        return bool(self.members.nodes) and self.rescaling.committing is None

    @property
    def quiet(self) -> bool:
        """Nothing is under way."""
        return not self.runs.under_way and self.checkpointing.taking is None and not self.answering.publishing

    @property
    def whole(self) -> bool:
        """Everything is up and has caught up."""
        assignment = self.assignment
        return assignment.all_up and not assignment.cold and assignment.caught_up(self.answering.head)

    @property
    def idle(self) -> bool:
        """Nothing is under way, and nothing is left that could be."""
        at_rest = self.quiet and self.answering.pending is None and self.rescaling.committing is None
        return at_rest and self.assignment.all_up and self.assignment.caught_up(self.answering.head)

    @property
    def retain(self) -> int:
        return min([self.checkpointing.durable, *(each.checkpoint for each in self.runs.under_way.values())])

    @property
    def forks(self) -> frozenset[int]:
        runs = (running.run for running in self.runs.under_way.values())
        begun = {work.fork for run in runs for work in run.works if work.lane == "tentative"}
        return frozenset(fork.number for fork in self.answering.forks.values()) | begun
