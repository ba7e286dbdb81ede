"""structure-aware, the default: replicate what completes trees, best gain for its cost first (paper 000, section 4).

Local trees of the decomposed topology are the steps (candidates.py). Where the paper takes the densest one and never
looks back, every level of cost keeps the best plan found for it (ladder.py): plans climb by the best candidates, and
come down from full replication by dropping what is missed least, so an early choice can be undone. Several queries
need no special case: the objective is the fidelity of a virtual sink fed by all of them, and each is decomposed apart.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.replication.candidates import Candidates
from holdfast.replication.greedy import greedy, ranking
from holdfast.replication.ladder import Ladder, Rung
from holdfast.replication.problem import Assume, Bools, Floats, Problem, ReplicationPlan
from holdfast.topology import Topology

FEW_TASKS = 150
"""Up to so many tasks every number of tasks has its rung and the ladder is walked twice; above, rungs are coarser."""
RUNGS = 48
SINGLES = 4
TREES = 24
TREES_OF_MANY = 4
SHARE_DROPPED = 8
"""A step down over several tasks takes at most an eighth of an operator's replicas: losses of operators multiply."""


def structure_aware(topology: Topology, budget: float, assume: Assume = "all") -> ReplicationPlan:
    """The best plan of the ladder within the budget, with leftover budget spent, and never less than greedy's."""
    problem = Problem(topology, budget, assume)
    chosen = problem.useful(best_within(problem, climbed(problem)))
    mine = problem.plan("structure-aware", chosen)
    simple = greedy(topology, budget, assume)
    if simple.objective > mine.objective:
        return problem.plan("structure-aware", topology.mask(simple.replicas))
    return mine


def climbed(problem: Problem) -> Ladder:
    """The ladder of a topology; the budget plays no part in it."""
    tasks = int(problem.at_risk.sum())
    few = tasks <= FEW_TASKS
    uniform = len(set(problem.topology.costs[problem.at_risk].tolist())) <= 1
    ladder = Ladder(problem, max(tasks, 1) if few and uniform else max(RUNGS, 2 * tasks if few else 0))
    free = problem.at_risk & (problem.topology.costs <= 0)
    ladder.offer(np.stack([free, problem.at_risk], axis=1), problem.values(np.stack([free, problem.at_risk], axis=1)))
    _offer_prefixes(problem, ladder)
    candidates = Candidates(problem)
    for _ in range(2 if few else 1):
        for level in ladder.descending():
            _come_down(problem, ladder, ladder.at(level))
        for level in ladder.ascending():
            _climb(problem, ladder, candidates, ladder.at(level), TREES if few else TREES_OF_MANY)
    return ladder


def _offer_prefixes(problem: Problem, ladder: Ladder) -> None:
    """What greedy would take up to each rung: a start that single steps from nothing, or from everything, may miss."""
    order = ranking(problem)
    spent = np.cumsum(problem.topology.costs[order])
    tops = np.arange(1, int(ladder.total / ladder.width + 1e-6) + 1) * ladder.width
    plans = np.zeros((len(problem.topology.tasks), len(tops)), np.bool_)
    plans[order] = spent[:, np.newaxis] <= tops * (1 + 1e-9)
    values, useful = problem.useful_of(plans)
    ladder.offer(useful, values)


def best_within(problem: Problem, ladder: Ladder) -> Bools:
    """The best of the rungs within the budget, each with the tasks that help it most while they fit.

    From a given rung a larger budget adds to what a smaller one adds, and has more rungs to start from.
    """
    rungs = ladder.within(problem.limit)
    plans = np.stack([rung.plan for rung in rungs], axis=1)
    filled = plans.copy()
    single = plans.copy()
    for column, rung in enumerate(rungs):
        _, gains = problem.worths(rung.plan)
        room = problem.limit - rung.cost
        order = _by_density(problem, np.where(rung.plan, 0.0, gains))
        spent = np.cumsum(problem.topology.costs[order])
        filled[order[spent <= room], column] = True
        fitting = order[problem.topology.costs[order] <= room]
        if len(fitting):
            single[fitting[np.argmax(gains[fitting])], column] = True
    every = np.concatenate([plans, filled, single], axis=1)
    return np.asarray(every[:, int(np.argmax(problem.values(every)))])


def _climb(problem: Problem, ladder: Ladder, candidates: Candidates, rung: Rung, trees: int) -> None:
    """Offer the rung's plan with the best single tasks, and with the best candidates of the decomposition."""
    _, gains = problem.worths(rung.plan)
    order = _by_density(problem, np.where(rung.plan, 0.0, gains))
    spent = np.cumsum(problem.topology.costs[order])
    steps = _steps(order, int(np.searchsorted(spent, ladder.to_the_next(rung) * (1 + 1e-9), "right")))
    grown = np.repeat(rung.plan[:, np.newaxis], len(steps), axis=1)
    for column, step in enumerate(steps):
        grown[step, column] = True
    plans = np.concatenate([grown, candidates.extensions(rung.plan, trees)], axis=1)
    if plans.shape[1]:
        ladder.offer(plans, problem.values(plans))


def _come_down(problem: Problem, ladder: Ladder, rung: Rung) -> None:
    """Offer the rung's plan without what is missed least; what that leaves without use goes with it."""
    _, losses = problem.worths(rung.plan)
    held = np.flatnonzero(rung.plan & (problem.topology.costs > 0))
    order = held[np.argsort(losses[held] / problem.topology.costs[held], kind="stable")]
    order = _spread(problem, order)
    freed = np.cumsum(problem.topology.costs[order])
    steps = _steps(order, min(len(order), 1 + int(np.searchsorted(freed, ladder.to_the_one_below(rung) * (1 - 1e-9)))))
    if len(steps) > 1:
        steps += [np.array([place]) for place in held[np.argsort(losses[held], kind="stable")[:SINGLES]]]
    if not steps:
        return
    plans = np.repeat(rung.plan[:, np.newaxis], len(steps), axis=1)
    for column, step in enumerate(steps):
        plans[step, column] = False
    values, useful = problem.useful_of(plans)
    ladder.offer(useful, values)


def _steps(order: NDArray[np.int64], together: int) -> list[NDArray[np.int64]]:
    """The first few tasks one by one and some of the first together; where that is many, single ones are no step."""
    if together > SINGLES:
        return [order[:together]]
    steps = [order[place : place + 1] for place in range(min(SINGLES, len(order)))]
    return [*steps, order[:together]] if together > 1 else steps


def _spread(problem: Problem, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order without the tasks that would take too many of one operator at once; at least one of each stays."""
    operator = problem.operators[order]
    held = np.bincount(operator)
    ranked = np.argsort(operator, kind="stable")
    first = np.concatenate([[0], np.cumsum(held)])[operator[ranked]]
    place = np.empty(len(order), np.int64)
    place[ranked] = np.arange(len(order)) - first
    return np.asarray(order[place < np.maximum(1, held[operator] // SHARE_DROPPED)])


def _by_density(problem: Problem, gains: Floats) -> NDArray[np.int64]:
    """Tasks that gain anything, the most for their cost first; those that cost nothing before all."""
    helps = np.flatnonzero(gains > 0)
    density = gains[helps] / np.maximum(problem.topology.costs[helps], 1e-12)
    return np.asarray(helps[np.argsort(-density, kind="stable")])
