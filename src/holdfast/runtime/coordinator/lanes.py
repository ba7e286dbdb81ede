"""The works of an epoch at hand: exact ones with their replicas, and tentative ones upon forks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.fidelity import arriving_losses, priorities, shares
from holdfast.runtime.coordinator.assignment import Assignment
from holdfast.runtime.coordinator.facts import Copy
from holdfast.runtime.coordinator.ledger import Ledger
from holdfast.runtime.coordinator.replay import Keep, feeding, upward
from holdfast.runtime.messages import Lane, Origin, Work
from holdfast.topology import Task, Topology

Mask = NDArray[np.bool_]
TOLD_APART = 64
"""Of so many epochs a fork knows what it got in each; of older ones, in all."""


@dataclass(frozen=True, slots=True)
class Fork:
    """A tentative branch of a task's state: the run that began it, the exact epoch it began from, how far it has come.

    ``given``: the rows that it got since, as (epoch, rows); of epochs that it missed there are none. Those of old
    epochs are one sum, under the first of them: who looks back to a later one does not count them.
    """

    number: int
    base: int
    reached: int
    given: tuple[tuple[int, float], ...] = ()

    def advanced(self, epoch: int, rows: float) -> Fork:
        """After one more epoch, of which so many rows came to it."""
        given = (*self.given, (epoch, rows))
        if len(given) > TOLD_APART:
            (since, first), (_, second), *later = given
            given = ((since, first + second), *later)
        return Fork(self.number, self.base, epoch, given)


@dataclass(frozen=True, slots=True)
class Memory:
    """What answers rest on: rows of epochs, and how far back operators with state look, in microseconds; None: all.

    ``lag``: by how many epochs the time of an epoch is older than its rows. 1 where sources go by the watermark of the
    stream, which is that of the rows before.
    """

    ledger: Ledger
    horizons: Mapping[str, int | None]
    lag: int = 0

    def told(self, operator: str, fork: Fork, given: float, epoch: int) -> float:
        """The fidelity of what a fork says of an epoch in which its input is ``given`` complete.

        The smaller of two: how much of the epoch's rows came to it, and how many of all rows that its answer rests on
        its state has seen; where parts of the answer look back to different epochs, of the worst of them.
        """
        return min(given, *(kept + fresh * given for kept, fresh in self.shares(operator, fork, epoch)))

    def shares(self, operator: str, fork: Fork, epoch: int) -> list[tuple[float, float]]:
        """Of the rows that an answer of a fork rests on, what it has seen before, and what comes with this epoch.

        A pair for each first epoch to which parts of the answer may look back, as far as it can be the worst.
        """
        firsts = self.ledger.since(epoch, self.horizons.get(operator))
        firsts = range(max(0, firsts.start - self.lag), firsts.stop)
        # Behind rows that it got, and before rows that it missed: nowhere else the share can be least.
        worst = {firsts[0], firsts[-1], fork.base + 1, *(at + 1 for at, _ in fork.given)}
        return [self._shares(first, fork, epoch) for first in sorted(worst) if first in firsts]

    def _shares(self, first: int, fork: Fork, epoch: int) -> tuple[float, float]:
        """If the answer rests on the rows from epoch ``first`` on."""
        ledger = self.ledger
        rested = ledger.rows(first, epoch)
        if rested <= 0:
            return 0.0, 1.0
        seen = float(ledger.rows(first, fork.base)) if fork.base >= first else 0.0
        seen += sum(rows for at, rows in fork.given if at >= first)
        return seen / rested, ledger.rows(max(first, epoch), epoch) / rested

    def knowing(self, epoch: int, rows: int, time: int | None) -> Memory:
        """The same, where so many rows are known to have come with the next epoch."""
        return replace(self, ledger=self.ledger.foreseeing(epoch, rows, time))


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
    topology: Topology,
    primaries: Mapping[Task, Copy],
    forks: Mapping[Task, Fork],
    exact: Mask,
    epoch: int,
    run: int,
    measured: Topology,
    memory: Memory,
    mute: Collection[Task],
    output_tasks: Collection[Task],
    dear: Collection[Task] = (),
) -> list[Work]:
    """Tasks that cannot be exact go on upon a fork, with what is left, if anything of the sources is.

    A fork begins from the newest exact state that there is: the node's own, or after a loss the last checkpoint; or it
    goes on where it was, if it has seen more. ``run`` names the forks that begin now; ``measured``: the topology with
    the rates by which fidelity is told; ``mute``: tasks that cannot cope with incomplete input; ``dear``: those whose
    state nobody waits for if it has to come from the store. Works that no query would hear are left out.
    """
    works: list[Work] = []
    loss = np.zeros((1, len(exact)))
    for operator in topology.operators if not exact.all() else ():
        if not topology.inputs_of(operator.name):
            continue
        span = topology.span[operator.name]
        left = 1.0 - arriving_losses(measured, measured.operator[operator.name], loss)[0]
        for number in range(operator.parallelism):
            index, given = span.start + number, min(1.0, float(left[number]))
            if exact[index]:
                continue
            task = topology.tasks[index]
            loss[0, index] = 1.0
            if task in mute or task not in primaries or given <= 0:
                continue
            copy, fork = primaries[task], forks.get(task)
            begun, told = Fork(run, copy.position, copy.position), given
            if operator.stateful:
                told = memory.told(task.operator, begun, given, epoch)
            goes_on = fork is not None and fork.reached >= copy.position
            if fork is not None and goes_on and operator.stateful:
                further = memory.told(task.operator, fork, given, epoch)
                goes_on, told = further >= told, max(further, told)
            if told <= 0 or (not goes_on and copy.fresh and task in dear):
                continue
            loss[0, index] = 1.0 - told
            origin: Origin = "local" if goes_on else "checkpoint" if copy.fresh else "fork"
            chosen = fork if fork is not None and goes_on else begun
            past = memory.ledger.time(epoch - 1) if chosen.reached < epoch - 1 or goes_on else None
            work = Work(task, copy.node, "tentative", origin, chosen.reached, epoch, epoch, fidelity=told)
            works.append(replace(work, given=given, past=past, fork=chosen.number))
    return _heard(topology, works, output_tasks)


def restamped(
    topology: Topology, works: Iterable[Work], forks: Mapping[Task, Fork], measured: Topology, memory: Memory
) -> tuple[Work, ...]:
    """Works of an epoch that has been read by now: tentative ones are worth what is known now, but never more than they
    were stamped with.

    They were laid out before anybody knew how many rows come, and how far time goes.
    """
    tentative = {work.task: work for work in works if work.lane == "tentative"}
    exact = topology.mask(work.task for work in works if work.lane == "exact")
    loss = np.zeros((1, len(exact)))
    for operator in topology.operators if tentative else ():
        if not topology.inputs_of(operator.name):
            continue
        span = topology.span[operator.name]
        left = 1.0 - arriving_losses(measured, measured.operator[operator.name], loss)[0]
        for number in range(operator.parallelism):
            index = span.start + number
            task = topology.tasks[index]
            loss[0, index] = 0.0 if exact[index] else 1.0
            if (work := tentative.get(task)) is None:
                continue
            given = min(work.given, float(left[number]))
            told = memory.told(operator.name, forked(work, forks), given, work.last) if operator.stateful else given
            tentative[task] = replace(work, given=given, fidelity=min(work.fidelity, told))
            loss[0, index] = 1.0 - tentative[task].fidelity
    return tuple(tentative[work.task] if work.lane == "tentative" else work for work in works)


def stamps_of(works: Iterable[Work]) -> dict[Task, float]:
    """What each tentative answer is worth."""
    return {work.task: work.fidelity for work in works if work.lane == "tentative"}


def forked(work: Work, forks: Mapping[Task, Fork]) -> Fork:
    """The fork that a tentative work went on with, or began."""
    fork = forks.get(work.task)
    return fork if fork is not None and fork.number == work.fork else Fork(work.fork, work.start, work.start)


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
