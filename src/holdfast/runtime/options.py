"""What a job can be asked for beyond its pipeline: options that belong together are one value, checked when it is made.

``holdfast.start`` and ``resilience`` of a query's writer take these values, and each of their fields by its name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from operator import index
from typing import Any, Literal, NamedTuple, TypedDict

from holdfast.elasticity import Policy
from holdfast.errors import Invalid, instead
from holdfast.runtime.domains import Domains, Given
from holdfast.runtime.faults import Fault
from holdfast.runtime.settings import Failover, RecoveryMode, check
from holdfast.state import Sync
from holdfast.topology import Task

Survive = int | Literal["domain"]
Elasticity = Policy | Mapping[str, Any] | bool
"""A policy, what departs from the usual one, or whether to have the usual one at all."""


def _known(named: str, given: Mapping[str, Any], names: Iterable[str]) -> None:
    if unknown := [name for name in given if name not in names]:
        raise Invalid(f"{named} {unknown[0]!r}: {instead(unknown[0], names, 'there are')}")


def _listed(group: object, name: str, needed: str, kind: type | tuple[type, ...]) -> None:
    """Whatever was given becomes a tuple, so that it can be read again."""
    given = getattr(group, name)
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (None,)
    if not all(isinstance(each, kind) for each in found):
        raise Invalid(f"{name} must be a list of {needed}, got {given!r:.80}")
    object.__setattr__(group, name, found)


@dataclass(frozen=True, slots=True)
class Replication:
    """Which tasks have a second live copy. ``replicas``: these; or ``budget``: so many average tasks' worth of copies,
    chosen by the replication planner from declared rates and costs, and again from measured ones after a few epochs.

    ``survive``: a budget is spent so that the answer is worth the most whichever so many nodes are lost, or whichever
    domain (``"domain"``); when None two, or one where there are only two or three. ``domains``: what fails together:
    ``"host"``, a mapping of nodes or hosts to domains, a JSON or YAML file with one, or a script that is called with
    hosts and prints a domain for each; a copy of a task lives in another domain.
    """

    budget: float | None = None
    replicas: Iterable[Task | str] = ()
    survive: Survive | None = None
    domains: Given | Domains = None

    def __post_init__(self) -> None:
        _listed(self, "replicas", 'tasks, such as ["counts/0"]', (Task, str))
        check(self, "budget", lambda tasks: isfinite(tasks) and tasks >= 0, "a finite number, 0 or more")
        check(self, "survive", lambda n: n == "domain" or index(n) >= 1, "a number of nodes, 1 or more, or domain")
        if self.budget is not None and self.replicas:
            raise Invalid("replicas and budget: give one of them; a budget lets the planner choose the replicas")
        self.apart()

    def apart(self) -> Domains:
        """What tells who fails together."""
        return self.domains if isinstance(self.domains, Domains) else Domains(self.domains)


@dataclass(frozen=True, slots=True)
class Scaling:
    """What is done about the load. ``elastic``: operators are scaled out and in by the load that their tasks report, as
    a policy says (True: the usual one; a mapping: what departs from it), with up to ``max_nodes`` nodes; ``pool``: at
    least so many of them stand by without tasks. ``shed_above``: an epoch may take so many seconds; rows beyond that
    are left out and counted, for sources that cannot wait.
    """

    elastic: Elasticity = False
    max_nodes: int | None = None
    pool: int = 0
    shed_above: float | None = None

    def __post_init__(self) -> None:
        check(self, "elastic", lambda by: isinstance(by, (bool, Mapping, Policy)), "a bool, a mapping or a Policy")
        check(self, "max_nodes", lambda n: index(n) >= 1, "at least 1")
        check(self, "pool", lambda n: index(n) >= 0, "0 or more nodes")
        check(self, "shed_above", lambda seconds: seconds > 0, "more than 0 seconds")
        if isinstance(self.elastic, Mapping):
            _known("elastic", self.elastic, [each.name for each in fields(Policy)])
            Policy(**self.elastic)


@dataclass(frozen=True, slots=True)
class Storage:
    """What is kept, and how. ``checkpoint_every``: so many epochs; when None ten, and fewer as long as the job is
    young: after 2 epochs, then whenever a fifth of all epochs is in none. ``outputs``: False keeps no output files.
    ``memory_limit``: bytes of state that a table may hold in memory before it spills. ``sync``: what is forced to the
    platter before it counts. ``force``: take the store over from a job that still holds it. ``allow_changed``:
    operators that do something else than they did when the store was written, and begin anew. ``storage_options``: for
    the client of a store by URL, such as credentials that are not in the environment; never told nor written down.
    ``spark_log``: where Spark keeps its own log of the stream, if not in the store. ``lease``: seconds without a sign
    of life after which another machine's job may take the store over, 30 when None. ``standby``: wait as long as
    another job holds the store, then take over.
    """

    checkpoint_every: int | None = None
    outputs: bool = True
    memory_limit: int | None = None
    sync: Sync | None = None
    force: bool = False
    allow_changed: Iterable[str] = ()
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    spark_log: str | None = None
    lease: float | None = None
    standby: bool | None = None

    def __post_init__(self) -> None:
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            raise Invalid(
                f"storage_options must be a mapping of names to values, got {type(self.storage_options).__name__}"
            )
        for name, value in (self.storage_options or {}).items():
            try:
                json.dumps({name: value})
            except (TypeError, ValueError):
                raise Invalid(
                    f"storage_options {name!r}: a text, a number, true or false, or a list or mapping of these is "
                    f"needed, since it travels to other processes, got a value of type {type(value).__name__}"
                ) from None
        check(self, "spark_log", lambda given: isinstance(given, str) and given != "", "a path or URL")
        _listed(self, "allow_changed", 'names of operators, such as ["counts"]', str)
        check(self, "lease", lambda seconds: isfinite(seconds) and seconds > 0, "more than 0 seconds")
        if self.force and self.standby:
            raise Invalid("force and standby: give one of them; who waits for a store does not take it by force")
        check(self, "checkpoint_every", lambda epochs: index(epochs) >= 1, "at least 1")
        check(self, "memory_limit", lambda size: index(size) >= 0, "a number of bytes, 0 or more")
        check(self, "sync", lambda given: isinstance(given, Sync), "a holdfast.state.Sync")


@dataclass(frozen=True, slots=True)
class Drill:
    """For trials. ``faults``: what shall go wrong; ``rejoin_after``: seconds after which a lost logical node comes
    back. ``verify``: run every epoch twice and refuse a function whose answer differs.
    """

    faults: Iterable[Fault] = ()
    rejoin_after: float | None = None
    verify: bool = False

    def __post_init__(self) -> None:
        _listed(self, "faults", "faults, as parse_faults of holdfast.runtime.faults makes them", Fault)
        check(self, "rejoin_after", lambda seconds: seconds >= 0, "0 seconds or more")


Group = Replication | Failover | Scaling | Storage | Drill


class Flat(TypedDict, total=False):
    """The fields of all groups, by which they can be given one by one."""

    budget: float | None
    replicas: Iterable[Task | str]
    survive: Survive | None
    domains: Given | Domains
    recovery: RecoveryMode
    scheduler: str
    capacity: float | None
    ceiling: float
    patience: float
    parallel_recovery: int
    rebalance: bool
    answer_within: str | float | None
    elastic: Elasticity
    max_nodes: int | None
    pool: int
    shed_above: float | None
    checkpoint_every: int | None
    outputs: bool
    memory_limit: int | None
    sync: Sync | None
    force: bool
    allow_changed: Iterable[str]
    storage_options: Mapping[str, Any] | None
    spark_log: str | None
    lease: float | None
    standby: bool | None
    faults: Iterable[Fault]
    rejoin_after: float | None
    verify: bool


class Options(NamedTuple):
    """One value of each group."""

    replication: Replication = Replication()
    failover: Failover = Failover()
    scaling: Scaling = Scaling()
    storage: Storage = Storage()
    drill: Drill = Drill()

    def taking(self, groups: Sequence[Group], flat: Flat, named: str) -> Options:
        """These options with groups in place of those there, then fields; ``named``: who was called with them."""
        _known(named, flat, Flat.__annotations__)
        given: dict[type, Group] = {type(group): group for group in groups}
        if len(given) < len(groups) or not given.keys() <= {type(group) for group in self}:
            there, found = (", ".join(type(group).__name__ for group in some) for some in (self, groups))
            raise Invalid(f"{named}: options come by name or as one each of {there}, got {found}")
        made: list[Any] = [given.get(type(group), group) for group in self]
        return Options(*(replace(group, **{k: v for k, v in flat.items() if k in group.__slots__}) for group in made))
