"""The works of an epoch at hand: exact ones with their replicas, and tentative ones upon forks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.fidelity import losses, priorities, shares
from holdfast.runtime.coordinator.assignment import Assignment
from holdfast.runtime.coordinator.facts import Copy
from holdfast.runtime.coordinator.replay import Keep, feeding, upward
from holdfast.runtime.messages import Lane, Origin, Work
from holdfast.topology import Task, Topology

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Fork:
    """A tentative branch of a task's state: the run that began it, the exact epoch it began from, how far it has come.

    ``given``: the fidelity of its input, summed over the epochs since; one that it missed counts nothing.
    """

    number: int
    base: int
    reached: int
    given: float


def exact_works(assignment: Assignment, exact: Mask, epoch: int, keep: Keep) -> list[Work]:
    """Tasks that can process this epoch exactly, and such of their replicas as can; ``keep``: whose outputs stay."""
    topology, works = assignment.topology, []
    wanting = np.zeros_like(exact)
    if keep != "none":
        wanting = feeding(topology, np.ones_like(exact) if keep == "all" else ~exact)
    for task in assignment.tasks:
        if not exact[topology.index[task]]:
            continue
        kept = bool(wanting[topology.index[task]])
        for name, copy in (("exact", assignment.primaries[task]), ("replica", assignment.replicas.get(task))):
            if copy is not None and copy.position == epoch - 1:
                origin: Origin = "checkpoint" if copy.fresh else "local"
                lane: Lane = "exact" if name == "exact" else "replica"
                works.append(Work(task, copy.node, lane, origin, epoch - 1, epoch, epoch, kept and lane == "exact"))
    return works


def tentative_works(
    assignment: Assignment,
    forks: Mapping[Task, Fork],
    exact: Mask,
    epoch: int,
    run: int,
    measured: Topology,
    mute: Collection[Task],
    output_tasks: Collection[Task],
) -> list[Work]:
    """Live tasks with incomplete input go on upon a fork, with what is left, if anything of the sources is.

    ``run`` names the forks that begin now; ``measured``: the topology with the rates by which fidelity is told;
    ``mute``: tasks that cannot cope with incomplete input. Works that no query would hear are left out.
    The fidelity of an answer is that of all that its fork was given since it began, on average over the epochs: when
    everything upstream is back, what was missed meanwhile is missing still.
    """
    topology = assignment.topology
    able = [
        task
        for task in assignment.tasks
        if not exact[topology.index[task]]
        and task in assignment.primaries
        and task not in assignment.cold
        and task not in mute
    ]
    if not able:
        return []
    absent = set(assignment.tasks) - set(able)
    left = 1.0 - losses(measured, topology.mask(task for task in absent if not exact[topology.index[task]]))[0]
    works = []
    for task in able:
        given = float(left[topology.index[task]])
        if given <= 0:
            continue
        copy, fork = assignment.primaries[task], forks.get(task)
        origin: Origin = "local"
        if fork is None or fork.reached < copy.position:
            fork, origin = Fork(run, copy.position, copy.position, 0.0), "checkpoint" if copy.fresh else "fork"
        told = (fork.given + given) / (epoch - fork.base)
        start, number = fork.reached, fork.number
        works.append(Work(task, copy.node, "tentative", origin, start, epoch, epoch, fidelity=told, fork=number))
    return _heard(topology, works, output_tasks)


def answered(measured: Topology, works: Iterable[Work]) -> tuple[float, dict[str, float]]:
    """The fidelity of an epoch's answers, over all queries by priority and of each, from what its sinks were told.

    Each task of a query counts by its rate: wholly where it is exact, by its stamp where tentative, else not at all.
    """
    told = np.zeros(len(measured.tasks))
    for work in works:
        if work.lane in ("exact", "tentative"):
            told[measured.index[work.task]] = work.fidelity if work.lane == "tentative" else 1.0
    return _over_queries(measured, told)


def caught_up(measured: Topology, primaries: Mapping[Task, Copy], epoch: int) -> float:
    """The fidelity of what tasks have said of an epoch that is past: those count that are exact up to it."""
    told = np.zeros(len(measured.tasks))
    for task, copy in primaries.items():
        told[measured.index[task]] = copy.position >= epoch
    return _over_queries(measured, told)[0]


def _over_queries(measured: Topology, told: NDArray[np.float64]) -> tuple[float, dict[str, float]]:
    values = [
        float(told[measured.span[query.sink]] @ shares(measured.rates[measured.span[query.sink]]))
        for query in measured.queries
    ]
    weights = priorities(measured)
    names = [query.sink for query in measured.queries]
    return float(weights @ values / weights.sum()), dict(zip(names, values, strict=True))


def _heard(topology: Topology, works: list[Work], output_tasks: Collection[Task]) -> list[Work]:
    """Those of these tentative works that an answer comes of: the others would talk to the dead."""
    index, heard = topology.index, np.zeros(len(topology.tasks), np.int64)
    ours = topology.mask(work.task for work in works)
    heard[[index[work.task] for work in works if work.task in output_tasks]] = 1
    for operator in reversed(topology.operators):
        span = topology.span[operator.name]
        for stream in topology.outputs_of(operator.name):
            down = heard[topology.span[stream.target]]
            heard[span] |= upward(topology, stream, down, np.maximum, 0) * ours[span]
    return [work for work in works if heard[index[work.task]]]
