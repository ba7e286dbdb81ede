"""dynamic: the paper's optimal planner (paper 000, section 4): grows sets of minimal complete trees with the budget.

A replica is of use only as part of a whole tree, so the best plan is a union of trees. All unions that fit are visited,
cheapest first, each once. Their number grows exponentially, hence the two limits and a refusal beyond them.
"""

from __future__ import annotations

import heapq

import numpy as np

from holdfast.errors import Infeasible
from holdfast.fidelity import minimal_trees
from holdfast.replication.problem import Assume, Problem, ReplicationPlan
from holdfast.topology import Task, Topology

MOST_TREES = 200
MOST_UNIONS = 50_000


def dynamic(topology: Topology, budget: float, assume: Assume = "all") -> ReplicationPlan:
    """The optimum; Infeasible above MOST_TREES trees in the topology, or MOST_UNIONS unions of them in the budget."""
    problem = Problem(topology, budget, assume)
    try:
        trees = minimal_trees(topology, MOST_TREES)
    except Infeasible as error:
        raise Infeasible(f"dynamic: {error}; use exact or structure-aware") from None
    unions = _unions(problem, _pieces(problem, trees))
    plans = np.zeros((len(topology.tasks), len(unions)), np.bool_)
    for column, union in enumerate(unions):
        plans[[place for place in range(len(topology.tasks)) if union >> place & 1], column] = True
    values = np.round(problem.values(plans), 12)
    best = int(np.argmax(values))  # the first of equals: unions come cheapest first
    return problem.plan("dynamic", plans[:, best], True)


def _pieces(problem: Problem, trees: tuple[frozenset[Task], ...]) -> list[int]:
    """What of each tree needs replicas in some scenario, as bit sets; with domains a part of the tree may be enough."""
    topology, pieces = problem.topology, set()
    for tree in trees:
        places = [topology.index[task] for task in tree]
        for scenario in range(problem.risk.shape[1]):
            pieces.add(sum(1 << place for place in places if problem.risk[place, scenario]))
    return sorted(pieces - {0})


def _unions(problem: Problem, pieces: list[int]) -> list[int]:
    """Every union of pieces within the budget, cheapest first, the empty one included."""
    costs = problem.topology.costs.tolist()
    seen = {0}
    waiting = [(0.0, 0)]
    found = []
    while waiting:
        cost, union = heapq.heappop(waiting)
        found.append(union)
        for piece in pieces:
            fresh = piece & ~union
            grown = union | piece
            if not fresh or grown in seen:
                continue
            price = cost + sum(costs[place] for place in range(fresh.bit_length()) if fresh >> place & 1)
            if price > problem.limit:
                continue
            seen.add(grown)
            if len(seen) > MOST_UNIONS:
                raise Infeasible(
                    f"dynamic: more than {MOST_UNIONS} unions of {len(pieces)} minimal complete trees fit a budget "
                    f"of {problem.budget:g}; use exact or structure-aware"
                )
            heapq.heappush(waiting, (price, grown))
    return found
