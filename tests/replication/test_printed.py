"""The paper's structure-aware algorithm as benchmarks/replication.py compares it: its choices by hand, and validity."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from holdfast.replication import plan, validate_plan
from holdfast.topology import Knobs, Operator, Query, Stream, Topology, random_topology

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("structure_aware_printed").printed


def chosen(found: Any) -> list[str]:
    return [str(task) for task in found.replicas]


def test_a_full_topology_has_one_task_of_each_operator_first_then_the_best_single_ones(printed: Any) -> None:
    topology = Topology(
        (Operator("A", 3, rates=(1, 3, 2)), Operator("B", 2)), (Stream("A", "B", "full"),), (Query("B"),)
    )
    assert chosen(printed(topology, 1)) == []
    assert chosen(printed(topology, 2)) == ["A/1", "B/0"]
    # A second task of B doubles the answer, the next of A adds two thirds to it.
    assert chosen(printed(topology, 3)) == ["A/1", "B/0", "B/1"]
    assert chosen(printed(topology, 4)) == ["A/1", "A/2", "B/0", "B/1"]


def test_a_segment_that_gains_nothing_alone_takes_connected_ones_along(printed: Any) -> None:
    """Merge into a join: the boundary above the join leaves each task of O1 a unit's segment of its own."""
    topology = Topology(
        (Operator("O1", 4, rates=(1, 1, 1, 5)), Operator("O2", 2), Operator("O3", 2, inputs="correlated")),
        (Stream("O1", "O3", "merge"), Stream("O2", "O3", "one-to-one")),
        (Query("O3"),),
    )
    assert chosen(printed(topology, 2)) == []
    assert chosen(printed(topology, 3)) == ["O1/3", "O2/1", "O3/1"]
    assert chosen(printed(topology, 4)) == ["O1/2", "O1/3", "O2/1", "O3/1"]


def test_with_several_queries_the_one_that_gains_most_for_its_cost_comes_first(printed: Any) -> None:
    operators = (Operator("A", 2), Operator("B", 2), Operator("C", 2))
    streams = (Stream("A", "B", "one-to-one"), Stream("B", "C", "one-to-one"))
    topology = Topology(operators, streams, (Query("A", 1), Query("C", 9)))
    assert chosen(printed(topology, 1)) == ["A/0"]
    assert chosen(printed(topology, 3)) == ["A/0", "B/0", "C/0"]


@pytest.mark.parametrize("seed", range(6))
def test_its_plans_are_valid_and_never_above_the_optimum(printed: Any, seed: int) -> None:
    joins = {"joins": 0.5, "full": 0.3} if seed % 2 else {}
    topology = random_topology(seed, Knobs(operators=(4, 6), parallelism=(1, 3), queries=(1, 3), **joins))
    budget = round(0.5 * len(topology.tasks))
    found, best = printed(topology, budget), plan(topology, budget, "exact")
    validate_plan(topology, found)
    assert best.optimal and found.objective <= best.objective + 1e-9
