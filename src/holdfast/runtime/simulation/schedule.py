"""A fault schedule: everything that decides how a simulation goes. Two runs of one are the same, event for event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from holdfast.elasticity import Policy
from holdfast.errors import Invalid
from holdfast.runtime.faults import Fault, print_faults
from holdfast.runtime.settings import Settings
from holdfast.topology import Task, Topology


@dataclass(frozen=True, slots=True)
class Timing:
    """How long things take, in virtual seconds.

    ``interval``: how often a batch arrives; 0 for as soon as the last one is answered. ``run``, ``level``: overhead of
    a run and of each of its levels. ``unit``: one epoch of a task of cost 1 on a node of speed 1. ``restore``: to bring
    one task's state back. ``checkpoint``: to bring all states to the store. ``detect``: from a node's death until it is
    noticed. ``patience``: how long tasks stay down before the nodes that are there carry everything. ``restart``: until
    a driver that died is back. ``lag``: of background work, such as writing to the store. ``provision``: until a node
    that was asked for is there.
    """

    interval: float = 1.0
    run: float = 0.05
    level: float = 0.02
    unit: float = 0.01
    restore: float = 0.05
    checkpoint: float = 0.2
    detect: float = 0.1
    report: float = 0.005
    patience: float = 10.0
    restart: float = 2.0
    lag: float = 0.01
    provision: float = 5.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not 0 <= value < float("inf"):
                raise Invalid(f"timing: {each.name} must be 0 seconds or more, got {value}")
        if self.run + self.level <= 0:
            raise Invalid("timing: a run must take time, but run and level are both 0")


MishapKind = Literal[
    "refuse",
    "crash",
    "node crash",
    "power",
    "rewind",
    "flake",
    "sink",
    "sink storm",
    "listener",
    "local",
    "output",
    "changed",
    "log",
    "stop",
    "stopped in sink",
    "stopped at write",
]


@dataclass(frozen=True, slots=True)
class Mishap:
    """What goes wrong beside what fault scripts say, at a second of the world.

    refuse: the store's disk says no, once, ``count`` writes later. crash: the driver's process dies that many writes
    later; node crash: the first node's, at a write to the store. power: the machine with the store goes down, and what
    was not synced with it. rewind: the driver dies, and the store is put back to what it was ``count`` tenths of a
    second before. flake: ``count`` runs fail for no reason. sink: it raises ``count`` times; sink storm: until the job
    ends. listener: one raises from now on. local: a file of a node is not what was written any more; output: a final
    output is not, and the driver dies. changed: the driver dies, and is started with a pipeline that does something
    else; refused by name, it is started again as it was. log: the driver dies, and the newest batch of the source's own
    log is gone; refused, the log is put back. stop: the job is stopped in good order, and started again. stopped in
    sink, stopped at write: the driver's process stands still in the next call of its sink, or right before the write
    that is ``count`` writes later, until another driver has had time to take over; then it continues.
    """

    kind: MishapKind
    at: float
    count: int = 1

    def __str__(self) -> str:
        return f"{self.kind} {self.count} at {self.at:g}s"


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """``nodes``: how many there are at the start, in these ``domains``. ``replace``: a new node comes so many seconds
    after one was lost (None: nobody does). ``mishaps``: what goes wrong beside the nodes.
    ``seed`` draws what else is left to chance.
    """

    topology: Topology
    settings: Settings = field(default_factory=Settings)
    nodes: int = 4
    epochs: int = 20
    faults: tuple[Fault, ...] = ()
    timing: Timing = field(default_factory=Timing)
    domains: Mapping[str, str] = field(default_factory=dict)
    replace: float | None = None
    replans: tuple[tuple[float, tuple[Task, ...]], ...] = ()
    """When the planner chooses other tasks to replicate, and which."""
    scalings: tuple[tuple[float, str, int], ...] = ()
    """When somebody asks for another number of tasks of an operator, and how many."""
    drains: tuple[tuple[float, tuple[str, ...]], ...] = ()
    """When somebody can do without which nodes."""
    elastic: Policy | None = None
    """Scale by load, as this policy says."""
    mishaps: tuple[Mishap, ...] = ()
    late_listing: float = 0.0
    """Names are listed so many seconds after they were written."""
    answer_within: float | None = None
    """Seconds after which an epoch is late; None: by what is usual."""
    cores: int = 1
    """Of every node: so many of its works go on at once, in as many processes."""
    seed: int = 0
    longest: float = 1e6
    """Virtual seconds after which the simulation is given up."""

    def __post_init__(self) -> None:
        for what in ("nodes", "epochs"):
            if getattr(self, what) < 1:
                raise Invalid(f"simulation: {what} must be at least 1, got {getattr(self, what)}")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"node-{number}" for number in range(self.nodes))

    def told(self) -> str:
        """The schedule in a few lines."""
        settings = self.settings
        operators = ", ".join(
            f"{o.name} x{o.parallelism}{'' if o.stateful or not self.topology.inputs_of(o.name) else ' (stateless)'}"
            for o in self.topology.operators
        )
        streams = ", ".join(f"{s} {s.partitioning}" for s in self.topology.streams)
        lines = [
            f"operators: {operators}",
            f"streams: {streams}",
            f"queries: {', '.join(query.sink for query in self.topology.queries)}",
            f"nodes: {self.nodes}, epochs: {self.epochs}, replace: {self.replace}, seed: {self.seed}",
            f"recovery: {settings.recovery}, scheduler: {settings.scheduler}, capacity: {settings.capacity}, "
            f"checkpoint every {settings.checkpoint_every}, replay chunk {settings.replay_chunk}, "
            f"replicas: {', '.join(map(str, settings.replicas)) or 'none'}",
            f"timing: {self.timing}",
            f"replans: {[(at, [str(task) for task in tasks]) for at, tasks in self.replans] or 'none'}",
            f"scalings: {[(at, f'{name} to {to}') for at, name, to in self.scalings] or 'none'}, "
            f"parallel recovery: {settings.parallel_recovery}, rebalance: {settings.rebalance}, "
            f"standby: {settings.standby}",
            f"answer within: {self.answer_within}, cores: {self.cores}",
            f"drains: {[(at, list(nodes)) for at, nodes in self.drains] or 'none'}",
            f"domains: {dict(self.domains) or 'none'}",
            f"faults: {print_faults(self.faults) or 'none'}",
            f"mishaps: {'; '.join(map(str, self.mishaps)) or 'none'}, late listing: {self.late_listing}",
        ]
        return "\n".join(lines)
