"""Costs from measurements: a task's share of its node's load by the tuples it processed."""

from __future__ import annotations

import pytest

from holdfast.errors import Invalid
from holdfast.recovery import measured_costs, with_costs
from holdfast.topology import Operator, Task, Topology

A, B, C = (Task("O", number) for number in range(3))


def test_a_task_costs_its_share_of_the_nodes_load() -> None:
    costs = measured_costs({"n0": 80.0, "n1": 10.0}, {A: 300, B: 100, C: 7}, {A: "n0", B: "n0", C: "n1"})
    assert costs == {A: 60.0, B: 20.0, C: 10.0}


def test_idle_tasks_share_evenly_and_unmeasured_nodes_are_left_out() -> None:
    assert measured_costs({"n0": 4.0}, {C: 5}, {A: "n0", B: "n0", C: "n1"}) == {A: 2.0, B: 2.0}


def test_costs_of_a_node_add_up_to_its_load() -> None:
    costs = measured_costs({"n0": 7.0}, {A: 1, B: 0, C: 2}, {A: "n0", B: "n0", C: "n0"})
    assert sum(costs.values()) == pytest.approx(7.0)
    assert costs[B] == 0


def test_measured_costs_replace_those_of_the_topology() -> None:
    topology = Topology((Operator("O", 3, costs=(1.0, 2.0, 3.0)),))
    assert with_costs(topology, {B: 9.0}).operators[0].costs == (1.0, 9.0, 3.0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: measured_costs({"n0": -1.0}, {}, {}), "usage of node n0 must be a finite number, 0 or more, got -1.0"),
        (lambda: measured_costs({}, {A: float("nan")}, {A: "n0"}), "tuples of task O/0 must be a finite number"),
        (lambda: measured_costs({}, {A: 1}, {}), "tuples of task O/0: it is on no node"),
        (lambda: with_costs(Topology((Operator("O"),)), {B: 1.0}), "cost of unknown task O/1"),
    ],
)
def test_bad_measurements_are_refused(make: object, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        make()
    assert said in str(caught.value)
