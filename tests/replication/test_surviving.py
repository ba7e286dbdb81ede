"""Replicas planned with where they live: against brute force over all of both, and what a plan promises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise, product

import numpy as np
import pytest

from holdfast.errors import Infeasible, Invalid
from holdfast.fidelity import objectives, priorities
from holdfast.placement import Node, place
from holdfast.replication import Survive, SurvivingPlan, floor, plan, plan_surviving
from holdfast.topology import Knobs, Operator, Stream, Task, Topology, random_topology

CLOSE = 1e-9
BUDGET_SLACK = 0.02
"""Levels of cost do not depend on the budget, but the last polish does: so much less a larger budget may give."""


def by_brute_force(
    topology: Topology, budget: float, nodes: Sequence[Node], survive: Survive, homes: Mapping[Task, str]
) -> float:
    """The highest floor over every set of replicas within the budget and every way to place them."""
    names = [node.name for node in nodes]
    domains = [node.domain or node.name for node in nodes]
    at_home = {task: names.index(home) for task, home in homes.items()}
    open_to = [[-1, *(v for v in range(len(nodes)) if domains[v] != domains[home])] for home in at_home.values()]
    placings = np.array(list(product(*open_to)))
    costs = np.array([topology.costs[topology.index[task]] for task in homes])
    placings = placings[(placings >= 0) @ costs <= budget + CLOSE]
    if survive == "domain":
        losses = [[v for v in range(len(nodes)) if domains[v] == each] for each in dict.fromkeys(domains)]
    else:
        losses = [list(each) for each in combinations(range(len(nodes)), survive)]
    least = np.full(len(placings), np.inf)
    for lost in losses:
        gone = np.zeros(len(nodes) + 1, np.bool_)
        gone[[*lost, -1]] = True
        failed = np.zeros((len(placings), len(topology.tasks)), np.bool_)
        for column, (task, home) in enumerate(at_home.items()):
            failed[:, topology.index[task]] = gone[home] & gone[placings[:, column]]
        least = np.minimum(least, objectives(topology, failed) / priorities(topology).sum())
    return float(least.max())


def tiny(seed: int) -> tuple[Topology, float, list[Node], Survive] | None:
    """Two to seven tasks at risk, on three or four nodes, in racks or not; None where the seed gives other numbers."""
    draw = np.random.default_rng(seed)
    knobs = Knobs(
        operators=(2, 5), parallelism=(1, 3), queries=(1, 2), joins=(0.0, 0.7)[seed % 2],
        full=(0.0, 0.4, 1.0)[seed % 3], workload="zipf", skew=1.0, costs=("unit", "workload")[seed // 2 % 2],
    )  # fmt: skip
    topology = random_topology(seed, knobs)
    count = int(draw.integers(3, 5))
    nodes = [Node(f"n{i}", 100.0, domain=f"rack-{i % 3}" if seed % 4 == 3 else "") for i in range(count)]
    at_risk = sum(bool(topology.inputs_of(task.operator)) for task in topology.tasks)
    survive: Survive = "domain" if seed % 4 == 3 else int(draw.integers(1, count))
    budget = float(draw.integers(1, at_risk + 1)) if at_risk else 0.0
    return (topology, budget, nodes, survive) if 2 <= at_risk <= 7 else None


def check(topology: Topology, found: SurvivingPlan, nodes: Sequence[Node | str]) -> None:
    """Everything the plan says of itself, by other means."""
    domain = {n: n for n in nodes if isinstance(n, str)} | {
        n.name: n.domain or n.name for n in nodes if isinstance(n, Node)
    }
    several = len(set(domain.values())) > 1
    for task, replica in found.replicas.items():
        primary = found.placement[task][0]
        assert found.placement[task] == (primary, replica)
        assert primary != replica
        assert not several or domain[primary] != domain[replica]
    assert found.cost == pytest.approx(sum(topology.costs[topology.index[task]] for task in found.replicas))
    assert found.cost <= found.budget + CLOSE
    assert found.floor == floor(topology, found.placement, nodes, found.survive)


def test_nearly_every_plan_is_the_best_there_is() -> None:
    gaps = []
    for case in filter(None, map(tiny, range(75))):
        topology, budget, nodes, survive = case
        found = plan_surviving(topology, budget, nodes, survive)
        check(topology, found, nodes)
        homes = {task: copies[0] for task, copies in found.placement.items()}
        gaps.append(by_brute_force(topology, budget, nodes, survive, homes) - found.floor.fidelity)
    assert len(gaps) > 50
    assert min(gaps) >= -CLOSE
    assert sum(gap > CLOSE for gap in gaps) / len(gaps) <= 0.05
    assert np.mean(gaps) <= 0.003
    assert max(gaps) <= 0.1


def worst_fit_of_the_old_plan(
    topology: Topology, budget: float, nodes: Sequence[str], survive: Survive, homes: Mapping[Task, str]
) -> float:
    """The floor when replicas are chosen without regard to where they live, and placed as a running job places them."""
    load = dict.fromkeys(nodes, 0.0)
    for task, home in homes.items():
        load[home] += topology.costs[topology.index[task]]
    avoid = {task: [homes[task]] for task in plan(topology, budget).replicas if task in homes}
    there = [Node(name, 1e6, load[name], name) for name in nodes]
    placed = place(topology, avoid, there, 1.0, avoid).nodes
    copies = {task: (home, placed[task]) if task in placed else (home,) for task, home in homes.items()}
    return floor(topology, copies, nodes, survive).fidelity


@pytest.mark.parametrize("seed", [0, 3, 4, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 5))])
def test_never_below_the_old_plan_placed_by_worst_fit_and_more_budget_is_not_worse(seed: int) -> None:
    knobs = Knobs(
        operators=(4, 6), parallelism=(2, 4), joins=(0.0, 0.4)[seed % 2], full=(0.0, 0.4, 1.0)[seed % 3],
        workload="zipf", skew=0.7, costs=("unit", "workload")[seed // 2 % 2],
    )  # fmt: skip
    topology = random_topology(seed, knobs)
    nodes, survive = [f"n{i}" for i in range(5)], 1 + seed % 2
    total = sum(topology.costs[topology.index[task]] for task in topology.tasks if topology.inputs_of(task.operator))
    floors = []
    for step in range(5):
        found = plan_surviving(topology, total * step / 4, nodes, survive)
        check(topology, found, nodes)
        homes = {task: copies[0] for task, copies in found.placement.items()}
        old = worst_fit_of_the_old_plan(topology, found.budget, nodes, survive, homes)
        assert found.floor.fidelity >= old - CLOSE
        floors.append(found.floor.fidelity)
    assert all(after >= before - BUDGET_SLACK for before, after in pairwise(floors)), floors


LARGE = random_topology(3, Knobs(operators=(20, 20), parallelism=(10, 10), full=0.3, joins=0.2))
EIGHT = [f"n{i}" for i in range(8)]


def test_two_hundred_tasks_on_eight_nodes() -> None:
    found = plan_surviving(LARGE, 60, EIGHT, 2)
    check(LARGE, found, EIGHT)
    homes = {task: copies[0] for task, copies in found.placement.items()}
    assert found.floor.exact
    assert found.floor.fidelity > 0.45 > worst_fit_of_the_old_plan(LARGE, 60, EIGHT, 2, homes)
    assert found == plan_surviving(LARGE, 60, EIGHT, 2)
    again = plan_surviving(LARGE, 60, EIGHT, 2, homes, keep=found.replicas)
    assert sum(again.replicas.get(task) != name for task, name in found.replicas.items()) <= 3
    assert again.floor.fidelity >= found.floor.fidelity


def test_replicas_that_are_there_stay_when_the_budget_changes() -> None:
    topology = random_topology(5, Knobs(operators=(5, 5), parallelism=(3, 4), full=0.4))
    first = plan_surviving(topology, 6, EIGHT[:4], 1)
    homes = {task: copies[0] for task, copies in first.placement.items()}
    assert plan_surviving(topology, 6, EIGHT[:4], 1, homes, keep=first.replicas).replicas == first.replicas
    more = plan_surviving(topology, 8, EIGHT[:4], 1, homes, keep=first.replicas)
    assert more.floor.fidelity >= first.floor.fidelity
    fewer = plan_surviving(topology, 4, EIGHT[:4], 1, homes, keep=first.replicas)
    assert fewer.cost <= 4
    gone = {task: name for task, name in first.replicas.items() if name != "n3"}
    moved_off = {task: home if home != "n3" else "n0" for task, home in homes.items()}
    check(topology, plan_surviving(topology, 6, EIGHT[:3], 1, moved_off, keep={**gone, **first.replicas}), EIGHT[:3])


PAIR = Topology((Operator("S", 2), Operator("A", 2)), (Stream("S", "A", "one-to-one"),))
A0, A1 = Task("A", 0), Task("A", 1)


def test_a_replica_is_out_of_its_primarys_domain_where_there_is_another() -> None:
    racks = [Node("a1", 9.0, domain="a"), Node("a2", 9.0, domain="a"), Node("b1", 9.0, domain="b")]
    found = plan_surviving(PAIR, 2, racks, "domain", {A0: "a1", A1: "a2"})
    assert found.replicas == {A0: "b1", A1: "b1"}
    assert found.floor.fidelity == 1.0
    alone = plan_surviving(PAIR, 2, racks[:2], 1, {A0: "a1", A1: "a2"})
    assert alone.replicas == {A0: "a2", A1: "a1"}
    assert plan_surviving(PAIR, 2, racks[:1], 1, {A0: "a1"}).replicas == {}


def test_replicas_of_one_tree_apart_from_each_other_survive_no_loss_that_they_would_not_survive_together() -> None:
    """A tree is whole while each of its tasks has a copy: in two domains there are two whose loss breaks it."""
    tree = Topology((Operator("S"), Operator("A"), Operator("B")), (Stream("S", "A", "full"), Stream("A", "B", "full")))
    first, last = Task("A", 0), Task("B", 0)

    def left(homes: Sequence[str], lost: Sequence[str]) -> float:
        down = [task for task, home in zip((first, last), homes, strict=True) if {"x", home} <= set(lost)]
        return float(objectives(tree, tree.mask(down))[0])

    losses = [lost for count in range(4) for lost in combinations("xyz", count)]
    together, apart = ([left(homes, lost) for lost in losses] for homes in ("yy", "yz"))
    assert all(one >= other for one, other in zip(together, apart, strict=True)) and sum(together) > sum(apart)


def test_nodes_take_no_more_than_there_is_room_for() -> None:
    nodes = [Node("x", 2.0), Node("y", 2.0, load=0.5), Node("z", 1.0)]
    found = plan_surviving(PAIR, 2, nodes, 1, {A0: "x", A1: "x"})
    assert sorted(found.replicas.values()) == ["y", "z"]
    assert found.floor.fidelity == 1.0
    with pytest.raises(Infeasible, match="no room for 1 of 2 tasks, first A/1"):
        plan_surviving(PAIR, 2, [Node("x", 1.0)], 1)


def test_nothing_is_bought_for_what_cannot_be_lost_or_cannot_be_saved() -> None:
    assert plan_surviving(PAIR, 9, ["x", "y"], 0).replicas == {}
    everything = plan_surviving(PAIR, 9, ["x", "y"], 2)
    assert (everything.replicas, everything.floor.fidelity) == ({}, 0.0)
    assert plan_surviving(PAIR, 9, ["x", "y"], 1, {}).floor.fidelity == 1.0


def test_an_old_state_makes_a_replica_worth_less() -> None:
    bare = plan_surviving(PAIR, 0, ["x", "y"], 1, stale=0.2)
    assert bare.floor.fidelity == pytest.approx(0.9)
    first = [1.0, 1.0, 1.0, 0.1]
    assert plan_surviving(PAIR, 1, ["x", "y"], 1, stale=first).replicas.keys() == {A0}


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(Invalid, match="budget must be a finite number, 0 or more, got -1"):
        plan_surviving(PAIR, -1, ["x"], 1)
    with pytest.raises(Invalid, match="nodes: at least one is needed, got none"):
        plan_surviving(PAIR, 1, [], 1)
    with pytest.raises(Invalid, match="survive must be a number of nodes, 0 or more, or domain, got -2"):
        plan_surviving(PAIR, 1, ["x"], -2)
    with pytest.raises(Invalid, match="primary of A/0: lives on w, which is none of the 1 nodes"):
        plan_surviving(PAIR, 1, ["x"], 1, {A0: "w"})
    with pytest.raises(Invalid, match="replica of Z/0: unknown task"):
        plan_surviving(PAIR, 1, ["x"], 1, keep={Task("Z", 0): "x"})
