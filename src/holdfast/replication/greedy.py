"""greedy: the paper's baseline (paper 000, section 7.3). Ranks tasks alone and does not see what completes what."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from holdfast.replication.problem import Assume, Problem, ReplicationPlan
from holdfast.topology import Topology


def greedy(topology: Topology, budget: float, assume: Assume = "all") -> ReplicationPlan:
    """Tasks in the order of the fidelity lost when that one task fails alone, as long as the next one fits.

    It stops at the first that does not fit, rather than go on to cheaper ones, so that a larger budget always contains
    the plan of a smaller one.
    """
    problem = Problem(topology, budget, assume)
    order = ranking(problem)
    spent = np.cumsum(topology.costs[order])
    chosen = np.zeros(len(topology.tasks), np.bool_)
    chosen[order[spent <= problem.limit]] = True
    return problem.plan("greedy", chosen)


def ranking(problem: Problem) -> NDArray[np.int64]:
    """Tasks at risk, the one whose lone failure costs most first; ties in the order of the topology."""
    _, lost = problem.flow.worths(np.ones(len(problem.topology.tasks)))
    order = np.argsort(-np.round(lost[:, 0], 12), kind="stable")
    return order[problem.at_risk[order]]
