"""Fidelity-centric recovery: the best average answer on the way back, and the parts that it is made of."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from recovery_cases import failures, steady, topologies

from holdfast.fidelity import losses, minimal_trees, objectives, priorities
from holdfast.recovery import recover, schedule
from holdfast.recovery.completions import completions
from holdfast.recovery.frontier import Frontier
from holdfast.recovery.survival import marginals, survivals, values
from holdfast.recovery.topological import lone_damage
from holdfast.topology import Operator, Query, Stream, Task, Topology
from holdfast.topology.random import Knobs, random_topology


def joined() -> Topology:
    """O1 and O2, 4 tasks each, one-to-one into the join O3, then full into O4 with 2 tasks."""
    return Topology(
        (Operator("O1", 4), Operator("O2", 4), Operator("O3", 4, inputs="correlated"), Operator("O4", 2)),
        (
            Stream("O1", "O3", "one-to-one"),
            Stream("O2", "O3", "one-to-one"),
            Stream("O3", "O4", "full"),
        ),
    )


def test_the_first_step_completes_a_tree() -> None:
    plan = recover(joined(), "all", 4, "incremental")
    assert sorted(task.operator for task in plan.recover) == ["O1", "O2", "O3", "O4"]
    assert len({task.number for task in plan.recover if task.operator != "O4"}) == 1


def test_what_completes_nothing_is_kept_for_the_next_arrival() -> None:
    result = schedule(joined(), "all", arrivals=[3, 1], algorithm="incremental")
    assert [len(step.recover) for step in result.steps] == [0, 4]
    assert result.steps[1].fidelity == pytest.approx(1 / 8)


def test_a_live_sub_topology_takes_the_task_with_the_best_gain() -> None:
    """O4 lacks one of two tasks (doubles the answer for 1 unit), O3/3 one of four (a third more for 1 unit)."""
    assert [str(task) for task in recover(joined(), "O3/3,O4/1", 1, "incremental").recover] == ["O4/1"]


def test_a_cheap_tree_is_found_when_the_favoured_one_is_too_dear() -> None:
    topology = Topology(
        (
            Operator("S", 2, rates=(9.0, 1.0), costs=(10.0, 1.0)),
            Operator("Q", 1),
        ),
        (Stream("S", "Q", "merge"),),
    )
    assert [str(task) for task in recover(topology, "all", 2, "incremental").recover] == ["S/1", "Q/0"]


def test_what_is_to_come_is_saved_for_only_when_more_will_arrive() -> None:
    """Two units buy the weak branch W -> Q now; three buy the strong one, S -> T -> Q, ten times its worth."""
    topology = Topology(
        (
            Operator("W", 1, rates=(1.0,)),
            Operator("S", 1, rates=(10.0,)),
            Operator("T", 1, rates=(10.0,)),
            Operator("Q", 1),
        ),
        (Stream("W", "Q", "one-to-one"), Stream("S", "T", "one-to-one"), Stream("T", "Q", "one-to-one")),
    )
    assert [str(task) for task in recover(topology, "all", 2, "incremental").recover] == ["W/0", "Q/0"]
    assert recover(topology, "all", 2, "incremental", more=True).recover == ()
    result = schedule(topology, "all", arrivals=[2, 1, 1], algorithm="incremental")
    assert [[str(task) for task in step.recover] for step in result.steps] == [[], ["S/0", "T/0", "Q/0"], ["W/0"]]


def optimal_average(topology: Topology) -> float:
    """The best average fidelity of any order, one task an arrival: over all subsets of tasks."""
    count = len(topology.tasks)
    subsets = (np.arange(1 << count)[:, np.newaxis] >> np.arange(count) & 1).astype(np.bool_)
    fidelity = objectives(topology, ~subsets) / priorities(topology).sum()
    best = np.zeros(1 << count)
    for subset in range(1, 1 << count):
        best[subset] = fidelity[subset] + max(best[subset ^ 1 << i] for i in range(count) if subset >> i & 1)
    return float(best[-1]) / count


def test_incremental_is_close_to_the_best_order_there_is() -> None:
    ratios = []
    for seed in range(40):
        knobs = Knobs(operators=(3, 4), parallelism=(1, 3), joins=0.3, full=(0.0, 0.5, 1.0)[seed % 3], workload="zipf")
        topology = random_topology(seed, knobs)
        if len(topology.tasks) <= 9:
            arrivals = [1.0] * len(topology.tasks)
            result = schedule(topology, "all", arrivals=arrivals, algorithm="incremental")
            ratios.append(result.average_fidelity / optimal_average(topology))
    assert len(ratios) > 20
    assert max(ratios) <= 1 + 1e-9
    assert np.mean(ratios) > 0.98


def test_topological_follows_the_order_and_the_damage() -> None:
    topology = Topology(
        (Operator("S", 2, rates=(1.0, 3.0)), Operator("Q", 1)),
        (Stream("S", "Q", "merge"),),
    )
    assert [str(task) for task in recover(topology, "all", 1, "topological").recover] == ["S/1"]
    # Q is in reach only when both of its sources are back.
    assert [str(task) for task in recover(topology, "all", 2, "topological").recover] == ["S/0", "S/1"]
    assert lone_damage(topology, [0, 1, 2]) == pytest.approx([0.25, 0.75, 1.0])


@pytest.mark.parametrize(
    "knobs",
    [
        Knobs(),
        Knobs(joins=0.5),
        Knobs(full=1.0, parallelism=(1, 5)),
        Knobs(full=0.5, workload="zipf", costs="workload"),
        Knobs(operators=(8, 12), queries=(2, 4), joins=0.5, full=0.3),
    ],
    ids=["structured", "joins", "full", "mixed", "queries"],
)
def test_incremental_beats_topological_on_average(knobs: Knobs) -> None:
    means = {}
    for algorithm in ("incremental", "topological"):
        found = []
        for seed in range(6):
            topology = random_topology(seed, knobs)
            arrivals = [float(topology.costs.sum()) / 10] * 10
            found.append(schedule(topology, "all", arrivals=arrivals, algorithm=algorithm).average_fidelity)
        means[algorithm] = np.mean(found)
    assert means["incremental"] > means["topological"]


def test_the_first_trees_are_ranked_even_when_fidelity_rounds_to_nothing() -> None:
    """Twelve full operators of 50 tasks: one tree carries 50^-12 of the answer, far below the rounding of 1 - loss."""
    names = [f"O{number}" for number in range(12)]
    topology = Topology(
        tuple(Operator(name, 50, rates=tuple(range(1, 51))) for name in names),
        tuple(Stream(a, b, "full") for a, b in pairwise(names)),
    )
    plan = recover(topology, "all", 12, "incremental")
    assert [str(task) for task in plan.recover] == [f"{name}/49" for name in names]


def test_many_tasks_are_recovered_in_rounds_with_a_shortlist() -> None:
    """More failed tasks than the shortlist holds: still close to a plan that measures every candidate."""
    topology = random_topology(5, Knobs(operators=(8, 8), parallelism=(40, 40), joins=0.3, full=0.3))
    capacity = 0.4 * float(topology.costs.sum())
    plan = recover(topology, "all", capacity, "incremental")
    baseline = recover(topology, "all", capacity, "topological")
    lost = topology.mask(set(topology.tasks) - set(plan.recover))
    other = topology.mask(set(topology.tasks) - set(baseline.recover))
    value, compared = objectives(topology, np.stack([lost, other]))
    assert len(topology.tasks) > 300
    assert value > compared


@given(failures())
@steady
def test_survival_is_one_minus_loss(case: tuple[Topology, frozenset[Task], float]) -> None:
    topology, failed, _ = case
    lost = topology.mask(failed)[np.newaxis]
    assert survivals(topology, lost) == pytest.approx(1.0 - losses(topology, lost), abs=1e-12)
    assert values(topology, lost) == pytest.approx(objectives(topology, lost), abs=1e-9)


@given(failures())
@steady
def test_marginals_are_the_gains_of_single_tasks(case: tuple[Topology, frozenset[Task], float]) -> None:
    topology, failed, _ = case
    # Streams that meet again in a join make them an estimate.
    assume(all(operator.inputs == "independent" for operator in topology.operators))
    lost = topology.mask(failed)
    found = marginals(topology, lost)
    for place in np.flatnonzero(lost):
        after = lost.copy()
        after[place] = False
        gain = objectives(topology, np.stack([after, lost]))
        assert found[place] == pytest.approx(gain[0] - gain[1], abs=1e-9)


@given(topologies(), st.data())
@steady
def test_completions_are_the_lightest_trees(topology: Topology, data: st.DataObject) -> None:
    queries = tuple(query for query in topology.queries if query.priority > 0)
    topology = Topology(topology.operators, topology.streams, queries)
    # With two routes from one operator into a join, shared tasks are weighed twice.
    assume(all(operator.inputs == "independent" or _apart(topology, operator.name) for operator in topology.operators))
    weights = np.array([data.draw(st.sampled_from([0.0, 1.0, 2.5, 7.0])) for _ in topology.tasks])
    found = completions(topology, weights)
    trees = [frozenset(topology.index[task] for task in tree) for tree in minimal_trees(topology)]
    every = np.ones(len(topology.tasks), np.bool_)
    for place in range(len(topology.tasks)):
        through = [sum(weights[list(tree)]) for tree in trees if place in tree]
        assert found.weight[place] == pytest.approx(min(through, default=np.inf))
        if through:
            chosen = found.through(place, every)
            assert frozenset(chosen) in trees
            assert sum(weights[list(chosen)]) == pytest.approx(min(through))


def _apart(topology: Topology, name: str) -> bool:
    above = [topology.upstream_of(stream.source) for stream in topology.inputs_of(name)]
    return sum(map(len, above)) == len(frozenset().union(*above))


@given(failures())
@steady
def test_the_frontier_frees_every_task_after_its_upstream(case: tuple[Topology, frozenset[Task], float]) -> None:
    topology, failed, _ = case
    lost = {topology.index[task] for task in failed}
    frontier = Frontier(topology, lost)
    waiting = frontier.ready
    at = topology.span
    edges = [
        (at[s.source].start + up, at[s.target].start + down)
        for s in topology.streams
        for down in range(topology.operator[s.target].parallelism)
        for up in topology.senders(s, down)
    ]
    order = []
    for place in waiting:
        assert all(up in order for up, down in edges if down == place and up in lost)
        order.append(place)
        waiting += frontier.recover(place)
    assert sorted(order) == sorted(lost)


def test_tasks_of_no_worth_are_recovered_once_nothing_else_is_left() -> None:
    topology = Topology(
        (Operator("S"), Operator("Q", costs=(3.0,)), Operator("X", 2)),
        (Stream("S", "Q", "one-to-one"), Stream("S", "X", "split")),
        (Query("Q"),),
    )
    assert [str(task) for task in recover(topology, "all", 5, "incremental").recover] == ["S/0", "Q/0", "X/0"]
