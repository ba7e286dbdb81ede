"""The floor against brute force over every loss, and the search for the worst loss against looking at every one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise

import numpy as np
import pytest

from holdfast.errors import Invalid
from holdfast.fidelity import Stale, objectives, priorities
from holdfast.placement import Node
from holdfast.replication.floor import Survive, floor
from holdfast.topology import Knobs, Operator, Stream, Task, Topology, random_topology

CLOSE = 1e-9
Placement = Mapping[Task, Sequence[str]]


def left(topology: Topology, placement: Placement, lost: frozenset[str], stale: object = 1.0) -> float:
    failed = topology.mask(task for task, homes in placement.items() if set(homes) <= lost)
    return float(objectives(topology, failed, stale)[0] / priorities(topology).sum())


def by_brute_force(
    topology: Topology, placement: Placement, nodes: Sequence[Node], survive: Survive, stale: object
) -> float:
    domain = {node.name: node.domain or node.name for node in nodes}
    if survive == "domain":
        losses = [frozenset(name for name in domain if domain[name] == each) for each in set(domain.values())]
    else:
        losses = [frozenset(each) for each in combinations(domain, min(survive, len(domain)))]
    return min(left(topology, placement, lost, stale) for lost in losses)


def case(seed: int) -> tuple[Topology, Placement, list[Node], Survive, object]:
    """Up to seven nodes, in racks or not; tasks with none, one, two or three copies, and some that cannot fail."""
    draw = np.random.default_rng(seed)
    knobs = Knobs(operators=(2, 6), parallelism=(1, 4), queries=(1, 2), joins=0.4, full=0.4, workload="zipf", skew=1.0)
    topology = random_topology(seed, knobs)
    count = int(draw.integers(2, 8))
    nodes = [Node(f"n{i}", 1.0, domain=f"rack-{draw.integers(0, 3)}" if seed % 2 else "") for i in range(count)]
    placement = {
        task: [f"n{i}" for i in draw.permutation(count)[: draw.choice([0, 1, 1, 2, 2, 2, 3])]]
        for task in topology.tasks
        if draw.random() < 0.85
    }
    survive: Survive = "domain" if seed % 5 == 0 else int(draw.integers(0, count + 1))
    kept = draw.random((2, len(topology.tasks)))
    stale = (1.0, kept[0], Stale(kept, draw.random(kept.shape) * (1 - kept)))[seed % 3]
    return topology, placement, nodes, survive, stale


@pytest.mark.parametrize("seeds", [range(start, start + 50) for start in range(0, 100, 50)], ids=str)
def test_the_floor_is_what_brute_force_finds_however_it_is_found(seeds: range) -> None:
    for seed in seeds:
        topology, placement, nodes, survive, stale = case(seed)
        truth = by_brute_force(topology, placement, nodes, survive, stale)
        for enumerated in (5000, 0):
            found = floor(topology, placement, nodes, survive, stale, enumerated=enumerated)
            assert found.exact, seed
            assert found.fidelity == pytest.approx(truth, abs=CLOSE), seed
            assert left(topology, placement, found.worst, stale) == pytest.approx(truth, abs=CLOSE), seed
            assert survive == "domain" or len(found.worst) == min(survive, len(nodes))


@pytest.mark.parametrize("explored", [1, 10, 40])
def test_a_search_that_ends_early_says_what_it_could_not_rule_out(explored: int) -> None:
    early = 0
    for seed in range(60):
        topology, placement, nodes, survive, stale = case(seed)
        truth = by_brute_force(topology, placement, nodes, survive, stale)
        found = floor(topology, placement, nodes, survive, stale, enumerated=0, explored=explored)
        assert found.bound <= truth + CLOSE, seed
        assert found.fidelity >= truth - CLOSE, seed
        assert left(topology, placement, found.worst, stale) == pytest.approx(found.fidelity, abs=CLOSE), seed
        early += not found.exact
    assert early or explored > 1


def test_a_search_proves_the_worst_of_thirty_thousand_losses_without_looking_at_half_of_them() -> None:
    topology = random_topology(3, Knobs(operators=(20, 20), parallelism=(10, 10), full=0.3, joins=0.2))
    draw = np.random.default_rng(1)
    placement = {task: [f"n{i}" for i in draw.permutation(60)[:2]] for task in topology.tasks}
    names = [f"n{i}" for i in range(60)]
    found = floor(topology, placement, names, 3)
    assert found.exact
    assert found.sets < 34_220 / 2
    assert found.fidelity == floor(topology, placement, names, 3, enumerated=100_000).fidelity


def test_more_lost_is_never_better() -> None:
    for seed in range(40):
        topology, placement, nodes, _, stale = case(seed)
        found = [floor(topology, placement, nodes, lost, stale).fidelity for lost in range(len(nodes) + 2)]
        assert all(after <= before for before, after in pairwise(found)), seed
        assert found[-1] == found[-2]


CHAIN = Topology(
    (Operator("A", 2), Operator("B", 2), Operator("C")), (Stream("A", "B", "one-to-one"), Stream("B", "C", "full"))
)
A0, A1, B0, B1, C = CHAIN.tasks


def test_copies_on_the_two_nodes_that_die_are_no_copies() -> None:
    """Every task has two copies; both of C are on x and y. Without x or y nothing is missing, without both all is."""
    placement = {B0: ("x", "z"), B1: ("y", "z"), C: ("x", "y")}
    assert floor(CHAIN, placement, ["x", "y", "z"], 1).fidelity == 1.0
    both = floor(CHAIN, placement, ["x", "y", "z"], 2)
    assert (both.fidelity, both.worst, both.sets) == (0.0, frozenset({"x", "y"}), 3)
    apart = {B0: ("x", "z"), B1: ("y", "z"), C: ("x", "y", "z")}
    assert floor(CHAIN, apart, ["x", "y", "z"], 2).fidelity == 0.5


def test_a_domain_takes_all_its_nodes() -> None:
    placement = {B0: ("a1", "a2"), B1: ("b1", "a1"), C: ("b1", "a2")}
    nodes = [Node("a1", 1.0, domain="a"), Node("a2", 1.0, domain="a"), Node("b1", 1.0, domain="b")]
    found = floor(CHAIN, placement, nodes, "domain")
    assert (found.fidelity, found.worst) == (0.5, frozenset({"a1", "a2"}))
    assert floor(CHAIN, placement, ["a1", "a2", "b1"], "domain").fidelity == 1.0  # each is its own domain


def test_a_task_that_goes_on_from_an_old_state_loses_no_more_than_that() -> None:
    placement = {C: ("x",)}
    assert floor(CHAIN, placement, ["x", "y"], 1, stale=[1, 1, 1, 1, 0.25]).fidelity == 0.75
    assert floor(CHAIN, placement, ["x", "y"], 5, stale=0.25).fidelity == 0.75
    assert floor(CHAIN, {C: ()}, ["x", "y"], 0).fidelity == 0.0  # down already


def test_nodes_that_carry_nothing_fill_up_the_worst_loss() -> None:
    found = floor(CHAIN, {C: ("z",)}, ["x", "y", "z"], 2)
    assert (found.fidelity, found.worst) == (0.0, frozenset({"x", "z"}))
    assert floor(CHAIN, {}, ["x", "y", "z"], 2).fidelity == 1.0


def test_what_makes_no_sense_is_refused() -> None:
    for survive in (-1, "rack", True):
        with pytest.raises(Invalid, match=f"survive must be a number of nodes, 0 or more, or domain, got {survive!r}"):
            floor(CHAIN, {}, ["x"], survive)
    with pytest.raises(Invalid, match="C/0 lives on w, which is none of the 1 nodes"):
        floor(CHAIN, {C: ("w",)}, ["x"], 1)
    with pytest.raises(Invalid, match="unknown task Z/0"):
        floor(CHAIN, {Task("Z", 0): ("x",)}, ["x"], 1)
    with pytest.raises(Invalid, match=r"stale must be losses from 0 to 1, got 1\.5"):
        floor(CHAIN, {}, ["x"], 1, stale=1.5)
    with pytest.raises(Invalid, match="node x: named twice"):
        floor(CHAIN, {}, ["x", "x"], 1)
