"""exact: the optimum by mixed-integer programming (HiGHS): one binary a goal, one share a part."""

from __future__ import annotations

import numpy as np

from holdfast.placement import affords, slack
from holdfast.recovery.demand import Demand, demand, plan_for, tasks_for, with_idle
from holdfast.recovery.density import densest_goals, extend
from holdfast.recovery.plan import RecoveryPlan
from holdfast.replication.solver import quiet
from holdfast.topology import Task, Topology

NAME = "exact"
TIME_LIMIT_S = 60.0


def exact(
    topology: Topology,
    failed: frozenset[Task],
    capacity: float,
    more: bool = False,
    *,
    time_limit_s: float = TIME_LIMIT_S,
) -> RecoveryPlan:
    """The optimum; or, when the solver runs out of time, the best plan known, with ``optimal`` False."""
    wanted = demand(topology, failed)
    if affords(capacity, float(wanted.costs.sum())):
        goals, proven = list(range(len(wanted.outputs))), True
    else:
        goals, proven = _solve(wanted, capacity, time_limit_s)
    chosen = with_idle(topology, wanted, capacity, tasks_for(wanted, goals))
    return plan_for(topology, wanted, capacity, NAME, chosen, optimal=proven)


def _solve(wanted: Demand, capacity: float, time_limit_s: float) -> tuple[list[int], bool]:
    """Maximise the priority of goals y over parts x with y_goal <= x_part and the cost of x within capacity.

    Only y need be binary: x is pushed up by y alone. The solver forgives small excess of capacity, we do not: a
    solution beyond what ``affords`` allows is cut off and the solver asked again.
    """
    # The solver takes longer to load than most questions to answer; the others do without it.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    count, parts = len(wanted.outputs), len(wanted.costs)
    needs = np.repeat(np.arange(count), np.diff(wanted.parts_of.starts))
    row = np.arange(len(needs))
    linked = csr_array(
        (
            np.concatenate([np.ones(len(row)), -np.ones(len(row))]),
            (np.concatenate([row, row]), np.concatenate([needs, count + wanted.parts_of.values])),
        ),
        shape=(len(row), count + parts),
    )
    limit = capacity + slack(capacity)
    fits = np.array([affords(capacity, _cost(wanted, (goal,))) for goal in range(count)])
    useful = np.zeros(parts)
    useful[wanted.parts_of.gather(np.flatnonzero(fits))[0]] = 1.0
    # Scaled so that all coefficients of what is affordable at all lie between 0 and 1.
    spends = np.concatenate([np.zeros(count), useful * wanted.costs / limit])
    value = np.concatenate([wanted.priorities / (wanted.priorities.max() or 1.0), np.zeros(parts)])
    constraints = [LinearConstraint(linked, ub=0.0), LinearConstraint(spends, ub=1.0)]
    while True:
        with quiet():
            result = milp(
                -value,
                integrality=np.concatenate([np.ones(count), np.zeros(parts)]),
                bounds=Bounds(0.0, np.concatenate([fits, useful])),
                constraints=constraints,
                # HiGHS' presolve has called plans optimal that brute force beats.
                options={"time_limit": time_limit_s, "mip_rel_gap": 0.0, "presolve": False},
            )
        chosen = tuple(int(goal) for goal in np.flatnonzero(result.x[:count] > 0.5)) if result.x is not None else ()
        if affords(capacity, _cost(wanted, chosen)):
            break
        cut = np.zeros(count + parts)
        cut[list(chosen)] = 1.0
        constraints.append(LinearConstraint(cut, ub=len(chosen) - 1))
    # What the priorities do not ask for may still fit: goals of priority 0.
    taken, _ = extend(wanted, capacity, [chosen])
    found = [int(goal) for goal in np.flatnonzero(taken[0])]
    if result.status == 0:
        return found, True
    known = densest_goals(wanted, capacity)
    return max(found, known, key=lambda goals: float(wanted.priorities[goals].sum())), False


def _cost(wanted: Demand, goals: tuple[int, ...]) -> float:
    parts = {int(part) for goal in goals for part in wanted.parts_of[goal]}
    return float(wanted.costs[sorted(parts)].sum()) if parts else 0.0
