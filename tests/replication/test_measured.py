"""Plans by measurement: against brute force, at both ends of the weight, and where it and fidelity disagree."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Invalid
from holdfast.fidelity import output_fidelity
from holdfast.replication import PLANNERS, validate_plan
from holdfast.replication.measured import compared, impact_removed, plan_by_measurement, shares
from holdfast.topology import Operator, Stream, Topology

PLANNER = PLANNERS["dynamic"]


def chain(parallelism: tuple[int, ...] = (1, 2, 1), costs: tuple[float, ...] = ()) -> Topology:
    names = [f"O{place}" for place in range(len(parallelism))]
    each = costs or (1.0,) * len(names)
    operators = [Operator(n, p, costs=(c,) * p) for n, p, c in zip(names, parallelism, each, strict=True)]
    streams = [Stream(a, b, "full") for a, b in pairwise(names)]
    return Topology(tuple(operators), tuple(streams))


def best_of_all(topology: Topology, budget: float, impacts: dict[str, float], weight: float) -> float:
    """Every set of replicas within the budget."""
    worth, best = shares(topology, impacts), 0.0
    for taken in product([False, True], repeat=len(topology.tasks)):
        chosen = np.array(taken)
        if topology.costs[chosen].sum() <= budget + 1e-9:
            lost = [task for task, kept in zip(topology.tasks, taken, strict=True) if not kept]
            fidelity = output_fidelity(topology, lost).fidelity
            best = max(best, weight * impact_removed(topology, chosen, worth) + (1 - weight) * fidelity)
    return best


@given(
    st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 2)),
    st.integers(0, 7),
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
)
@settings(deadline=None, derandomize=True, max_examples=12)
def test_close_to_brute_force(parallelism: tuple[int, ...], budget: int, impacts: list[int], weight: float) -> None:
    topology = chain(parallelism)
    measured = {f"O{place}": float(impact) for place, impact in enumerate(impacts)}
    found = plan_by_measurement(topology, budget, measured, PLANNER, weight=weight)
    validate_plan(topology, found.plan)
    best = best_of_all(topology, budget, measured, weight)
    assert found.value <= best + 1e-9
    assert found.value >= 0.75 * best - 1e-9
    if weight == 0:
        assert found.plan.fidelity == pytest.approx(PLANNER(topology, budget).fidelity)


def test_the_dearest_impact_is_protected_first() -> None:
    topology = chain((1, 2, 1))
    impacts = {"O0": 1.0, "O1": 9.0, "O2": 5.0}
    found = plan_by_measurement(topology, 2, impacts, PLANNER, weight=1.0)
    assert [str(task) for task in found.plan.replicas] == ["O1/0", "O1/1"]
    assert found.impact_removed == pytest.approx(0.6)
    assert found.plan.fidelity == 0.0
    # With one unit O1 cannot be protected as a whole, so O2 is.
    assert [str(t) for t in plan_by_measurement(topology, 1, impacts, PLANNER, weight=1.0).plan.replicas] == ["O2/0"]
    # Everything: both are content.
    whole = plan_by_measurement(topology, 4, impacts, PLANNER)
    assert (whole.impact_removed, whole.plan.fidelity, whole.value) == (1.0, 1.0, 1.0)


def test_where_they_disagree() -> None:
    topology = chain((1, 2, 1))
    rows = compared(topology, {"O0": 1.0, "O1": 9.0, "O2": 5.0})
    assert [(each.operator, each.impact_rank, each.fidelity_rank) for each in rows] == [
        ("O1", 1, 1), ("O2", 2, 1), ("O0", 3, 1)
    ]  # fmt: skip
    assert {each.fidelity_lost for each in rows} == {1.0}


def test_nothing_measured_is_no_reason_to_replicate() -> None:
    found = plan_by_measurement(chain(), 2, {"O0": 0.0}, PLANNER, weight=1.0)
    assert (found.plan.replicas, found.impact_removed) == ((), 0.0)


def test_bad_input() -> None:
    with pytest.raises(Invalid, match="operator 'X' was assessed, but the topology has: O0, O1, O2"):
        plan_by_measurement(chain(), 1, {"X": 1.0}, PLANNER)
    with pytest.raises(Invalid, match="--weight must lie between 0"):
        plan_by_measurement(chain(), 1, {}, PLANNER, weight=2.0)
